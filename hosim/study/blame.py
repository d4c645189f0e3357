"""The causes of each stall: the transfer, its channel, the transfers that occupied the channel, and
a remedy.

They come from the timeline of one replay, which blames each stall on something (docs/contract.md,
rule 8). The main stream's stalls that are blamed on a channel therefore add up to its
``exposed_ns``. The main stream's drain counts as a wait for the rest of the step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hosim import engine
from hosim.analysis import canonical_places
from hosim.analysis.slack import PathPart, spent_ns, step_path
from hosim.base.groups import grouped, summed
from hosim.cache_plan import Plan
from hosim.data.folded_parts import folded, tensors_of
from hosim.errors import InfeasibleError
from hosim.hardware import Hardware
from hosim.processors import tier_of
from hosim.result import Result, Stall, Timeline, Transfer
from hosim.timeline import Traffic, blamed, occupancy, occupied_ns
from hosim.units import human_rate, human_size, human_time

if TYPE_CHECKING:
    from pandas import DataFrame

_NAMED = 3
"""The number of tensors to name before "and ... more"."""
DRAIN = "drain"
"""The cause of the wait of the main stream after its last op (docs/contract.md, rule 8)."""
_FASTER = 10
"""The largest factor on a channel's bandwidth that is still given as advice."""


@dataclass(frozen=True, slots=True)
class ExplainedStall:
    """One wait of a stream before an op. Times are in nanoseconds; fields that do not apply to the
    cause are ``None``.

    The ``cause`` of the main stream's last wait may be ``drain``: its ops have ended, but the step
    has not; then ``op`` is empty. ``processor`` is the tier whose processor runs the awaited op, if
    that is not the stream's own. ``tensor``, ``channel`` and the times (issued, started, ended) are
    those of the awaited transfer. Between its issue and its start, other transfers ``occupied`` the
    channel for ``occupied_ns``, and it lacked room or its source for ``held_back_ns``.
    ``bandwidth_bytes_per_s`` is the bandwidth with which it would have ended in time.
    """

    stream: str
    op: str
    cause: str
    start_ns: int
    end_ns: int
    prevented_by: str
    processor: str | None = None
    tensor: str | None = None
    channel: str | None = None
    size_bytes: int | None = None
    issued_ns: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    occupied: tuple[str, ...] = ()
    occupied_ns: int | None = None
    held_back_ns: int | None = None
    contention_ns: int | None = None
    bandwidth_bytes_per_s: int | None = None

    @property
    def stall_ns(self) -> int:
        """The time for which the stream waited."""
        return self.end_ns - self.start_ns


COLUMNS = (
    *("stream", "op", "cause", "start_ns", "end_ns", "stall_ns", "processor"),
    *("tensor", "channel", "size_bytes", "issued_ns", "started_ns", "ended_ns"),
    *(
        "occupied",
        "occupied_ns",
        "held_back_ns",
        "contention_ns",
        "bandwidth_bytes_per_s",
        "prevented_by",
    ),
)


def stall_rows(
    stalls: Iterable[ExplainedStall],
) -> list[dict[str, int | float | bool | str | None]]:
    """Return the stalls as rows of :data:`COLUMNS`; one text lists the tensors that occupied a
    channel.
    """
    return [
        {
            column: ", ".join(value)
            if isinstance(value := getattr(stall, column), tuple)
            else value
            for column in COLUMNS
        }
        for stall in stalls
    ]


def frame_of(stalls: Iterable[ExplainedStall], notes: Iterable[str] = ()) -> DataFrame:
    """Return the stalls as a pandas frame with :data:`COLUMNS` and their notes."""
    from hosim.study.rows_of_answers import frame

    return frame(stall_rows(stalls), COLUMNS, notes)


def stalls_of(
    plan: Plan, hardware: Hardware, budget_bytes: int | None = None
) -> tuple[Result, list[ExplainedStall]]:
    """Replay a plan with its timeline, and return the result and the stalls in order of time; the
    main stream's drain is the last one.

    With several devices, the stalls are those of the device that ends last. Raises
    :class:`InfeasibleError` for a plan that does not fit.
    """
    result = engine.replay(plan, hardware, budget_bytes, record=True)
    if not result.feasible or result.timeline is None:
        raise InfeasibleError(
            f"policy {plan.policy}: {result.error}; only a plan that fits has stalls to explain"
        )
    return result, list(_View(plan, hardware, result, result.timeline).stalls())


class _View:
    """A timeline with indices for fast lookups."""

    def __init__(self, plan: Plan, hardware: Hardware, result: Result, timeline: Timeline) -> None:
        self.plan, self.graph = plan, plan.graph
        self.hardware = hardware
        self.timeline = timeline
        self.rooms = {tier.name: tier.capacity_bytes for tier in hardware.tiers}
        self.rooms[hardware.device_tier] = min(result.budget_bytes, hardware.device.capacity_bytes)
        self.engines = {channel.name: channel.engines for channel in hardware.channels}
        self.bandwidth = {
            channel.name: channel.bandwidth_bytes_per_s for channel in hardware.channels
        }
        self.destination = {channel.name: channel.destination for channel in hardware.channels}
        self.traffic = Traffic(timeline, hardware.queue_of)
        self.op_ends = grouped((end, i) for i, end in enumerate(timeline.op_end_ns))
        ran = sorted((end, i) for i, end in enumerate(timeline.op_end_ns) if end >= 0)
        self.ended_at, self.ended = [end for end, _ in ran], [i for _, i in ran]
        used = {tier_of(self.graph.ops[i], hardware) for i in self.graph.elsewhere} | {
            hardware.device_tier
        }
        self.held = {tier: occupancy(timeline, tier) for tier in used}
        self.leaving = grouped(
            ((r.tier, r.end_ns), r.tensor) for r in timeline.residencies if r.tensor >= 0
        )

    def stalls(self) -> Iterator[ExplainedStall]:
        yield from self._before_ops()
        drain = self._drain()
        if drain is not None:
            yield drain

    def _drain(self) -> ExplainedStall | None:
        """Return the wait of the main stream from its last op to the end of the step. Its cause is
        what the critical path does for most of that time.
        """
        own = [i for i, op in enumerate(self.graph.ops) if op.stream == self.graph.main_stream]
        start = max([self.timeline.op_end_ns[i] for i in own], default=0)
        path = [
            part
            for part in step_path(self.plan, self.hardware, self.timeline)
            if part.end_ns > start
        ]
        if not own or not path:
            return None
        end = path[-1].end_ns
        what, most = next(iter(spent_ns(path, start, end).items()))
        last = next(part for part in reversed(path) if part.what == what)
        said = f"{self._named(last)} ending earlier: {what} {human_time(most)} of it"
        found = ExplainedStall(self.graph.main_stream, "", DRAIN, start, end, said)
        return (
            replace(found, processor=last.where)
            if last.op >= 0
            else replace(found, channel=last.where)
        )

    def _named(self, part: PathPart) -> str:
        """Return the text that names a part of the path in a remedy."""
        if part.op >= 0:
            return f"{self.graph.ops[part.op].name} of stream {self.graph.ops[part.op].stream}"
        return (
            f"{self._name(self.timeline.transfers[part.transfer].tensor)} over {part.where}"
            if part.transfer >= 0
            else "the waits"
        )

    def _before_ops(self) -> Iterator[ExplainedStall]:
        for stall in self.timeline.stalls:
            x = blamed(self.timeline, stall)
            if x is not None:
                yield self._transfer(stall, x)
            elif stall.cause == "capacity":
                yield self._explained(stall, self._room(stall.op, stall.end_ns))
            elif stall.cause == "dependency":
                yield self._producer(stall)
            else:
                yield self._explained(stall, self._runtime_remedy())

    def _runtime_remedy(self) -> str:
        """Return the remedy for a wait for a runtime policy or for the host."""
        runtime = self.hardware.software
        return (
            f"a host that is there earlier: {runtime.line}"
            if runtime is not None and runtime.has_host
            else f"a plan made beforehand: inspecting an op takes {human_time(self.hardware.inspect_ns)}"
        )

    def _explained(self, stall: Stall, prevented_by: str) -> ExplainedStall:
        op = self.graph.ops[stall.op]
        return ExplainedStall(
            op.stream, op.name, stall.cause, stall.start_ns, stall.end_ns, prevented_by
        )

    def _transfer(self, stall: Stall, x: Transfer) -> ExplainedStall:
        ahead = self.traffic.beside(x, x.issue_ns, x.start_ns)
        occupied = occupied_ns(ahead, x.issue_ns, x.start_ns, self.engines[x.channel])
        flow = x.end_ns - x.start_ns
        needed = x.bytes * 10**9 // (flow - stall.stall_ns) if flow > stall.stall_ns else None
        return replace(
            self._explained(stall, self._remedy(x, ahead, occupied, stall, needed)),
            tensor=self._name(x.tensor),
            channel=x.channel,
            size_bytes=x.bytes,
            issued_ns=x.issue_ns,
            started_ns=x.start_ns,
            ended_ns=x.end_ns,
            occupied=tuple(dict.fromkeys(self._name(y.tensor) for y in ahead)),
            occupied_ns=occupied,
            held_back_ns=x.start_ns - x.issue_ns - occupied,
            contention_ns=x.contention_ns,
            bandwidth_bytes_per_s=needed,
        )

    def _issued_earlier(self, x: Transfer, late: int) -> list[str]:
        """Return the op that would have to end earlier, or the earlier place to issue the transfer;
        an empty list if that is not enough.
        """
        earlier, made = x.issue_ns - late, self._maker(x)
        if made is not None and earlier < self.timeline.op_end_ns[made]:
            op = self.graph.ops[made]
            return [
                f"{op.name} of stream {op.stream}, which writes {self._name(x.tensor)}, ending "
                "earlier"
            ]
        if earlier < 0 or self.traffic.beside(x, earlier, x.issue_ns):
            return []
        after = bisect_left(self.ended_at, earlier + 1)
        place = (
            f"at the end of {self.graph.ops[self.ended[after - 1]].name}" if after else "at time 0"
        )
        lacking = self._lacking(x, earlier)
        room = (
            f", with {human_size(lacking)} more of {self.destination[x.channel]}"
            if lacking > 0
            else ""
        )
        return [
            f"{self._name(x.tensor)} issued {human_time(late)} earlier, {place} or before{room}: "
            f"{x.channel} was idle"
        ]

    def _remedy(
        self,
        x: Transfer,
        ahead: Sequence[Transfer],
        occupied_ns: int,
        stall: Stall,
        needed: int | None,
    ) -> str:
        """Return the remedy that ends a transfer earlier by a whole stall: the first one that is
        enough, and more bandwidth.
        """
        name, late = self._name(x.tensor), stall.stall_ns
        tier = tier_of(self.graph.ops[stall.op], self.hardware)
        held_back = x.start_ns - x.issue_ns - occupied_ns
        ways = []
        if occupied_ns >= late:
            moved = human_size(sum(y.bytes for y in ahead))
            ways.append(
                f"{self._some([y.tensor for y in ahead])} ({moved}) not ahead of it on {x.channel}"
            )
        if held_back >= late:
            ways.append(
                f"room for it, or a copy to read, {human_time(late)} earlier: {x.channel} was idle"
            )
        ways = ways or self._issued_earlier(x, late)
        if x.contention_ns >= late:
            ways.append(
                f"no other traffic on what {x.channel} shares: that cost it "
                f"{human_time(x.contention_ns)}"
            )
        if needed is not None and needed <= _FASTER * self.bandwidth[x.channel]:
            ways.append(f"{human_rate(needed)} of {x.channel} for it")
        if not ways:
            home = self.graph.tensors[x.tensor].home
            ways.append(
                f"{name} kept in {tier}"
                if home in (None, tier)
                else f"{name} living in {tier} and not in {home}"
            )
            ways += [f"less moved before it over {x.channel}"] if ahead else []
        return "; or ".join(ways)

    def _maker(self, x: Transfer) -> int | None:
        """Return the last op that wrote the data that a transfer copies; ``None`` if it copies data
        that was there at time 0.
        """
        ends = self.timeline.op_end_ns
        before = [(ends[i], i) for i in self.graph.writers[x.tensor] if 0 <= ends[i] <= x.issue_ns]
        return max(before)[1] if before else None

    def _lacking(self, x: Transfer, earlier: int) -> int:
        """Return the bytes of room that a transfer would have lacked in its destination tier if it
        had started at ``earlier``, before its issue.
        """
        tier = self.destination[x.channel]
        return (
            self.held[tier].largest(earlier, x.issue_ns) + x.bytes - self.rooms[tier]
            if tier in self.held
            else 0
        )

    def _room(self, op: int, end: int) -> str:
        described, tier = self.graph.ops[op], tier_of(self.graph.ops[op], self.hardware)
        begins = (
            sum(
                self.graph.tensors[t].size_bytes
                for t in described.outputs
                if not self._held_before(t, end)
            )
            + described.workspace_bytes
        )
        if described.processor and self.hardware.devices > 1:
            return f"more of {tier}, which devices share"
        free = self.rooms[tier] - self.held[tier].at(end - 1)
        left = sorted(
            self.leaving.get((tier, end), ()), key=self.graph.derived(canonical_places).__getitem__
        )
        waited = f": it waited for {self._some(left)} to go" if left else ""
        return f"{human_size(max(begins - free, 1))} more of {tier}{waited}"

    def _held_before(self, tensor: int, now: int) -> bool:
        """Return whether an earlier op has used an output, so that it is written in place."""
        return any(0 <= self.timeline.op_end_ns[user] <= now for user in self.graph.users[tensor])

    def _producer(self, stall: Stall) -> ExplainedStall:
        producers = set(self.graph.producers[stall.op])
        ending = [i for i in self.op_ends.get(stall.end_ns, ()) if i in producers]
        if not ending:
            return self._explained(stall, "its producers ending earlier")
        named, waiting = self.graph.ops[ending[-1]], self.graph.ops[stall.op]
        found = self._explained(stall, f"{named.name} of stream {named.stream} ending earlier")
        return (
            found
            if named.processor == waiting.processor
            else replace(found, processor=tier_of(named, self.hardware))
        )

    def _name(self, tensor: int) -> str:
        return self.graph.tensors[tensor].name

    def _some(self, tensors: Iterable[int]) -> str:
        """Return the names of the first few tensors, and the number of the others."""
        rows = folded((self.graph.tensors[t], ()) for t in dict.fromkeys(tensors))
        more = tensors_of(rows[_NAMED:])
        return ", ".join([row.name for row in rows[:_NAMED]]) + (
            f" and {more} more" if more else ""
        )


def by_cause(stalls: Iterable[ExplainedStall]) -> Mapping[tuple[str, str], int]:
    """Return nanoseconds by (cause, object), the largest first. The object is a channel, the tier
    of another processor, or empty.
    """
    total = summed(
        ((stall.cause, stall.channel or stall.processor or ""), stall.stall_ns) for stall in stalls
    )
    return dict(sorted(total.items(), key=lambda item: -item[1]))

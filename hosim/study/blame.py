"""Why it waits: for each stall the transfer, its channel, what occupied that, and what would have prevented it.

From the timeline of one replay. The transfer that a stall is blamed on is that of rule 8 (the one that ended last before the op's
residency was met), so that what is blamed on a channel is the channel's ``exposed_ns``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from hosim import engine
from hosim.cache_plan import Plan
from hosim.errors import InfeasibleError
from hosim.hardware import Hardware
from hosim.result import Result, Timeline, Transfer
from hosim.units import human_rate, human_size, human_time

if TYPE_CHECKING:
    from pandas import DataFrame

_NAMED = 3
"""Tensors that are named where there are more."""
_FASTER = 10
"""Times a channel's bandwidth beyond which more of it is no advice."""


@dataclass(frozen=True, slots=True)
class Stall:
    """One wait of a stream before an op. Times in nanoseconds; what is ``None`` does not exist for its cause.

    ``tensor``, ``channel`` and the times are those of the transfer waited for: issued, started and ended. Of the time between issue and
    start, others ``occupied`` the channel for ``occupied_ns``, and for ``held_back_ns`` it could have started but for room or its source.
    ``bandwidth_bytes_per_s`` is what its channel would have had to give it to end in time.
    """

    stream: str
    op: str
    cause: str
    start_ns: int
    end_ns: int
    prevented_by: str
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
        """How long the stream waited."""
        return self.end_ns - self.start_ns


COLUMNS = (
    *("stream", "op", "cause", "start_ns", "end_ns", "stall_ns"),
    *("tensor", "channel", "size_bytes", "issued_ns", "started_ns", "ended_ns"),
    *("occupied", "occupied_ns", "held_back_ns", "contention_ns", "bandwidth_bytes_per_s", "prevented_by"),
)


def rows(stalls: Iterable[Stall]) -> list[dict[str, int | float | bool | str | None]]:
    """The stalls as rows of :data:`COLUMNS`; what occupied a channel is one text."""
    return [
        {column: ", ".join(value) if isinstance(value := getattr(stall, column), tuple) else value for column in COLUMNS}
        for stall in stalls
    ]


def frame_of(stalls: Iterable[Stall]) -> DataFrame:
    """The stalls as a pandas frame with :data:`COLUMNS`."""
    from hosim.study.rows import frame

    return frame(rows(stalls), COLUMNS)


def stalls_of(plan: Plan, hardware: Hardware, budget_bytes: int | None = None) -> tuple[Result, list[Stall]]:
    """The replay of a plan with its timeline, and its stalls in order of time.

    Of several devices, those of the one that ends last. Raises :class:`InfeasibleError` for a plan that does not fit.
    """
    result = engine.replay(plan, hardware, budget_bytes, record=True)
    if not result.feasible or result.timeline is None:
        raise InfeasibleError(f"policy {plan.policy}: {result.error}; what does not fit waits for nothing that would come")
    view = _View(plan, hardware, result, result.timeline)
    return result, list(view.stalls())


class _View:
    """A timeline with what is looked up in it again and again."""

    def __init__(self, plan: Plan, hardware: Hardware, result: Result, timeline: Timeline) -> None:
        self.graph = plan.graph
        self.hardware = hardware
        self.timeline = timeline
        self.capacity = min(result.budget_bytes, hardware.device.capacity_bytes)
        self.into_device = {channel.name for channel in hardware.channels if channel.destination == hardware.device_tier}
        self.engines = {channel.name: channel.engines for channel in hardware.channels}
        self.bandwidth = {channel.name: channel.bandwidth_bytes_per_s for channel in hardware.channels}
        self.ending: dict[int, list[Transfer]] = {}
        self.on: dict[str, list[Transfer]] = {}
        for transfer in timeline.transfers:
            self.ending.setdefault(transfer.end_ns, []).append(transfer)
            self.on.setdefault(transfer.channel, []).append(transfer)
        for transfers in self.on.values():
            transfers.sort(key=lambda x: (x.start_ns, x.end_ns))
        self.starts = {channel: [x.start_ns for x in transfers] for channel, transfers in self.on.items()}
        self.longest = {channel: max(x.end_ns - x.start_ns for x in transfers) for channel, transfers in self.on.items()}
        self.op_ends: dict[int, list[int]] = {}
        for i, end in enumerate(timeline.op_end_ns):
            self.op_ends.setdefault(end, []).append(i)
        ran = sorted((end, i) for i, end in enumerate(timeline.op_end_ns) if end >= 0)
        self.ended_at, self.ended = [end for end, _ in ran], [i for _, i in ran]
        held = [r for r in timeline.residencies if r.tier == hardware.device_tier]
        self.begun, self.begun_bytes = _curve((r.start_ns, r.bytes) for r in held)
        self.gone, self.gone_bytes = _curve((r.end_ns, r.bytes) for r in held)
        self.leaving: dict[int, list[int]] = {}
        for r in held:
            if r.tensor >= 0:
                self.leaving.setdefault(r.end_ns, []).append(r.tensor)

    def stalls(self) -> Iterator[Stall]:
        for op, cause, start, end in self.timeline.stalls:
            described = self.graph.ops[op]
            if cause == "transfer":
                yield self._transfer(op, start, end)
            elif cause == "capacity":
                yield Stall(described.stream, described.name, cause, start, end, self._room(op, end))
            elif cause == "dependency":
                yield Stall(described.stream, described.name, cause, start, end, self._producer(op, end))
            else:
                inspect = human_time(self.hardware.inspect_ns)
                yield Stall(described.stream, described.name, cause, start, end, f"a plan made before: inspecting an op takes {inspect}")

    def _transfer(self, op: int, start: int, end: int) -> Stall:
        described = self.graph.ops[op]
        waited = [
            x
            for x in self.ending.get(end, ())
            if x.tensor in described.writes or (x.tensor in described.reads and x.channel in self.into_device)
        ]
        if not waited:
            return Stall(described.stream, described.name, "transfer", start, end, "what it waits for being there earlier")
        x = max(waited, key=lambda x: (x.issue_ns, x.cache_op))
        ahead = self._overlapping(x, x.issue_ns, x.start_ns)
        occupied_ns = _covered(ahead, x.issue_ns, x.start_ns, self.engines[x.channel])
        flow = x.end_ns - x.start_ns
        late = end - start
        needed = x.bytes * 10**9 // (flow - late) if flow > late else None
        return Stall(
            described.stream,
            described.name,
            "transfer",
            start,
            end,
            self._remedy(x, ahead, occupied_ns, late, needed),
            tensor=self._name(x.tensor),
            channel=x.channel,
            size_bytes=x.bytes,
            issued_ns=x.issue_ns,
            started_ns=x.start_ns,
            ended_ns=x.end_ns,
            occupied=tuple(dict.fromkeys(self._name(y.tensor) for y in ahead)),
            occupied_ns=occupied_ns,
            held_back_ns=x.start_ns - x.issue_ns - occupied_ns,
            contention_ns=x.contention_ns,
            bandwidth_bytes_per_s=needed,
        )

    def _remedy(self, x: Transfer, ahead: Sequence[Transfer], occupied_ns: int, late: int, needed: int | None) -> str:
        """What would have let a transfer end ``late`` nanoseconds earlier: the first of these that is enough, and more bandwidth."""
        name = self._name(x.tensor)
        held_back = x.start_ns - x.issue_ns - occupied_ns
        ways = []
        if occupied_ns >= late:
            moved = human_size(sum(y.bytes for y in ahead))
            ways.append(f"{_some([self._name(y.tensor) for y in ahead])} ({moved}) not ahead of it on {x.channel}")
        if held_back >= late:
            ways.append(f"room or its source {human_time(late)} earlier: {x.channel} was free for it")
        earlier = x.issue_ns - late
        if not ways and earlier >= 0 and not self._overlapping(x, earlier, x.issue_ns):
            after = bisect_left(self.ended_at, earlier + 1)
            place = f"at the end of {self.graph.ops[self.ended[after - 1]].name}" if after else "at time 0"
            ways.append(f"{name} issued {human_time(late)} earlier, {place} or before: {x.channel} was idle")
        if x.contention_ns >= late:
            ways.append(f"no other traffic on what {x.channel} shares: that cost it {human_time(x.contention_ns)}")
        if needed is not None and needed <= _FASTER * self.bandwidth[x.channel]:
            ways.append(f"{human_rate(needed)} of {x.channel} for it")
        return "; or ".join(ways) or f"{name} kept in {self.hardware.device_tier}, or less moved before it over {x.channel}"

    def _room(self, op: int, end: int) -> str:
        described, tier = self.graph.ops[op], self.hardware.device_tier
        begins = (
            sum(self.graph.tensors[t].size_bytes for t in described.outputs if not self._held_before(t, end)) + described.workspace_bytes
        )
        free = self.capacity - (_before(self.begun, self.begun_bytes, end) - _before(self.gone, self.gone_bytes, end))
        left = [self._name(t) for t in self.leaving.get(end, ())]
        waited = f": it waited for {_some(left)} to go" if left else ""
        return f"{human_size(max(begins - free, 1))} more of {tier}{waited}"

    def _held_before(self, tensor: int, now: int) -> bool:
        """Whether an output is written in place: an op before has used it, so that it is there."""
        return any(0 <= self.timeline.op_end_ns[user] <= now for user in self.graph.users[tensor])

    def _producer(self, op: int, end: int) -> str:
        producers = set(self.graph.producers[op])
        ending = [i for i in self.op_ends.get(end, ()) if i in producers]
        if not ending:
            return "its producers ending earlier"
        named = self.graph.ops[ending[-1]]
        return f"{named.name} of stream {named.stream} ending earlier"

    def _overlapping(self, x: Transfer, start: int, end: int) -> list[Transfer]:
        """Other transfers that hold an engine of the same channel at some time in ``[start, end)``."""
        on, starts = self.on[x.channel], self.starts[x.channel]
        first = bisect_left(starts, start - self.longest[x.channel])
        return [y for y in on[first : bisect_left(starts, end)] if y is not x and y.end_ns > start and y.start_ns < end]

    def _name(self, tensor: int) -> str:
        return self.graph.tensors[tensor].name


def _curve(changes: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    listed = sorted(changes)
    return [at for at, _ in listed], [0, *accumulate(size for _, size in listed)]


def _before(times: Sequence[int], total: Sequence[int], now: int) -> int:
    """What has come together before ``now``."""
    return total[bisect_left(times, now)]


def _covered(transfers: Sequence[Transfer], start: int, end: int, engines: int) -> int:
    """Nanoseconds of ``[start, end)`` for which the transfers hold all engines."""
    edges = sorted(edge for y in transfers for edge in ((max(y.start_ns, start), 1), (min(y.end_ns, end), -1)))
    covered, running, since = 0, 0, start
    for at, change in sorted(edges, key=lambda edge: (edge[0], edge[1])):
        if running >= engines:
            covered += at - since
        running, since = running + change, at
    return covered


def _some(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _NAMED} more" if len(unique) > _NAMED else ""
    return ", ".join(unique[:_NAMED]) + more


def by_cause(stalls: Iterable[Stall]) -> Mapping[tuple[str, str], int]:
    """Nanoseconds by (cause, channel or empty), the most first."""
    total: dict[tuple[str, str], int] = {}
    for stall in stalls:
        key = stall.cause, stall.channel or ""
        total[key] = total.get(key, 0) + stall.stall_ns
    return dict(sorted(total.items(), key=lambda item: -item[1]))

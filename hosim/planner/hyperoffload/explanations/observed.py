"""The transfers of a plan in a recorded replay: the computation that covers each, the ops that wait
for it, when it could begin; and the loads of channels.

Figures of a timeline alone, whoever made the plan;
:mod:`hosim.planner.hyperoffload.explanations.explain` puts them together with the gaps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from hosim.cache_plan import Plan
from hosim.engine import replayed_latitudes
from hosim.hardware import Hardware
from hosim.plain_text import counted
from hosim.result import Result, Timeline, Transfer
from hosim.timeline import Spans, busy, occupancy, stalls_by_transfer

SLOTS = 20
"""Equal parts of the makespan in which a channel's load is given."""


RULE_OF_THUMB = (
    "tensor_size / bandwidth > 0.1 * overlapping_compute_time means the transfer won't fully hide"
)
"""The rule by which HyperOffload's practice tells which transfers ops wait for, in its words."""


@dataclass(frozen=True, slots=True)
class ObservedTransfer:
    """One transfer of the replay and what it meant. ``covered_ns`` is the computation of the stream
    ``compute`` while it was under way.

    ``first_op`` and ``last_op`` are the first and the last op of that stream that ran meanwhile
    (-1: none); ``exposed_ns`` is what ops of any stream waited for it (rule 8 of docs/contract.md),
    and ``waiting`` are those ops.

    ``earliest_ns`` to ``latest_ns`` is when its cache op could begin, with the replay otherwise as
    it was: since when what it copies was there, and there has been room for it ever since; until
    when it costs nothing (:func:`hosim.analysis.slack.latitudes`). Neither asks whether the channel
    is idle. ``None``: not known, the earliest of a route among them. ``overlap_ns`` is the
    computation of the stream ``compute`` from its issue to the next op that uses its tensor, or to
    the end.
    """

    transfer: Transfer
    up: bool
    covered_ns: int
    first_op: int
    last_op: int
    exposed_ns: int
    waiting: tuple[int, ...]
    earliest_ns: int | None
    latest_ns: int | None
    overlap_ns: int

    @property
    def queue_ns(self) -> int:
        """Return the wait between issue and start."""
        return self.transfer.start_ns - self.transfer.issue_ns

    @property
    def alone_ns(self) -> int:
        """Return the time that it would have taken had it shared nothing."""
        return self.transfer.end_ns - self.transfer.start_ns - self.transfer.contention_ns

    @property
    def too_long(self) -> bool:
        """Return whether :data:`RULE_OF_THUMB` says that it is not fully hidden: alone it takes
        more than a tenth of the overlap.
        """
        return 10 * self.alone_ns > self.overlap_ns


def copies(
    plan: Plan, hardware: Hardware, timeline: Timeline, budget_bytes: int
) -> tuple[ObservedTransfer, ...]:
    """Every transfer of the timeline, in its order; the replay was within ``budget_bytes`` of the
    device tier.
    """
    graph, device = plan.graph, hardware.device_tier
    into = {c.name for c in hardware.channels if c.destination == device}
    blamed = stalls_by_transfer(timeline)
    order = [i for i, op in enumerate(graph.ops) if op.stream == graph.main_stream]
    starts, ends = [timeline.op_start_ns[i] for i in order], [timeline.op_end_ns[i] for i in order]
    computing = Spans(zip(starts, ends, strict=True))
    windows, end = (
        _windows(plan, hardware, timeline, budget_bytes),
        max(timeline.op_end_ns, default=0),
    )
    found = []
    for k, x in enumerate(timeline.transfers):
        first, last = bisect_right(ends, x.start_ns), bisect_left(starts, x.end_ns) - 1
        ran = (order[first], order[last]) if first <= last else (-1, -1)
        covered = computing.within(x.start_ns, x.end_ns)
        stalls = blamed.get(k, ())
        exposed, waiting = (
            sum(stall.stall_ns for stall in stalls),
            tuple(stall.op for stall in stalls),
        )
        used = min(
            [
                timeline.op_start_ns[i]
                for i in graph.users[x.tensor]
                if timeline.op_start_ns[i] >= x.end_ns
            ],
            default=end,
        )
        overlap = computing.within(x.issue_ns, used)
        window = windows.get(x.cache_op, (None, None))
        found.append(
            ObservedTransfer(
                x, x.channel in into, covered, *ran, exposed, waiting, *window, overlap
            )
        )
    return tuple(found)


def _windows(
    plan: Plan, hardware: Hardware, timeline: Timeline, budget_bytes: int
) -> dict[int, tuple[int | None, int | None]]:
    """The earliest and the latest instant at which each cache op could begin."""
    began: dict[int, list[Transfer]] = {}
    for x in timeline.transfers:
        began.setdefault(x.cache_op, []).append(x)
    held = {tier.name: occupancy(timeline, tier.name) for tier in hardware.tiers}
    brought = {(r.tensor, r.tier, r.start_ns) for r in timeline.residencies}
    found: dict[int, tuple[int | None, int | None]] = {}
    for k, latitude in replayed_latitudes(plan, hardware, budget_bytes).items():
        c, start, earliest = plan.cache_ops[k], min([x.start_ns for x in began[k]]), None
        if len(began[k]) == 1 and c.destination is not None:
            tier, earliest = hardware.tiers[hardware.tier_index[c.destination]], latitude.ready_ns
            if (c.tensor, tier.name, start) in brought:
                whole = (
                    min(budget_bytes, tier.capacity_bytes)
                    if tier.name == hardware.device_tier
                    else tier.capacity_bytes
                )
                room = (
                    whole // hardware.sharers(hardware.tier_scope(tier.name))
                    - plan.graph.tensors[c.tensor].size_bytes
                )
                earliest = max(earliest, held[tier.name].at_most_since(room, start))
        found[k] = earliest, start + latitude.slack_ns
    return found


_WINDOW = (
    "A copy could begin from when its contents were there, and room for it ever since, to how "
    "late it costs nothing, if all else keeps "
    "its order and its rates; whether its channel is idle then is not asked."
)


def notes(found: Sequence[ObservedTransfer]) -> tuple[str, ...]:
    """Return the notes for readers of the transfers, a line each: what their windows are, and what
    a rule of thumb says of them.
    """
    if not found:
        return ()
    waited, named = [x for x in found if x.waiting], sum([x.too_long for x in found])
    right = sum([x.too_long for x in waited])
    rest = (
        f"ops wait for {len(waited):,}, of which it says so of {right:,}"
        if waited
        else "ops wait for none"
    )
    rule = (
        f'Rule of thumb: "{RULE_OF_THUMB}". It says so of {named:,} of '
        f"{counted(len(found), 'transfer')}"
    )
    return _WINDOW, f"{rule}; {rest}."


def loads(result: Result, timeline: Timeline) -> dict[str, tuple[float, ...]]:
    """For each channel, the share of each of :data:`SLOTS` equal parts of the makespan during which
    a transfer holds an engine.
    """
    carried, idle = busy(timeline), Spans(())
    return {
        name: tuple(carried.get(name, idle).shares(result.makespan_ns or 0, SLOTS))
        for name in result.channels
    }

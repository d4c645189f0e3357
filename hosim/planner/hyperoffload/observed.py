"""What a recorded replay shows about the transfers of a plan: what computation covers each, which ops wait for it; how busy channels are.

Figures of a timeline alone, whoever made the plan; :mod:`hosim.planner.hyperoffload.explain` puts them together with the gaps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from hosim.cache_plan import Plan
from hosim.hardware import Hardware
from hosim.result import Result, Timeline, Transfer
from hosim.timeline import Spans, busy, stalls_by_transfer

SLOTS = 20
"""Equal parts of the makespan in which a channel's load is given."""


@dataclass(frozen=True, slots=True)
class ObservedTransfer:
    """One transfer of the replay and what it meant. ``covered_ns`` is the computation of the stream ``compute`` while it was under way.

    ``first_op`` and ``last_op`` are the first and the last op of that stream that ran meanwhile (-1: none); ``exposed_ns`` is what ops of
    any stream waited for it (rule 8 of docs/contract.md), and ``waiting`` are those ops.
    """

    transfer: Transfer
    up: bool
    covered_ns: int
    first_op: int
    last_op: int
    exposed_ns: int
    waiting: tuple[int, ...]

    @property
    def queue_ns(self) -> int:
        """What it waited between issue and start."""
        return self.transfer.start_ns - self.transfer.issue_ns


def copies(plan: Plan, hardware: Hardware, timeline: Timeline) -> tuple[ObservedTransfer, ...]:
    """Every transfer of the timeline, in its order."""
    graph, device = plan.graph, hardware.device_tier
    into = {c.name for c in hardware.channels if c.destination == device}
    blamed = stalls_by_transfer(timeline)
    order = [i for i, op in enumerate(graph.ops) if op.stream == graph.main_stream]
    starts, ends = [timeline.op_start_ns[i] for i in order], [timeline.op_end_ns[i] for i in order]
    computing = Spans(zip(starts, ends, strict=True))
    found = []
    for k, x in enumerate(timeline.transfers):
        first, last = bisect_right(ends, x.start_ns), bisect_left(starts, x.end_ns) - 1
        ran = (order[first], order[last]) if first <= last else (-1, -1)
        covered = computing.within(x.start_ns, x.end_ns)
        stalls = blamed.get(k, ())
        exposed, waiting = sum(stall.stall_ns for stall in stalls), tuple(stall.op for stall in stalls)
        found.append(ObservedTransfer(x, x.channel in into, covered, *ran, exposed, waiting))
    return tuple(found)


def loads(result: Result, timeline: Timeline) -> dict[str, tuple[float, ...]]:
    """For each channel, the share of each of :data:`SLOTS` equal parts of the makespan during which a transfer holds an engine."""
    carried, idle = busy(timeline), Spans(())
    return {name: tuple(carried.get(name, idle).shares(result.makespan_ns or 0, SLOTS)) for name in result.channels}

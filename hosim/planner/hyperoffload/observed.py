"""What a recorded replay shows about memory and transfers: what the device tier holds when, what covers a transfer, which op waits for it.

Figures of a timeline alone, whoever made the plan; :mod:`hosim.planner.hyperoffload.explain` puts them together with the gaps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.score import main_stream
from hosim.result import Result, Timeline, Transfer

SLOTS = 20
"""Equal parts of the makespan in which a channel's load is given."""

Interval = tuple[int, int]


class Spans:
    """A set of instants, from intervals that may overlap."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        merged: list[list[int]] = []
        for start, end in sorted(i for i in intervals if i[1] > i[0]):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self.starts = [start for start, _ in merged]
        self.ends = [end for _, end in merged]
        self.sums = [0, *accumulate(end - start for start, end in merged)]

    def before(self, at: int) -> int:
        """Nanoseconds of the set before an instant."""
        k = bisect_right(self.starts, at)
        return self.sums[k] - max(0, self.ends[k - 1] - at) if k else 0

    def within(self, start: int, end: int) -> int:
        """Nanoseconds of the set in ``[start, end)``."""
        return self.before(end) - self.before(start) if end > start else 0


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


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of a stream before ``op``; ``copy`` is the transfer it is blamed on (its place in the list of copies), -1 if on none."""

    op: int
    cause: str
    start_ns: int
    end_ns: int
    copy: int


def copies(plan: Plan, hardware: Hardware, timeline: Timeline) -> tuple[tuple[ObservedTransfer, ...], tuple[Wait, ...]]:
    """Every transfer in the order of their ends, and every wait in order of time; each ``transfer`` wait is blamed on one transfer."""
    graph, device = plan.graph, hardware.device_tier
    into = {c.name for c in hardware.channels if c.destination == device}
    of: dict[int, list[int]] = {}
    for k, x in enumerate(timeline.transfers):
        of.setdefault(x.tensor, []).append(k)
    exposed: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}
    waits = []
    for op, cause, start, end in timeline.stalls:
        blamed = _blamed(graph, timeline.transfers, of, into, op, end) if cause == "transfer" else -1
        if blamed >= 0:
            exposed[blamed] = exposed.get(blamed, 0) + end - start
            waiting.setdefault(blamed, []).append(op)
        waits.append(Wait(op, cause, start, end, blamed))
    name = main_stream(graph)
    order = [i for i, op in enumerate(graph.ops) if op.stream == name]
    starts, ends = [timeline.op_start_ns[i] for i in order], [timeline.op_end_ns[i] for i in order]
    computing = Spans(zip(starts, ends, strict=True))
    found = []
    for k, x in enumerate(timeline.transfers):
        first, last = bisect_right(ends, x.start_ns), bisect_left(starts, x.end_ns) - 1
        ran = (order[first], order[last]) if first <= last else (-1, -1)
        covered = computing.within(x.start_ns, x.end_ns)
        found.append(ObservedTransfer(x, x.channel in into, covered, *ran, exposed.get(k, 0), tuple(waiting.get(k, ()))))
    return tuple(found), tuple(waits)


def _blamed(graph: Graph, transfers: Sequence[Transfer], of: dict[int, list[int]], into: set[str], op: int, met_ns: int) -> int:
    """Rule 8: the transfer that ended last before the op's residency was met, of those that it waited for; -1 if there is none.

    These are the last transfer of each tensor that it touches, into the device tier if it only reads it.
    """
    writes = graph.ops[op].writes
    last = []
    for t in graph.ops[op].uses:
        ended = [k for k in of.get(t, ()) if transfers[k].end_ns <= met_ns]
        if ended and (t in writes or transfers[ended[-1]].channel in into):
            last.append(ended[-1])
    return max(last, key=lambda k: (transfers[k].end_ns, transfers[k].issue_ns, transfers[k].cache_op), default=-1)


@dataclass(frozen=True)
class Occupancy:
    """Bytes held in the device tier as steps: ``held[k]`` from ``at_ns[k]`` on. What is held for no time at all is left out."""

    at_ns: tuple[int, ...]
    held: tuple[int, ...]

    def largest(self, start_ns: int, end_ns: int) -> int:
        """The most that is held during ``[start_ns, end_ns)``."""
        first = max(0, bisect_right(self.at_ns, start_ns) - 1)
        return max(self.held[first : max(first + 1, bisect_left(self.at_ns, end_ns))], default=0)


def occupancy(timeline: Timeline, tier: str) -> Occupancy:
    """What a tier holds over time; at each instant what ends there is gone and what begins there is held."""
    change: dict[int, int] = {}
    for r in timeline.residencies:
        if r.tier == tier and r.end_ns > r.start_ns:
            change[r.start_ns] = change.get(r.start_ns, 0) + r.bytes
            change[r.end_ns] = change.get(r.end_ns, 0) - r.bytes
    at = sorted(change)
    return Occupancy(tuple(at), tuple(accumulate(change[instant] for instant in at)))


def loads(result: Result, timeline: Timeline, slots: int = SLOTS) -> dict[str, tuple[float, ...]]:
    """For each channel, the share of each of ``slots`` equal parts of the makespan during which a transfer holds an engine."""
    makespan = result.makespan_ns or 0
    intervals: dict[str, list[Interval]] = {name: [] for name in result.channels}
    for x in timeline.transfers:
        intervals[x.channel].append((x.start_ns, x.end_ns))
    spans = {name: Spans(found) for name, found in intervals.items()}
    edges = [makespan * k // slots for k in range(slots + 1)]
    return {name: tuple(busy.within(a, b) / (b - a) if b > a else 0.0 for a, b in pairwise(edges)) for name, busy in spans.items()}


def residence(timeline: Timeline, tier: str) -> dict[int, Spans]:
    """For each tensor that is ever held in ``tier``, when it is, transfers under way included."""
    held: dict[int, list[Interval]] = {}
    for r in timeline.residencies:
        if r.tier == tier and r.tensor >= 0:
            held.setdefault(r.tensor, []).append((r.start_ns, r.end_ns))
    return {t: Spans(intervals) for t, intervals in held.items()}

"""How good it would be to move a tensor for the length of one gap: one figure for each thing that matters, and one to rank by.

The dimensions are those of the HyperOffload descriptions: a tensor is a good candidate if it is large, idle for long and rarely used, if
computation covers its transfers, and if the channel has time for them; the multi-dimensional model there scores "access frequency,
recomputation costs, and communication bandwidth loss", and the workflow's ``max(0, C_trans - C_comp_overlap)`` is
:attr:`Score.exposed_ns`. All times are those of the problem (a step without waits, unless it was analysed for others), all transfers are
alone on their channel: what others already occupy is for the sweep (:mod:`hosim.planner.hyperoffload.selection`) and the replay to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from hosim.analysis.gaps import Gap, gaps
from hosim.costmodel.transfer_time import alone_ns
from hosim.graph import Graph
from hosim.planner.hyperoffload.problem import Problem, initial_set
from hosim.schedule.lower_tiers import LowerTier


@dataclass(frozen=True, slots=True)
class Score:
    """One gap of one tensor. Bytes, nanoseconds and counts; ``value`` is what candidates are ranked by, more is better.

    ``below`` is the tier that the times are for: the tensor's own if it lives below, else the fastest that can hold it; None where there
    is none, and then every transfer time is 0. ``down_ns`` is 0 if the contents need no store, ``up_ns`` if they need not come back.
    """

    gap: Gap
    bytes: int
    below: str | None
    accesses: int
    """Ops that use the tensor, in a step."""
    gap_ns: int
    covered_ns: int
    """Computation of the stream ``compute`` inside the gap, which can cover its transfers."""
    down_ns: int
    up_ns: int
    over_budget_ns: int
    """Time of the ops inside the gap during which the device tier would hold more than the budget if nothing moved."""
    peak_bytes: int
    """Bytes off the peak if the tensor is away: its bytes if the gap spans the op of the largest occupancy, else 0."""
    recompute_ns: int | None
    """Duration of the op that wrote the contents, which could run again instead; None if none did, or if it overwrote what it read."""
    recompute_flops: int
    channel_pressure: float
    """Share of its channel's time inside the gap that all candidates open there would take if all moved; above 1: more than there is."""

    @property
    def transfer_ns(self) -> int:
        """The round trip on idle channels."""
        return self.down_ns + self.up_ns

    @property
    def exposed_ns(self) -> int:
        """What computation inside the gap cannot cover of the round trip: ``max(0, C_trans - C_comp_overlap)``."""
        return max(0, self.transfer_ns - self.covered_ns)

    @property
    def relief_byte_ns(self) -> int:
        """Over-budget time covered, times bytes."""
        return self.bytes * self.over_budget_ns

    @property
    def value(self) -> float:
        """Relief for each nanosecond it takes: ``relief / (transfer * (1 + channel pressure) + exposed)``, in bytes."""
        return self.relief_byte_ns / max(1.0, self.transfer_ns * (1 + self.channel_pressure) + self.exposed_ns)


def scores(problem: Problem, budget_bytes: int) -> tuple[Score, ...]:
    """The score of every gap of a tensor that has bytes, by tensor and then by position; O(ops + uses).

    These are the gaps of :func:`hosim.analysis.gaps.gaps`, and the time from the last use of an ``output`` to the end of the step
    (``before`` is then the number of ops). :func:`ranked` puts the best first. What lives below is not in the device tier across the step
    to begin with: that gap relieves nothing.
    """
    graph = problem.graph
    count = len(graph.ops)
    main = graph.main_stream
    over = _sums(d * (held > budget_bytes) for d, held in zip(problem.durations, problem.held_bytes, strict=False))
    computed = _sums(d * (op.stream == main) for d, op in zip(problem.durations, graph.ops, strict=True))
    peak_op = max(range(count), key=problem.held_bytes.__getitem__, default=-1)
    writes = _writes(graph)
    tiers = {b.name: b for b in problem.below}
    found = []
    for gap in candidates(graph):
        t, size = gap.tensor, graph.tensors[gap.tensor].size_bytes
        pieces = spans(gap, count)
        held = () if gap.wraps and t in problem.starts_below else pieces
        below = _below(problem, t, tiers)
        down = below is not None and not _clean(problem, gap, writes)
        up = below is not None and returns(graph, gap)
        writer = max((w for w in writes[t] if w <= gap.after), default=None)
        if writer is not None and t in graph.ops[writer].reads:
            writer = None
        found.append(
            Score(
                gap=gap,
                bytes=size,
                below=below.name if below else None,
                accesses=len(graph.users[t]),
                gap_ns=_length(problem, gap),
                covered_ns=_within(computed, pieces),
                down_ns=alone_ns(problem.hardware, below.down.name, size) if below is not None and down else 0,
                up_ns=alone_ns(problem.hardware, below.up.name, size) if below is not None and up else 0,
                over_budget_ns=_within(over, held),
                peak_bytes=size * any(a < peak_op < b for a, b in held),
                recompute_ns=problem.durations[writer] if writer is not None else None,
                recompute_flops=graph.ops[writer].flops if writer is not None else 0,
                channel_pressure=0.0,
            )
        )
    return tuple(_with_pressure(problem, found))


def ranked(found: Iterable[Score]) -> list[Score]:
    """Best first: by value, then fewer accesses, then more bytes, then by position."""
    return sorted(found, key=lambda s: (-s.value, s.accesses, -s.bytes, s.gap.tensor, s.gap.after))


def candidates(graph: Graph) -> Iterator[Gap]:
    """Every gap of a tensor that has bytes, in order of tensor and position."""
    tails = {t: users[-1] for t, users in enumerate(graph.users) if users and graph.survives[t] and not graph.tensors[t].persistent}
    found = [gap for gap in gaps(graph) if graph.tensors[gap.tensor].size_bytes]
    found += [Gap(t, last, len(graph.ops)) for t, last in tails.items() if last + 1 < len(graph.ops) and graph.tensors[t].size_bytes]
    return iter(sorted(found, key=lambda gap: (gap.tensor, gap.after)))


def spans(gap: Gap, count: int) -> tuple[tuple[int, int], ...]:
    """The open intervals of op positions that a gap consists of: one, or for one across the step its beginning and its end."""
    return ((-1, gap.before), (gap.after, count)) if gap.wraps else ((gap.after, gap.before),)


def returns(graph: Graph, gap: Gap) -> bool:
    """Whether the contents are read again after the gap."""
    return gap.before < len(graph.ops) and gap.tensor in graph.ops[gap.before].reads


def _sums(values: Iterable[int]) -> list[int]:
    return [0, *accumulate(values)]


def _within(sums: Sequence[int], pieces: Iterable[tuple[int, int]]) -> int:
    return sum([sums[b] - sums[a + 1] for a, b in pieces if b > a + 1])


def _writes(graph: Graph) -> list[list[int]]:
    writes: list[list[int]] = [[] for _ in graph.tensors]
    for i, op in enumerate(graph.ops):
        for t in op.writes:
            writes[t].append(i)
    return writes


def _below(problem: Problem, t: int, tiers: dict[str, LowerTier]) -> LowerTier | None:
    """The tier that the tensor would move to."""
    if t in problem.starts_below:
        return tiers.get(problem.starts_below[t])
    return next((b for b in problem.below if b.capacity_bytes >= problem.graph.tensors[t].size_bytes), None)


def _clean(problem: Problem, gap: Gap, writes: Sequence[Sequence[int]]) -> bool:
    """Whether a valid copy can lie below all along: of contents from before the step that it does not change, or not before the gap."""
    t = gap.tensor
    if t not in problem.graph.derived(initial_set):
        return False
    if t in problem.starts_below and not gap.wraps:
        return not any(w <= gap.after for w in writes[t])
    return not writes[t] and bool(problem.graph.tensors[t].persistent)


def _length(problem: Problem, gap: Gap) -> int:
    start, end, count = problem.start_ns, problem.end_ns, len(problem.graph.ops)
    if gap.wraps:
        return problem.horizon_ns - end[gap.after] + start[gap.before]
    return max(0, (start[gap.before] if gap.before < count else problem.horizon_ns) - end[gap.after])


def _with_pressure(problem: Problem, found: Sequence[Score]) -> Iterator[Score]:
    """The scores with the channel pressure filled in.

    A candidate (it covers over-budget time) that moves needs ``transfer / gap`` of its channel, spread evenly over its gap. The pressure
    on a gap is the mean, over its ops' time, of what all candidates need together, of the way down or up, whichever is more.
    """
    count = len(problem.graph.ops)
    change: dict[tuple[str, bool], list[float]] = {}
    for s in found:
        if s.below is None or not s.over_budget_ns or not s.gap_ns:
            continue
        for up, time in ((False, s.down_ns), (True, s.up_ns)):
            rate = change.setdefault((s.below, up), [0.0] * (count + 1))
            for a, b in spans(s.gap, count):
                rate[a + 1] += time / s.gap_ns
                rate[b] -= time / s.gap_ns
    durations = _sums(problem.durations)
    needed = {
        way: [0.0, *accumulate(max(0.0, rate) * d for rate, d in zip(accumulate(rates), problem.durations, strict=False))]
        for way, rates in change.items()
    }
    for s in found:
        pieces = spans(s.gap, count)
        length = _within(durations, pieces)
        ways = [needed[way] for way in ((s.below or "", False), (s.below or "", True)) if way in needed]
        loads = [sum([sums[b] - sums[a + 1] for a, b in pieces if b > a + 1]) for sums in ways]
        yield replace(s, channel_pressure=round(max(loads, default=0.0) / length, 9) if length else 0.0)

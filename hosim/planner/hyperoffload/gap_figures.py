"""The figures by which the HyperOffload descriptions judge a tensor, for every gap. They inform the
user and decide nothing.

The descriptions call a tensor a good candidate if it is large, idle for long (lifetime) and rarely
used (access frequency), if computation covers its transfers, if the channel has time for them
(bandwidth loss), and compare what recomputing it would cost; the workflow's ``max(0, C_trans -
C_comp_overlap)`` is :attr:`GapFigures.exposed_ns`. ``hosim plan --explain`` shows these figures
beside the score by which selection decides (:mod:`hosim.planner.hyperoffload.selection`); that
score also considers the transfers that are already planned. All times are those of the problem (a
step without waits, unless other times were given), with each transfer alone on its channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from hosim.analysis import Gap, initial_set
from hosim.analysis.costmodel.transfers import alone_ns
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.tensor_choices import Problem
from hosim.planner.schedule.tiers_below import LowerTier


@dataclass(frozen=True, slots=True)
class GapFigures:
    """The figures of one gap, in bytes, nanoseconds and counts; ``value`` combines them, and a
    higher one is better.

    ``below`` is the tier of the transfer times: the tensor's home if that is below, else the
    fastest tier that can hold it; if there is none, it is None, and the transfer times are 0.
    ``down_ns`` is 0 if the contents need no store, ``up_ns`` if they need not come back.
    """

    gap: Gap
    bytes: int
    below: str | None
    accesses: int
    """The number of ops that use the tensor in a step."""
    gap_ns: int
    covered_ns: int
    """The computation of the main stream inside the gap, which can cover its transfers."""
    down_ns: int
    up_ns: int
    over_budget_ns: int
    """Time of the ops inside the gap during which the device tier would hold more than the budget
    if nothing moved.
    """
    peak_bytes: int
    """The reduction of the peak if the tensor is away: its bytes if the gap spans the op of the
    largest occupancy, else 0.
    """
    recompute_ns: int | None
    """The duration of the op that wrote the contents and could recompute them; None if no op did,
    or if it overwrote its input.
    """
    recompute_flops: int
    channel_pressure: float
    """The share of the channel's time inside the gap that all candidates open there would take
    together; above 1 they do not fit.
    """

    @property
    def transfer_ns(self) -> int:
        """The time of the round trip on idle channels."""
        return self.down_ns + self.up_ns

    @property
    def exposed_ns(self) -> int:
        """Return the part of the round trip that computation inside the gap cannot cover: ``max(0,
        C_trans - C_comp_overlap)``.
        """
        return max(0, self.transfer_ns - self.covered_ns)

    @property
    def relief_byte_ns(self) -> int:
        """The over-budget time inside the gap, times the bytes."""
        return self.bytes * self.over_budget_ns

    @property
    def value(self) -> float:
        """The relief per nanosecond of cost, in bytes: ``relief / (transfer * (1 + channel
        pressure) + exposed)``.
        """
        return self.relief_byte_ns / max(
            1.0, self.transfer_ns * (1 + self.channel_pressure) + self.exposed_ns
        )


def gap_figures(problem: Problem, budget_bytes: int) -> tuple[GapFigures, ...]:
    """Return the figures of every gap of tensors larger than 0 bytes, by tensor and then by
    position; O(ops + uses).

    A tensor whose home is below is not in the device tier before its first use: that gap relieves
    nothing.
    """
    graph = problem.graph
    count = len(graph.ops)
    main = graph.main_stream
    over = _sums(
        d * (held > budget_bytes)
        for d, held in zip(problem.durations, problem.held_bytes, strict=False)
    )
    computed = _sums(
        d * (op.stream == main) for d, op in zip(problem.durations, graph.ops, strict=True)
    )
    peak_op = max(range(count), key=problem.held_bytes.__getitem__, default=-1)
    tiers = {b.name: b for b in problem.below}
    found = []
    for t, gaps in sorted(problem.gaps_of.items()):
        size = graph.tensors[t].size_bytes
        below = _below(problem, t, tiers)
        for gap in gaps if size else ():
            counted = gap.after != AT_START or t not in problem.starts_below
            down = below is not None and not gap.dead(count) and not _clean(problem, gap)
            up = below is not None and gap.returns
            remade = gap.written != AT_START and t not in graph.ops[gap.written].reads
            found.append(
                GapFigures(
                    gap=gap,
                    bytes=size,
                    below=below.name if below else None,
                    accesses=len(graph.users[t]),
                    gap_ns=_length(problem, gap),
                    covered_ns=_within(computed, gap),
                    down_ns=alone_ns(problem.hardware, below.down.name, size)
                    if below is not None and down
                    else 0,
                    up_ns=alone_ns(problem.hardware, below.up.name, size)
                    if below is not None and up
                    else 0,
                    over_budget_ns=_within(over, gap) if counted else 0,
                    peak_bytes=size if counted and gap.after < peak_op < gap.before else 0,
                    recompute_ns=problem.durations[gap.written] if remade else None,
                    recompute_flops=graph.ops[gap.written].flops if remade else 0,
                    channel_pressure=0.0,
                )
            )
    return tuple(_with_pressure(problem, found))


def _sums(values: Iterable[int]) -> list[int]:
    return [0, *accumulate(values)]


def _within(sums: Sequence[int], gap: Gap) -> int:
    """Return the sum over the ops inside a gap."""
    return sums[gap.before] - sums[gap.after + 1] if gap.before > gap.after + 1 else 0


def _below(problem: Problem, t: int, tiers: dict[str, LowerTier]) -> LowerTier | None:
    """Return the lower tier to which the tensor would move; None if there is none."""
    if t in problem.starts_below:
        return tiers.get(problem.starts_below[t])
    return next(
        (b for b in problem.below if b.capacity_bytes >= problem.graph.tensors[t].size_bytes), None
    )


def _clean(problem: Problem, gap: Gap) -> bool:
    """Return True if a valid copy below can exist from the start: the contents are from before the
    step, and no op changes them (for a home below: none before the gap ends).
    """
    t = gap.tensor
    if t in problem.starts_below:
        return gap.version == 0
    persistent = t in problem.graph.derived(initial_set) and bool(
        problem.graph.tensors[t].persistent
    )
    return persistent and not problem.graph.writers[t]


def _length(problem: Problem, gap: Gap) -> int:
    begin = problem.end_ns[gap.after] if gap.after != AT_START else 0
    end = (
        problem.start_ns[gap.before] if gap.before < len(problem.graph.ops) else problem.horizon_ns
    )
    return max(0, end - begin)


def _with_pressure(problem: Problem, found: Sequence[GapFigures]) -> Iterator[GapFigures]:
    """Yield the figures with the channel pressure filled in.

    A candidate is a gap with over-budget time; its transfer needs the share ``transfer / gap`` of
    its channel, spread evenly over the gap. The pressure on a gap is the total share of all
    candidates, averaged over the time of the gap's ops, in the direction with the larger one.
    """
    count = len(problem.graph.ops)
    change: dict[tuple[str, bool], list[float]] = {}
    for s in found:
        if s.below is None or not s.over_budget_ns or not s.gap_ns:
            continue
        for up, time in ((False, s.down_ns), (True, s.up_ns)):
            rate = change.setdefault((s.below, up), [0.0] * (count + 1))
            rate[s.gap.after + 1] += time / s.gap_ns
            rate[s.gap.before] -= time / s.gap_ns
    durations = _sums(problem.durations)
    needed = {
        channel: [
            0.0,
            *accumulate(
                max(0.0, rate) * d
                for rate, d in zip(accumulate(rates), problem.durations, strict=False)
            ),
        ]
        for channel, rates in change.items()
    }
    for s in found:
        length = _within(durations, s.gap)
        sums = [
            needed[channel]
            for channel in ((s.below or "", False), (s.below or "", True))
            if channel in needed
        ]
        loads = [total[s.gap.before] - total[s.gap.after + 1] for total in sums if length]
        yield replace(
            s, channel_pressure=round(max(loads, default=0.0) / length, 9) if length else 0.0
        )

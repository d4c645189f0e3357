"""Even spreads, for steps in which the channels are what takes the time: persistent tensors start
below and leave again after each use.

They are spread evenly over the step, and all others stay. :func:`evenly` spreads them over all of
the step, :func:`in_time` over those whose transfers can be over by their first use: what is used
soonest is there from the start. Returns are as late as can be;
:func:`hosim.planner.hyperoffload.choice_passes.early_returns.advance` moves them ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from math import lcm

from hosim.analysis import Gap, initial_set
from hosim.analysis.costmodel import machine_of_copies
from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    HOME,
    Choices,
    Problem,
    TensorChoice,
    left_rates,
)
from hosim.planner.schedule.tiers_below import LARGE, evenly_spread, usual_size

Spread = Callable[[Problem, int, int | None, bool, int], Choices | None]
"""What spreads tensors over a step: of a budget in bytes, the bytes to spare, whether written ones
move, and the number of tiers below.
"""

_STRETCHES = 64
"""The step is taken to be longer by so many parts of it at most."""


def evenly(
    problem: Problem, budget_bytes: int, ahead_bytes: int | None, written: bool, tiers: int
) -> Choices | None:
    """Persistent tensors that only the step's own uses bring up, spread evenly, so many that all
    fits with ``ahead_bytes`` to spare.

    With ``None`` to spare these are all of them.

    ``written`` says whether those that the step writes may be among them, ``tiers`` how many tiers
    below take them, the fastest first: each the bytes that its channel can bring up in the same
    time. None if there are not enough tensors, or not enough room below. Returns are as late as can
    be.
    """
    graph, count = problem.graph, len(problem.graph.ops)
    forced = _forced(problem)
    if not problem.below:
        return None
    parts = _Parts(problem, tiers, late=True)
    open_gaps = problem.gaps_of
    free = _spreadable(problem, open_gaps, written)
    sizes = [graph.tensors[t].size_bytes for _, t in free]
    total = sum(sizes)
    wanted = _excess(problem, budget_bytes, ahead_bytes)
    excess = total if wanted is None else wanted
    if total < excess:
        return None
    choices: dict[int, TensorChoice] = dict(forced)
    for k in evenly_spread(sizes, excess):
        t, tier = free[k][1], parts.soonest(sizes[k])
        if tier is None:
            return None
        parts.take(tier, sizes[k])
        away = {
            gap.after: gap.before - 1 for gap in open_gaps[t] if gap.returns and gap.before < count
        }
        choices[t] = TensorChoice(tier, BELOW, {AT_START: graph.users[t][0] - 1, **away})
    return choices


def in_time(
    problem: Problem, budget_bytes: int, ahead_bytes: int | None, written: bool, tiers: int
) -> Choices | None:
    """An even spread, as :func:`evenly`, over tensors that can be there by their first uses; the
    others stay. None if those are too few.
    """
    excess = _excess(problem, budget_bytes, ahead_bytes)
    return _TimelySpread(problem, excess, written, tiers).within(0) if problem.below else None


def hardly_late(
    problem: Problem, budget_bytes: int, ahead_bytes: int | None, written: bool, tiers: int
) -> Choices | None:
    """The spread of :func:`in_time` in a step that is longer by as few 64ths as it takes; None in
    one that is twice as long, too.
    """
    spread = _TimelySpread(problem, _excess(problem, budget_bytes, ahead_bytes), written, tiers)
    short, enough = 0, _STRETCHES
    found = spread.within(enough) if problem.below else None
    while found is not None and enough - short > 1:
        half = (short + enough) // 2
        there = spread.within(half)
        short, enough, found = (half, enough, found) if there is None else (short, half, there)
    return found


def _excess(problem: Problem, budget_bytes: int, ahead_bytes: int | None) -> int | None:
    """The bytes that have to be below; None stands for all that can be."""
    return (
        None
        if ahead_bytes is None
        else max(0, max(problem.held_bytes) + ahead_bytes - budget_bytes)
    )


class _TimelySpread:
    """An even spread of ``excess`` bytes (None: all that can be) over what can be there by its
    first use.
    """

    def __init__(self, problem: Problem, excess: int | None, written: bool, tiers: int) -> None:
        graph, count = problem.graph, len(problem.graph.ops)
        self.problem, self.tiers = problem, tiers
        self._forced = _forced(problem)
        open_gaps = problem.gaps_of
        free = _spreadable(problem, open_gaps, written)
        self._uses = sorted([*free, *((graph.users[t][0], t) for t in self._forced)])
        self._back = {
            t: [
                gap
                for gap in open_gaps[t]
                if gap.returns and AT_START < gap.after < gap.before < count
            ]
            for _, t in free
        }
        self._sizes = [tensor.size_bytes for tensor in graph.tensors]
        self._total = sum([self._sizes[t] for _, t in free])
        self._excess = self._total if excess is None else excess

    def within(self, longer: int) -> Choices | None:
        """The spread in a step that is so many 64ths longer; None if there is none."""
        problem, wanted, total, rest = self.problem, self._excess, self._total, self._total
        parts = _Parts(problem, self.tiers, late=False)
        starts, ends, again = problem.start_ns, problem.end_ns, list[tuple[int, int, int, str]]()
        choices: dict[int, TensorChoice] = dict(self._forced)
        taken = passed = 0
        for first, t in self._uses:
            size = self._sizes[t]
            while again and again[0][0] <= first:
                _, other, left, tier = heappop(again)
                parts.carry(tier, self._sizes[other], _longer(ends[left], longer))
            if t in self._forced:
                parts.carry(self._forced[t].below, size)
                continue
            rest -= size
            passed += size
            if taken * total >= wanted * passed:
                continue
            soonest = parts.soonest(size)
            if soonest is None:
                return None
            if parts.end(soonest, size) <= _longer(starts[first], longer) * parts.parts:
                parts.take(soonest, size)
                taken += size
                for gap in self._back[t]:
                    heappush(again, (gap.before, t, gap.after, soonest))
                choices[t] = TensorChoice(
                    soonest,
                    BELOW,
                    {AT_START: first - 1, **{gap.after: gap.before - 1 for gap in self._back[t]}},
                )
            elif wanted - taken > rest:
                return None
            else:  # it stays, and the rest is spread over the rest of the step
                wanted, total, taken, passed = wanted - taken, rest, 0, 0
        return choices if taken >= wanted else None


def _longer(ns: int, parts: int) -> int:
    return ns + ns * parts // _STRETCHES


def _spreadable(
    problem: Problem, open_gaps: Mapping[int, list[Gap]], written: bool
) -> list[tuple[int, int]]:
    """The first use and the position of the persistent tensors that may start below, in the order
    of their first uses.
    """
    graph, initial = problem.graph, problem.graph.derived(initial_set)
    most, found = LARGE * usual_bytes(problem), []
    for t in open_gaps:
        tensor, users = graph.tensors[t], graph.users[t]
        starts_up = tensor.persistent and t in initial and t not in problem.starts_below
        if (
            starts_up
            and users
            and 0 < tensor.size_bytes <= most
            and (written or not graph.writers[t])
        ):
            found.append((users[0], t))
    return sorted(found)


class _Parts:
    """Bytes for each of several tiers, so that their channels up are busy for equally long;
    latencies count unless ``late``.

    Times are exact: whole numbers of parts of a nanosecond, of which there are ``parts``.
    """

    def __init__(self, problem: Problem, tiers: int, *, late: bool) -> None:
        ups = {b.name: b.up.name for b in problem.below[:tiers]}
        rate = left_rates(machine_of_copies(problem.graph, problem.hardware), ups)
        self.parts = lcm(*rate.values())
        self._of_a_byte = {tier: 10**9 * (self.parts // each) for tier, each in rate.items()}
        self._free = {b.name: b.capacity_bytes for b in problem.below[:tiers]}
        for t, tier in problem.starts_below.items():
            if tier in self._free:
                self._free[tier] -= problem.graph.tensors[t].size_bytes
        self._busy = dict.fromkeys(ups, 0)
        self._latency = {
            b.name: 0 if late else b.up.latency_ns * self.parts for b in problem.below[:tiers]
        }

    def end(self, tier: str, size: int) -> int:
        """Return the instant when a tier's channel has brought up a tensor of this size after all
        others.
        """
        return self._busy[tier] + self._latency[tier] + size * self._of_a_byte[tier]

    def soonest(self, size: int) -> str | None:
        """The tier that is done first with a tensor of this size, of those with room."""
        fitting = [tier for tier, free in self._free.items() if free >= size]
        if len(fitting) < 2:
            return fitting[0] if fitting else None
        return min(fitting, key=lambda tier: self.end(tier, size))

    def take(self, tier: str, size: int) -> None:
        """Place a tensor of this size in a tier."""
        self._free[tier] -= size
        self.carry(tier, size)

    def carry(self, tier: str, size: int, not_before_ns: int = 0) -> None:
        """Let a tier's channel bring up a tensor of this size, from some time on; nothing for tiers
        without a part.
        """
        if tier in self._busy:
            self._busy[tier] = max(self._busy[tier], not_before_ns * self.parts)
            self._busy[tier] = self.end(tier, size)


def usual_bytes(problem: Problem) -> int:
    """The size that half of all bytes of tensors with gaps are in tensors of at most."""
    return usual_size(
        [problem.graph.tensors[t].size_bytes for t in {gap.tensor for gap in problem.gaps}]
    )


def _forced(problem: Problem) -> Mapping[int, TensorChoice]:
    """Return the choices that fetch tensors from lower tiers for their first use."""
    graph = problem.graph
    return {
        t: TensorChoice(tier, HOME, {AT_START: graph.users[t][0] - 1})
        for t, tier in problem.starts_below.items()
        if graph.users[t]
    }

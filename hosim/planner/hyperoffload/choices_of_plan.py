"""The choices that come nearest to a plan: where a search may go on from what another policy has planned."""

from __future__ import annotations

from collections.abc import Sequence

from hosim.analysis.gaps import Gap, initial_set
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.planner.hyperoffload.choices import BELOW, COPY, HOME, Choices, TensorChoice
from hosim.planner.hyperoffload.problem import Problem, gaps_by_tensor


def choices_of(problem: Problem, plan: Plan) -> Choices:
    """What a plan decides for each tensor that it moves, as far as choices can say it: one tier below for each tensor."""
    moved: dict[int, list[CacheOp]] = {}
    for cache_op in plan.cache_ops:
        moved.setdefault(cache_op.tensor, []).append(cache_op)
    open_gaps, device = gaps_by_tensor(problem), problem.hardware.device_tier
    initial = problem.graph.derived(initial_set)
    found: dict[int, TensorChoice] = {}
    for t in sorted({*moved, *plan.initial, *problem.starts_below}):
        listed = moved.get(t, [])
        begins = plan.initial.get(t, (problem.starts_below.get(t, device),)) if t in initial else (device,)
        tiers = [c.destination if c.op == STORE else c.source for c in listed if c.op != DETACH]
        below = next((tier for tier in (*begins, *tiers) if tier is not None and tier != device), None)
        if below is None:
            continue
        start = HOME if t in problem.starts_below or below not in begins else COPY if device in begins else BELOW
        choice = TensorChoice(below, start)
        for gap in open_gaps.get(t, ()):
            choice = _in_gap(choice, gap, listed, start == BELOW or t in problem.starts_below)
        if choice.away or start == BELOW:
            found[t] = choice
    return found


def _in_gap(choice: TensorChoice, gap: Gap, listed: Sequence[CacheOp], starts_below: bool) -> TensorChoice:
    """The choice with what the cache ops of a tensor do in one of its gaps."""
    leaves = [c.after for c in listed if c.op == DETACH and gap.after <= c.after < gap.before]
    if not leaves and not (starts_below and gap.after == AT_START):
        return choice
    back = [c.after for c in listed if c.op == PREFETCH and gap.after <= c.after < gap.before]
    if gap.returns and not back:
        return choice
    choice = choice.with_return(gap.after, back[-1] if gap.returns else None)
    first = gap.written if gap.after != AT_START else AT_START
    stores = [c.after for c in listed if c.op == STORE and first <= c.after <= gap.after]
    if gap.after == AT_START and not starts_below:
        return choice.with_store(gap.after, leaves[0]) if leaves[0] != AT_START else choice
    return choice.with_store(gap.after, stores[-1]) if stores and stores[-1] < gap.after else choice

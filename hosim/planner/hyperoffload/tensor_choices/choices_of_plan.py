"""The choices that are nearest to another policy's plan, as a start for a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosim.analysis import Gap, initial_set
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.planner.hyperoffload.tensor_choices.choices import (
    BELOW,
    COPY,
    HOME,
    Choices,
    TensorChoice,
)
from hosim.planner.hyperoffload.tensor_choices.problem import Problem


def choices_of(problem: Problem, plan: Plan, leaves: bool = True) -> Choices:
    """Return a plan's decision on each tensor that it moves, as far as choices can express it: one
    store and one prefetch for each absence.

    Without ``leaves`` each tensor leaves as early as possible: on several streams the detaches of a
    runtime policy do not fit a plan.
    """
    moved: dict[int, list[CacheOp]] = {}
    for cache_op in plan.cache_ops:
        moved.setdefault(cache_op.tensor, []).append(cache_op)
    open_gaps, device, several = (
        problem.gaps_of,
        problem.hardware.device_tier,
        leaves and len(problem.graph.streams) > 1,
    )
    initial = problem.graph.derived(initial_set)
    found: dict[int, TensorChoice] = {}
    for t in sorted({*moved, *plan.initial, *problem.starts_below}):
        listed, writes = moved.get(t, []), problem.graph.writers[t]
        begins = (
            plan.initial.get(t, (problem.starts_below.get(t, device),))
            if t in initial
            else (device,)
        )
        tiers = [c.destination if c.op == STORE else c.source for c in listed if c.op != DETACH]
        starts = [tier for tier in begins if tier != device]
        below = next(
            (
                tier
                for tier in (*[tier for tier in tiers if tier in starts], *starts, *tiers)
                if tier not in (None, device)
            ),
            None,
        )
        if below is None:
            continue
        start = (
            HOME
            if t in problem.starts_below or below not in begins
            else COPY
            if device in begins
            else BELOW
        )
        choice = TensorChoice(below, start)
        for gap in open_gaps.get(t, ()):
            choice = _in_gap(
                choice, gap, listed, start == BELOW or t in problem.starts_below, several
            )
        saved = [c.after for c in listed if c.op == STORE and writes and c.after > writes[-1]]
        if saved and (start != HOME or t in problem.starts_below):
            choice = choice.with_store(len(problem.graph.ops), saved[0])
        used = max(problem.graph.users[t], default=AT_START)
        gone = [c.after for c in listed if c.op == DETACH and c.after > used]
        if several and gone and used not in choice.away:
            choice = choice.with_leave(used, gone[-1])
        if (
            choice.away or start == BELOW or t in problem.starts_below
        ):  # a tensor whose home is below returns there
            found[t] = choice
    return _in_turn(found, plan, open_gaps)


def _in_gap(
    choice: TensorChoice, gap: Gap, listed: Sequence[CacheOp], starts_below: bool, several: bool
) -> TensorChoice:
    """Return the choice with the absence that a tensor's cache ops ``listed`` make in one gap; on
    ``several`` streams also with the op after which it leaves.
    """
    leaves = [c.after for c in listed if c.op == DETACH and gap.after <= c.after < gap.before]
    if not leaves and not (starts_below and gap.after == AT_START):
        return choice
    back = [c for c in listed if c.op == PREFETCH and gap.after <= c.after < gap.before]
    if gap.returns and not back:
        return choice
    choice = choice.with_return(gap.after, back[-1].after if gap.returns else None)
    first = gap.written if gap.after != AT_START else AT_START
    last = leaves[0] if leaves else gap.after
    stores = [c for c in listed if c.op == STORE and first <= c.after <= last]
    tier = back[-1].source if gap.returns else stores[-1].destination if stores else None
    if tier is not None and not (starts_below and choice.start == HOME):
        choice = choice.with_tier(gap.after, tier)
    if several and last > gap.after:
        choice = choice.with_leave(gap.after, last)
    if gap.after == AT_START and not starts_below:
        at = stores[-1].after if several and stores else leaves[0]
        return choice.with_store(gap.after, at) if at != AT_START else choice
    return (
        choice.with_store(gap.after, stores[-1].after)
        if stores and stores[-1].after != gap.after
        else choice
    )


def _in_turn(
    found: dict[int, TensorChoice], plan: Plan, open_gaps: Mapping[int, list[Gap]]
) -> Choices:
    """Return the choices with ``turns`` that keep the plan's order of returns after each op."""
    behind: dict[int, tuple[int, int]] = {}
    for c in plan.cache_ops:
        choice = found.get(c.tensor)
        gaps = open_gaps.get(c.tensor, ()) if c.op == PREFETCH and choice is not None else ()
        for gap in gaps:
            if (
                choice is not None
                and choice.away.get(gap.after) == c.after
                and gap.after <= c.after < gap.before
            ):
                turn, (ahead, other) = 2 * gap.before, behind.get(c.after, (-1, -1))
                if (turn, c.tensor) < (ahead, other):
                    turn = ahead + (c.tensor < other)
                    found[c.tensor] = choice.with_turn(gap.after, turn)
                behind[c.after] = turn, c.tensor
    return found

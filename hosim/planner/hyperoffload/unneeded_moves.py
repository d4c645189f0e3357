"""The removal of a plan's unneeded moves: absences whose loss costs no time are dropped, and what
can lie nearer does, largest tensors first.

A sweep moves what is over the budget at each op, and a later change may have made room for some of
that. What stays cannot be late where times vary, and leaves its channel to others.
"""

from __future__ import annotations

from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.local_moves import PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    Choices,
    Problem,
    TensorChoice,
    WorkDone,
)


def without_unneeded(
    simulator: PlanSimulator,
    choices: Choices,
    most: int,
    work: WorkDone,
    nearer: bool,
    faster: bool = True,
) -> Choices:
    """The choices less the absences without which the step takes no longer, or if not ``faster``
    the same time; ``nearer``: in the nearest tier where that costs nothing.

    At most so much work looks at them; what is looked at is counted. ``simulator`` covers the
    choices.
    """
    begun = simulator.work
    cost = simulator.begin(choices)
    least_ns = 0 if faster else cost[1]
    problem = simulator.problem
    nearest = problem.below[0].name if nearer and problem.below else ""
    for t in sorted(choices, key=lambda t: (-problem.graph.tensors[t].size_bytes, t)):
        if simulator.work - begun > most:
            break
        for after in _droppable(problem, t, choices[t]):
            less = None if after is None else _less(problem, t, simulator.choices.get(t), after)
            if simulator.work - begun <= most:
                _accept_free(simulator, t, less, 1, least_ns)
        left = simulator.choices.get(t)
        near = (
            left.below_in(nearest)
            if nearest and left is not None and t not in problem.starts_below
            else left
        )
        if near is not None and near != left and simulator.work - begun <= most:
            _accept_free(simulator, t, near, 0, least_ns)
    work.done += simulator.work - begun
    return dict(sorted(simulator.choices.items()))


def _accept_free(
    simulator: PlanSimulator, t: int, choice: TensorChoice | None, saved: int, least_ns: int
) -> None:
    """Take a choice that makes the step no longer, takes no less than ``least_ns``, and moves at
    least so many bytes less.
    """
    infeasible, takes_ns, moved_bytes = simulator.cost
    found = simulator.judge({t: choice}, takes_ns + 1)
    no_longer = found[0] <= infeasible and least_ns <= found[1] <= takes_ns
    if no_longer and found[2] <= moved_bytes - saved:
        simulator.accept({t: choice})


def _droppable(problem: Problem, t: int, choice: TensorChoice) -> list[int | None]:
    """Return the parts that may be left out of a choice: all of it (None), then each absence by the
    op that it comes after.
    """
    stays: list[int | None] = [] if t in problem.starts_below else [None]
    begins_below = t in problem.starts_below or choice.start == BELOW
    absences = [after for after in choice.away if not (begins_below and after == AT_START)]
    return [*stays, *absences] if len(choice.away) > 1 else stays


def _less(problem: Problem, t: int, choice: TensorChoice | None, after: int) -> TensorChoice | None:
    """A choice less one absence; one that moves nothing is none."""
    less = None if choice is None else choice.without(after)
    return (
        less
        if less is not None and (less.away or less.start == BELOW or t in problem.starts_below)
        else None
    )

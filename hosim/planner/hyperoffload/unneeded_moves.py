"""The removal of a plan's unneeded moves: absences whose loss costs no time are dropped, and what
can lie nearer does, largest tensors first.

A sweep moves what is over the budget at each op, and a later change may have made room for some of
that. What stays cannot be late where times vary, and leaves its channel to others.
"""

from __future__ import annotations

from hosim.planner.hyperoffload.local_moves import PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import Choices, WorkDone


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
    begun, problem = simulator.work, simulator.problem
    cost = simulator.begin(choices)
    nearest = -1
    if nearer and problem.below:
        nearest = problem.hardware.tier_index[problem.below[0].name]
    for t in sorted(choices, key=lambda t: (-problem.graph.tensors[t].size_bytes, t)):
        if simulator.work - begun > most:
            break
        simulator.kernel.drop(t, nearest, 0 if faster else cost[1], begun + most)
    work.done += simulator.work - begun
    return simulator.choices

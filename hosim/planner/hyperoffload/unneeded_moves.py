"""The removal of a plan's unneeded moves, largest tensors first: absences that save no time are
dropped, and tensors move to a nearer tier if that costs nothing.

A sweep evicts enough for each op, and a later change may have made room for some of that. A tensor
that stays cannot be late when times vary, and leaves its channel to others.
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
    """Return the choices without the absences whose removal does not make the step slower; if not
    ``faster``, without those whose removal leaves the makespan unchanged.

    ``nearer`` also moves tensors to the nearest lower tier if that costs nothing. At most ``most``
    work is spent; it is added to ``work``. ``simulator`` covers the choices.
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

"""Local search from some choices on: around the stalls, on small graphs after annealing.

It ends no worse than it begins. What it spends is a number of judgements, so that the same seed gives the same plan.
"""

from __future__ import annotations

from hosim.planner.hyperoffload.local_moves.annealing import Annealing, Restart
from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator
from hosim.planner.hyperoffload.local_moves.remembered_costs import RememberedCosts
from hosim.planner.hyperoffload.local_moves.replayed_choices import ReplayedChoices
from hosim.planner.hyperoffload.local_moves.stall_search import SMALL, StallSearch
from hosim.planner.hyperoffload.tensor_choices import Choices

_BOTH = 300
"""The work for each op from which on small graphs are annealed and then searched around the stalls, with half as much again."""


def improve(
    simulator: PlanSimulator | ReplayedChoices, choices: Choices, floor_ns: int, work: int, seed: int, restart: Restart | None = None
) -> Choices:
    """The best choices found from ``choices`` on, and on small graphs from others that ``restart`` gives; none can beat ``floor_ns``.

    ``work`` is what to spend, in :attr:`PlanSimulator.work`; on large graphs it may become less where it does not pay, and more where it
    does. Those are searched only where the simulator covers the machine.
    """
    count = len(simulator.problem.graph.ops)
    if isinstance(simulator, ReplayedChoices) or (count <= SMALL and work < _BOTH * count):
        return Annealing(RememberedCosts(simulator), choices, floor_ns, work, seed, restart).run()
    if count <= SMALL:
        choices = Annealing(RememberedCosts(simulator), choices, floor_ns, work, seed, restart).run()
        work //= 2
    return StallSearch(simulator, choices, floor_ns, work, seed).run()

"""Local search from some choices on: by annealing on small graphs, around the stalls on larger ones.

It ends no worse than it begins. What it spends is a number of judgements, so that the same seed gives the same plan.
"""

from __future__ import annotations

from hosim.planner.hyperoffload.annealing import Annealing, Restart
from hosim.planner.hyperoffload.choices import Choices
from hosim.planner.hyperoffload.plan_simulator import PlanSimulator
from hosim.planner.hyperoffload.remembered_costs import RememberedCosts
from hosim.planner.hyperoffload.replayed_choices import ReplayedChoices
from hosim.planner.hyperoffload.stall_search import StallSearch

_SMALL = 200
"""Ops up to which a graph is small."""


def improve(
    simulator: PlanSimulator | ReplayedChoices, choices: Choices, floor_ns: int, work: int, seed: int, restart: Restart | None = None
) -> Choices:
    """The best choices found from ``choices`` on, and on small graphs from others that ``restart`` gives; none can beat ``floor_ns``.

    ``work`` is what to spend, in :attr:`PlanSimulator.work`; on large graphs it may become less where it does not pay, and more where it
    does. Those are searched only where the simulator covers the machine.
    """
    if isinstance(simulator, ReplayedChoices) or len(simulator.problem.graph.ops) <= _SMALL:
        return Annealing(RememberedCosts(simulator), choices, floor_ns, work, seed, restart).run()
    return StallSearch(simulator, choices, floor_ns, work, seed).run()

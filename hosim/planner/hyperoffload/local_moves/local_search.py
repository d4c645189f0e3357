"""Local search from some choices on, which can be gone on with: the kernel searches, and several
searches use one simulator in turns.
"""

from __future__ import annotations

from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import Choices, WorkDone


class LocalSearch:
    """Searches from ``choices`` on; none can beat ``floor_ns``. The same ``seed`` finds the
    same.
    """

    def __init__(
        self, simulator: PlanSimulator, choices: Choices, floor_ns: int, seed: int
    ) -> None:
        self._simulator, begun = simulator, simulator.work
        simulator.begin(choices)
        self._owed = simulator.work - begun
        simulator.kernel.begin(seed, floor_ns, self._owed)
        self._best: Choices = simulator.choices
        self._note()

    def _note(self) -> None:
        simulator = self._simulator
        simulator.owner = self._record = simulator.record()
        self.some = not simulator.kernel.at_end()
        """Whether anything can be gained."""

    def best(self) -> Choices:
        """The best choices so far."""
        return self._best

    def go_on(self, work: int, spent: WorkDone) -> bool:
        """Search with so much work, which is added to what is ``spent``; says whether the best
        choices are better.
        """
        simulator = self._simulator
        begun = simulator.work - self._owed
        self._owed = 0
        if simulator.owner is not self._record:  # another search has used the simulator
            simulator.put_back(self._record)
        better = simulator.kernel.go_on(begun + work)
        if better:
            self._best = simulator.best()
        self._note()
        spent.done += simulator.work - begun
        return better

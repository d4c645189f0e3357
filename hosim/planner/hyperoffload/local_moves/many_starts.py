"""Short searches of a small graph from many starts, and longer ones from where the best of these end (successive halving).

On small graphs whether a search finds the best plan there is depends on where it begins, and little on how long it goes on: on 22 random
graphs whose optimum a whole search missed, searches of 25,000 instants found it as often in the same time as any that were 5 times as long.
Jamieson and Talwalkar, *Non-stochastic best arm identification and hyperparameter optimization* (2016), describe successive halving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from hosim.planner.hyperoffload.gap_scoring import Weights
from hosim.planner.hyperoffload.local_moves.local_search import improve
from hosim.planner.hyperoffload.local_moves.plan_simulator import PlanSimulator, SimulatedCost
from hosim.planner.hyperoffload.local_moves.replayed_choices import ReplayedChoices
from hosim.planner.hyperoffload.selection import select
from hosim.planner.hyperoffload.tensor_choices import Choices, Problem

FEW = 48
"""Ops up to which a graph is searched from many starts."""
_STARTS, _KEPT = 28, (4, 1)
"""Short searches, and how many of the best of all go on in the rounds after them."""
_AGREE = 8
"""Where so many end with the best makespan, there are no more of either: on 119 random graphs whose optimum is proved, 55 of which agreed
after 14, longer searches found nothing better than seven that agreed."""
_PARTS = (0.1, 0.2, 0.5)
"""The part of the work that one search of each round takes."""
_DRAWN = 2
"""Other choices of which the best is a start."""
_LEFT = 0.4, 1.0
"""Between which parts of all gaps other choices are made of."""
_LEAST = 1_000
"""Instants that a search simulates at least."""


class Restarts:
    """Gives choices to search from, at random: a sweep over some of the gaps, every other time with some tensors in other tiers below.

    Where the judge does not cover these, it gives ``otherwise``.
    """

    def __init__(self, problem: Problem, within: int, judge: PlanSimulator | ReplayedChoices, otherwise: Choices) -> None:
        self._problem, self._within, self._judge, self._otherwise = problem, within, judge, otherwise

    def __call__(self, rng: Random) -> Choices:
        """The choices of one more sweep."""
        share = rng.uniform(*_LEFT)
        left = tuple([gap for gap in self._problem.gaps if rng.random() < share])
        weights = Weights(waiting=rng.choice((0.0, 0.1, 0.3, 1.0)), slow=rng.uniform(0.4, 1.0), copies=rng.random() < 0.5)
        swept = select(replace(self._problem, gaps=left), int(self._within * rng.uniform(0.9, 1.0)), weights).choices
        found = self._elsewhere(swept, rng)
        return found if isinstance(self._judge, ReplayedChoices) or self._judge.covers(found) else self._otherwise

    def _elsewhere(self, choices: Choices, rng: Random) -> Choices:
        """The choices with some tensors in other tiers below."""
        tiers, moved = self._judge.tiers, dict(choices)
        share = rng.random() if len(tiers) > 1 and rng.random() < 0.5 else 0.0
        for t, choice in choices.items():
            if rng.random() < share and t not in self._problem.starts_below:
                moved[t] = choice.below_in(rng.choice(tiers))
        return moved


class ManyStarts:
    """Searches from the choices ``begun`` and from those that ``restart`` gives.

    ``work`` is that of a whole search. More ``effort`` than 1 is spent on more starts, less on fewer.
    """

    def __init__(self, simulator: PlanSimulator, begun: Sequence[Choices], restart: Restarts, work: int, effort: float, seed: int) -> None:
        self._simulator, self._begun, self._restart = simulator, begun, restart
        self._starts = max(len(begun), round(_STARTS * effort))
        self._work = work if effort <= 1 else work / effort
        self._rng = Random(seed)
        self._ends: list[tuple[SimulatedCost, int, Choices]] = []

    def run(self, floor_ns: int, least_ns: Callable[[], int]) -> Choices:
        """The best choices found; none can beat ``floor_ns``, nor ``least_ns``, which takes time and is asked once."""
        self._search(self._begun[0], _PARTS[0], floor_ns)
        if not self._at(floor_ns):
            floor_ns = max(floor_ns, least_ns())
        for k in range(1, self._starts):
            if self._at(floor_ns) or self._agree():
                return min(self._ends)[2]
            drawn = [self._begun[k]] if k < len(self._begun) else [self._restart(self._rng) for _ in range(_DRAWN)]
            self._search(min(drawn, key=self._simulator.begin), _PARTS[0], floor_ns)
        for kept, part in zip(_KEPT, _PARTS[1:], strict=True):
            for _, _, choices in sorted(self._ends)[:kept]:
                if not self._at(floor_ns):
                    self._search(choices, part, floor_ns)
        return min(self._ends)[2]

    def _search(self, choices: Choices, part: float, floor_ns: int) -> None:
        found = improve(self._simulator, choices, floor_ns, max(_LEAST, int(part * self._work)), self._rng.getrandbits(32))
        self._ends.append((self._simulator.begin(found), len(self._ends), found))

    def _agree(self) -> bool:
        """Whether as many searches end at once with the best makespan as are taken to have found what there is."""
        best = min(self._ends)[0]
        return not best[0] and sum([cost[1] == best[1] for cost, _, _ in self._ends]) >= _AGREE

    def _at(self, floor_ns: int) -> bool:
        """Whether nothing better can be."""
        cost = min(self._ends)[0]
        return not cost[0] and cost[1] <= floor_ns

"""Search in windows around the stalls: it changes a few decisions at a time where ops wait, at any size of the graph.

The op that waits, drawn by how long it does, gives a window of ops: its gaps are those that begin, end or move something there, and some of
those that reach over it. Changes there (:mod:`hosim.planner.hyperoffload.choice_moves`) are judged by
:mod:`hosim.planner.hyperoffload.plan_simulator`. Simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983) takes a worse one with a
probability that falls with what it loses and with time, since what helps is often two or three changes that each alone do not; a round
ends with a descent from the best there is. A graph of few ops is one window; there, every other round is over the order of returns alone,
each of them as early as there is room (:mod:`hosim.planner.hyperoffload.ordered_returns`).

It ends no worse than it begins. What it spends is a number of judgements, so that the same seed gives the same plan; on large graphs it
goes on only while that pays.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import ChainMap
from collections.abc import Callable, Sequence
from itertools import accumulate

from hosim.analysis.gaps import Gap
from hosim.planner.hyperoffload.choice_moves import Changes, ChoiceMoves
from hosim.planner.hyperoffload.choices import Choices, TensorChoice
from hosim.planner.hyperoffload.ordered_returns import OrderedReturns
from hosim.planner.hyperoffload.plan_simulator import WORK_OF_A_JUDGEMENT, PlanSimulator, SimulatedCost
from hosim.planner.hyperoffload.replayed_choices import ReplayedChoices

_HEATS = (0.6, 0.6, 1.0, 0.6, 1.0, 0.6, 0.3, 0.3)
"""Temperature at the start of each round on a small graph, in mean op durations; what one heat misses another finds."""
_ROUND = 80
"""Judgements of whole runs that a round has at least: with little work to spend there are fewer rounds."""
_AGAIN = (1, 2, 3, 4, 5)
"""The rounds that begin from other choices than the best: where these are a trap, no change of two decisions leads out of it."""
_ORDERED = (0, 2, 4, 6)
"""The rounds that search over the order of returns, each as early as there is room."""
_OTHERS = 12
"""Other choices of which such a round takes the best."""
_ONE_WINDOW = 200
"""Ops up to which a graph is one window."""
_REACHES = (12, 40, 120)
"""Ops that a window of a larger graph reaches back from the stall, in turn."""
_HEAT = 0.3
"""Temperature at the start of such a window, in mean op durations."""
_SPANNING = 60
"""Gaps over a whole window that are looked at."""
_WINDOWS, _BLOCKS, _MOST_BLOCKS = 16, 4, 8
"""Windows to a block; blocks that all work is divided into; and the most blocks where it pays to go on."""
_RUNS = 4
"""Whole runs that there has to be work for: where long lines wait for the channels, a change delays all that follows."""
_LITTLE, _PAYS = 5000, 300
"""A block that gains less than one part in so many ends the search; one that gains more is followed by another beyond all work."""
_NEVER = 1 << 62


Restart = Callable[[random.Random], Choices]
"""Gives other choices to begin from, at random."""


def improve(
    simulator: PlanSimulator | ReplayedChoices, choices: Choices, floor_ns: int, work: int, seed: int, restart: Restart | None = None
) -> Choices:
    """The best choices found from ``choices`` on, and on small graphs from others that ``restart`` gives; none can beat ``floor_ns``.

    ``work`` is what to spend, in :attr:`PlanSimulator.work`; where it pays, it may become twice as much.
    """
    search = WindowSearch(simulator, choices, floor_ns, work, seed, restart)
    if search.moves.gaps:
        search.run()
    return search.best


class WindowSearch:
    """The present choices, which the simulator keeps, and the best ones: ``cost`` is theirs.

    ``undo`` has what tensors did in the best choices, where that is not what they do now. The search ends at ``until``;
    ``whole`` is the work of a whole run.
    """

    def __init__(
        self,
        simulator: PlanSimulator | ReplayedChoices,
        choices: Choices,
        floor_ns: int,
        work: int,
        seed: int,
        restart: Restart | None = None,
    ) -> None:
        self.simulator = simulator
        self.floor_ns = floor_ns
        self.work = work
        self.restart = restart
        self.budget = simulator.budget_bytes
        self.rng = random.Random(seed)
        problem = simulator.problem
        self.count = len(problem.graph.ops)
        self.moves = ChoiceMoves(problem, simulator.tiers)
        self.all_gaps = [gap for t in sorted(self.moves.gaps) for gap in self.moves.gaps[t]]
        self.mean_ns = sum(problem.durations) / max(1, len(problem.durations))
        begun = simulator.work
        self.cost = simulator.begin(choices)
        self.whole = simulator.work - begun
        self.until = simulator.work + work
        self.undo: dict[int, TensorChoice | None] = {}

    @property
    def best(self) -> Choices:
        """The best choices."""
        best = {**self.simulator.choices, **self.undo}
        return {t: choice for t, choice in sorted(best.items()) if choice is not None}

    @property
    def done(self) -> bool:
        """Whether nothing better can be, or all is spent."""
        return self.simulator.work >= self.until or (not self.cost[0] and self.cost[1] <= self.floor_ns)

    def run(self) -> None:
        """Search until all is spent, or it does not pay any more."""
        if self.count <= _ONE_WINDOW:
            begin = self.simulator.work
            heats = _HEATS[: max(2, self.work // (_ROUND * (self.whole + WORK_OF_A_JUDGEMENT)))]
            for k, heat in enumerate(heats, 1):
                if self.done:
                    break
                self.back_to_best()
                if k - 1 in _AGAIN and self.restart is not None and self.work > 4 * len(_HEATS) * _OTHERS * self.whole:
                    self.elsewhere(self.restart)
                ordered = OrderedReturns(self.simulator.problem, self.budget) if k - 1 in _ORDERED else None
                self.anneal(heat, begin + self.work * k // len(heats), self.all_gaps, ordered)
                self.descend(self.all_gaps, self.until)
            self.tidy(sorted(self.simulator.choices))
            return
        if self.whole * _RUNS > self.work:
            return
        touched: set[int] = set()
        block = self.work // _BLOCKS
        for k in range(_MOST_BLOCKS):
            before = self.cost
            self.until = self.simulator.work + block
            self.block(touched, max(1, block // _WINDOWS))
            if self.cost[0]:
                if k >= _BLOCKS - 1:
                    break
                continue
            gain = before[1] - self.cost[1]
            paid = bool(before[0]) or gain * (_LITTLE if k < _BLOCKS - 1 else _PAYS) >= self.cost[1]
            if (not paid and k) or self.cost[1] <= self.floor_ns:
                break
        self.until = self.simulator.work + block
        self.tidy(sorted(touched))

    def block(self, touched: set[int], work: int) -> None:
        """Windows, one after the other, each for so much work; ``touched`` gains the tensors of those that helped."""
        for k in range(_WINDOWS):
            window = self.window(_REACHES[k % len(_REACHES)])
            if self.done or not window:
                return
            before, begin = self.cost, self.simulator.work
            self.back_to_best()
            self.anneal(_HEAT, begin + work, window)
            if self.cost < before:
                touched |= {gap.tensor for gap in window}
                self.descend(window, self.simulator.work + work)

    def window(self, reach: int) -> list[Gap]:
        """The gaps around a stall, which is drawn by its length."""
        rng = self.rng
        stalls = self.simulator.stalls()
        if self.cost[0]:
            stalls = stalls[-1:] or [(0, 1, 0)]
        if not stalls:
            stalls = [(self.count - 1, 1, 0)]
        sums = list(accumulate([ns for _, ns, _ in stalls]))
        op, _, blamed = stalls[bisect_left(sums, rng.random() * sums[-1])]
        first, last = op - reach, op + reach // 4
        near: list[Gap] = []
        over: list[Gap] = []
        choices = self.simulator.choices
        for gap in self.all_gaps:
            if gap.after > last or gap.before < first:
                continue
            if gap.tensor == blamed or gap.after >= first or gap.before <= last:
                near.append(gap)
                continue
            choice = choices.get(gap.tensor)
            back = choice.away.get(gap.after) if choice is not None else None
            if back is not None and first <= back <= last:
                near.append(gap)
            else:
                over.append(gap)
        if len(over) > _SPANNING:
            over = rng.sample(over, _SPANNING)
        return near + over

    def settled(self, ordered: OrderedReturns, changes: Changes) -> dict[int, TensorChoice | None]:
        """The present choices with changes, all returns as early as there is room, as changes."""
        present = self.simulator.choices
        wanted = {t: choice for t, choice in {**present, **changes}.items() if choice is not None}
        found = ordered(wanted)
        return {t: found.get(t) for t in {**present, **found} if found.get(t) != present.get(t)}

    def anneal(self, hot: float, until: int, gaps: Sequence[Gap], ordered: OrderedReturns | None = None) -> None:
        """From the present choices on, cooling down from ``hot`` mean op durations until so much work is spent.

        With ``ordered`` all returns are as early as there is room, after each change.
        """
        rng, simulator = self.rng, self.simulator
        begin = simulator.work
        span = max(1, until - begin)
        while simulator.work < until and not self.done:
            changes = dict(self.moves.random(rng, simulator.choices, rng.choice(gaps), gaps))
            if rng.random() < 0.3:
                present: ChainMap[int, TensorChoice | None] = ChainMap(changes, simulator.choices)  # type: ignore[arg-type]
                changes |= self.moves.random(rng, present, rng.choice(gaps), gaps)
            if ordered is not None:
                changes = self.settled(ordered, changes)
            cost = simulator.cost
            heat = hot * self.mean_ns * (1 - (simulator.work - begin) / span) ** 2
            allowed = -heat * math.log(1 - rng.random()) if heat > 0 else 0.0
            limit = None if cost[0] else cost[1] + int(allowed) + 1
            found = simulator.judge(changes, limit)
            loss = found[1] - cost[1] if found[0] == cost[0] else _NEVER * (found[0] - cost[0])
            if loss <= allowed and loss < 30 * max(heat, 1):
                self.take(changes)

    def elsewhere(self, restart: Restart) -> None:
        """Begin from the best of some other choices."""
        found: tuple[SimulatedCost, Changes] | None = None
        present = self.simulator.choices
        for _ in range(_OTHERS):
            other = restart(self.rng)
            changes = {t: other.get(t) for t in sorted({*present, *other}) if other.get(t) != present.get(t)}
            cost = self.simulator.judge(changes)
            if changes and (found is None or cost < found[0]):
                found = cost, changes
        if found is not None:
            self.take(found[1])

    def take(self, changes: Changes) -> None:
        """Make changes the present choices, and the best ones if they are."""
        choices = self.simulator.choices
        for t in changes:
            self.undo.setdefault(t, choices.get(t))
        found = self.simulator.accept(changes)
        if found < self.cost:
            self.cost = found
            self.undo.clear()

    def back_to_best(self) -> None:
        """Make the best choices the present ones."""
        if self.undo:
            self.simulator.accept(dict(self.undo))
            self.undo.clear()

    def descend(self, gaps: Sequence[Gap], until: int) -> None:
        """First improvement over all changes of one decision, until none is better."""
        self.back_to_best()
        improved = True
        while improved and not self.done and self.simulator.work < until:
            improved = False
            neighbours = list(self.moves.neighbours(self.simulator.choices, gaps))
            self.rng.shuffle(neighbours)
            for changes in neighbours:
                if self.done or self.simulator.work >= until:
                    break
                if self.better(changes):
                    improved = True
                    break

    def better(self, changes: Changes) -> bool:
        """Take changes if they are better than the best."""
        found: SimulatedCost = self.simulator.judge(changes, None if self.cost[0] else self.cost[1] + 1)
        if found < self.cost:
            self.take(changes)
            return True
        return False

    def tidy(self, tensors: Sequence[int]) -> None:
        """Let what moves for nothing stay: drop every absence whose loss makes the plan no longer."""
        self.back_to_best()
        for t in tensors:
            choice = self.simulator.choices.get(t)
            for after in choice.away if choice is not None else ():
                changes = self.moves.without(self.simulator.choices, t, after)
                if changes:
                    self.better(changes)

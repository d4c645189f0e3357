"""One search: arms bring plans, a pool keeps unlike ones, local search goes on from these, and what
pays gets the work.

An arm is a generator. Each of its steps does a piece of work, such as a sweep or the plan of
another policy, and offers what comes of it (:meth:`Search.offer`). Local search from a plan of the
pool is an arm, too. :meth:`Search.run` takes the step of the arm that promises the best makespan if
it went on as it did lately, and ends when no arm promises a gain that is worth the rest of the
work. Work is counted, never measured by a clock, and which arm is next does not depend on how much
there is: more work continues the same search. Before each step something else may end it
(:mod:`hosim.base.search_control`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt
from random import Random

from hosim.analysis.costmodel.spreads import has_draws
from hosim.analysis.lower_bounds import LowerBounds, bound_of_result_ns
from hosim.base.search_control import SearchProgress, present_planning
from hosim.edits import Edits
from hosim.engine import replayed_latitudes, verdict
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.judgement import LOCAL_SEARCH, SPREAD
from hosim.planner.hyperoffload.local_moves import LocalSearch, PlanSimulator
from hosim.planner.hyperoffload.selection import Selection
from hosim.planner.hyperoffload.sweep_cells import Weights
from hosim.planner.hyperoffload.tensor_choices import (
    Evaluation,
    Evaluator,
    Judge,
    Problem,
    WorkDone,
    analyse,
    with_gaps_between_neighbours,
    work_of,
)
from hosim.planner.hyperoffload.unneeded_moves import without_unneeded

_WORK = 500_000
"""The work of ``effort=1`` for a graph of one op; it grows with the fourth root of the ops."""
_LEAST = 0.05
"""Less effort than that changes nothing."""
_BLOCK = 40
"""Local search goes on for such a part of that work at a time."""
_FEW = 48
"""Up to so many ops tensors may be away between two uses that follow each other on one stream,
too.
"""
_EXPLORED = 4
"""In such a part of that work arms bring plans, before any of these is searched from. What is
returned is no slower than the best after such a part of all work.
"""
_TIDIED = 2
"""Blocks of work at most that look for what a plan moves and need not."""
_HOPED, _PART_OF_AN_OP, _FORGET = 0.002, 0.1, 0.7
"""What an arm is taken to gain before it has done anything, in a block: such a part of the
makespan, or of a usual op where that is more. And what counts of all that it did before its last
step.
"""
_SHARE = 5e-4
"""The search ends when less than this part of the makespan is to be expected of the rest of the
work. What gains less is taken if it is steadier.
"""
_ALIKE = 5e-3
"""Plans are alike that take up to that part of the makespan longer than the best."""
_OF_A_PASS, _BOUNDED = 20, 120
"""The work of a pass for each op or gap of a graph, and for each op of a bound; all work is in
units of :class:`WorkDone`.
"""
_POOL, _UNLIKE = 6, 10
"""Plans in the pool at most; two of them differ in more than an ``_UNLIKE``-th of the bytes that
either has away.
"""

Promise = Callable[[], float | None]
Arm = Callable[["Search", "PlannedGraph"], Iterator[Promise | None]]
"""Offers plans to a search, for a graph, one piece of work at a step.

What it yields is asked, whenever arms are compared, for the makespan that the next step promises;
None: what the arm gained lately says that.
"""


class PlannedGraph:
    """A graph to plan for: the workload, or what ``edits`` make of it."""

    def __init__(self, problem: Problem, evaluate: Evaluator, edits: Edits | None = None) -> None:
        self.problem, self.evaluate, self.edits = problem, evaluate, edits
        evaluate.work.done += _OF_A_PASS * (len(problem.graph.ops) + len(problem.gaps))
        self.swept: list[tuple[Weights, float]] = []
        """The weights of its sweeps, and the makespans of their plans."""
        self.spread = False
        """Whether even spreads were tried."""
        self.selection: Selection | None = None
        """The result of the first sweep: the judgement of gaps for plans that began elsewhere."""
        self._simulator: PlanSimulator | None = None

    @cached_property
    def least_ns(self) -> int:
        """Return the makespan that no plan for this graph beats."""
        self.evaluate.work.done += _BOUNDED * len(self.problem.graph.ops)
        bounds = self.problem.graph.derived_on(self.problem.hardware, LowerBounds)
        return max(self.problem.horizon_ns, bounds.quick_ns(self.evaluate.budget_bytes))

    def simulated(self, outcome: Evaluation) -> PlanSimulator:
        """Return the judge of the choices of local searches; what a judge counts beside bytes
        leaves them no more room than ``outcome`` has.
        """
        if self._simulator is None:
            graph, within = self.problem.graph, self.evaluate.budget_bytes
            closer = len(graph.streams) > 1 or len(graph.ops) <= _FEW
            if self.evaluate.judge is not verdict and not outcome.cost.infeasible:
                within = outcome.result.peak_bytes[self.problem.hardware.device_tier]
            self._simulator = PlanSimulator(
                with_gaps_between_neighbours(self.problem) if closer else self.problem, within
            )
        return self._simulator


@dataclass(frozen=True)
class Found:
    """A plan in hand, what it is for and what made it; ``rival`` names the policy whose plan it
    is.
    """

    outcome: Evaluation
    planned: PlannedGraph
    source: str
    selection: Selection | None = None
    rival: str = ""

    @cached_property
    def slack(self) -> int:
        """Return the time by which its copies may be later at no cost: the mean, in thousandths of
        the makespan; all of it where nothing is copied.
        """
        evaluate, plan, cost = self.planned.evaluate, self.outcome.plan, self.outcome.cost
        evaluate.work.done += work_of(plan)
        if not cost.moved_bytes:
            return 1000
        copies = replayed_latitudes(plan, evaluate.problem.hardware, evaluate.budget_bytes).values()
        return (
            1000 * sum([copy.slack_ns for copy in copies]) // max(1, len(copies) * cost.makespan_ns)
        )


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of a search: at so many times the work of ``effort=1``, and before where it has done
    ``work``.

    Also where the makespan of its plan is ``within`` that part of the lower bound above it
    (:attr:`hosim.result.Result.above_bound`).
    """

    effort: float = 1.0
    work: int | None = None
    within: float = 0.0


class _Arm(ABC):
    """A way in which a search may go on."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self._gained, self._spent = search.hoped, float(search.block)
        self._kept = self._promised = 1.0
        self._begins = False
        self._said: Promise | None = None

    @property
    def found(self) -> Found | None:
        """The plan that it makes better."""
        return self.search.best

    @property
    def rate(self) -> float:
        """The part of a makespan that a unit of its work gains; what it did lately counts most."""
        return self._gained / max(1.0, self._spent)

    @property
    def said_ns(self) -> float | None:
        """The makespan that its next step promises, if it says so."""
        return None if self._said is None else self._said()

    @property
    @abstractmethod
    def least_ns(self) -> int:
        """Return the makespan that it cannot beat."""

    def promised_ns(self, work: int) -> float:
        """The makespan to be expected after so much work; where nothing fits yet, what only ranks
        arms.
        """
        found = self.found
        if found is None or found.outcome.cost.infeasible:
            return 1 - self.rate * work
        return max(found.outcome.cost.makespan_ns * (1 - self.rate * work), self.least_ns)

    def step(self) -> bool:
        """One piece of work; says whether there may be more."""
        before, begun, said = self.found, self.search.work.done, self.said_ns
        more, gained = self.go_on(), _gain(before, self.found)
        begins, self._begins = self._begins, False
        if before is None or begins:  # that does not show what more of it gains
            return more
        if said is None:
            self._gained = self._gained * _FORGET + gained
            self._spent = self._spent * _FORGET + self.search.work.done - begun
        elif not before.outcome.cost.infeasible:
            hoped = max(_SHARE, 1 - said / max(1, before.outcome.cost.makespan_ns))
            self._kept = self._kept * _FORGET + min(1.0, gained / hoped)
            self._promised = self._promised * _FORGET + 1
        return more

    @abstractmethod
    def go_on(self) -> bool:
        """The piece of work; says whether there may be more."""


class _Bringing(_Arm):
    """An arm that brings plans of its own; what it says about its next step is what that promises,
    as far as it lately kept what it said. If not ``bound`` they are for other graphs: the first one
    is compared with the first plan for the graph as it is, which anything may beat.
    """

    def __init__(self, search: Search, arm: Arm, planned: PlannedGraph, bound: bool = True) -> None:
        super().__init__(search)
        self._planned, self._bound = planned, bound
        self._begins = not bound
        self._steps = arm(search, planned)

    @property
    def least_ns(self) -> int:
        return self._planned.least_ns if self._bound else 0

    def promised_ns(self, work: int) -> float:
        if (said := self.said_ns) is None:
            return super().promised_ns(work)
        if self.found is None or self.found.outcome.cost.infeasible:
            return -inf
        takes_ns = self.found.outcome.cost.makespan_ns
        return takes_ns - max(0.0, takes_ns - said) * self._kept / self._promised

    def go_on(self) -> bool:
        try:
            self._said = next(self._steps)
        except StopIteration:
            return False
        return True


class _Pooled(_Arm):
    """A plan of the pool, from which local search goes on."""

    def __init__(self, search: Search, found: Found) -> None:
        super().__init__(search)
        self._found = found
        self._local: LocalSearch | None = None

    @property
    def found(self) -> Found:
        return self._found

    @property
    def least_ns(self) -> int:
        return self._found.planned.least_ns

    def go_on(self) -> bool:
        search, planned, outcome = self.search, self._found.planned, self._found.outcome
        if self._local is None:
            simulator = planned.simulated(outcome)
            if not simulator.covers(outcome.choices):
                return False
            if not outcome.cost.infeasible:
                self._found = search.tidied(self._found)
                search.note_best(self._found)
                outcome = self._found.outcome
            self._local = LocalSearch(
                simulator, outcome.choices, planned.least_ns, search.rng.getrandbits(32)
            )
        if self._local.go_on(search.block, search.work):
            outcome = planned.evaluate(self._local.best())
            if outcome.cost < self._found.outcome.cost:
                self._found = Found(outcome, planned, LOCAL_SEARCH, self._found.selection)
                search.note_best(self._found)
        return self._local.some


def _gain(before: Found | None, after: Found | None) -> float:
    """Return the part of the makespan that was saved; that something fits at last does not say that
    more of the same helps.
    """
    if after is None or before is None or before.outcome.cost.infeasible:
        return 0.0
    return max(0.0, 1 - after.outcome.cost.makespan_ns / max(1, before.outcome.cost.makespan_ns))


def _unlike(one: Found, other: Found) -> bool:
    """Return whether two plans for a graph have other tensors away."""
    sizes = [tensor.size_bytes for tensor in one.planned.problem.graph.tensors]
    first, second = (
        {(t, after) for t, choice in found.outcome.choices.items() for after in choice.away}
        for found in (one, other)
    )
    return sum([sizes[t] for t, _ in first ^ second]) * _UNLIKE > sum(
        [sizes[t] for t, _ in first | second]
    )


class Search:
    """Plans of a graph within a budget.

    ``best`` is the best so far, and ``chosen`` what it would return: as a rule the same, never
    slower than any plan that it was before, and by less than :data:`_SHARE` slower than the best
    (:meth:`_steadier`). ``work`` is what was done, ``tried`` names what was planned for besides.
    ``nearer``: what lies far and need not may lie near.
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        budget_bytes: int,
        policy: str,
        seed: int,
        judge: Judge,
        nearer: bool = True,
    ) -> None:
        self.hardware, self.budget_bytes, self.policy, self.judge = (
            hardware,
            budget_bytes,
            policy,
            judge,
        )
        self.nearer = nearer
        self.rng = Random(seed)
        self.work = WorkDone()
        self.plain = self.planned_graph(graph)
        count = max(1, len(graph.ops))
        self.whole = int(_WORK * sqrt(sqrt(count)))
        """The work of ``effort=1``."""
        self.block = self.whole // _BLOCK
        self.hoped = max(_HOPED, _PART_OF_AN_OP / count)
        """The part of the makespan that an arm is taken to gain in a block before it has done
        anything.
        """
        self.best: Found | None = None
        self.chosen: Found | None = None
        self._taken: list[tuple[int, int]] = []
        """The work after which each best plan was found, and its makespan; a rival's counts from
        the start.
        """
        self.planning = present_planning()
        self._drawn = has_draws(graph, hardware)
        self._bounded: tuple[Found, float] | None = None
        self.pool: list[_Pooled] = []
        self.tried: list[str] = []
        self.full = ""
        """The lower tiers that were full in the sweep that found most of them so, in words."""

    def planned_graph(
        self, graph: Graph, edits: Edits | None = None, problem: Problem | None = None
    ) -> PlannedGraph:
        """A graph to plan for within the budget; ``problem`` is its analysis, where that is
        there.
        """
        problem = problem or analyse(graph, self.hardware)
        return PlannedGraph(
            problem,
            Evaluator(problem, self.budget_bytes, self.policy, self.work, self.judge),
            edits,
        )

    def tidied(self, found: Found, faster: bool = True) -> Found:
        """The plan less what it moves and need not, and what lies far and need not lies near.

        If not ``faster`` it takes the same time: what a search returns is what it found, so that
        more of it never returns a slower plan.
        """
        planned, choices = found.planned, found.outcome.choices
        simulator = planned.simulated(found.outcome)
        if not choices or not simulator.covers(choices):
            return found
        most = _TIDIED * self.block
        tidy = without_unneeded(simulator, choices, most, self.work, self.nearer, faster)
        outcome = planned.evaluate(tidy)
        gained_ns = found.outcome.cost.makespan_ns - outcome.cost.makespan_ns
        if tidy == choices or outcome.cost > found.outcome.cost or (gained_ns and not faster):
            return found
        return replace(
            found, outcome=outcome, source=found.source if found.source == SPREAD else LOCAL_SEARCH
        )

    def note_full(self, full: str) -> None:
        """Note which lower tiers were full in a sweep, in words."""
        self.full = max(self.full, full, key=len)

    # -- plans in hand
    # ---------------------------------------------------------------------------------------------

    def offer(self, found: Found) -> None:
        """A plan for the best and for the pool."""
        self.note_best(found)
        if found.outcome.choices:
            self._pool(found)
        if not self.nothing_fits:
            self.pool = [member for member in self.pool if not member.found.outcome.cost.infeasible]

    def note_best(self, found: Found) -> None:
        """A plan for the best, and for what is returned."""
        better = self.best is None or found.outcome.cost < self.best.outcome.cost
        if better:
            self.best = found
        if (better or found.rival) and not found.outcome.cost.infeasible:
            begun = 0 if found.rival else self.work.done
            self._taken.append((begun, found.outcome.cost.makespan_ns))
        if self.chosen is None or self._steadier(found, self.chosen):
            self.chosen = found

    def _steadier(self, found: Found, chosen: Found) -> bool:
        """Return whether a plan is to be returned instead of another: as it is faster or, where it
        is hardly that and no times are drawn, as its copies have more slack.

        So more work never makes what is returned slower. What is there for other reasons than speed
        decides by speed alone: a rival's plan, of which ours is to be no slower, and one without
        waits, which ends the search.
        """
        new, old = found.outcome, chosen.outcome
        gain = _gain(chosen, found)
        if (
            new.cost.infeasible
            or old.cost.infeasible
            or gain > _SHARE
            or self._drawn
            or found.rival
            or not new.waits
        ):
            return new.cost < old.cost
        return new.cost.makespan_ns <= old.cost.makespan_ns and (found.slack, gain) > (
            chosen.slack,
            0.0,
        )

    def alike(self) -> list[Found]:
        """The plans of the pool that draws may prefer to what is ``chosen`` without.

        They are hardly slower than the best, and no slower than any rival's or than the best after
        an earlier part of the work: so many times the work never returns a slower plan.
        """
        if self.best is None or self.nothing_fits:
            return []
        earlier = [ns for work, ns in self._taken if work * _EXPLORED <= self.work.done]
        most_ns = min([int(self.best.outcome.cost.makespan_ns * (1 + _ALIKE)), *earlier])
        found = [member.found for member in self.pool if member.found is not self.chosen]
        return [other for other in found if other.outcome.cost.makespan_ns <= most_ns]

    def _pool(self, found: Found) -> None:
        """Keep a plan that is unlike all in the pool, or better than what it is like."""
        alike = [
            member
            for member in self.pool
            if member.found.planned is found.planned and not _unlike(member.found, found)
        ]
        if any([member.found.outcome.cost <= found.outcome.cost for member in alike]):
            return
        kept = [member for member in self.pool if member not in alike]
        self.pool = sorted(
            [*kept, _Pooled(self, found)], key=lambda member: member.found.outcome.cost
        )[:_POOL]

    @property
    def nothing_fits(self) -> bool:
        """Return whether no plan so far fits."""
        return self.best is None or self.best.outcome.cost.infeasible

    @property
    def done(self) -> bool:
        """Return whether no plan can be better: the ops of the graph as it is take so long, or none
        of them waits.
        """
        if self.best is None or self.nothing_fits:
            return False
        outcome = self.best.outcome
        waits = self.best.planned is not self.plain or outcome.waits or outcome.slowed
        return not waits or outcome.cost.makespan_ns <= self.plain.problem.horizon_ns

    # -- the loop
    # ----------------------------------------------------------------------------------------------

    def run(
        self,
        arms: Sequence[Arm],
        of_each: Sequence[Arm],
        later: Sequence[Arm],
        needed: Sequence[Arm],
        ends: Ends,
    ) -> None:
        """Take one step after the other, until nothing pays any more, the work is done or something
        else ends it.

        ``arms`` are for the graph as it is and what may become of it; those ``of_each`` for it and
        for every variant that has the best plan, and so are those for ``later``, which come after
        local search where as much is expected of them. In the end come the steps left of what is
        ``needed``, unless something else has ended it or the bound leaves too little to gain.
        """
        last = [_Bringing(self, arm, self.plain) for arm in needed]
        first: list[_Arm] = [*[_Bringing(self, arm, self.plain) for arm in of_each], *last]
        others: list[_Arm] = [_Bringing(self, arm, self.plain, bound=False) for arm in arms]
        behind: list[_Arm] = [_Bringing(self, arm, self.plain) for arm in later]
        asked, limit = [self.plain], int(max(ends.effort, _LEAST) * self.whole)
        while not self.done and not self._ends(ends, limit):
            planned = self.plain if self.best is None else self.best.planned
            if planned not in asked:
                asked.append(planned)
                first = [*[_Bringing(self, arm, planned) for arm in of_each], *first]
                behind += [_Bringing(self, arm, planned) for arm in later]
            arms_left, left = [*first, *self.pool, *behind], limit - self.work.done
            if not any([self._pays(arm, left) for arm in arms_left]):
                break
            if first and self.work.done * _EXPLORED < self.whole:
                arms_left = first
            arm = min(arms_left, key=lambda arm: (arm.promised_ns(self.whole), -arm.rate))
            more = arm.step()
            if others:  # one step for the graph as it is comes first
                fails = self.best is not None and self.nothing_fits
                first, others = [*first, *others] if fails else [*others, *first], []
            if not more:
                first, behind = (
                    [other for other in listed if other is not arm] for listed in (first, behind)
                )
                self.pool = [other for other in self.pool if other is not arm]
        for arm in last:
            while (
                not self.done and not self._ends(ends, limit) and self._may_gain(arm) and arm.step()
            ):
                pass

    def _ends(self, ends: Ends, limit: int) -> bool:
        """Return whether the search ends here, with work left."""
        best = None if self.nothing_fits else self.chosen
        takes_ns = bound_ns = None
        near = False
        if best is not None:
            takes_ns = best.outcome.cost.makespan_ns
            near = ends.within > 0 and self._above_bound(best) <= ends.within
            bound_ns = self._quick_bound_ns(best) if self.planning.telling else None
        return self.planning.ends(
            SearchProgress(takes_ns, bound_ns, self.work.done, self.work.done / limit),
            ends.work,
            near,
        )

    def _quick_bound_ns(self, found: Found) -> int:
        """Return the makespan that no plan like that beats, for whoever is told: it is not counted
        as work.
        """
        bounds = self.plain.problem.graph.derived_on(self.hardware, LowerBounds)
        if found.planned is self.plain:
            return max(self.plain.problem.horizon_ns, bounds.quick_ns(self.budget_bytes))
        return bounds.any_order_ns(self.budget_bytes, repeats=True, homes_kept=True, compete=None)

    def _above_bound(self, found: Found) -> float:
        """Return the gap between a plan that fits and the lower bound that its result will have."""
        if self._bounded is None or self._bounded[0] is not found:
            outcome, edits = found.outcome, found.planned.edits
            plan = outcome.plan if edits is None else replace(outcome.plan, edits=edits)
            bound_ns = (
                bound_of_result_ns(outcome.result, plan, self.hardware, self.budget_bytes) or 0
            )
            self._bounded = found, outcome.cost.makespan_ns / max(1, bound_ns) - 1
        return self._bounded[1]

    def _may_gain(self, arm: _Arm) -> bool:
        """Return whether the bound leaves an arm more to gain than what ends the search."""
        if self.chosen is None or self.nothing_fits:
            return True
        return arm.least_ns < self.chosen.outcome.cost.makespan_ns * (1 - _SHARE)

    def _pays(self, arm: _Arm, left: int) -> bool:
        """Return whether enough is to be expected of the rest of the work."""
        if self.best is None or self.nothing_fits:
            return self.best is None or left + self.whole > 0
        return left > 0 and self.pays(arm.promised_ns(left))

    def pays(self, promised_ns: float) -> bool:
        """Return whether a plan of so many nanoseconds would be worth more work."""
        best_ns = inf if self.best is None else self.best.outcome.cost.makespan_ns
        return promised_ns < best_ns * (1 - _SHARE)

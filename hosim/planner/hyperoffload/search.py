"""The search for a plan: arms propose plans, a pool keeps plans that differ, local search improves
these, and work goes to the arm that promises most.

An arm is a generator. Each step does a piece of work, such as a sweep or the plan of another
policy, and offers the resulting plans (:meth:`Search.offer`). Local search from a plan of the pool
is an arm, too. :meth:`Search.run` extrapolates the recent gains of each arm, and takes a step of
the arm with the lowest expected makespan. It ends when no arm promises enough for the work that is
left. Work is counted, never measured by a clock. The next arm does not depend on the work limit, so
a higher limit continues the same search. Before each step an external condition may end it
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
"""Smaller efforts are raised to this one."""
_BLOCK = 40
"""One step of local search is a block: the work of ``effort=1`` divided by this."""
_FEW = 48
"""On graphs of at most this many ops, a tensor may also be evicted between two consecutive uses on
one stream.
"""
_EXPLORED = 4
"""Arms propose plans for a quarter of the work of ``effort=1`` before local search begins. The
returned plan is no slower than the best plan after a quarter of all work done.
"""
_TIDIED = 2
"""The most blocks of work that one removal of unneeded moves may take."""
_HOPED, _PART_OF_AN_OP, _FORGET = 0.002, 0.1, 0.7
"""The gain assumed for an arm before its first step: ``_HOPED`` of the makespan per block, or
``_PART_OF_AN_OP`` of the mean time per op if that is longer. ``_FORGET`` is the weight of an arm's
earlier steps beside its last one.
"""
_SHARE = 5e-4
"""The search ends when the rest of the work promises a smaller fraction of the makespan than this.
Of plans that differ by less, the one with more slack is returned.
"""
_ALIKE = 5e-3
"""Plans count as equally fast if they are slower than the best by at most this fraction."""
_OF_A_PASS, _BOUNDED = 20, 120
"""The work of a pass, for each op and gap of a graph, and of a bound, for each op; all work is in
units of :class:`WorkDone`.
"""
_POOL, _UNLIKE = 6, 10
"""The most plans in the pool; the absences of any two differ in more than an ``_UNLIKE``-th of the
bytes that either plan evicts.
"""

Promise = Callable[[], float | None]
Arm = Callable[["Search", "PlannedGraph"], Iterator[Promise | None]]
"""A generator that offers plans for a graph to a search, one piece of work at a step.

It yields a function that returns the makespan promised by the next step, called whenever arms are
compared. If it yields None, the makespan is extrapolated from the arm's recent gains.
"""


class PlannedGraph:
    """A graph to plan for: the workload, or the workload after ``edits``."""

    def __init__(self, problem: Problem, evaluate: Evaluator, edits: Edits | None = None) -> None:
        self.problem, self.evaluate, self.edits = problem, evaluate, edits
        evaluate.work.done += _OF_A_PASS * (len(problem.graph.ops) + len(problem.gaps))
        self.swept: list[tuple[Weights, float]] = []
        """The weights of its sweeps, and the makespan in ns of the best plan of each."""
        self.spread = False
        """True once even spreads were tried."""
        self.selection: Selection | None = None
        """The result of the first sweep; it explains the plans that come from no sweep."""
        self._simulator: PlanSimulator | None = None

    @cached_property
    def least_ns(self) -> int:
        """Return a lower bound, in ns, on the makespan of any plan for this graph."""
        self.evaluate.work.done += _BOUNDED * len(self.problem.graph.ops)
        bounds = self.problem.graph.derived_on(self.problem.hardware, LowerBounds)
        return max(self.problem.horizon_ns, bounds.quick_ns(self.evaluate.budget_bytes))

    def simulated(self, outcome: Evaluation) -> PlanSimulator:
        """Return the simulator for local search, made at the first call. If the judge counts more
        than bytes, its budget is the peak of ``outcome``.
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
    """A plan that a search has found: its outcome, its graph and the ``source`` that made it.
    ``rival`` names the other policy that made it, if one did.
    """

    outcome: Evaluation
    planned: PlannedGraph
    source: str
    selection: Selection | None = None
    rival: str = ""

    @cached_property
    def slack(self) -> int:
        """Return the mean slack of its copies, in thousandths of the makespan; 1000 if nothing is
        copied.
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
    """The ends of a search: ``effort`` times the work of ``effort=1``, ``work`` units done, or
    a plan whose gap to the lower bound is at most ``within`` (a fraction of the bound, see
    :attr:`hosim.result.Result.above_bound`; 0 switches this off).
    """

    effort: float = 1.0
    work: int | None = None
    within: float = 0.0


class _Arm(ABC):
    """One arm of a search, with its recent gains."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self._gained, self._spent = search.hoped, float(search.block)
        self._kept = self._promised = 1.0
        self._begins = False
        self._said: Promise | None = None

    @property
    def found(self) -> Found | None:
        """The plan that it tries to improve."""
        return self.search.best

    @property
    def rate(self) -> float:
        """The fraction of the makespan gained per unit of work; recent steps count most."""
        return self._gained / max(1.0, self._spent)

    @property
    def said_ns(self) -> float | None:
        """The makespan in ns that the arm states for its next step; None if it states none."""
        return None if self._said is None else self._said()

    @property
    @abstractmethod
    def least_ns(self) -> int:
        """Return a lower bound, in ns, on the makespans of its plans."""

    def promised_ns(self, work: int) -> float:
        """The makespan in ns expected after ``work`` more units; while no plan fits, a number that
        only ranks arms.
        """
        found = self.found
        if found is None or found.outcome.cost.infeasible:
            return 1 - self.rate * work
        return max(found.outcome.cost.makespan_ns * (1 - self.rate * work), self.least_ns)

    def step(self) -> bool:
        """Do one piece of work, update the gains, and return True if more work may follow."""
        before, begun, said = self.found, self.search.work.done, self.said_ns
        more, gained = self.go_on(), _gain(before, self.found)
        begins, self._begins = self._begins, False
        if before is None or begins:  # the first gain does not predict later ones
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
        """Do one piece of work, and return True if more may follow."""


class _Bringing(_Arm):
    """An arm that proposes its own plans. The makespan that it states for its next step is trusted
    as far as it lately kept such promises. If not ``bound``, its plans may be for other graphs: the
    graph's lower bound does not apply, and its first gain is not counted.
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
    """A plan of the pool and the local search that starts from it."""

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
    """Return the fraction of the makespan that was saved; 0 if ``before`` did not fit, as the first
    fit does not predict further gains.
    """
    if after is None or before is None or before.outcome.cost.infeasible:
        return 0.0
    return max(0.0, 1 - after.outcome.cost.makespan_ns / max(1, before.outcome.cost.makespan_ns))


def _unlike(one: Found, other: Found) -> bool:
    """Return True if the absences of two plans differ in over an ``_UNLIKE``-th of the bytes."""
    sizes = [tensor.size_bytes for tensor in one.planned.problem.graph.tensors]
    first, second = (
        {(t, after) for t, choice in found.outcome.choices.items() for after in choice.away}
        for found in (one, other)
    )
    return sum([sizes[t] for t, _ in first ^ second]) * _UNLIKE > sum(
        [sizes[t] for t, _ in first | second]
    )


class Search:
    """The search for a graph's plans within a budget.

    ``best`` is the fastest plan so far, and ``chosen`` the plan to return. They are usually the
    same; ``chosen`` never gets slower, and is slower than ``best`` by less than :data:`_SHARE`
    (:meth:`_steadier`). ``work`` counts the work done. ``tried`` names the alternatives to the
    graph and machine as they are. ``nearer`` allows moving tensors to a nearer tier.
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
        """The fraction of the makespan that an arm is assumed to gain in its first block."""
        self.best: Found | None = None
        self.chosen: Found | None = None
        self._taken: list[tuple[int, int]] = []
        """The work after which each best plan was found, and its makespan in ns; the work is 0 for
        the plan of another policy.
        """
        self.planning = present_planning()
        self._drawn = has_draws(graph, hardware)
        self._bounded: tuple[Found, float] | None = None
        self.pool: list[_Pooled] = []
        self.tried: list[str] = []
        self.full = ""
        """The full lower tiers as text, from the sweep with the longest such text."""

    def planned_graph(
        self, graph: Graph, edits: Edits | None = None, problem: Problem | None = None
    ) -> PlannedGraph:
        """Return a graph to plan for within the budget; ``problem`` is its analysis if known."""
        problem = problem or analyse(graph, self.hardware)
        return PlannedGraph(
            problem,
            Evaluator(problem, self.budget_bytes, self.policy, self.work, self.judge),
            edits,
        )

    def tidied(self, found: Found, faster: bool = True) -> Found:
        """Return the plan without unneeded moves, and with tensors in nearer tiers if allowed.

        If not ``faster``, the makespan stays the same, so that more work never returns a slower
        plan.
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
        """Take a plan as the best if it is, and into the pool if it differs enough."""
        self.note_best(found)
        if found.outcome.choices:
            self._pool(found)
        if not self.nothing_fits:
            self.pool = [member for member in self.pool if not member.found.outcome.cost.infeasible]

    def note_best(self, found: Found) -> None:
        """Take a plan as ``best`` if it is better, and as ``chosen`` if it is to be returned."""
        better = self.best is None or found.outcome.cost < self.best.outcome.cost
        if better:
            self.best = found
        if (better or found.rival) and not found.outcome.cost.infeasible:
            begun = 0 if found.rival else self.work.done
            self._taken.append((begun, found.outcome.cost.makespan_ns))
        if self.chosen is None or self._steadier(found, self.chosen):
            self.chosen = found

    def _steadier(self, found: Found, chosen: Found) -> bool:
        """Return True if ``found`` replaces ``chosen`` as the plan to return: it is faster or, with
        a gain of at most :data:`_SHARE` and no draws, its copies have more slack.

        More work never makes the returned plan slower. Speed alone decides on another policy's
        plan, which the returned one must not be slower than, and on a plan without waits, which
        ends the search.
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
        """The plans of the pool that draws may prefer to ``chosen``.

        They are slower than the best by at most :data:`_ALIKE`, and no slower than any plan of
        another policy or the best plan after a quarter of the work: so four times the work never
        returns a slower plan.
        """
        if self.best is None or self.nothing_fits:
            return []
        earlier = [ns for work, ns in self._taken if work * _EXPLORED <= self.work.done]
        most_ns = min([int(self.best.outcome.cost.makespan_ns * (1 + _ALIKE)), *earlier])
        found = [member.found for member in self.pool if member.found is not self.chosen]
        return [other for other in found if other.outcome.cost.makespan_ns <= most_ns]

    def _pool(self, found: Found) -> None:
        """Keep a plan that differs from all in the pool, or is better than those like it."""
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
        """Return True if no plan so far fits."""
        return self.best is None or self.best.outcome.cost.infeasible

    @property
    def done(self) -> bool:
        """Return True if no plan can be better: the makespan is that of the graph without waits, or
        nothing in the best plan for the graph waits or is slowed.
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
        """Take steps until no arm pays any more, the work is done or an external condition ends it.

        ``arms`` plan for the graph and its variants. Arms ``of_each`` and ``later`` run for the
        graph and for each variant that gets the best plan; ``later`` ones come after local search
        at equal promise. The remaining steps of ``needed`` arms run last, unless the search was
        ended or the lower bound leaves too little to gain.
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
            if others:  # the first step plans for the unchanged graph
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
        """Return True if an outside condition, ``ends.work`` or ``ends.within`` ends the search."""
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
        """Return a lower bound, in ns, to report as progress; it is not counted as work."""
        bounds = self.plain.problem.graph.derived_on(self.hardware, LowerBounds)
        if found.planned is self.plain:
            return max(self.plain.problem.horizon_ns, bounds.quick_ns(self.budget_bytes))
        return bounds.any_order_ns(self.budget_bytes, repeats=True, homes_kept=True, compete=None)

    def _above_bound(self, found: Found) -> float:
        """Return the gap of a plan that fits to its result's lower bound, as a fraction of it."""
        if self._bounded is None or self._bounded[0] is not found:
            outcome, edits = found.outcome, found.planned.edits
            plan = outcome.plan if edits is None else replace(outcome.plan, edits=edits)
            bound_ns = (
                bound_of_result_ns(outcome.result, plan, self.hardware, self.budget_bytes) or 0
            )
            self._bounded = found, outcome.cost.makespan_ns / max(1, bound_ns) - 1
        return self._bounded[1]

    def _may_gain(self, arm: _Arm) -> bool:
        """Return True if the arm's bound lies more than :data:`_SHARE` below the chosen plan."""
        if self.chosen is None or self.nothing_fits:
            return True
        return arm.least_ns < self.chosen.outcome.cost.makespan_ns * (1 - _SHARE)

    def _pays(self, arm: _Arm, left: int) -> bool:
        """Return True if ``left`` units of work in this arm promise a large enough gain."""
        if self.best is None or self.nothing_fits:
            return self.best is None or left + self.whole > 0
        return left > 0 and self.pays(arm.promised_ns(left))

    def pays(self, promised_ns: float) -> bool:
        """Return True if a makespan of ``promised_ns`` would be a large enough gain."""
        best_ns = inf if self.best is None else self.best.outcome.cost.makespan_ns
        return promised_ns < best_ns * (1 - _SHARE)

"""HyperOffload's planner from end to end, as passes that one can read in order.

1. :func:`hosim.planner.hyperoffload.tensor_choices.analyse`: lifetimes, pressure points, gaps.
2. :func:`hosim.planner.hyperoffload.selection.select`: which gaps to use, judged on the channels' timelines, under several weightings.
3. :func:`hosim.planner.hyperoffload.choice_passes.advance`: where waits are left, the same gaps with returns as early as there is room;
   and even spreads (:mod:`hosim.planner.hyperoffload.choice_passes.even_spreads`), for steps in which the channels are what takes the time.
4. :func:`hosim.planner.hyperoffload.tensor_choices.insert`: the cache ops, placed in the graph with their dependencies.
5. Replay in the engine; then refinement: the op times of the best replay, waits and all, are planned for anew: stalls give transfers time.
6. Tightening: where the replay still waits for memory, or does not fit, a smaller budget is planned for, and at last everything is moved.
7. Where several tiers are below, each rule of :mod:`hosim.schedule.tiers_below.placement`, with the same sweeps that its plan gets.
8. The plans of others, if the caller has some (:mod:`hosim.planner.hyperoffload.other_plans`): the best is taken.
9. :func:`hosim.planner.hyperoffload.local_moves.improve` around what still waits, judged by a simulator.

All but the first sweeps are for steps that wait. Source: the eight-step workflow of the HyperOffload description (arXiv 2602.00748); its
cost ``max(0, C_trans - C_comp_overlap) + alpha * residency`` is what a candidate's stall and waiting amount to on an idle channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.choice_passes import Spread, advance, assigned_tiers, evenly, hardly_late, in_time, usual_bytes
from hosim.planner.hyperoffload.gap_scoring import Weights
from hosim.planner.hyperoffload.judgement import EVERYTHING, LOCAL_SEARCH, RIVAL, SELECTION, SPREAD, Judgement
from hosim.planner.hyperoffload.least_traffic import from_the_farthest, with_least_traffic
from hosim.planner.hyperoffload.local_moves import SMALL
from hosim.planner.hyperoffload.other_plans import OtherPlans, Others
from hosim.planner.hyperoffload.refinement import LESS, bound_ns, found_elsewhere, refined
from hosim.planner.hyperoffload.selection import Selection, select
from hosim.planner.hyperoffload.tensor_choices import (
    Choices,
    Evaluation,
    Evaluator,
    Judge,
    PlanCost,
    Problem,
    analyse,
    check_floor,
    choices_of,
    everything,
)
from hosim.schedule.tiers_below import BALANCED, BY_KIND, FASTEST, NEAREST, Placement, space_below
from hosim.units import human_size

_SLOW = (1.0, 0.7, 0.4)
"""What transfer times are multiplied with, in turn. Below 1: a step that transfers stretch has that much more time for them."""
_SLOW_IF_SMALL = (1.0, 0.9, 0.8, 0.7, 0.55, 0.4, 0.3)
"""The same for small graphs, where an attempt costs little."""

_WORK = 40_000
"""Ops replayed and gaps judged in all, about (a gap is half as much work): so many attempts there are, but at least ``_FEWEST``.

With little effort they are fewer, but no fewer than one in ``_PART_AT_LEAST``."""
_WORK_IF_SMALL = 120_000
"""The same for small graphs."""
_FEWEST, _MOST, _PART_AT_LEAST = 3, 4500, 20
_RULES = 8
"""The part of those attempts that each placement rule gets: an eighth, but at least two."""
_LARGE, _CLOSE = 5_000, 5_000
"""Above so many ops, a makespan within a ``_CLOSE``-th of one without any wait is good enough."""
_BOUNDED = 20_000
"""Above so many ops, so is one within a ``_CLOSE``-th of the lower bound: that takes less time than a sweep."""
_NEAR = 400
"""On graphs of between ``SMALL`` and ``_BOUNDED`` ops, within a ``_NEAR``-th of it nothing of hosim's own is looked for any more."""
_RATHER_NEAR = 100
"""Within a ``_RATHER_NEAR``-th of it refinement is tried before the sweeps that stretch the step: it may leave nothing to gain."""
_FIRST, _LIKE = 2, 1000
"""Plans of others that are replayed before any sweep on graphs of more than ``_BOUNDED`` ops; one that is within a ``_LIKE``-th of the
bound leaves the sweeps too little to gain for what they take."""
_LATE, _ALL, _PART = "", "all", "part"
"""Returns as the sweep has them; as early as the budget allows; as early as the part of it allows that the sweep was for."""
_SPREADS = 4
"""Even spreads that are replayed at least, however large the graph: they take no sweep, and long steps that wait for channels want them."""
_SPARE = (0, 1, 2, 4)
"""Room beside what an even spread holds, in tensors of the usual size: what may be on its way."""
_SEARCHED = 20_000
"""Ops up to which there is a search around the stalls: beyond, a few judgements take as long as all sweeps."""


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    policy: str = "hyperoffload",
    effort: float = 1.0,
    seed: int = 0,
    placement: Placement | None = None,
) -> Plan:
    """The best plan found within ``budget_bytes`` of the device tier.

    ``effort`` scales the number of replays and simulations spent; ``seed`` is that of the search around the stalls. ``placement`` is the
    rule by which a tensor gets its tier below; without one it is the tier that hides most, or what some rule says where that does better.
    Raises :class:`InfeasibleError`, naming the budget below which no plan can exist, if nothing fits.
    """
    return search(graph, hardware, budget_bytes, policy=policy, effort=effort, seed=seed, placement=placement).plan


def search(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    policy: str = "hyperoffload",
    effort: float = 1.0,
    seed: int = 0,
    placement: Placement | None = None,
    others: Others | None = None,
    judge: Judge = replay,
    brief: bool = False,
) -> Evaluation:
    """Like :func:`plan`, with the choices and the replay's result. ``others`` are asked for plans where waits are left.

    ``judge`` replays the plans that are compared. A ``brief`` search ends with the first sweeps: enough to compare graphs.
    """
    budget = min(budget_bytes, hardware.device.capacity_bytes)
    problem = analyse(graph, hardware)
    check_floor(problem, budget)
    count = max(1, len(graph.ops))
    floor_ns = _good_enough_ns(problem, budget)
    affordable = min(_MOST, int((_WORK if count > SMALL else _WORK_IF_SMALL) / (count + len(problem.gaps) / 2)))
    attempts = max(_FEWEST, int(effort * affordable), affordable // _PART_AT_LEAST)
    by_rule = max(2, attempts // _RULES)
    evaluate = Evaluator(problem, budget, policy, attempts if placement is None else by_rule, judge)
    if len(graph.streams) > 1:  # streams that overlap may hold less than the listed order says
        selection = select(problem, max(problem.held_bytes), Weights(placement=placement))
        unmoved = evaluate(selection.choices)
        if _at(unmoved, floor_ns):
            return _judged(unmoved, SELECTION, selection)
        if count > _LARGE:  # there are few attempts
            evaluate.left += 1
    bounded = effort > 0 and SMALL < count <= _BOUNDED and placement is None
    rivals = None if others is None else OtherPlans(evaluate, others)
    sweeps = _sweeps(evaluate, problem, budget, floor_ns, placement, bounded, rivals)
    waits_ns, floor_ns = floor_ns, sweeps.floor_ns
    best, source, selection_of_best, tried = sweeps.best, sweeps.source, sweeps.selection, list[str]()
    if best.cost.infeasible and placement is None:
        moved = evaluate(everything(problem))
        if moved.cost < best.cost:
            best, source = moved, EVERYTHING
        if best.cost.infeasible and count > SMALL:
            best, source = from_the_farthest(evaluate, problem, best, source)
    if placement is None and count > SMALL:
        best, source = with_least_traffic(evaluate, problem, best, source)
    if brief and not best.cost.infeasible:
        return _judged(best, source, selection_of_best)
    if placement is None and not _at(best, floor_ns):
        for rule in _rules(problem):
            evaluate.left = by_rule
            ruled = _sweeps(evaluate, problem, budget, floor_ns, rule)
            tried.append(f"placement {rule.rule}")
            if ruled.best.cost < best.cost:
                best, source, selection_of_best = ruled.best, ruled.source, ruled.selection
        if count > SMALL:
            best, source = with_least_traffic(evaluate, problem, best, source)
    spreads = SMALL < count <= _BOUNDED and placement is None
    if spreads and (not _at(best, floor_ns) or best.slowed):
        timely = _spread(evaluate, problem, budget, in_time, waits=best.waits)
        if timely is not None and timely.cost < best.cost:
            best, source = timely, SPREAD
    searched = 0 < len(graph.ops) <= _SEARCHED and placement is None  # the search tries any tier
    begun = [best]
    if rivals is not None and (not _at(best, waits_ns) or best.slowed):
        best = rivals.best(best, waits=not _at(best, floor_ns))
        source = RIVAL if rivals.name else source
    tried += rivals.tried if rivals is not None else ()
    rival = rivals.name if rivals is not None and source == RIVAL else ""
    if rival and placement is None and not _at(best, floor_ns):
        choices = choices_of(problem, best.plan)
        begun.append(evaluate(choices if searched else advance(problem, choices, budget)))
        best = min(best, begun[-1], key=lambda outcome: outcome.cost)
    if searched and not _at(best, floor_ns):  # it begins from what another policy planned, too
        begun.sort(key=lambda outcome: outcome.cost, reverse=True)
        late = [sweeps.late] if sweeps.late is not None and count <= SMALL and sweeps.late.choices != begun[0].choices else []
        improved = refined(evaluate, [*late, *begun], floor_ns, effort, seed)
        if improved.cost < best.cost:
            best, source, selection_of_best = improved, LOCAL_SEARCH, sweeps.selection
    if spreads and not _at(best, floor_ns):  # the search does not begin from these, as they leave little to change one by one
        tardy = _spread(evaluate, problem, budget, hardly_late, waits=True)
        if tardy is not None and tardy.cost < best.cost:
            best, source = tardy, SPREAD
    if best.cost.infeasible and searched and count <= SMALL:
        found = found_elsewhere(evaluate, seed)
        if found is not None:
            improved = refined(evaluate, [found], floor_ns, effort, seed)
            best, source = min(found, improved, key=lambda outcome: outcome.cost), LOCAL_SEARCH
    if best.cost.infeasible:
        raise InfeasibleError(_explain(problem, budget, best, sweeps.full), report=best.result.error or "")
    if source == RIVAL:
        return _judged(best, RIVAL, None, rival, tried)
    return _judged(best, source, selection_of_best, "", tried)


def _good_enough_ns(problem: Problem, budget: int) -> int:
    """The makespan at which to stop."""
    count, floor_ns = len(problem.graph.ops), problem.horizon_ns
    if count > _BOUNDED:
        floor_ns = max(floor_ns, bound_ns(problem.graph, problem.hardware, budget))
    return floor_ns + floor_ns // _CLOSE if count > _LARGE else floor_ns


def _rules(problem: Problem) -> list[Placement]:
    """The placement rules that may put tensors elsewhere than the sweeps without one do: none where one tier is below."""
    if len(problem.below) < 2:
        return []
    sizes = {tensor.size_bytes: t for t, tensor in enumerate(problem.graph.tensors)}
    near, fast = (space_below(problem.graph, problem.hardware, {}, Placement(rule)) for rule in (NEAREST, FASTEST))
    alike = all(tuple(near.order(t)) == tuple(fast.order(t)) for t in sizes.values())
    return [Placement(rule) for rule in (NEAREST, *([] if alike else [FASTEST]), BALANCED, BY_KIND)]


def _judged(outcome: Evaluation, source: str, selection: Selection | None, rival: str = "", tried: Iterable[str] = ()) -> Evaluation:
    """An outcome whose plan carries where it comes from."""
    judgement = Judgement(source, outcome.choices, selection, rival, tuple(dict.fromkeys(tried)), outcome.plan.graph)
    return replace(outcome, plan=replace(outcome.plan, judgement=judgement))


def _at(outcome: Evaluation, floor_ns: int) -> bool:
    """Whether no plan can be better: no op waits for a transfer or for room, or too little to matter.

    All that may be left then is the memory bandwidth that copies take from ops.
    """
    return not outcome.cost.infeasible and (outcome.cost.makespan_ns <= floor_ns or not outcome.waits)


def _sweeps(
    evaluate: Evaluator,
    problem: Problem,
    budget: int,
    floor_ns: int,
    placement: Placement | None,
    bounded: bool = False,
    rivals: OtherPlans | None = None,
) -> _Sweeper:
    """Sweeps on the unhindered step, stretched until transfers fit in it; then for the op times of the best replay, while that helps.

    With ``bounded``, what is near the lower bound is good enough if the first sweep leaves waits. On large graphs that wait for channels
    there is no sweep where the first of ``rivals`` are near enough to it.
    """
    best = _Sweeper(evaluate, problem, budget, floor_ns, Weights(placement=placement))
    small = len(problem.graph.ops) <= SMALL
    if placement is None and problem.horizon_ns + problem.horizon_ns // _CLOSE < floor_ns:  # transfers take longer than all ops
        best.spread_if_enough()
        if rivals is not None and len(problem.graph.ops) > _BOUNDED:
            best.rival_if_near(rivals)
    for slow in _SLOW_IF_SMALL if small else _SLOW:
        best.attempt(replace(best.first, slow=slow))
        if bounded and not best.finished:
            least_ns = bound_ns(problem.graph, problem.hardware, budget)
            best.floor_ns = max(floor_ns, least_ns + least_ns // _NEAR)
            if slow == _SLOW[0] and least_ns > problem.horizon_ns:  # the channels are what takes the time
                best.spread_and_refine_if_enough(least_ns + least_ns // _RATHER_NEAR)
    if placement is None:
        if small:
            best.vary()
        best.spread()
    while best.refine():
        pass
    while placement is None and best.full and best.assign():
        pass
    while placement is None and not best.finished:
        best.vary()
        if not best.refine():
            break
    return best


class _Sweeper:
    """The best sweep so far, and how to look around it.

    ``full`` names, in words, the lower tiers that were full in the sweep that found most of them so. ``source`` says whether the best
    outcome is that of a sweep, ``selection``, or an even spread.
    """

    def __init__(self, evaluate: Evaluator, problem: Problem, budget: int, floor_ns: int, first: Weights) -> None:
        self.evaluate = evaluate
        self.problem = problem
        self.budget = budget
        self.floor_ns = floor_ns
        self.first = self.weights = first
        self.target = 1.0
        self.outcome: Evaluation | None = None
        self.source = SELECTION
        self.selection: Selection | None = None
        self.full = ""
        self.late: Evaluation | None = None
        """The best outcome with the returns of a sweep: they leave a search room to move others."""
        self.returns: tuple[str, ...] = (_LATE, _ALL, _PART)
        """How early returns are; all ways until it is known which one does best here."""
        self._spreads: dict[tuple[int | None, bool, int], Choices | None] = {}

    @property
    def best(self) -> Evaluation:
        """The best outcome; there is one after the first attempt."""
        assert self.outcome is not None
        return self.outcome

    @property
    def finished(self) -> bool:
        """Whether nothing better can be, or no replays are left."""
        return self.outcome is not None and (self.evaluate.left <= 0 or _at(self.outcome, self.floor_ns))

    def attempt(self, weights: Weights, target: float = 0.0) -> bool:
        """Sweep and replay; says whether that is the best so far."""
        if self.finished:
            return False
        target = target or self.target
        selection = select(self.problem, int(self.budget * target), weights)
        if len(selection.full) > len(self.full):
            self.full = selection.full
        better = False
        for room in self.returns:
            if room == _PART and target == 1 and len(self.returns) > 1:
                continue  # that is the same
            within = int(self.budget * (target if room != _ALL else 1))
            choices = advance(self.problem, selection.choices, within) if room else selection.choices
            outcome = self.evaluate(choices)
            if not room and (self.late is None or outcome.cost < self.late.cost):
                self.late = outcome
            if self.outcome is None or outcome.cost < self.outcome.cost:
                self.outcome, self.source, self.selection = outcome, SELECTION, selection
                self.weights, self.target, better = weights, target, True
                found = room
            if _at(self.best, self.floor_ns):
                break
        if better and len(self.problem.graph.ops) > SMALL:
            self.returns = (found,)
        return better

    def spread(self) -> None:
        """Even spreads over one tier below and over all, with and without what the step writes, with more and more room to spare.

        The last one of each spreads all: what less memory would need may be what this one needs. On large graphs it is tried only where
        no other is possible.
        """
        left = self.evaluate.left
        granted = self.evaluate.left = max(left, _SPREADS)
        usual = usual_bytes(self.problem)
        counts = (1, len(self.problem.below)) if len(self.problem.below) > 1 else (1,)
        for tiers, written in product(counts, (False, True)):
            last = None
            for spare in _SPARE:
                choices = None if self.finished else self._spread(spare * usual, written, tiers)
                if choices is None:
                    break
                outcome = self._tried(choices)
                if last is not None and not last.infeasible and last < outcome:
                    break
                last = outcome
            if not self.finished and (last is None or len(self.problem.graph.ops) <= _LARGE):
                whole = self._spread(None, written, tiers)
                if whole is not None:
                    self._tried(whole)
        self.evaluate.left -= granted - left

    def spread_if_enough(self) -> None:
        """Even spreads, if one is good enough; otherwise it is as if they had not been tried."""
        left = self.evaluate.left
        self.spread()
        if self.outcome is None or not _at(self.outcome, self.floor_ns):
            self.outcome, self.source, self.evaluate.left = None, SELECTION, left

    def spread_and_refine_if_enough(self, near_ns: int) -> None:
        """Even spreads, and refinement within ``near_ns``, if that is good enough; otherwise it is as if they had not been tried."""
        before, left = dict(vars(self)), self.evaluate.left
        self.spread()
        while self.best.cost.makespan_ns <= near_ns and self.refine():
            pass
        if not _at(self.best, self.floor_ns):
            vars(self).update(before)
            self.evaluate.left = left

    def rival_if_near(self, rivals: OtherPlans) -> None:
        """The best of the first plans of others, if it is near enough to the makespan at which to stop: then this is that makespan."""
        left = self.evaluate.left
        found = None if self.finished else rivals.first(_FIRST)
        self.evaluate.left = left
        if found is not None and not found.cost.infeasible and (found.cost.makespan_ns - self.floor_ns) * _LIKE <= self.floor_ns:
            self.outcome, self.source, self.floor_ns = found, RIVAL, found.cost.makespan_ns

    def _spread(self, spare: int | None, written: bool, tiers: int) -> Choices | None:
        """An even spread with ``spare`` bytes left (None: all that can be), and returns as early as can be; None where there is none."""
        key = spare, written, tiers
        if key not in self._spreads:
            found = evenly(self.problem, self.budget, spare, written, tiers)
            self._spreads[key] = None if found is None else advance(self.problem, found, self.budget)
        return self._spreads[key]

    def _tried(self, choices: Choices) -> PlanCost:
        """The cost of an even spread."""
        outcome = self.evaluate(choices)
        if self.outcome is None or outcome.cost < self.outcome.cost:
            self.outcome, self.source = outcome, SPREAD
        return outcome.cost

    def refine(self) -> bool:
        """Sweep for the op times of the best replay; says whether that helps."""
        if self.finished or self.best.cost.infeasible:
            return False
        self.problem = analyse(self.problem.graph, self.problem.hardware, self.evaluate.times(self.best))
        better = self.attempt(replace(self.weights, slow=1.0))
        return self.attempt(replace(self.weights, slow=0.9)) or better

    def assign(self) -> bool:
        """Sweep with tiers assigned by interval to what the best outcome moves; says whether that helps."""
        assigned = {} if self.finished or self.best.cost.infeasible else assigned_tiers(self.problem, self.best.choices)
        return bool(assigned) and self.attempt(replace(self.weights, assigned=assigned))

    def vary(self) -> None:
        """Look around the best, one weight after the other."""
        for waiting in (0.1, 0.3, 1.0, 0.0):
            if waiting != self.weights.waiting:
                self.attempt(replace(self.weights, waiting=waiting))
        for slow in (0.93, 1.07):
            self.attempt(replace(self.weights, slow=self.weights.slow * slow))
        for target in LESS:
            self.attempt(self.weights, target)
        if len(self.problem.below) > 1 and self.weights.placement is None:
            self.attempt(replace(self.weights, tiers=1))
        self.attempt(replace(self.weights, copies=not self.weights.copies))


def _spread(evaluate: Evaluator, problem: Problem, budget: int, spread: Spread, *, waits: bool) -> Evaluation | None:
    """The best of such spreads, if any, over one tier and over all, and if the step ``waits`` with room for what is on its way, too."""
    spares = (0, usual_bytes(problem)) if waits else (0,)
    found = [spread(problem, budget, spare, False, tiers) for tiers in sorted({1, len(problem.below)}) for spare in spares]
    outcomes = [evaluate(advance(problem, choices, budget)) for choices in found if choices is not None]
    return min(outcomes, key=lambda outcome: outcome.cost, default=None)


def _explain(problem: Problem, budget: int, best: Evaluation, full: str) -> str:
    """Why nothing fits."""
    floor = max(problem.floor_bytes, default=0)
    below = f"; of the tiers below, {full}" if full else ""
    return (
        f"no plan found within {human_size(budget)} ({budget} B); the largest single op uses {human_size(floor)} ({floor} B), "
        f"the budget below which none can exist{below}; the best attempt ended with: {best.result.error}"
    )

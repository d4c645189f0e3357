"""HyperOffload's planner from end to end, as passes that one can read in order.

1. :func:`hosim.planner.hyperoffload.problem.analyse`: lifetimes, pressure points, gaps.
2. :func:`hosim.planner.hyperoffload.selection.select`: which gaps to use, judged on the channels' timelines, under several weightings.
3. :func:`hosim.planner.hyperoffload.choices.insert`: the cache ops, placed in the graph with their dependencies.
4. Replay in the engine; then refinement: the op times of the best replay, waits and all, are planned for anew, since a stall gives
   transfers more time than an undisturbed step does.
5. Tightening: where the replay still waits for memory, or does not fit, a smaller budget is planned for.
   What no sweep makes fit may fit with everything moved that can be (:func:`hosim.planner.hyperoffload.choices.everything`).
6. On small graphs, :func:`hosim.planner.hyperoffload.local_search.improve` over single decisions, judged by
   :mod:`hosim.planner.hyperoffload.fast_simulator`.

Source: the eight-step workflow of the HyperOffload description (arXiv 2602.00748); its cost
``max(0, C_trans - C_comp_overlap) + alpha * residency`` is what a candidate's stall and waiting amount to on an idle channel.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.cache_plan import Plan
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.choices import Choices, everything
from hosim.planner.hyperoffload.evaluation import Evaluation, Evaluator
from hosim.planner.hyperoffload.fast_simulator import FastSimulator
from hosim.planner.hyperoffload.gap_scoring import Weights
from hosim.planner.hyperoffload.judgement import EVERYTHING, LOCAL_SEARCH, SELECTION, Judgement
from hosim.planner.hyperoffload.local_search import improve
from hosim.planner.hyperoffload.problem import Problem, analyse, check_floor
from hosim.planner.hyperoffload.selection import Selection, select
from hosim.schedule.placement import Placement
from hosim.units import human_size

_SLOW = (1.0, 0.9, 0.8, 0.7, 0.55, 0.4, 0.3)
"""What transfer times are multiplied with, in turn. Below 1: a step that transfers stretch has that much more time for them."""

_WORK = 40_000
"""Ops replayed and gaps judged in all, about (a gap is half as much work): so many attempts there are, but at least ``_FEWEST``."""
_FEWEST, _MOST = 3, 1500
_LARGE, _CLOSE = 5_000, 5_000
"""Above so many ops, a makespan within a ``_CLOSE``-th of one without any wait is good enough."""
_SMALL = 200
"""Ops up to which single decisions are searched."""
_SIMULATED, _MOST_SIMULATIONS = 320_000, 8_000
"""About how many ops that search simulates, and the most simulations."""


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

    ``effort`` scales the number of replays spent; ``seed`` that of the search on small graphs. ``placement`` is the rule by which a tensor
    gets its tier below; without one it is the tier that hides most. Raises :class:`InfeasibleError`, naming the
    smallest budget found feasible, if nothing fits.
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
) -> Evaluation:
    """Like :func:`plan`, with the choices and the replay's result."""
    budget = min(budget_bytes, hardware.device.capacity_bytes)
    problem = analyse(graph, hardware)
    check_floor(problem, budget)
    count = max(1, len(graph.ops))
    floor_ns = problem.horizon_ns
    if count > _LARGE:
        floor_ns += floor_ns // _CLOSE
    allowance = max(_FEWEST, int(effort * min(_MOST, _WORK / (count + len(problem.gaps) / 2))))
    evaluate = Evaluator(problem, budget, policy, allowance)
    if len(graph.streams) > 1:  # streams that overlap may hold less than the listed order says
        selection = select(problem, max(problem.held_bytes), Weights(placement=placement))
        unmoved = evaluate(selection.choices)
        if _at(unmoved, floor_ns):
            return _judged(unmoved, SELECTION, selection)
    sweeps = _sweeps(evaluate, problem, budget, floor_ns, placement)
    best, source = sweeps.best, SELECTION
    if best.cost.infeasible and placement is None:
        moved = evaluate(everything(problem))
        if moved.cost < best.cost:
            best, source = moved, EVERYTHING
    if graph.ops and count <= _SMALL and placement is None and not _at(best, floor_ns):  # the search tries any tier
        refined = _refined(evaluate, best, floor_ns, effort, seed)
        if refined.cost < best.cost:
            best, source = refined, LOCAL_SEARCH
    if best.cost.infeasible:
        raise InfeasibleError(_explain(problem, budget, best, sweeps.full), report=best.result.error or "")
    return _judged(best, source, sweeps.selection)


def _judged(outcome: Evaluation, source: str, selection: Selection | None) -> Evaluation:
    """An outcome whose plan carries where it comes from."""
    return replace(outcome, plan=replace(outcome.plan, judgement=Judgement(source, outcome.choices, selection)))


def _refined(evaluate: Evaluator, best: Evaluation, floor_ns: int, effort: float, seed: int) -> Evaluation:
    """What the search over single decisions finds, replayed.

    The fast simulator judges each decision; replays do where the fast simulator does not cover the machine or the graph.
    """
    problem = evaluate.problem
    count = len(problem.graph.ops)
    simulate = FastSimulator(problem, evaluate.budget_bytes)
    if simulate.exact:
        tries = int(effort * min(_MOST_SIMULATIONS, _SIMULATED / count))
        return evaluate(improve(problem, simulate, best.choices, floor_ns, tries, seed))

    def replayed(choices: Choices) -> tuple[int, int, int]:
        cost = evaluate(choices).cost
        return int(cost.infeasible), cost.makespan_ns, cost.moved_bytes

    return evaluate(improve(problem, replayed, best.choices, floor_ns, int(effort * min(_MOST, _WORK / count)), seed))


def _at(outcome: Evaluation, floor_ns: int) -> bool:
    """Whether no plan can be better: no op waits for a transfer or for room, or too little to matter.

    All that may be left then is the memory bandwidth that copies take from ops.
    """
    return not outcome.cost.infeasible and (outcome.cost.makespan_ns <= floor_ns or not outcome.waits)


def _sweeps(evaluate: Evaluator, problem: Problem, budget: int, floor_ns: int, placement: Placement | None) -> _Sweeper:
    """Sweeps on the unhindered step, stretched until transfers fit in it; then for the op times of the best replay, while that helps."""
    best = _Sweeper(evaluate, problem, budget, floor_ns, Weights(placement=placement))
    for slow in _SLOW:
        if not best.attempt(replace(best.first, slow=slow)) and best.outcome is not None and best.since > 1:
            break
    best.vary()
    while not best.finished and best.outcome is not None and not best.outcome.cost.infeasible:
        before = best.outcome.cost
        best.problem = analyse(problem.graph, problem.hardware, evaluate.times(best.outcome))
        best.attempt(replace(best.weights, slow=1.0))
        best.attempt(replace(best.weights, slow=0.9))
        if before <= best.outcome.cost:
            break
        best.vary()
    return best


class _Sweeper:
    """The best sweep so far, and how to look around it.

    ``full`` names, in words, the lower tiers that were full in the sweep that found most of them so.
    """

    def __init__(self, evaluate: Evaluator, problem: Problem, budget: int, floor_ns: int, first: Weights) -> None:
        self.evaluate = evaluate
        self.problem = problem
        self.budget = budget
        self.floor_ns = floor_ns
        self.first = self.weights = first
        self.target = 1.0
        self.outcome: Evaluation | None = None
        self.selection: Selection | None = None
        self.full = ""
        self.since = 0

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
        outcome = self.evaluate(selection.choices)
        if len(selection.full) > len(self.full):
            self.full = selection.full
        if self.outcome is None or outcome.cost < self.outcome.cost:
            self.outcome, self.selection, self.weights, self.target, self.since = outcome, selection, weights, target, 0
            return True
        self.since += 1
        return False

    def vary(self) -> None:
        """Look around the best, one weight after the other."""
        for waiting in (0.1, 0.3, 1.0, 0.0):
            if waiting != self.weights.waiting:
                self.attempt(replace(self.weights, waiting=waiting))
        for slow in (0.93, 1.07):
            self.attempt(replace(self.weights, slow=self.weights.slow * slow))
        for target in (0.97, 0.92):
            self.attempt(self.weights, target)
        if len(self.problem.below) > 1 and self.weights.placement is None:
            self.attempt(replace(self.weights, tiers=1))
        self.attempt(replace(self.weights, copies=not self.weights.copies))


def _explain(problem: Problem, budget: int, best: Evaluation, full: str) -> str:
    """Why nothing fits."""
    floor = max(problem.floor_bytes, default=0)
    below = f"; of the tiers below, {full}" if full else ""
    return (
        f"no plan found within {human_size(budget)} ({budget} B); the largest single op uses {human_size(floor)} ({floor} B), "
        f"the budget below which none can exist{below}; the best attempt ended with: {best.result.error}"
    )

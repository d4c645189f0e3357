"""The planner's own arms: sweeps, the earliest returns, even spreads, placement rules and the least
traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf
from operator import itemgetter

from hosim.planner.hyperoffload.choice_passes import (
    Spread,
    advance,
    evenly,
    hardly_late,
    in_time,
    usual_bytes,
)
from hosim.planner.hyperoffload.judgement import EVERYTHING, LEAST_TRAFFIC, SELECTION, SPREAD
from hosim.planner.hyperoffload.least_traffic import from_the_farthest, with_least_traffic
from hosim.planner.hyperoffload.search import Arm, Found, PlannedGraph, Search
from hosim.planner.hyperoffload.selection import select
from hosim.planner.hyperoffload.sweep_cells import Weights
from hosim.planner.hyperoffload.tensor_choices import Choices, Problem, analyse, everything
from hosim.planner.schedule.tiers_below import BALANCED, BY_KIND, NEAREST, Placement, has_hops

_STEPS = (1.4, 1.2)
"""The factors by which transfer times grow or shrink from sweep to sweep: first 1.4, then 1.2."""
_AGAIN = 0.9
"""The factor on transfer times in a sweep over replayed op times, tried if 1 gains nothing."""
_SPARE = (1, 0)
"""Room kept free by an even spread for tensors in transit, in tensors of the usual size. Without
any, a step often gets stuck.
"""
_OF_A_GAP, _OF_A_CHOICE = 2, 20
"""The work of a sweep or a spread for each op and gap of a graph, and for each tensor that it moves
and whose returns are then advanced. Judging a gap counts as one.
"""


def swept(search: Search, planned: PlannedGraph, weights: Weights) -> float:
    """Offer a sweep's plans with late and with early returns, and return the lower makespan in ns;
    infinite if neither fits. A repeated sweep returns the known makespan.
    """
    for known, known_ns in planned.swept:
        if known == weights:
            return known_ns
    least_ns = _sweep(search, planned, planned.problem, weights)
    planned.swept.append((weights, least_ns))
    return least_ns


def _sweep(search: Search, planned: PlannedGraph, problem: Problem, weights: Weights) -> float:
    selection = select(problem, search.budget_bytes, weights)
    search.work.done += selection.judged + _work_of_choices(problem, selection.choices)
    search.note_full(selection.full)
    planned.selection = planned.selection or selection
    least_ns = inf
    for choices in (
        selection.choices,
        advance(planned.problem, selection.choices, search.budget_bytes),
    ):
        found = Found(planned.evaluate(choices), planned, SELECTION, selection)
        search.offer(found)
        if not found.outcome.cost.infeasible:
            least_ns = min(least_ns, found.outcome.cost.makespan_ns)
        if search.done:
            break
    return least_ns


def _work_of_choices(problem: Problem, choices: Choices) -> int:
    return _OF_A_GAP * (len(problem.graph.ops) + len(problem.gaps)) + _OF_A_CHOICE * len(choices)


def sweeping(placement: Placement | None = None) -> Arm:
    """Return an arm that sweeps on the stretched step (:func:`stretched`) and on the step without
    waits, from each with longer and shorter transfer times, and then by the placement rules.
    """

    def steps(search: Search, planned: PlannedGraph) -> Iterator[None]:
        begin = stretched(planned, placement)
        yield from _climbing(search, planned, begin)
        if begin.slow != 1:
            yield from _climbing(search, planned, replace(begin, slow=1.0))
        if placement is None and len(planned.problem.below) > 1:
            best, _ = min(planned.swept, key=itemgetter(1))
            for name in (BALANCED, NEAREST, BY_KIND):
                search.tried.append(f"placement {name}")
                swept(search, planned, replace(best, placement=Placement(name)))
                yield

    return steps


def _climbing(search: Search, planned: PlannedGraph, weights: Weights) -> Iterator[None]:
    """Sweep with longer and with shorter transfer times as long as the plans get faster."""
    best_ns = swept(search, planned, weights)
    yield
    for step in _STEPS:
        for factor in (step, 1 / step):
            while True:
                changed = replace(weights, slow=weights.slow * factor)
                found_ns = swept(search, planned, changed)
                yield
                if found_ns >= best_ns:
                    break
                weights, best_ns = changed, found_ns


def stretched(planned: PlannedGraph, placement: Placement | None = None) -> Weights:
    """Return weights for a step as long as the lower bound: they shorten transfer times by the
    ratio of the step without waits to the bound.
    """
    return Weights(placement=placement, slow=planned.problem.horizon_ns / max(1, planned.least_ns))


def ranking(alpha: float, placement: Placement | None = None) -> Arm:
    """Return an arm that sweeps by the cost of the HyperOffload description, on the step without
    waits and on the stretched one.
    """

    def steps(search: Search, planned: PlannedGraph) -> Iterator[None]:
        for weights in (Weights(placement=placement), stretched(planned, placement)):
            swept(search, planned, replace(weights, alpha=alpha))
            yield

    return steps


def refining(search: Search, planned: PlannedGraph) -> Iterator[None]:
    """Sweep over the op times of the best replay: its stalls give transfers more time."""
    slow = 1.0
    while search.best is not None and search.best.planned is planned and not search.nothing_fits:
        problem = analyse(
            planned.problem.graph, search.hardware, planned.evaluate.times(search.best.outcome)
        )
        before = search.best
        _sweep(search, planned, problem, Weights(slow=slow))
        better = search.best is not before
        yield
        if not better and slow < 1:
            return
        slow = 1.0 if better else _AGAIN


def spreading(search: Search, planned: PlannedGraph) -> Iterator[None]:
    """Try even spreads over one lower tier and over all, with and without tensors that the step
    writes, with and without spare room.
    """
    if planned.spread:
        return
    planned.spread = True
    problem, budget = planned.problem, search.budget_bytes
    if max(problem.held_bytes) <= budget and not problem.starts_below:  # nothing has to move
        search.offer(Found(planned.evaluate({}), planned, SPREAD))
        yield
    usual = usual_bytes(problem)
    some = sorted({1, len(problem.below)})
    ways: list[tuple[Spread, int, bool]]
    ways = [(evenly, tiers, written) for tiers, written in product(some, (False, True))]
    ways += [(spread, tiers, False) for tiers, spread in product(some, (in_time, hardly_late))]
    for (spread, tiers, written), spare in product(ways, _SPARE):
        choices = spread(problem, budget, spare * usual, written, tiers)
        if choices is not None:
            search.work.done += _work_of_choices(problem, choices)
            found = advance(problem, choices, budget)
            search.offer(Found(planned.evaluate(found), planned, SPREAD))
            yield


def saving_traffic(search: Search, planned: PlannedGraph) -> Iterator[None]:
    """Reduce the traffic of the best plan, if it uses routes of several channels."""
    while search.best is not None and search.best.planned is planned:
        before = search.best.outcome
        found, source = with_least_traffic(planned.evaluate, planned.problem, before, "")
        if source != LEAST_TRAFFIC:
            break
        search.offer(Found(found, planned, LEAST_TRAFFIC))
        yield


def drawing(search: Search, planned: PlannedGraph) -> Iterator[None]:
    """Sweep over random subsets of the gaps with random weights: start points for local search."""
    while search.best is not None and search.best.planned is planned and planned.problem.gaps:
        search.offer(Found(planned.evaluate(_drawn(search, planned.problem)), planned, SELECTION))
        yield


def _drawn(search: Search, problem: Problem) -> Choices:
    """Return the choices of a sweep over a random subset of the gaps with random weights, within
    90 to 100 % of the budget.
    """
    rng = search.rng
    share = rng.random()
    left = tuple([gap for gap in problem.gaps if rng.random() < share])
    weights = Weights(
        waiting=rng.choice((0.0, 0.1, 0.3, 1.0)),
        slow=rng.random(),
        copies=rng.random() < 0.5,
    )
    selection = select(
        replace(problem, gaps=left), int(search.budget_bytes * rng.uniform(0.9, 1.0)), weights
    )
    search.work.done += selection.judged + _work_of_choices(problem, selection.choices)
    tiers = [tier.name for tier in problem.below if not has_hops(problem.hardware, tier)]
    elsewhere = rng.random() if len(tiers) > 1 and rng.random() < 0.5 else 0.0
    return {
        t: choice.below_in(rng.choice(tiers))
        if rng.random() < elsewhere and t not in problem.starts_below
        else choice
        for t, choice in selection.choices.items()
    }


def fitting(search: Search, planned: PlannedGraph) -> Iterator[None]:
    """If nothing fits, evict everything in every gap, then fill the farthest tiers first."""
    if not search.nothing_fits:
        return
    moved = Found(planned.evaluate(everything(planned.problem)), planned, EVERYTHING)
    search.offer(moved)
    yield
    if search.nothing_fits:
        found, source = from_the_farthest(
            planned.evaluate, planned.problem, moved.outcome, EVERYTHING
        )
        search.offer(Found(found, planned, source))
        yield

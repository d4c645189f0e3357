"""HyperOffload's planner from end to end: the arms of its search, and the choice of the plan that
it returns.

Source: the eight-step workflow of the HyperOffload description (arXiv 2602.00748); its cost
``max(0, C_trans - C_comp_overlap) + alpha * residency`` is one ranking that sweeps can use
(:mod:`hosim.planner.hyperoffload.selection`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from hosim.base.search_control import EndFields, SearchRecord
from hosim.cache_plan import Plan
from hosim.data.draws import DRAWS, FEW_DRAWS
from hosim.engine import replay, verdict
from hosim.errors import InfeasibleError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.arms import (
    drawing,
    fitting,
    ranking,
    refining,
    saving_traffic,
    spreading,
    sweeping,
)
from hosim.planner.hyperoffload.choice_passes import in_draws, mended, prefetches
from hosim.planner.hyperoffload.judgement import LOCAL_SEARCH, Judgement
from hosim.planner.hyperoffload.search import Arm, Ends, Found, Search
from hosim.planner.hyperoffload.tensor_choices import Evaluation, Judge, check_floor, work_of
from hosim.planner.schedule.tiers_below import Placement
from hosim.units import human_size

_OF_EACH: Sequence[Arm] = (spreading, sweeping(), fitting, refining)
_LATER: Sequence[Arm] = (drawing, saving_traffic)
"""The arms of each graph before local search, and those after it."""
_FOR_DRAWS = 10
"""All draws of a plan are replayed if that takes at most a tenth of the work of the search."""
_Drawn = tuple[int, float, int, Found, SearchRecord]
"""A plan's number of failed draws, its mean makespan in ns in the others, its place in the list,
the plan itself, and its record.
"""


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    effort: float = 1.0,
    seed: int = 0,
    placement: Placement | None = None,
) -> Plan:
    """Return the best plan found within ``budget_bytes`` of the device tier.

    ``effort`` scales the work of the search, and ``seed`` seeds its random choices. ``placement``
    is the rule that chooses a tensor's lower tier; without one the search takes the tier that hides
    most of the transfers, and tries the rules as well. If nothing fits, it raises
    :class:`InfeasibleError` with the budget below which no plan can exist.
    """
    return search(graph, hardware, budget_bytes, effort=effort, seed=seed, placement=placement).plan


def search(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    alpha: float | None = None,
    seed: int = 0,
    placement: Placement | None = None,
    arms: Sequence[Arm] = (),
    later: Sequence[Arm] = (),
    needed: Sequence[Arm] = (),
    judge: Judge = verdict,
    **ends: Unpack[EndFields],
) -> Evaluation:
    """Plan as :func:`plan` does, and return the plan with its choices and its replay's result.

    ``ends`` are the fields of :class:`hosim.planner.hyperoffload.search.Ends`. ``alpha`` adds
    sweeps by the cost of the description (:mod:`hosim.planner.hyperoffload.selection`). ``arms``
    and ``later`` are added to the planner's own. ``needed`` arms run last to their ends, unless
    nothing waits, the search was ended or the lower bound leaves too little to gain. ``judge``
    replays the plans that are compared.
    """
    when = Ends(**ends)
    run = Search(
        graph,
        hardware,
        min(budget_bytes, hardware.device.capacity_bytes),
        "hyperoffload",
        seed,
        judge,
        nearer=placement is None,
    )
    check_floor(run.plain.problem, run.budget_bytes)
    try:
        described = [] if alpha is None else [ranking(alpha, placement)]
        if placement is None:
            run.run(arms, [*_OF_EACH, *described], [*_LATER, *later], needed, when)
        else:
            run.run(arms, (sweeping(placement), fitting, *described), (), needed, when)
        if run.chosen is None or run.chosen.outcome.cost.infeasible:
            raise InfeasibleError(
                _explain(run), report="" if run.chosen is None else _error(run, run.chosen)
            )
        chosen = run.tidied(run.chosen, faster=False)
        return _judged(*_steadiest(run, chosen, [] if when.within else run.alike()), run.tried)
    finally:
        run.planning.add(run.work.done)
        run.pool.clear()  # breaks the reference cycle, so that the memory is freed at once


def _steadiest(run: Search, chosen: Found, others: Sequence[Found]) -> tuple[Found, SearchRecord]:
    """Return the plan that fails in the fewest draws, at a tie that with the lowest mean makespan
    in the others, and its record; ``chosen`` if nothing is drawn.

    A few draws compare all plans. Then the best is replayed in all draws, and the next one if it
    fails in some, as long as that is little beside the work of the search.
    """
    if not others and not prefetches(chosen.outcome.plan):
        return chosen, SearchRecord()
    given = run.hardware, run.budget_bytes

    def drawn(found: Found, place: int, most: int) -> list[_Drawn]:
        outcome = found.outcome
        record = in_draws(outcome.plan, *given, most)
        if record is None:
            return []
        run.work.done += _work_of_draws(found, record.draws)
        if most > FEW_DRAWS:
            plan = mended(replace(outcome.plan, search=record), *given, run.judge)
            found, record = (
                replace(found, outcome=replace(outcome, plan=plan)),
                plan.search or record,
            )
        mean_ns = outcome.cost.makespan_ns * (1 + (record.lost or 0))
        return [(record.failed, mean_ns, place, found, record)]

    few = [one for k, found in enumerate((chosen, *others)) for one in drawn(found, k, FEW_DRAWS)]
    if len(few) <= len(others):
        return chosen, SearchRecord()
    *_, best, _ = min(few)
    tidy = best if best is chosen else run.tidied(best, faster=False)
    few += [] if tidy is best else drawn(tidy, len(few), FEW_DRAWS)
    tried = list[_Drawn]()
    for _, _, place, found, _ in sorted(few):
        if _work_of_draws(found, DRAWS) > run.work.done // _FOR_DRAWS or (
            tried and not min(tried)[0]
        ):
            break
        tried += drawn(found, place, DRAWS)
    *_, best, record = min(tried or few)
    return best, replace(record, alike=1 + len(others) if others else 0)


def _work_of_draws(found: Found, draws: int) -> int:
    """Return the work of ``draws`` draws of a plan, which share one table of the replay."""
    return work_of(found.outcome.plan) * draws // (2 * FEW_DRAWS)


def _judged(found: Found, record: SearchRecord, tried: Sequence[str]) -> Evaluation:
    """Return the outcome; its plan carries its origin and the edits of its graph."""
    outcome = found.outcome
    selection = found.selection or (
        found.planned.selection if found.source == LOCAL_SEARCH else None
    )
    judgement = Judgement(
        found.source,
        outcome.choices,
        selection,
        found.rival,
        tuple(dict.fromkeys(tried)),
        outcome.plan.graph,
    )
    plan, edits = replace(outcome.plan, judgement=judgement, search=record), found.planned.edits
    if edits is None:
        return replace(outcome, plan=plan)
    plan = replace(plan, edits=edits)
    again = {"recomputes": plan.recomputes} if plan.recomputes else {}
    return replace(
        outcome, plan=plan, result=replace(outcome.result, plan={**outcome.result.plan, **again})
    )


def _explain(run: Search) -> str:
    """Return the error message for a search in which nothing fits."""
    floor, budget = max(run.plain.problem.floor_bytes, default=0), run.budget_bytes
    below = f"; of the tiers below, {run.full}" if run.full else ""
    error = "" if run.best is None else _error(run, run.best)
    return (
        f"no plan found within {human_size(budget)} ({budget} B); the largest single op uses "
        f"{human_size(floor)} ({floor} B), "
        f"the budget below which none can exist{below}; the best attempt ended with: {error}"
    )


def _error(run: Search, found: Found) -> str:
    """Return the reason why a plan does not fit."""
    plan, result = found.outcome.plan, found.outcome.result
    again = run.judge is verdict and not result.feasible
    return (replay(plan, run.hardware, run.budget_bytes) if again else result).error or ""

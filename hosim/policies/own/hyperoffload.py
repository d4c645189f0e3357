"""HyperOffload: cache operators placed by a global refinement of the execution order (arXiv
2602.00748); hosim's own planner.

:mod:`hosim.planner.hyperoffload.pipeline` has the passes;
:mod:`hosim.planner.rewrites.graph_rewrites` has what may change about the graph itself.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import Unpack

from hosim.base.collector import rare_collection
from hosim.base.search_control import EndFields
from hosim.cache_plan import Plan
from hosim.edits import is_repeatable
from hosim.engine import verdict
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload import search
from hosim.planner.hyperoffload.choice_passes import sturdier
from hosim.planner.hyperoffload.tensor_choices import Judge, of_another, plan_cost
from hosim.planner.rewrites import rewriting
from hosim.planner.schedule.tiers_below import PLANNED, planned_placement
from hosim.policies.own.rivals import asking_rivals, rivals_at_runtime


@rare_collection()
def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    alpha: float | None = None,
    seed: int,
    reorder: bool | None,
    recompute: bool | None,
    placement: str = PLANNED,
    judge: Judge = verdict,
    rivals: bool = True,
    **ends: Unpack[EndFields],
) -> Plan:
    """The best plan that the planner finds within the budget; raises
    :class:`hosim.errors.InfeasibleError` if none.

    ``ends`` (``effort``, ``work`` and ``within``) say where the search ends, and ``alpha`` adds a
    ranking (:func:`hosim.planner.hyperoffload.search`). ``reorder`` and ``recompute`` let it change
    the order of the ops, and run some of them again; ``None`` lets it where the workload says that its
    ops may (:func:`hosim.edits.is_repeatable`). ``placement`` is a rule of
    :mod:`hosim.planner.schedule.tiers_below.placement`, or
    :data:`hosim.planner.schedule.tiers_below.placement.PLANNED`. ``judge`` replays the plans that are
    compared: with an allocator, if what counts is what that reserves. Without ``rivals`` the other
    policies are not asked for plans.
    """
    rule = planned_placement(placement, hardware)
    if rule is not None and (reorder or recompute):
        raise InputError(
            "a placement rule is for graphs as they are: not together with reorder or recompute",
            source="placement",
        )
    allowed = rule is None and is_repeatable(graph)
    reorder, recompute = (
        allowed if reorder is None else reorder,
        allowed if recompute is None else recompute,
    )
    asked = None if rule is None else placement
    likely, near = rewriting(reorder, recompute)
    needed = [asking_rivals(asked)] if rivals else []
    given = graph, hardware, budget_bytes
    try:
        found = search(
            *given,
            alpha=alpha,
            seed=seed,
            placement=rule,
            arms=[likely],
            later=[near],
            needed=needed,
            judge=judge,
            **ends,
        )
        return sturdier(found.plan, hardware, budget_bytes, judge)
    except InfeasibleError:
        if not rivals:
            raise
        fitting = []
        for plan in rivals_at_runtime(graph, hardware, budget_bytes, asked):
            cost = plan_cost(plan, of_another(judge, plan, hardware, budget_bytes))
            if not cost.infeasible:
                fitting.append((cost, plan))
        if not fitting:
            raise
        _, fastest = min(fitting, key=itemgetter(0))
        return replace(fastest, policy="hyperoffload")

"""HyperOffload: cache operators placed by a global refinement of the execution order (arXiv 2602.00748); hosim's own planner.

:mod:`hosim.planner.hyperoffload.pipeline` has the passes; :mod:`hosim.planner.rewrites.graph_rewrites` has what may change about the
graph itself.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload import pipeline
from hosim.planner.rewrites import graph_rewrites
from hosim.policies.rivals import rivals_at_runtime, static_rivals
from hosim.schedule.placement import read_placement

PLANNED = "planned"
"""The default placement: each tensor goes to the tier where most of its transfers is hidden."""


def plan(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    effort: float,
    seed: int,
    reorder: bool,
    recompute: bool,
    placement: str = PLANNED,
) -> Plan:
    """The best plan that the planner finds within the budget; raises :class:`hosim.errors.InfeasibleError` if none.

    ``reorder`` and ``recompute`` let it change the order of the ops, and run some of them again. ``placement`` is a rule of
    :mod:`hosim.schedule.placement`, or :data:`PLANNED`.
    """
    rule = None if placement == PLANNED else read_placement(placement, hardware)
    if reorder or recompute:
        if rule is not None:
            raise InputError("a placement rule is for graphs as they are: not together with reorder or recompute", source="placement")
        search = graph_rewrites.search
        return search(graph, hardware, budget_bytes, effort=effort, seed=seed, reorder=reorder, recompute=recompute).plan
    if rule is not None:
        return pipeline.plan(graph, hardware, budget_bytes, policy="hyperoffload", effort=effort, seed=seed, placement=rule)
    return _at_least_as_good_as_rivals(graph, hardware, budget_bytes, effort, seed)


def _at_least_as_good_as_rivals(graph: Graph, hardware: Hardware, budget_bytes: int, effort: float, seed: int) -> Plan:
    """The planner's own plan, or a rival's where the replay of that is better."""
    try:
        return pipeline.search(graph, hardware, budget_bytes, effort=effort, seed=seed, others=static_rivals).plan
    except InfeasibleError:
        for plan in rivals_at_runtime(graph, hardware, budget_bytes):
            if replay(plan, hardware, budget_bytes).feasible:
                return replace(plan, policy="hyperoffload")
        raise

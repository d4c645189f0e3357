"""HyperOffload: cache operators placed by a global refinement of the execution order (arXiv 2602.00748); hosim's own planner.

:mod:`hosim.planner.pipeline` has the passes, :mod:`hosim.planner.variants` what may change about the graph itself.
"""

from __future__ import annotations

from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plan import Plan
from hosim.planner import pipeline, variants
from hosim.planner.pooled import read_placement

PLANNED = "planned"
"""The placement that is no rule: each tensor goes to the tier where most of its transfers hides."""


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
    :mod:`hosim.planner.pooled`, or :data:`PLANNED`.
    """
    rule = None if placement == PLANNED else read_placement(placement, hardware)
    if reorder or recompute:
        if rule is not None:
            raise InputError("a placement rule is for graphs as they are: not together with reorder or recompute", source="placement")
        how = {"reorder": reorder, "recompute": recompute}
        return variants.plan(graph, hardware, budget_bytes, policy="hyperoffload", effort=effort, seed=seed, **how)
    return pipeline.plan(graph, hardware, budget_bytes, policy="hyperoffload", effort=effort, seed=seed, placement=rule)

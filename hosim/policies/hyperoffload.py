"""HyperOffload: cache operators placed by a global refinement of the execution order (arXiv 2602.00748); hosim's own planner.

:mod:`hosim.planner.pipeline` has the passes, :mod:`hosim.planner.variants` what may change about the graph itself.
"""

from __future__ import annotations

from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plan import Plan
from hosim.planner import pipeline, variants


def plan(graph: Graph, hardware: Hardware, budget_bytes: int, *, effort: float, seed: int, reorder: bool, recompute: bool) -> Plan:
    """The best plan that the planner finds within the budget; raises :class:`hosim.errors.InfeasibleError` if none.

    ``reorder`` and ``recompute`` let it change the order of the ops, and run some of them again.
    """
    if reorder or recompute:
        how = {"reorder": reorder, "recompute": recompute}
        return variants.plan(graph, hardware, budget_bytes, policy="hyperoffload", effort=effort, seed=seed, **how)
    return pipeline.plan(graph, hardware, budget_bytes, policy="hyperoffload", effort=effort, seed=seed)

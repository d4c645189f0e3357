"""HyperOffload: cache operators placed by a global refinement of the execution order (arXiv 2602.00748); hosim's own planner.

:mod:`hosim.planner.pipeline` has the passes.
"""

from __future__ import annotations

from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plan import Plan
from hosim.planner import pipeline


def plan(graph: Graph, hardware: Hardware, budget_bytes: int, *, effort: float, seed: int) -> Plan:
    """The best plan that the planner finds within the budget; raises :class:`hosim.errors.InfeasibleError` if none."""
    return pipeline.plan(graph, hardware, budget_bytes, policy="hyperoffload", effort=effort, seed=seed)

"""HyperOffload: cache operators placed by a global refinement of the execution order (arXiv 2602.00748); hosim's own planner.

:mod:`hosim.planner.hyperoffload.pipeline` has the passes; :mod:`hosim.planner.rewrites.graph_rewrites` has what may change about the
graph itself.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.cache_plan import Plan
from hosim.costmodel.transfer_time import alone_ns
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.hyperoffload import pipeline
from hosim.planner.hyperoffload.evaluation import PlanCost, plan_cost
from hosim.planner.hyperoffload.judgement import RIVAL, Judgement
from hosim.planner.rewrites import graph_rewrites
from hosim.policies import registry
from hosim.schedule.freeze_runtime import freeze_runtime
from hosim.schedule.placement import read_placement

RIVALS = ("resident", "memory_peak", "g10", "longest_gap", "layerwise", "belady", "distance")
"""Policies whose plans are tried too where waits are left: if a rule of thumb does better on some graph, its plan is taken.

What a runtime would decide is put into the graph (:mod:`hosim.schedule.freeze_runtime`): the plan is a static one, unless nothing else
fits.
"""

MOST_OPS = 20_000
"""Rivals are tried on graphs of up to this many ops; beyond, planning so often would take most of the time."""

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
    refused: InfeasibleError | None = None
    best: tuple[PlanCost, Plan] | None = None
    try:
        found = pipeline.search(graph, hardware, budget_bytes, policy="hyperoffload", effort=effort, seed=seed)
        best = found.cost, found.plan
        if len(graph.ops) > MOST_OPS or not (found.waits or found.result.slowed_ns):
            return found.plan
    except InfeasibleError as error:
        refused = error
    only_at_runtime: list[Plan] = []
    for name in RIVALS:
        try:
            plan = registry.get(name).plan(graph, hardware, budget_bytes)
        except InfeasibleError:
            continue
        static = freeze_runtime(plan, hardware, budget_bytes)
        if static is None:
            only_at_runtime.append(replace(plan, policy="hyperoffload"))
            continue
        if best is not None and _moving_ns(static, hardware) >= best[0].makespan_ns:
            continue
        ours = replace(static, policy="hyperoffload", judgement=Judgement(RIVAL, {}, rival=name))
        value = plan_cost(ours, replay(ours, hardware, budget_bytes))
        if not value.infeasible and (best is None or value < best[0]):
            best = value, ours
    if best is not None:
        return best[1]
    for plan in only_at_runtime:
        if replay(plan, hardware, budget_bytes).feasible:
            return plan
    assert refused is not None
    raise refused


def _moving_ns(plan: Plan, hardware: Hardware) -> int:
    """Nanoseconds for which the plan's transfers keep some channel busy: its replay takes no less."""
    busy: dict[str, int] = {}
    for cache_op in plan.cache_ops:
        channel = hardware.channel_between.get((cache_op.source, cache_op.destination or ""))
        if channel is not None and channel.engines == 1:
            taken = alone_ns(hardware, channel.name, plan.graph.tensors[cache_op.tensor].size_bytes)
            busy[channel.name] = busy.get(channel.name, 0) + taken
    return max(busy.values(), default=0)

"""The exact optimum on small graphs: CP-SAT's schedule, proved by its replay
(:mod:`hosim.planner.exact.solver`).
"""

from __future__ import annotations

from dataclasses import replace

from hosim.cache_plan import Plan, Proof
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.exact import knows_all_starts, solve


def plan(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, limit: float, seed: int, largest: int
) -> Plan:
    """The plan with the least makespan that the solver finds within ``limit`` deterministic
    seconds, with what the solver has proved.

    There may be a better one only where the bound of its ``proof`` is below its makespan, or it has
    none. Raises :class:`hosim.errors.InputError` if OR-tools is missing, or the graph or the
    machine is more than the exact model knows, and :class:`hosim.errors.InfeasibleError` if nothing
    fits.
    """
    found = solve(graph, hardware, budget_bytes, limit=limit, seed=seed, largest=largest)
    if not knows_all_starts(graph, hardware):
        return found.plan
    within = min(budget_bytes, hardware.device.capacity_bytes)
    return replace(found.plan, proof=Proof(graph, hardware, within, found.bound_ns))

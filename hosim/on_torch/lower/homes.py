"""Several programs over the same tensors: each begins with them where the others have them between
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.on_torch.lower.callable import PlannedProgram
from hosim.on_torch.lower.torch_program import TorchProgram
from hosim.result import Result

Planner = Callable[[Graph], tuple[Plan, Result]]
"""Plans a graph within the budget that all programs of one model have."""


def at_home(
    program: TorchProgram, others: Sequence[PlannedProgram], device_tier: str
) -> TorchProgram:
    """``program`` with the tensors that others have below the device tier at time 0 at home there,
    so that they need not move.
    """
    homes: dict[int, str] = {}
    for other in others:
        below = {
            t: tiers[0]
            for t, tiers in other.plan.residency(device_tier).items()
            if device_tier not in tiers
        }
        for placeholder, t in other.program.tensor_of.items():
            if t in below and placeholder in program.tensor_of and placeholder not in other.inputs:
                homes[program.tensor_of[placeholder]] = below[t]
    survivors = {t: tier for t, tier in homes.items() if program.graph.tensors[t].persistent}
    graph = program.graph
    tensors = [replace(tensor, home=survivors.get(t)) for t, tensor in enumerate(graph.tensors)]
    return replace(program, graph=Graph(graph.name, tensors, graph.ops, graph.meta))

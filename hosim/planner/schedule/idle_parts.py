"""Parts of tensors that the step does not use: where not everything fits, they are not in the
device tier to begin with.
"""

from dataclasses import replace

from hosim.analysis import homes_below, static_peak
from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule.tiers_below import space_below


def idle_parts_below(graph: Graph, hardware: Hardware, budget_bytes: int) -> Graph:
    """The graph whose unused parts (:attr:`hosim.graph.Tensor.of`) are at home below the device
    tier, the fastest one with room first.

    The graph as it is if it has none of them in the device tier, or if everything fits in
    ``budget_bytes``.
    """
    device = hardware.device_tier
    tensors = graph.tensors
    idle = graph.derived(_idle_parts, device)
    if not idle or graph.derived(static_peak, device).bytes <= budget_bytes:
        return graph
    space = space_below(graph, hardware, homes_below(graph, hardware))
    homes = {t: tier for t in idle if (tier := space.place(t, 0)) is not None}
    moved = tuple(
        [
            replace(tensor, home=homes[t]) if t in homes else tensor
            for t, tensor in enumerate(tensors)
        ]
    )
    return Graph(graph.name, moved, graph.ops, graph.meta)


def _idle_parts(graph: Graph, device_tier: str) -> list[int]:
    """The parts in the device tier that no op uses."""
    parts = set(graph.tensors.those(lambda part: part.of and part.home in (None, device_tier)))
    return [t for t in graph.initial if t in parts and not graph.users[t]]


def as_asked(plan: Plan, eased: Graph, graph: Graph) -> Plan:
    """A plan for the graph that :func:`idle_parts_below` gave, with where these parts begin."""
    if eased is graph:
        return plan
    index = plan.graph.tensor_index
    moved = [
        now for now, tensor in zip(eased.tensors, graph.tensors, strict=True) if now is not tensor
    ]
    begin = {index[tensor.name]: (tensor.home,) for tensor in moved if tensor.home is not None}
    return replace(plan, initial={**begin, **plan.initial})

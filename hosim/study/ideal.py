"""How long a workload takes with everything resident, on its machine as if that had enough device memory."""

from __future__ import annotations

from dataclasses import replace

from hosim import engine
from hosim.analysis.critical_path import critical_path
from hosim.cache_plan import Plan
from hosim.costmodel.op_time import op_durations
from hosim.graph import Graph
from hosim.hardware import Hardware


def ideal_ns(graph: Graph, hardware: Hardware) -> int:
    """The makespan in nanoseconds with everything resident from the start, as if device memory were large enough.

    Where ops run on several processors, it is that of the longest chain of ops: as if tensors moved between processors in no time.
    It is kept with the graph until another machine is given.
    """
    return graph.derived_on(hardware, _replayed_ns)


def _replayed_ns(graph: Graph, hardware: Hardware) -> int:
    if graph.elsewhere:
        return critical_path(graph, op_durations(graph, hardware)).length_ns
    everything = sum(tensor.size_bytes for tensor in graph.tensors) + sum(op.workspace_bytes for op in graph.ops)
    room = max(everything, hardware.device.capacity_bytes)
    tiers = tuple(replace(t, capacity_bytes=room) if t.name == hardware.device_tier else t for t in hardware.tiers)
    plan = Plan(graph, "ideal", initial=dict.fromkeys(graph.initial, (hardware.device_tier,)))
    return engine.replay(plan, replace(hardware, tiers=tiers)).makespan_ns or 0

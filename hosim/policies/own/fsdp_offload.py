"""``fsdp_offload``: FSDP with its shards and its optimizer on the CPU.

PyTorch's ``FSDP(cpu_offload=CPUOffload(offload_params=True))`` and FSDP2's ``CPUOffloadPolicy``:
shards of parameters live in host memory, come up in fp32 each time before they are gathered, and
shards of gradients go down once they are reduced; the optimizer runs on the CPU. The workload says
so: ``data``, ``zero=3``, ``shards_home`` and ``optimizer_on``. With several micro-batches torch
adds gradients up on the CPU, where each one's goes down; here they are added up on the device, and
go down once.

Where the optimizer runs on the device it is :mod:`hosim.policies.own.layerwise`: shards that live
below are streamed.
"""

from __future__ import annotations

from hosim.cache_plan import Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import planned_around
from hosim.policies.own import layerwise


def plan(graph: Graph, hardware: Hardware, budget_bytes: int, *, ops_ahead: int) -> Plan:
    """The plan."""

    def others(rest: Graph, machine: Hardware, budget: int) -> Plan:
        return layerwise.plan(rest, machine, budget, layers_ahead=1, kinds="")

    if not graph.elsewhere:
        return others(graph, hardware, budget_bytes)
    return planned_around(graph, hardware, budget_bytes, others, ahead=ops_ahead, stays=0)

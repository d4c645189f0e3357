"""Long plans in which everything repeats: their counts tell whether work grows with the ops, and
``make bench`` times them.

The graph is a chain with branches: every eighth op is a branch of the chain, which joins it four
ops later. Every fourth op reads a parameter that is prefetched eight ops ahead and detached behind
it. On two streams the branches run beside the chain.
"""

from __future__ import annotations

from dataclasses import replace

from hosim.cache_plan import CacheOp, Plan
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier

GB = 10**9
MACHINE = Hardware(
    "bench",
    (Tier("hbm", GB, 10**12, "device"), Tier("ddr", 1000 * GB, 10**11)),
    (Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)),
    Compute({}),
)


def chain_and_branches(ops: int, streams: int) -> Plan:
    """A plan of so many ops on one stream or two."""
    b = GraphBuilder(f"{ops} ops")
    chain, branch = "", ""
    for i in range(ops):
        b.tensor(f"a{i}", 500 + i % 7)
        inputs = [chain] if chain else []
        if i % 4 == 0:
            inputs.append(b.tensor(f"w{i}", 1000, "parameter", "ddr"))
        branches = i % 8 == 3
        if i % 8 == 7:
            inputs.append(branch)
        stream = "side" if branches and streams == 2 else "compute"
        b.op(
            f"f{i}",
            "matmul",
            inputs=inputs,
            outputs=[f"a{i}"],
            duration_ns=900 + i % 13,
            stream=stream,
        )
        if branches:
            branch = f"a{i}"
        else:
            chain = f"a{i}"
    graph = b.build()
    cache_ops = []
    for i in range(0, ops, 4):
        w = graph.tensor_index[f"w{i}"]
        cache_ops += [
            CacheOp("prefetch", w, "ddr", "hbm", max(i - 8, -1)),
            CacheOp("detach", w, "hbm", None, i),
        ]
    return Plan(graph, "ahead", tuple(cache_ops))


def on(hardware: Hardware, plan: Plan) -> tuple[Plan, Hardware]:
    """The plan for a machine as it is but for room: parameters come from the tier that its first
    channel into the device tier leaves.
    """
    below = next(c.source for c in hardware.channels if c.destination == hardware.device_tier)
    tensors = tuple(replace(t, home=t.home and below) for t in plan.graph.tensors)
    cache_ops = tuple(replace(c, source=below) if c.op == "prefetch" else c for c in plan.cache_ops)
    roomy = tuple(
        replace(tier, capacity_bytes=max(tier.capacity_bytes, 1000 * GB)) for tier in hardware.tiers
    )
    graph = Graph(plan.graph.name, tensors, plan.graph.ops)
    return replace(plan, graph=graph, cache_ops=cache_ops), replace(hardware, tiers=roomy)


def modelled(plan: Plan, bytes_accessed: int = 2_000_000) -> Plan:
    """The plan with ops whose times are the cost model's, and which the memory's bandwidth bounds:
    copies slow them down.
    """
    ops = tuple(
        replace(op, duration_ns=None, bytes_accessed=bytes_accessed + 1000 * (i % 13))
        for i, op in enumerate(plan.graph.ops)
    )
    return replace(plan, graph=Graph(plan.graph.name, plan.graph.tensors, ops))


def pooled(ops: int) -> Plan:
    """The plan on one stream, with parameters that come from a pool of all devices."""
    plan = chain_and_branches(ops, 1)
    cache_ops = tuple(
        replace(c, source="pool") if c.op == "prefetch" else c for c in plan.cache_ops
    )
    return replace(plan, cache_ops=cache_ops, initial=dict.fromkeys(plan.graph.initial, ("pool",)))


def supernode(devices: int) -> Hardware:
    """A switch that gives each device a third of what its channels carry."""
    return Hardware(
        "supernode",
        (Tier("hbm", GB, 10**12, "device"), Tier("pool", 10**6 * GB, 10**12, "global")),
        (Channel("read", "pool", "hbm", GB, 300), Channel("write", "hbm", "pool", GB, 300)),
        Compute({}),
        fabrics=(Fabric("switch", devices * GB // 3, ("read", "write"), "global"),),
        devices=devices,
    )

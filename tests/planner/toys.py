"""Machines and graphs small enough to plan by hand: 1 byte takes 1 ns on every channel, each
way.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hosim.cache_plan import DETACH, PREFETCH, STORE, Plan
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier

NS = 10**9
Build = Callable[[GraphBuilder], None]


def machine(
    *lower: str,
    capacity: int = 10**6,
    fabrics: Sequence[Fabric] = (),
    latency: int = 0,
    below: int = 10**6,
) -> Hardware:
    """``hbm`` over tiers (default ``ddr``), each joined to it both ways at 1 B/ns; every further
    one at half the rate of the one before.
    """
    tiers, channels = [Tier("hbm", capacity, NS, "device")], []
    for k, name in enumerate(lower or ("ddr",)):
        tiers.append(Tier(name, below, NS))
        channels += [
            Channel(f"up_{name}", name, "hbm", NS >> k, latency),
            Channel(f"down_{name}", "hbm", name, NS >> k, latency),
        ]
    return Hardware(
        "toy", tuple(tiers), tuple(channels), Compute({"bf16": NS}), fabrics=tuple(fabrics)
    )


def graph(build: Build) -> Graph:
    """What ``build`` lists."""
    b = GraphBuilder("toy")
    build(b)
    return b.build()


def dead_in_between(b: GraphBuilder) -> None:
    """What ``use`` has read is written again: nobody needs it meanwhile."""
    b.tensor("buf", 40, "buffer")
    b.tensor("big", 40)
    b.op("make", "op", outputs=["buf"], duration_ns=10)
    b.op("use", "op", inputs=["buf"], duration_ns=10)
    b.op("other", "op", outputs=["big"], duration_ns=10)
    b.op("again", "op", outputs=["buf"], duration_ns=10)


def hill(layers: int = 4, size: int = 10, duration: int = 20) -> Graph:
    """Activations pile up and are used again in mirrored order: ``f0 .. fn`` write ``a0 .. an``,
    ``bn .. b0`` read them.
    """
    b = GraphBuilder("hill")
    for i in range(layers):
        b.tensor(f"a{i}", size)
        b.op(
            f"f{i}",
            "matmul",
            inputs=[f"a{i - 1}"] if i else [],
            outputs=[f"a{i}"],
            duration_ns=duration,
        )
    for i in reversed(range(layers)):
        b.op(f"b{i}", "matmul", inputs=[f"a{i}"], duration_ns=duration)
    return b.build()


def plateau(
    layers: int = 6,
    size: int = 10,
    duration: int = 20,
    home: str | None = None,
    kind: str = "parameter",
) -> Graph:
    """Layers with a weight each and nothing else: ``f_i`` reads ``w_i``."""
    b = GraphBuilder("plateau")
    for i in range(layers):
        b.tensor(f"w{i}", size, kind, home)
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=duration)
    return b.build()


def training(layers: int = 3, duration: int = 40) -> Graph:
    """Forward, backward, update: weights (10 B), optimizer states (20 B), activations (30 B),
    gradients (10 B), short-lived ones (5 B).
    """
    b = GraphBuilder("training")
    for i in range(layers):
        b.tensor(f"w{i}", 10, "parameter")
        b.tensor(f"o{i}", 20, "optimizer_state")
        b.tensor(f"a{i}", 30)
        b.tensor(f"s{i}", 5)
        b.tensor(f"g{i}", 10, "gradient")
    for i in range(layers):
        before = [f"a{i - 1}"] if i else []
        b.op(f"f{i}", "matmul", inputs=[*before, f"w{i}"], outputs=[f"s{i}"], duration_ns=duration)
        b.op(f"n{i}", "norm", inputs=[f"s{i}"], outputs=[f"a{i}"], duration_ns=duration)
    for i in reversed(range(layers)):
        b.op(f"b{i}", "matmul", inputs=[f"a{i}", f"w{i}"], outputs=[f"g{i}"], duration_ns=duration)
    for i in range(layers):
        b.op(f"u{i}", "adam", inputs=[f"g{i}"], mutates=[f"w{i}", f"o{i}"], duration_ns=duration)
    return b.build()


def pairs(count: int, weight: int, gather_ns: int, compute_ns: int, gathered: int = 1) -> Graph:
    """Ops on a stream of their own that read a weight each, and behind each of them one on
    ``compute`` that uses what it gathered.
    """
    b = GraphBuilder(f"{count} pairs")
    for k in range(count):
        b.tensor(f"w{k}", weight, "parameter")
        b.tensor(f"g{k}", gathered)
        b.tensor(f"a{k}", gathered)
        b.op(
            f"gather{k}",
            "all_gather",
            inputs=[f"w{k}"],
            outputs=[f"g{k}"],
            duration_ns=gather_ns,
            stream="aux",
        )
        before = [f"a{k - 1}"] if k else []
        b.op(
            f"f{k}", "matmul", inputs=[f"g{k}", *before], outputs=[f"a{k}"], duration_ns=compute_ns
        )
    return b.build()


def renamed(graph: Graph, tensor_names: Sequence[str], op_names: Sequence[str]) -> Graph:
    """The same graph under other names."""
    return Graph(
        graph.name,
        tuple(
            replace(tensor, name=name)
            for tensor, name in zip(graph.tensors, tensor_names, strict=True)
        ),
        tuple(replace(op, name=name) for op, name in zip(graph.ops, op_names, strict=True)),
    )


def told(plan: Plan, tensor: str) -> list[str]:
    """The cache ops of one tensor in order of issue: ``prefetch@f1``, at time 0
    ``prefetch@start``.
    """
    graph = plan.graph
    found = [c for c in plan.cache_ops if c.tensor == graph.tensor_index[tensor]]
    assert {c.op for c in found} <= {PREFETCH, STORE, DETACH}
    found.sort(key=lambda c: c.after)  # stable: those of one place keep the plan's order
    return [f"{c.op}@{graph.ops[c.after].name if c.after >= 0 else 'start'}" for c in found]


def two_tiers(bytes_per_ns: float = 1.0) -> Hardware:
    """``hbm`` over ``ddr``, joined by ``up`` and ``down`` at the same rate."""
    rate = int(NS * bytes_per_ns)
    tiers = (Tier("hbm", 10**6, NS, "device"), Tier("ddr", 10**6, NS, "host"))
    return Hardware(
        "two",
        tiers,
        (Channel("up", "ddr", "hbm", rate), Channel("down", "hbm", "ddr", rate)),
        Compute({}),
    )


def layers(count: int, matmul_ns: int = 10, relu_ns: int = 1, **meta: object) -> Graph:
    """``h = matmul(a); a = relu(h)`` a layer, then backwards with a and h read again; 4 B each,
    input x of 4 B, gradients of 4 B.
    """
    b = GraphBuilder("layers", meta)
    last = b.tensor("x", 4, "input")
    for i in range(count):
        b.op(
            f"m{i}", "matmul", inputs=[last], outputs=[b.tensor(f"h{i}", 4)], duration_ns=matmul_ns
        )
        last = b.tensor(f"a{i}", 4)
        b.op(f"r{i}", "relu", inputs=[f"h{i}"], outputs=[last], duration_ns=relu_ns)
    gradient: list[str] = []
    for i in reversed(range(count)):
        made = b.tensor(f"g{i}", 4, "gradient")
        b.op(
            f"b{i}", "matmul", inputs=[*gradient, f"a{i}", f"h{i}"], outputs=[made], duration_ns=20
        )
        gradient = [made]
    return b.build()

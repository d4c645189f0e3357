"""What looks at a whole graph or plan of 100,000 ops takes seconds."""

import random

from measures import cpu_seconds, measure

from hosim.analysis import static_curve
from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, DETACH, PREFETCH, CacheOp, Plan
from hosim.graph import Graph, Op, Tensor
from hosim.hardware import Channel, Compute, Hardware, Tier

COUNT = 100_000


@measure("100,000 ops: bytes that live at each of them", most=5, unit="s")
def liveness() -> float:
    tensors = tuple(Tensor(f"t{i}", 1 + i % 7) for i in range(COUNT))
    ops = tuple(
        Op(f"f{i}", "any", (i - 1, max(0, i - 900)) if i > 900 else (), (i,)) for i in range(COUNT)
    )
    graph = Graph("long", tensors, ops)
    graph.users, graph.initial, graph.survives  # noqa: B018  the graph's own indices are not what is timed
    return cpu_seconds(lambda: static_curve(graph))


@measure("100,000 ops: verifying a plan of 40,000 cache ops", most=20, unit="s")
def verifying() -> float:
    tensors = tuple(
        Tensor(f"t{i}", 1, "parameter", "ddr" if i % 5 == 0 else None) for i in range(COUNT)
    )
    ops = tuple(
        Op(
            f"f{i}",
            "any",
            (i,),
            stream="side" if i % 7 == 0 else "compute",
            deps=(i - 1,) if i else (),
        )
        for i in range(COUNT)
    )
    cache_ops = []
    for i in range(0, COUNT, 5):
        cache_ops += [
            CacheOp(PREFETCH, i, "ddr", "hbm", max(AT_START, i - 9)),
            CacheOp(DETACH, i, "hbm", None, i),
        ]
    random.Random(0).shuffle(cache_ops)
    cache_ops.sort(key=lambda c: c.after)
    machine = Hardware(
        "bench",
        (Tier("hbm", 10**6, 10**12, "device"), Tier("ddr", 10**6, 10**11)),
        (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
        Compute({}),
    )
    plan = Plan(Graph("long", tensors, ops), "test", tuple(cache_ops))
    return cpu_seconds(lambda: verify(plan, machine))

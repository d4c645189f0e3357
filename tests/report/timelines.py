"""Replays to draw and to export: real ones of small graphs, and one written down by hand in which
everything happens.
"""

from dataclasses import replace

from hosim import CacheOp, Graph, GraphBuilder, Hardware, Plan, Result, find_hardware, load_hardware
from hosim.cache_plan import AT_START
from hosim.engine import replay
from hosim.graph import KINDS
from hosim.result import (
    STALL_CAUSES,
    ChannelFigures,
    Residency,
    Stall,
    StreamFigures,
    Timeline,
    Transfer,
)

US = 1000
MIB = 2**20


def machine() -> Hardware:
    """The shipped toy with room in MiB."""
    toy = load_hardware(find_hardware("toy"))
    tiers = tuple(replace(tier, capacity_bytes=tier.capacity_bytes * MIB) for tier in toy.tiers)
    channels = tuple(replace(c, bandwidth_bytes_per_s=10**12, engines=2) for c in toy.channels)
    return replace(toy, tiers=tiers, channels=channels, fabrics=())


def two_streams() -> Plan:
    """A chain on ``compute`` whose weights come from below, beside ``comm``; activations are stored
    and fetched again.
    """
    b = GraphBuilder("two streams")
    for k in range(4):
        b.tensor(f"w{k}", 20 * MIB, "parameter", home="ddr")
    b.tensor("a0", 10 * MIB, "input")
    for k in range(4):
        b.tensor(f"a{k + 1}", 10 * MIB)
        b.op(
            f"f{k}",
            "matmul",
            inputs=[f"w{k}", f"a{k}"],
            outputs=[f"a{k + 1}"],
            duration_ns=30 * US,
            workspace_bytes=4 * MIB,
        )
        if k % 2:
            b.tensor(f"s{k}", 5 * MIB, "output")
            b.op(
                f"send{k}",
                "all_reduce",
                inputs=[f"a{k + 1}"],
                outputs=[f"s{k}"],
                stream="comm",
                duration_ns=12 * US,
            )
    b.op("last", "matmul", inputs=["a1", "a4"], duration_ns=20 * US)
    graph = b.build()
    w, op = [graph.tensor_index[f"w{k}"] for k in range(4)], graph.op_index
    a1 = graph.tensor_index["a1"]
    cache_ops = (
        *(
            CacheOp("prefetch", w[k], "ddr", "hbm", AT_START if k < 2 else op[f"f{k - 2}"])
            for k in range(4)
        ),
        *(CacheOp("detach", w[k], "hbm", None, op[f"f{k}"]) for k in range(4)),
        CacheOp("store", a1, "hbm", "ddr", op["f1"]),
        CacheOp("detach", a1, "hbm", None, op["f1"]),
        CacheOp("prefetch", a1, "ddr", "hbm", op["f2"]),
    )
    return Plan(graph, "by hand", cache_ops)


def recorded(plan: Plan) -> Result:
    return replay(plan, machine(), 90 * MIB, record=True)


def everything() -> tuple[Graph, Result]:
    """Every kind of tensor, every cause of a stall, two engines at once: written down, not
    replayed.
    """
    b = GraphBuilder("everything")
    for kind in KINDS:
        b.tensor(kind, 8 * MIB, kind, home="hbm")
    for k in range(5):
        b.op(f"op{k}", "matmul", inputs=["input"], duration_ns=40 * US)
    starts = (0, 60, 130, 200, 270)
    ends = tuple(start + 40 for start in starts)
    blamed = {STALL_CAUSES.index("transfer"): 2}  # the transfer that ends just before the op starts
    stalls = tuple(
        Stall(k + 1, STALL_CAUSES[k], ends[k] * US, starts[k + 1] * US, blamed.get(k))
        for k in range(4)
    )
    held = [
        Residency(t, "hbm", 20 * t * US, (310 - 8 * t) * US, 8 * MIB) for t in range(len(KINDS))
    ]
    held.append(Residency(-1, "hbm", 200 * US, 240 * US, 6 * MIB, 3))
    held.append(Residency(3, "ddr", 50 * US, 310 * US, 8 * MIB))
    moves = [("h2d", 10, 10, 70), ("h2d", 15, 20, 60), ("h2d", 15, 60, 128), ("d2h", 100, 150, 260)]
    transfers = tuple(
        Transfer(k, k, channel, 8 * MIB, issue * US, start * US, end * US, 0)
        for k, (channel, issue, start, end) in enumerate(moves)
    )
    timeline = Timeline(
        tuple(s * US for s in starts), tuple(e * US for e in ends), stalls, transfers, tuple(held)
    )
    stall_ns = {stall.cause: stall.stall_ns for stall in stalls}
    return b.build(), Result(
        workload="everything",
        hardware="toy",
        policy="by hand",
        budget_bytes=84 * MIB,
        feasible=True,
        error=None,
        makespan_ns=310 * US,
        busy_ns=200 * US,
        stall_ns=stall_ns,
        drain_ns=0,
        lower_bound_ns=200 * US,
        peak_bytes={"hbm": 78 * MIB, "ddr": 8 * MIB},
        peak_at_ns={"hbm": 200 * US, "ddr": 50 * US},
        peak_breakdown={
            "hbm": dict.fromkeys(KINDS, 8 * MIB) | {"workspace": 6 * MIB},
            "ddr": {"activation": 8 * MIB},
        },
        channels={"h2d": ChannelFigures(3, 24 * MIB, 118 * US, 50 * US, 0, 30 * US, 88 * US, 0.38)},
        plan={"prefetches": 3, "stores": 1, "detaches": 0},
        streams={"compute": StreamFigures(200 * US, stall_ns, 0)},
        timeline=timeline,
    )


def many_ops(count: int) -> tuple[Graph, Result]:
    """A replay of so many ops that each is thinner than a line; every tenth waits for its transfer,
    and the last tenth do nothing else.
    """
    b = GraphBuilder("many ops")
    b.tensor("x", 20 * MIB, "input")
    for k in range(count):
        b.op(f"layer{k // 10}.op{k % 10}", "add", mutates=["x"], duration_ns=100)
    starts, stalls, transfers, now = [], [], [], 0
    for k in range(count):
        if k % 10 == 0 or k >= count * 9 // 10:
            cause = "transfer" if k % 20 else "capacity"
            stalls.append(
                Stall(k, cause, now, now + 150, len(transfers) if cause == "transfer" else None)
            )
            now += 150
            transfers.append(Transfer(k, 0, "h2d", MIB, max(now - 400, 0), now - 150, now, 0))
        starts.append(now)
        now += 100
    timeline = Timeline(
        tuple(starts),
        tuple(s + 100 for s in starts),
        tuple(stalls),
        tuple(transfers),
        tuple(Residency(0, "hbm", s, s + 100, (20 + k % 7) * MIB) for k, s in enumerate(starts)),
    )
    _, result = everything()
    peaks = {"hbm": 26 * MIB}
    return b.build(), replace(
        result,
        workload="many ops",
        makespan_ns=now,
        timeline=timeline,
        peak_bytes=peaks,
        peak_at_ns={"hbm": starts[6]},
    )

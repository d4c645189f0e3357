"""Plans that did better than the lower bound said that any plan can: odd ones, each legal, with the
makespan that a hand finds.

A byte takes a nanosecond on a channel of 1 GB/s. ``checked`` wants the verifier to accept the plan,
and the bound not to be above it.
"""

import pytest

from hosim.analysis.lower_bounds import LowerBounds, bounded
from hosim.analysis.verifying import verify
from hosim.cache_plan import CacheOp, Plan
from hosim.edits import Edits, Recompute
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.planner.exact import knows_all_starts
from hosim.policies import policy_named

GB, LATE = 10**9, 2**62
COMPUTE = Compute({"bf16": 10**12})


def tiers(*below: str, hbm: int = 10**6, bandwidth: int = 10**15) -> tuple[Tier, ...]:
    return Tier("hbm", hbm, bandwidth, "device"), *[Tier(name, 10**6, 10**15) for name in below]


def checked(plan: Plan, hardware: Hardware, makespan_ns: int) -> int:
    """The plan takes so long, and the bound is no more, however late it may end; returns the
    bound.
    """
    assert verify(plan, hardware) == ()
    result = bounded(replay(plan, hardware), plan, hardware, None)
    assert (result.feasible, result.makespan_ns) == (True, makespan_ns)
    assert result.lower_bound_ns <= makespan_ns
    if plan.edits is None:
        assert (
            LowerBounds(plan.workload, hardware).bound_ns(
                None, LATE, repeats=True, homes_kept=True, compete=None
            )
            <= makespan_ns
        )
    return result.lower_bound_ns


@pytest.mark.parametrize("shared", ["fabric", "memory"])
def test_what_binds_between_tiers_below_has_no_latency_of_the_device(shared):
    # x and y come up from nvme and go back, 4000 B over what carries 1 B/ns in both directions
    # together, from time 0 to 4000 without a pause. The channels of the device tier have a latency
    # of 10 ns and are quick.
    fabrics = (Fabric("flash", GB, ("nr", "nw")),) if shared == "fabric" else ()
    nvme = Tier("nvme", 10**6, 10**15 if fabrics else GB)
    lower = Channel("nr", "nvme", "ddr", GB), Channel("nw", "ddr", "nvme", GB)
    upper = Channel("h2d", "ddr", "hbm", 10**12, 10), Channel("d2h", "hbm", "ddr", 10**12, 10)
    hardware = Hardware("m", (*tiers("ddr"), nvme), (*upper, *lower), COMPUTE, fabrics=fabrics)
    b = GraphBuilder("updates")
    for name in "xy":
        b.tensor(name, 1000, "parameter", home="nvme")
        b.op(
            f"update {name}",
            "op",
            mutates=[name],
            duration_ns=1,
            bytes_accessed=0 if fabrics else 1,
        )
    up = [CacheOp("prefetch", t, *way) for way in (("nvme", "ddr"), ("ddr", "hbm")) for t in (0, 1)]
    down = [
        CacheOp("store", t, *way, t) for t in (0, 1) for way in (("hbm", "ddr"), ("ddr", "nvme"))
    ]
    assert checked(Plan(b.build(), cache_ops=(*up, *down)), hardware, 4000) == 4000


def overwritten() -> Graph:
    b = GraphBuilder("overwritten")
    b.tensor("a", 10), b.tensor("o", 10, "output")
    b.op("f", "op", outputs=["a"], duration_ns=1)
    b.op("g", "op", inputs=["a"], outputs=["o"], duration_ns=100)
    b.op("w", "op", outputs=["a"], duration_ns=100, stream="aux")
    b.op("h", "op", inputs=["a"], duration_ns=1, stream="aux")
    return b.build()


def test_an_op_that_runs_again_frees_who_writes_the_tensor_anew():
    # w writes over what g reads, from 101 to 201. If f runs again for g, g reads a tensor of its
    # own and w runs beside it, from 1 to 101.
    graph, hardware = overwritten(), Hardware("m", tiers(), (), COMPUTE)
    assert checked(Plan(graph), hardware, 202) == 202
    edits = Edits(graph, recompute=(Recompute("f", "g", "f~2"),))
    assert checked(Plan(edits.graph(), edits=edits), hardware, 102) == 102


def test_what_is_written_first_may_start_nowhere():
    # a takes all of the device tier until 1, and t has no copy before g makes it: nothing crosses.
    # With a third op on another processor.
    ddr = Tier("ddr", 1000, 10**12, compute=COMPUTE)
    channels = Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)
    hardware = Hardware("m", (*tiers(hbm=100), ddr), channels, COMPUTE)
    b = GraphBuilder("written first")
    b.tensor("a", 100, home="hbm"), b.tensor("t", 100, "kv_cache"), b.tensor("c", 1)
    b.op("f", "op", inputs=["a"], duration_ns=1), b.op("g", "op", outputs=["t"], duration_ns=1)
    b.op("h", "op", outputs=["c"], duration_ns=1, processor="ddr", stream="cpu")
    graph = b.build()
    assert checked(Plan(graph, initial={1: ()}), hardware, 2) == 2
    assert not knows_all_starts(graph, hardware)


@pytest.mark.parametrize("devices", [1, 2])
def test_copies_do_not_slow_what_is_sent_over_links(devices):
    # 1000 B come up at all of the memory's 10 B/ns, from 10 to 110, beside a send that uses all of
    # it, too, but crosses a link: 100 ns.
    fabric = Fabric("link", 100 * GB, (), "device", 1)
    channels = Channel("h2d", "ddr", "hbm", 10 * GB, 10), Channel("d2h", "hbm", "ddr", 10 * GB)
    hardware = Hardware(
        "m",
        (*tiers(bandwidth=10 * GB), Tier("ddr", 10**6, 100 * GB, "device")),
        channels,
        COMPUTE,
        fabrics=(fabric,),
        devices=devices,
    )
    b = GraphBuilder("send")
    b.tensor("x", 1000, "parameter", home="ddr"), b.tensor("y", 1000, "parameter", home="hbm")
    (
        b.op("f", "send", inputs=["y"], duration_ns=100, bytes_accessed=1000),
        b.op("g", "op", inputs=["x"], duration_ns=1),
    )
    checked(
        Plan(
            b.build(),
            cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, 1)),
        ),
        hardware,
        111,
    )


def test_chunks_may_be_quicker_than_the_whole():
    # By its curve nr takes 10 ns for each chunk of 10 B, and 10,000 for 1000 B at once. A copy from
    # nvme to ddr goes through the device tier in such chunks, 1000 ns and 1 for the last one on to
    # ddr; then it comes up in 1 ns, and the op takes 1.
    curve = ((10, GB), (1000, GB // 10))
    channels = Channel("h2d", "ddr", "hbm", 10**13), Channel("d2h", "hbm", "ddr", 10**13)
    nvme = Channel("nr", "nvme", "hbm", GB, curve=curve), Channel("nw", "hbm", "nvme", GB)
    hardware = Hardware("m", tiers("ddr", "nvme"), (*channels, *nvme), COMPUTE, chunk_bytes=10)
    b = GraphBuilder("curve")
    b.tensor("x", 1000, "parameter", home="nvme"), b.op("f", "op", inputs=["x"], duration_ns=1)
    around = CacheOp("prefetch", 0, "nvme", "ddr"), CacheOp("prefetch", 0, "ddr", "hbm")
    checked(Plan(b.build(), cache_ops=around), hardware, 1003)


@pytest.mark.parametrize("choice", [True, False])
def test_the_solver_claims_no_proof_over_starts_that_it_does_not_know(choice):
    # a lies in the device tier by its home, but may start below, as it does not persist: it comes
    # up once f has ended, from 200 to 300.
    pytest.importorskip("ortools")
    ddr = Tier("ddr", 1000, 10**12, compute=COMPUTE)
    channels = Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)
    hardware = Hardware("m", (*tiers(hbm=100), ddr), channels, COMPUTE)
    b = GraphBuilder("starts below")
    b.tensor("a", 100, home="hbm"), b.tensor("t", 100)
    b.op("f", "op", outputs=["t"], duration_ns=200), b.op("g", "op", inputs=["a"], duration_ns=1)
    b.op("h", "op", duration_ns=1, also_on={"ddr": 1} if choice else {})
    graph = b.build()
    assert not knows_all_starts(graph, hardware)
    proof = policy_named("optimal").plan(graph, hardware, 100).proof
    plan = Plan(
        graph,
        initial={0: ("ddr",)},
        cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm", 0),),
        proof=proof,
    )
    checked(plan, hardware, 302)


def test_a_tensor_of_no_bytes_at_home_below():
    channels = Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)
    hardware = Hardware("m", tiers("ddr"), channels, COMPUTE)
    b = GraphBuilder("nothing")
    b.tensor("w", 0, "parameter", home="ddr"), b.op("f", "op", inputs=["w"], duration_ns=5)
    assert (
        checked(
            Plan(
                b.build(),
                cache_ops=(
                    CacheOp("prefetch", 0, "ddr", "hbm"),
                    CacheOp("detach", 0, "hbm", None, 0),
                ),
            ),
            hardware,
            5,
        )
        == 5
    )

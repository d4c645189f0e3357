"""The verifier: one illegal plan for each rule, and plans that are legal by construction.

The base is one stream of four ops with a parameter ``w`` (home ddr) and an optimizer state ``s``
(home hbm, mutated by the last op). Its legal plan prefetches w, stores and detaches a over its gap,
and cleans up.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from counting import lines_run
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases, wild_plans

from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder, Op, Tensor
from hosim.hardware import Channel, Compute, Hardware, Tier

GB = 10**9
MACHINE = Hardware(
    "toy",
    (
        Tier("hbm", 200, 1000 * GB, "device"),
        Tier("ddr", 500, 100 * GB),
        Tier("pool", 500, 100 * GB),
        Tier("nvme", 500, 10 * GB),
    ),
    (
        Channel("h2d", "ddr", "hbm", GB),
        Channel("d2h", "hbm", "ddr", GB),
        Channel("n2d", "nvme", "ddr", GB),
        Channel("d2n", "ddr", "nvme", GB),
        Channel("p2h", "pool", "hbm", GB),
    ),
    Compute({"bf16": 10**12}),
)


def graph():
    b = GraphBuilder("base")
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("s", 20, "optimizer_state")
    b.tensor("a", 30)
    b.tensor("y", 5, "output")
    b.op("f0", "any", inputs=["w"], outputs=["a"], duration_ns=10)
    b.op("f1", "any", inputs=["w"], duration_ns=10)
    b.op("f2", "any", inputs=["a"], outputs=["y"], duration_ns=10, workspace_bytes=7)
    b.op("f3", "any", mutates=["s"], duration_ns=10)
    return b.build()


W, S, A, Y = range(4)
LEGAL = (
    CacheOp(PREFETCH, W, "ddr", "hbm", AT_START),
    CacheOp(STORE, A, "hbm", "ddr", 0),
    CacheOp(DETACH, A, "hbm", None, 0),
    CacheOp(PREFETCH, A, "ddr", "hbm", 1),
    CacheOp(DETACH, W, "hbm", None, 1),
)


def found(*cache_ops, initial=None, hardware=MACHINE, budget=None, workload=None):
    return verify(
        Plan(workload or graph(), "test", tuple(cache_ops), initial or {}), hardware, budget
    )


def the_one(findings, rule, op=None, tensor=None, cache_op=None, names=()):
    """There is exactly one finding, of this rule, about these; and its text names them."""
    assert [f.rule for f in findings] == [rule], [str(f) for f in findings]
    (finding,) = findings
    assert (finding.op, finding.tensor, finding.cache_op) == (op, tensor, cache_op), finding
    for name in names:
        assert repr(name) in finding.message
    assert str(finding) == f"{rule}: {finding.message}"
    assert "\n" not in finding.message


def test_the_legal_plan_has_no_findings():
    assert found(*LEGAL) == ()
    assert found(*LEGAL, budget=100) == ()


# -- one illegal plan for each rule
# ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache_op", "words"),
    [
        (CacheOp("copy", W, "ddr", "hbm"), "unknown sort 'copy'"),
        (CacheOp(PREFETCH, 9, "ddr", "hbm"), "no tensor number 9"),
        (CacheOp(PREFETCH, W, "ddr", "hbm", 4), "no op number 4"),
        (CacheOp(PREFETCH, W, "ddr", "hbm", -2), "no op number -2"),
        (CacheOp(PREFETCH, W, "ddr", None), "needs a destination"),
        (CacheOp(DETACH, W, "ddr", "hbm"), "copies nothing"),
    ],
)
def test_malformed(cache_op, words):
    findings = found(*LEGAL, cache_op)
    the_one(findings, "malformed", cache_op=5)
    assert words in findings[0].message


def test_malformed_initial_residency():
    the_one(found(*LEGAL, initial={17: ("ddr",)}), "malformed")


def test_unknown_tiers():
    the_one(
        found(CacheOp(PREFETCH, W, "hbm2", "hbm"), *LEGAL[1:]),
        "tier",
        tensor=W,
        cache_op=0,
        names=["w", "hbm2"],
    )
    the_one(
        found(*LEGAL, CacheOp(STORE, S, "hbm", "disk", 0)),
        "tier",
        tensor=S,
        cache_op=5,
        names=["s", "disk"],
    )
    the_one(found(*LEGAL, initial={S: ("hbm", "disk")}), "tier", tensor=S, names=["s", "disk"])


def test_no_channel_and_no_route():
    # nothing leads into the pool; hbm -> nvme goes over ddr (rule 7)
    the_one(
        found(*LEGAL, CacheOp(STORE, S, "hbm", "pool", 0)),
        "channel",
        tensor=S,
        cache_op=5,
        names=["s"],
    )
    assert found(*LEGAL, CacheOp(STORE, S, "hbm", "nvme", 0)) == ()


def test_wrong_direction():
    the_one(
        found(*LEGAL, CacheOp(PREFETCH, S, "hbm", "ddr", 0)),
        "direction",
        tensor=S,
        cache_op=5,
        names=["s"],
    )
    the_one(
        found(CacheOp(STORE, W, "ddr", "hbm"), *LEGAL[1:]),
        "direction",
        tensor=W,
        cache_op=0,
        names=["w"],
    )
    the_one(
        found(*LEGAL, CacheOp(STORE, S, "hbm", "hbm", 0)),
        "direction",
        tensor=S,
        cache_op=5,
        names=["s"],
    )


def test_initial_residency_of_a_product():
    the_one(found(*LEGAL, initial={A: ("ddr",)}), "initial", tensor=A, names=["a"])


def test_no_initial_residency_of_what_is_needed():
    the_one(found(*LEGAL[1:4], initial={W: ()}), "initial", tensor=W, names=["w", "f0"])


def test_an_op_that_cannot_fit():
    # f0 uses w 40 + a 30; f2 uses a 30 + y 5 + workspace 7 = 42; f1 w 40
    the_one(found(*LEGAL, budget=69), "capacity", op=0, names=["f0"])
    assert {f.op for f in found(*LEGAL, budget=41)} == {0, 2}


def test_initial_residents_that_exceed_their_tier():
    # w's 40 bytes start in ddr; s's 20 in hbm
    small = replace(
        MACHINE,
        tiers=tuple(
            replace(tier, capacity_bytes=39) if tier.name == "ddr" else tier
            for tier in MACHINE.tiers
        ),
    )
    the_one(found(*LEGAL, hardware=small), "capacity")
    b = GraphBuilder("idle")
    b.tensor("s", 20, "optimizer_state")
    b.op("f", "any")
    the_one(found(workload=b.build(), budget=19), "capacity")
    assert found(workload=b.build(), budget=20) == ()


def test_source_without_a_copy():
    the_one(
        found(CacheOp(PREFETCH, W, "pool", "hbm"), *LEGAL[1:]),
        "source",
        tensor=W,
        cache_op=0,
        names=["w"],
    )
    # a is not produced before f0
    the_one(
        found(*LEGAL, CacheOp(STORE, A, "hbm", "ddr", AT_START)),
        "source",
        tensor=A,
        cache_op=5,
        names=["a"],
    )


def test_source_that_a_mutation_made_stale():
    moves = (CacheOp(STORE, S, "hbm", "ddr", 2), CacheOp(PREFETCH, S, "ddr", "hbm", 3))
    the_one(found(*LEGAL, *moves), "source", tensor=S, cache_op=6, names=["s", "f3"])


def test_read_of_what_was_never_brought():
    the_one(found(*LEGAL[1:4]), "read", op=0, tensor=W, names=["f0", "w"])


def test_read_of_what_was_detached_too_early():
    early = (*LEGAL[:4], CacheOp(DETACH, W, "hbm", None, 0))
    the_one(found(*early), "read", op=1, tensor=W, cache_op=4, names=["f1", "w"])


def test_read_before_the_prefetch_that_brings_it_back():
    late = (*LEGAL[:3], CacheOp(PREFETCH, A, "ddr", "hbm", 2), LEGAL[4])
    # f2 reads it; and f2 being its last user, the prefetch after f2 finds it gone
    assert [(f.rule, f.op, f.cache_op) for f in found(*late)] == [("read", 2, 2), ("dead", None, 3)]


def test_detach_of_what_is_not_there():
    the_one(
        found(*LEGAL, CacheOp(DETACH, S, "ddr", None, 1)),
        "absent",
        tensor=S,
        cache_op=5,
        names=["s"],
    )
    the_one(
        found(*LEGAL, CacheOp(DETACH, W, "hbm", None, 2)),
        "absent",
        tensor=W,
        cache_op=5,
        names=["w"],
    )


def test_detach_of_the_last_copy():
    without_store = (LEGAL[0], *LEGAL[2:])
    findings = found(*without_store)
    # followed as if right: the copy stays in hbm, so that only the prefetch from ddr, where nothing
    # was stored, is a second cause
    assert [(f.rule, f.tensor, f.cache_op) for f in findings] == [
        ("last-copy", A, 1),
        ("source", A, 2),
    ]
    assert "op 'f2' reads it later" in findings[0].message
    the_one(
        found(LEGAL[0], CacheOp(DETACH, A, "hbm", None, 0), LEGAL[4]),
        "last-copy",
        tensor=A,
        cache_op=1,
        names=["a"],
    )
    the_one(
        found(*LEGAL, CacheOp(DETACH, Y, "hbm", None, 2)),
        "last-copy",
        tensor=Y,
        cache_op=5,
        names=["y"],
    )
    the_one(
        found(*LEGAL, CacheOp(DETACH, W, "ddr", None, 2)),
        "last-copy",
        tensor=W,
        cache_op=5,
        names=["w"],
    )


def test_a_copy_whose_contents_nobody_needs_may_go():
    b = GraphBuilder("g")
    b.tensor("a", 30)
    b.op("f", "any", outputs=["a"])
    b.op("g", "any")
    b.op("h", "any", outputs=["a"])  # written anew: what f wrote is not needed after f
    b.op("i", "any", inputs=["a"])
    assert found(CacheOp(DETACH, 0, "hbm", None, 0), workload=b.build()) == ()


def test_cache_ops_of_the_dead():
    the_one(
        found(*LEGAL, CacheOp(STORE, A, "hbm", "ddr", 2)),
        "dead",
        tensor=A,
        cache_op=5,
        names=["a", "f2"],
    )
    the_one(
        found(*LEGAL, CacheOp(DETACH, A, "hbm", None, 3)),
        "dead",
        tensor=A,
        cache_op=5,
        names=["a", "f2"],
    )


def test_an_op_waits_for_the_copies_of_what_it_overwrites():
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter", home="ddr")
    b.op("f", "any")
    b.op("g", "any", outputs=["w"])
    prefetch, store = CacheOp(PREFETCH, 0, "ddr", "hbm"), CacheOp(STORE, 0, "hbm", "ddr", 1)
    assert found(prefetch, store, workload=b.build()) == ()
    assert found(store, workload=b.build()) == ()


def test_the_end_of_the_step():
    # s is mutated by f3: its copy in ddr is stale at the end
    both = {S: ("hbm", "ddr")}
    the_one(found(*LEGAL, initial=both), "end-of-step", tensor=S, names=["s", "f3"])
    assert found(*LEGAL, CacheOp(STORE, S, "hbm", "ddr", 3), initial=both) == ()
    # w starts in hbm, and is stored and detached for good
    gone = (*LEGAL[1:4], CacheOp(STORE, W, "hbm", "ddr", 0), LEGAL[4])
    the_one(found(*gone, initial={W: ("hbm",)}), "end-of-step", tensor=W, cache_op=4, names=["w"])


# -- several streams
# -------------------------------------------------------------------------------------------


def two_streams(deps=()):
    b = GraphBuilder("two")
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("v", 40, "parameter")
    b.op("left", "any", inputs=["w"])
    b.op("right", "any", stream="side", deps=deps)
    b.op("write", "any", mutates=["v"], stream="side")
    b.op("other", "any")
    b.op("join", "any", deps=["write"])
    return b.build()


def test_a_detach_races_with_an_earlier_user_on_another_stream():
    plan = (CacheOp(PREFETCH, 0, "ddr", "hbm"), CacheOp(DETACH, 0, "hbm", None, 1))
    the_one(
        found(*plan, workload=two_streams()),
        "race",
        op=0,
        tensor=0,
        cache_op=1,
        names=["left", "right", "w"],
    )
    assert found(*plan, workload=two_streams(deps=["left"])) == ()


def test_a_store_races_with_an_earlier_write_on_another_stream():
    store = CacheOp(STORE, 1, "hbm", "ddr", 3)
    the_one(
        found(CacheOp(PREFETCH, 0, "ddr", "hbm"), store, workload=two_streams()),
        "race",
        op=2,
        tensor=1,
        cache_op=1,
        names=["v", "write"],
    )
    assert (
        found(CacheOp(PREFETCH, 0, "ddr", "hbm"), replace(store, after=4), workload=two_streams())
        == ()
    )


def test_two_cache_ops_race_for_their_order():
    plan = (
        CacheOp(PREFETCH, 0, "ddr", "hbm"),
        CacheOp(STORE, 1, "hbm", "ddr", 0),
        CacheOp(STORE, 1, "hbm", "nvme", 1),
    )
    the_one(
        found(*plan, workload=two_streams()),
        "race",
        tensor=1,
        cache_op=2,
        names=["left", "right", "v"],
    )


def test_a_detach_below_races_with_an_op_that_makes_the_copy_stale():
    # t is stored after f1. It may be let go of below after f2, 500 ns, when f3 on another stream
    # has long written it anew.
    b = GraphBuilder("below")
    b.op("f1", "op", outputs=[b.tensor("t", 24), b.tensor("x", 1)], duration_ns=1, stream="aux")
    b.op("f2", "op", duration_ns=500, stream="aux")
    b.op("f3", "op", outputs=["t"], duration_ns=1)
    b.op("f4", "op", inputs=["t"], duration_ns=1, stream="aux")
    plan = CacheOp(STORE, 0, "hbm", "ddr", 0), CacheOp(DETACH, 0, "ddr", None, 1)
    the_one(found(*plan, workload=b.build()), "race", op=2, tensor=0, cache_op=1, names=["f3", "t"])


def test_a_detach_races_with_a_later_op_that_writes_the_tensor_anew():
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter")
    b.op("f", "any", stream="side")
    b.op("g", "any", outputs=["w"])
    plan = (CacheOp(STORE, 0, "hbm", "ddr"), CacheOp(DETACH, 0, "hbm", None, 0))
    the_one(found(*plan, workload=b.build()), "race", op=1, tensor=0, cache_op=1, names=["g", "w"])


def test_waiting_for_a_prefetch_orders_ops():
    # reader waits for the prefetch issued after first, so first ends before reader does, and the
    # detach after reader is no race
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("v", 40, "parameter")
    b.op("first", "any", inputs=["v"], stream="side")
    b.op("reader", "any", inputs=["w"])
    detach = (
        CacheOp(STORE, 1, "hbm", "ddr", 1),
        CacheOp(DETACH, 1, "hbm", None, 1),
        CacheOp(PREFETCH, 1, "ddr", "hbm", 1),
    )
    assert found(CacheOp(PREFETCH, 0, "ddr", "hbm", 0), *detach, workload=b.build()) == ()
    the_one(
        found(CacheOp(PREFETCH, 0, "ddr", "hbm"), *detach, workload=b.build()),
        "race",
        op=0,
        tensor=1,
        cache_op=2,
        names=["first", "v"],
    )


def test_waiting_for_a_store_orders_ops():
    # write waits for the store issued after first, so first ends before write does, and the detach
    # of v after write is no race
    b = GraphBuilder("g")
    b.tensor("w", 40, "parameter")
    b.tensor("v", 40, "parameter")
    b.op("first", "any", inputs=["v"], stream="side")
    b.op("write", "any", mutates=["w"])
    detach = (
        CacheOp(STORE, 1, "hbm", "ddr", 1),
        CacheOp(DETACH, 1, "hbm", None, 1),
        CacheOp(PREFETCH, 1, "ddr", "hbm", 1),
    )
    assert found(CacheOp(STORE, 0, "hbm", "ddr", 0), *detach, workload=b.build()) == ()
    the_one(
        found(CacheOp(STORE, 0, "hbm", "ddr"), *detach, workload=b.build()),
        "race",
        op=0,
        tensor=1,
        cache_op=2,
        names=["first", "v"],
    )


def test_a_store_races_with_the_end_of_its_tensor():
    # side's end issues the store of a; reader, listed after it, may end before and be the last user
    b = GraphBuilder("g")
    b.tensor("a", 40)
    b.op("maker", "any", outputs=["a"])
    b.op("side", "any", stream="side", deps=["maker"])
    b.op("reader", "any", inputs=["a"])
    b.op("join", "any", deps=["side"])
    store = CacheOp(STORE, 0, "hbm", "ddr", 1)
    the_one(
        found(store, workload=b.build()),
        "race",
        op=2,
        tensor=0,
        cache_op=0,
        names=["side", "reader", "a"],
    )
    b = GraphBuilder("g")
    b.tensor("a", 40)
    b.op("maker", "any", outputs=["a"])
    b.op("side", "any", stream="side", deps=["maker"])
    b.op("reader", "any", inputs=["a"])
    b.op("join", "any", inputs=["a"], deps=["side"])
    assert found(store, workload=b.build()) == ()


# -- properties
# ------------------------------------------------------------------------------------------------


@given(cases(max_streams=3, roomy=None))
def test_plans_that_are_legal_by_construction_have_no_findings(case):
    _, machine, plan = case
    assert [
        str(f) for f in verify(plan, machine) if f.rule != "capacity"
    ] == []  # drawn plans may be too large


@st.composite
def wild_cases(draw):
    """Any plan at all on a machine on which everything fits: half wild, half legal with some cache
    ops lost.
    """
    graph, machine, plan = draw(cases(max_streams=2, roomy=True))
    if draw(st.booleans()):
        return machine, draw(wild_plans(graph, machine))
    return machine, replace(
        plan, cache_ops=tuple(c for c in plan.cache_ops if draw(st.integers(0, 3)))
    )


@given(wild_cases())
def test_a_plan_without_findings_runs(case):
    """Where everything fits, a plan that the verifier accepts ends without breaking a rule on the
    way.
    """
    machine, plan = case
    if not verify(plan, machine):
        assert replay(plan, machine).feasible


@given(wild_cases(), st.randoms(use_true_random=False))
def test_names_and_the_order_of_tensors_do_not_matter(case, rng):
    """Rename and permute everything that carries no meaning: the findings are about the same
    things.
    """
    machine, plan = case
    workload = plan.graph
    order = list(range(len(workload.tensors)))
    rng.shuffle(order)
    new = {t: k for k, t in enumerate(order)}
    tensors = tuple(replace(workload.tensors[t], name=f"z{rng.random()}{t}") for t in order)

    def renamed(op):
        moved = {
            label: tuple(new[t] for t in getattr(op, label))
            for label in ("inputs", "outputs", "mutates")
        }
        return replace(op, name=f"q{op.name}", **moved)

    permuted = Plan(
        Graph("permuted", tensors, tuple(map(renamed, workload.ops))),
        "test",
        tuple(replace(c, tensor=new[c.tensor]) for c in plan.cache_ops),
        {new[t]: where for t, where in plan.initial.items()},
    )
    about = sorted(
        (f.rule, str(f.op), str(None if f.tensor is None else new[f.tensor]), str(f.cache_op))
        for f in verify(plan, machine)
    )
    assert about == sorted(
        (f.rule, str(f.op), str(f.tensor), str(f.cache_op)) for f in verify(permuted, machine)
    )


def long_plan(count):
    """Every fifth op reads a parameter that is prefetched nine ops ahead; cache ops of one instant
    are in any order.
    """
    tensors = tuple(
        Tensor(f"t{i}", 1, "parameter", "ddr" if i % 5 == 0 else None) for i in range(count)
    )
    ops = tuple(
        Op(
            f"f{i}",
            "any",
            (i,),
            stream="side" if i % 7 == 0 else "compute",
            deps=(i - 1,) if i else (),
        )
        for i in range(count)
    )
    cache_ops = []
    for i in range(0, count, 5):
        cache_ops += [
            CacheOp(PREFETCH, i, "ddr", "hbm", max(AT_START, i - 9)),
            CacheOp(DETACH, i, "hbm", None, i),
        ]
    random.Random(0).shuffle(cache_ops)
    cache_ops.sort(key=lambda c: c.after)
    return Plan(Graph("long", tensors, ops), "test", tuple(cache_ops))


def test_the_work_grows_with_the_ops():
    roomy = replace(
        MACHINE, tiers=tuple(replace(tier, capacity_bytes=10**6) for tier in MACHINE.tiers)
    )
    few, many = long_plan(2000), long_plan(4000)
    assert verify(few, roomy) == verify(many, roomy) == ()
    assert lines_run(verify, long_plan(4000), roomy) <= 2.02 * lines_run(
        verify, long_plan(2000), roomy
    )  # anything quadratic: four times

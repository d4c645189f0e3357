"""Recomputation: what can be dropped, what runs again for it, and that plans with it are never
worse.
"""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import instances
from rendered import facts
from strategies import graphs
from toys import layers, two_tiers
from typer.testing import CliRunner

from hosim.analysis import static_curve, static_peak, tensor_gaps
from hosim.analysis.verifying import check_edits, verify
from hosim.cache_plan import DETACH, CacheOp, Plan
from hosim.cli.main import app
from hosim.edits import Edits, edited
from hosim.engine import replay
from hosim.errors import InfeasibleError, PlanError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Compute, Hardware, Tier
from hosim.io import save_hardware, save_workload
from hosim.planner.hyperoffload import search
from hosim.planner.hyperoffload.explanations import explain
from hosim.planner.hyperoffload.kernels import RerunWalk
from hosim.planner.hyperoffload.tensor_choices import analyse
from hosim.planner.rewrites import (
    Candidate,
    Checkpoints,
    Reruns,
    candidates,
    cheapest,
    recomputes,
    rewriting,
)

pytestmark = pytest.mark.slow

NS = 10**9
FLAT = Hardware("flat", (Tier("hbm", 10**6, NS, "device"),), (), Compute({}))
"""Nothing below the device tier."""


def named(graph: Graph, drops) -> set[tuple[str, str]]:
    return {(graph.tensors[t].name, graph.ops[after].name) for t, after in drops}


def again_for(graph: Graph, drops):
    """The ops that the drops call for."""
    return recomputes(graph, Reruns(graph, "hbm")(drops)[0])


def apply(graph: Graph, drops) -> Graph:
    """The graph with the ops that the drops call for run again."""
    return edited(graph, recompute=again_for(graph, drops))


def drop(graph: Graph, *pairs: tuple[str, str]) -> frozenset[tuple[int, int]]:
    return frozenset((graph.tensor_index[t], graph.op_index[after]) for t, after in pairs)


# --------------------------------------------------------------------------------------------------
# candidates


def test_what_a_candidate_takes_and_saves():
    """a0 waits from m1 to b0. h0 is read by b0 too, so r0 alone makes a0 again (1 ns); h0's own
    producer m0 reads x, which survives.
    """
    graph = layers(3)
    found = {(graph.tensors[c.gap.tensor].name): c for c in candidates(analyse(graph, two_tiers()))}
    assert set(found) == {"a0", "h0", "a1", "h1"}  # b2 follows right after the uses of h2 and a2
    a0, h1 = found["a0"], found["h1"]
    assert (named(graph, a0.drops), [graph.ops[f].name for f in a0.chain]) == (
        {("a0", "m1")},
        ["r0"],
    )
    assert (a0.recompute_ns, a0.saved_bytes, a0.transfer_ns, a0.ns_per_byte) == (1, 4, 8, 0.25)
    assert (h1.recompute_ns, [graph.ops[f].name for f in h1.chain]) == (10, ["m1"])
    assert {c.transfer_ns for c in candidates(analyse(graph, FLAT))} == {None}


def dead_input(kept_bytes: int, first_ns: int) -> Graph:
    """a (40 B) is made from s by g, and s from x by f; s is dead after g. k reads a twice, far
    apart.
    """
    b = GraphBuilder("dead")
    b.tensor("x", 1, "input")
    b.tensor("s", kept_bytes)
    b.tensor("a", 40)
    b.tensor("big", 60)
    b.op("f", "matmul", inputs=["x"], outputs=["s"], duration_ns=first_ns)
    b.op("g", "relu", inputs=["s"], outputs=["a"], duration_ns=3)
    b.op("k", "add", inputs=["a"], duration_ns=5)
    b.op("p", "fill", outputs=["big"], duration_ns=5)
    b.op("q", "add", inputs=["big"], duration_ns=5)
    b.op("z", "add", inputs=["a"], duration_ns=5)
    return b.build()


@pytest.mark.parametrize(
    ("kept_bytes", "first_ns", "chain", "saved", "drops"),
    [
        # keep s: 3 ns for 40 - 4 bytes; make it again: 13 ns for 40
        (4, 10, ["g"], 36, {("a", "k")}),
        # keep s: 3 ns for 4 bytes, 0.75 a byte; make it again: 13 ns for 40 bytes
        (36, 10, ["f", "g"], 40, {("a", "k"), ("s", "g")}),
        # s is larger than a: keeping it saves nothing
        (50, 1000, ["f", "g"], 40, {("a", "k"), ("s", "g")}),
    ],
)
def test_a_dead_input_is_kept_or_made_again(kept_bytes, first_ns, chain, saved, drops):
    graph = dead_input(kept_bytes, first_ns)
    (found,) = candidates(analyse(graph, FLAT))
    assert (
        [graph.ops[f].name for f in found.chain],
        found.saved_bytes,
        named(graph, found.drops),
    ) == (chain, saved, drops)
    made = apply(graph, found.drops)
    held = max(60 + 1 + (kept_bytes if chain == ["g"] else 0), kept_bytes + 40 + 1)
    assert static_peak(made).bytes == held
    assert static_peak(graph).bytes == 1 + max(40 + 60, kept_bytes + 40)


@pytest.mark.parametrize("wrong", ["random", "in place", "input changed", "survives"])
def test_what_cannot_run_again_is_no_candidate_and_its_drop_is_ignored(wrong):
    b = GraphBuilder("impure")
    b.tensor("x", 1, "parameter")
    b.tensor("a", 40, "output" if wrong == "survives" else "activation")
    b.op(
        "f",
        "dropout" if wrong == "random" else "k",
        inputs=["x"],
        outputs=["a"],
        mutates=["x"] if wrong == "in place" else [],
        duration_ns=1,
    )
    b.op("g", "k", inputs=["a"], mutates=["x"] if wrong == "input changed" else [], duration_ns=1)
    b.op("h", "k", duration_ns=1)
    b.op("z", "k", inputs=["a"], duration_ns=1)
    graph = b.build()
    assert candidates(analyse(graph, FLAT)) == ()
    assert again_for(graph, drop(graph, ("a", "g"))) == ()


# --------------------------------------------------------------------------------------------------
# drops


@given(graphs(max_ops=10, max_streams=2), st.data())
def test_any_drops_give_a_graph_that_computes_the_same(graph, data):
    """What it holds, and which op runs where, is known without making it: compiled and
    interpreted.
    """
    uses = sorted((t, u) for t, users in enumerate(graph.users) for u in users)
    drops = data.draw(st.lists(st.sampled_from(uses), unique=True)) if uses else []
    for form in (None, RerunWalk):
        reruns, held, ran = Reruns(graph, "hbm", form)(drops)
        again = recomputes(graph, reruns)
        made = edited(graph, recompute=again)
        assert list(check_edits(made, Edits(graph, (), again))) == []
        assert held.tolist() == static_curve(made)
        base = {entry.name: entry.op for entry in again}
        assert [graph.ops[i].name for i in ran] == [base.get(o.name, o.name) for o in made.ops]


@pytest.mark.parametrize("form", [None, RerunWalk])
def test_what_has_been_written_since_is_made_beside_it(form):
    """f makes a (30 B) and b (7 B), and g writes a anew. For b f runs again before k: its a is
    nobody's, and is held beside the other one while it runs.
    """
    b = GraphBuilder("two")
    b.op("f", "op", outputs=[b.tensor("a", 30), b.tensor("b", 7)])
    b.op("g", "op", inputs=["b"], outputs=["a"])
    b.op("h", "op", inputs=["a"])
    b.op("k", "op", inputs=["a", "b"])
    graph = b.build()
    reruns, held, ran = Reruns(graph, "hbm", form)(drop(graph, ("b", "g")))
    assert (reruns, ran.tolist()) == (((0, 3),), [0, 1, 2, 0, 3])
    assert held.tolist() == [37, 37, 30, 67, 37]


@given(graphs(max_ops=12), st.booleans())
def test_both_forms_fill_a_gap_alike(graph, again):
    compiled, plain = Reruns(graph, "hbm"), Reruns(graph, "hbm", RerunWalk)
    for gap in chain.from_iterable(tensor_gaps(graph)):
        assert compiled.filling(gap, again) == plain.filling(gap, again)


def test_a_dropped_segment_is_made_again_once_and_in_order():
    """Everything of layers 0 and 1 dropped: b1 needs h1 and a1; h1 needs a0, that h0, that x. Each
    runs once, right before b1.
    """
    graph = layers(3)
    drops = drop(graph, ("h0", "r0"), ("a0", "m1"), ("h1", "r1"), ("a1", "m2"))
    assert [(r.op, r.before, r.name) for r in again_for(graph, drops)] == [
        (f, "b1", f"{f}~2") for f in ("m0", "r0", "m1", "r1")
    ]
    assert again_for(graph, sorted(drops, reverse=True)) == again_for(graph, drops)


def test_a_tensor_dropped_twice_runs_twice():
    graph = layers(2)
    drops = drop(graph, ("h1", "r1"), ("a0", "m1"))
    twice = replace(graph, ops=(*graph.ops, replace(graph.ops[-1], name="b0 again", outputs=())))
    assert [
        r.name for r in again_for(twice, drops | {(twice.tensor_index["a0"], len(graph.ops) - 1)})
    ] == ["r0~2", "m1~2", "r0~3"]


def test_checkpointing_by_segments():
    """32 layers hold 64 activations of 4 B at the turn. In k segments: k - 1 checkpoints and one
    segment of 64 / k.
    """
    graph = layers(32)
    problem = analyse(graph, FLAT)
    recomputable = candidates(problem)
    peaks = {
        k: static_peak(apply(graph, Checkpoints(problem, recomputable).drops(k))).bytes
        for k in (2, 4, 8, 16)
    }
    assert static_peak(graph).bytes == 4 * (1 + 64 + 1)
    for k, peak in peaks.items():
        assert peak <= 4 * (1 + 64 / k + k + 4), k
    again = again_for(graph, Checkpoints(problem, recomputable).drops(8))
    assert len({r.op for r in again}) == len(again) <= 56  # each op of 7 segments at most once


def test_the_cheapest_by_byte_go_first():
    """Down to half, the relus' outputs alone do it: 31 of them, at 1 ns each."""
    graph = layers(32)
    problem = analyse(graph, FLAT)
    drops = cheapest(problem, candidates(problem), 160)
    assert {graph.tensors[t].name[0] for t, _ in drops} == {"a"}
    assert static_peak(apply(graph, drops)).bytes <= 160 + 2 * 4
    assert cheapest(problem, candidates(problem), 10**6) == frozenset()


def test_contents_that_are_written_anew_may_be_dropped_by_hand():
    """A workload may list a producer twice itself: contents whose next user only writes them may be
    detached, say verifier and engine.
    """
    b = GraphBuilder("by hand")
    b.tensor("a", 40)
    b.tensor("big", 60)
    for name, reads, writes in (
        ("f", [], ["a"]),
        ("g", ["a"], []),
        ("p", [], ["big"]),
        ("q", ["big"], []),
        ("f2", [], ["a"]),
        ("z", ["a"], []),
    ):
        b.op(name, "k", inputs=reads, outputs=writes, duration_ns=5)
    graph = b.build()
    plan = Plan(graph, cache_ops=(CacheOp(DETACH, 0, "hbm", None, 1),))
    assert verify(plan, FLAT) == ()
    assert replay(plan, FLAT).peak_bytes["hbm"] == 60
    assert replay(Plan(graph), FLAT).peak_bytes["hbm"] == 100
    early = replace(plan, cache_ops=(CacheOp(DETACH, 0, "hbm", None, 0),))
    assert [finding.rule for finding in verify(early, FLAT)] == ["last-copy"]
    with pytest.raises(PlanError, match="would drop its last valid copy"):
        replay(early, FLAT)


# --------------------------------------------------------------------------------------------------
# plans


def test_only_recomputation_fits_where_there_is_nothing_below():
    """Two layers' worth of slack below the peak: no transfer can help, relus can, at 1 ns each."""
    graph = layers(8)
    budget = static_peak(graph).bytes - 16
    with pytest.raises(InfeasibleError):
        search(graph, FLAT, budget, effort=0.0)
    found = search(graph, FLAT, budget, effort=0.0, arms=rewriting(False, True)[:1])
    busy = sum(op.duration_ns or 0 for op in graph.ops)
    assert found.cost.makespan_ns <= busy + 6
    assert found.result.peak_bytes["hbm"] <= budget
    assert verify(found.plan, FLAT, budget) == ()
    assert found.plan.recomputes == found.result.plan["recomputes"] > 0
    said = facts(explain(found.plan, FLAT, budget).origin)
    assert str(found.plan.recomputes) in said.split(", ")
    with pytest.raises(InfeasibleError):
        search(graph, FLAT, 11, arms=rewriting(True, True)[:1])


def test_a_slow_channel_is_relieved():
    """At 0.1 B/ns a tensor's 4 B take 40 ns each way: moving 8 of them cannot hide; 8 relus take 8
    ns.
    """
    graph = layers(8)
    slow = two_tiers(0.1)
    budget = static_peak(graph).bytes - 24
    without = search(graph, slow, budget, effort=0.3).cost.makespan_ns
    found = search(graph, slow, budget, effort=0.3, arms=rewriting(False, True)[:1])
    busy = sum(op.duration_ns or 0 for op in graph.ops)
    assert without > found.cost.makespan_ns
    assert found.cost.makespan_ns <= busy + 8


def test_nothing_is_recomputed_where_transfers_hide():
    graph = layers(8)
    found = search(
        graph, two_tiers(10), static_peak(graph).bytes - 12, arms=rewriting(True, True)[:1]
    )
    assert found.plan.edits is None
    assert found.cost.makespan_ns == sum(op.duration_ns or 0 for op in graph.ops)


@pytest.mark.long
def test_never_worse_than_without():
    gains = compared = 0
    for case in instances(10, seed=7):
        if len(case.graph.ops) > 20:
            continue
        try:
            plain = search(case.graph, case.hardware, case.budget_bytes, effort=1.0)
        except InfeasibleError:
            continue
        compared += 1
        found = search(
            case.graph, case.hardware, case.budget_bytes, effort=1.0, arms=rewriting(True, True)[:1]
        )
        assert found.cost <= plain.cost
        assert verify(found.plan, case.hardware, case.budget_bytes) == ()
        assert replay(found.plan, case.hardware, case.budget_bytes) == found.result
        gains += found.cost.makespan_ns < plain.cost.makespan_ns
    assert compared >= 7
    assert gains >= 1


def test_candidates_say_their_ratio():
    gap = analyse(layers(3), FLAT).gaps[0]
    assert Candidate(gap, (), (), 10, 4, None).ns_per_byte == 2.5


# --------------------------------------------------------------------------------------------------
# command line


@pytest.mark.long
def test_through_the_commands(tmp_path: Path):
    graph = layers(8)
    save_workload(graph, tmp_path / "w.json")
    save_hardware(FLAT, tmp_path / "flat.yaml")
    where = [
        str(tmp_path / "w.json"),
        "--hardware",
        str(tmp_path / "flat.yaml"),
        "--budget",
        f"{static_peak(graph).bytes - 16} B",
    ]
    plan = str(tmp_path / "p.json")
    run = CliRunner().invoke
    assert run(app, ["plan", *where, "--policy", "hyperoffload", "-o", plan]).exit_code == 3
    made = run(
        app, ["plan", *where, "--policy", "hyperoffload:recompute=true:reorder=true", "-o", plan]
    )
    assert made.exit_code == 0, made.output
    replayed = run(app, ["replay", plan, *where, "--json"])
    assert replayed.exit_code == 0, replayed.output
    result = json.loads(replayed.stdout)
    assert result["plan"]["recomputes"] == len(json.loads(Path(plan).read_text())["recompute"])
    assert (
        result["lower_bound_ns"]
        == sum(op.duration_ns or 0 for op in graph.ops)
        <= result["makespan_ns"]
    )


def test_an_op_that_runs_again_takes_the_first_name_that_is_free() -> None:
    graph = layers(2)
    ops = tuple(
        replace(op, name={"b0": "m0~2", "b1": "m0~3"}.get(op.name, op.name)) for op in graph.ops
    )
    graph = Graph(graph.name, graph.tensors, ops)
    again = again_for(graph, drop(graph, ("h0", "r0")))
    assert [(r.op, r.before, r.name) for r in again] == [("m0", "m0~2", "m0~4")]

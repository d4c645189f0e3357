"""The exact solver: against every plan there is, against hand-derived optima, and what it
refuses.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random

import pytest
from quick_cases import one_in

pytest.importorskip("ortools")

from every_plan import best_makespan
from instances import instance, resident_peak, working_set
from toys import dead_in_between
from toys import graph as graph_of

from hosim.analysis.costmodel import op_durations
from hosim.analysis.lower_bounds import bounded, lower_bound_ns
from hosim.analysis.verifying import verify
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder, Tensor
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.planner.exact import Solution, require_solver, solve
from hosim.policies import policy_named, policy_names
from hosim.study.asked import parse_choices

pytestmark = pytest.mark.slow

NS = 10**9


def machine(up: float = 1.0, down: float = 1.0, latency: int = 0, ddr: int = 10**6) -> Hardware:
    channels = (
        Channel("h2d", "ddr", "hbm", int(NS * up), latency),
        Channel("d2h", "hbm", "ddr", int(NS * down), latency),
    )
    return Hardware(
        "toy", (Tier("hbm", 10**6, NS, "device"), Tier("ddr", ddr, NS)), channels, Compute({})
    )


def checked(graph: Graph, hardware: Hardware, budget: int, **options) -> Solution:
    """The solution, once the verifier and the engine agree with it."""
    solution = solve(graph, hardware, budget, **options)
    assert verify(solution.plan, hardware, budget) == ()
    result = replay(solution.plan, hardware, budget)
    assert result.feasible
    assert result.makespan_ns == solution.makespan_ns
    assert result.peak_bytes["hbm"] <= budget
    assert solution.bound_ns <= solution.makespan_ns
    return solution


# -- optima derived by hand
# --------------------------------------------------------------------------------------------


def test_design_toy():
    b = GraphBuilder("toy")
    b.tensor("w", 40, "parameter", "ddr")
    b.tensor("a", 30)
    b.op("f", "matmul", inputs=["w"], outputs=["a"], duration_ns=50)
    solution = checked(b.build(), machine(), 100)
    assert (solution.makespan_ns, solution.proved) == (
        90,
        True,
    )  # the prefetch runs 0..40, f 40..90


def forward_backward(sizes: tuple[int, ...] = (20, 20, 20)) -> Graph:
    """Three activations made in order and used in mirrored order; ops of 30 ns."""
    b = GraphBuilder("mirror")
    for k, size in enumerate(sizes):
        b.tensor(f"a{k}", size)
        b.op(f"f{k}", "op", outputs=[f"a{k}"], duration_ns=30)
    for k in reversed(range(len(sizes))):
        b.op(f"b{k}", "op", inputs=[f"a{k}"], duration_ns=30)
    return b.build()


def test_hidden_round_trip_adds_nothing():
    # a0 is stored 30..50 beside f1, gone when f2 allocates at 60, fetched 120..140 beside b1
    solution = checked(forward_backward(), machine(), 40)
    assert (solution.makespan_ns, solution.proved) == (180, True)
    assert (
        solution.plan.count("store")
        == solution.plan.count("prefetch")
        == solution.plan.count("detach")
        == 1
    )


def test_room_for_one_only():
    # f0 ends 30; a0 out until 50; f1 50..80; a1 out until 100; f2 100..130, b2 130..160;
    # a1 back 160..180, b1 180..210; a0 back 210..230, b0 230..260
    solution = checked(forward_backward(), machine(), 20)
    assert (solution.makespan_ns, solution.proved) == (260, True)


@pytest.mark.parametrize(("budget", "makespan"), [(50 + 40, 180), (50 + 20, 260)])
def test_what_is_there_throughout_takes_its_room(budget: int, makespan: int) -> None:
    """As above, beside 50 bytes that every op reads: they stay."""
    graph = forward_backward()
    always = len(graph.tensors)
    ops = tuple(replace(op, inputs=(*op.inputs, always)) for op in graph.ops)
    graph = Graph(graph.name, (*graph.tensors, Tensor("always", 50, "parameter", "hbm")), ops)
    solution = checked(graph, machine(), budget)
    assert (solution.makespan_ns, solution.proved) == (makespan, True)


def test_each_version_is_stored_once_and_stays_clean():
    b = GraphBuilder("clean")
    b.tensor("w", 30)
    b.op("make", "op", outputs=["w"], duration_ns=10)
    for k in range(3):
        b.tensor(f"big{k}", 40)
        b.op(f"g{k}", "op", outputs=[f"big{k}"], duration_ns=100)
        b.op(f"use{k}", "op", inputs=["w"], duration_ns=10)
    solution = checked(b.build(), machine(), 40)
    # 10 + store 30, then three times g 100 + fetch 30 + use 10
    assert (solution.makespan_ns, solution.proved) == (460, True)
    assert (solution.plan.count("store"), solution.plan.count("prefetch")) == (1, 3)


def test_parameters_start_below_where_that_is_better():
    b = GraphBuilder("start")
    b.tensor("early", 50, "parameter")
    b.tensor("late", 50, "parameter")
    b.op("f", "op", inputs=["early"], duration_ns=60)
    b.op("g", "op", inputs=["late"], duration_ns=60)
    graph = b.build()
    solution = checked(graph, machine(), 50)
    # one of them is below at both ends of the step: f 0..60, late 60..110, g 110..170, and early
    # again, 170..220, if it is there at time 0; if both start below: early 0..50, f 50..110, late
    # 110..160, g 160..220
    assert (solution.makespan_ns, solution.proved) == (220, True)
    assert checked(graph, machine(), 100).makespan_ns == 120


def test_optimizer_states_return_to_where_they_started():
    b = GraphBuilder("update")
    b.tensor("o", 20, "optimizer_state", "ddr")
    b.op("f", "op", duration_ns=50)
    b.op("update", "adam", mutates=["o"], duration_ns=10)
    solution = checked(b.build(), machine(down=0.5), 20)
    assert (solution.makespan_ns, solution.proved) == (
        100,
        True,
    )  # fetched beside f, updated 50..60, stored 60..100


def test_dead_contents_leave_for_nothing():
    solution = checked(graph_of(dead_in_between), machine(), 40)
    assert (solution.makespan_ns, solution.proved) == (40, True)
    assert solution.plan.count("store") == solution.plan.count("prefetch") == 0


def test_two_tiers_share_the_load():
    b = GraphBuilder("two")
    b.tensor("u", 40, "parameter", "ddr")
    b.tensor("v", 40, "parameter", "pool")
    b.op("f", "op", inputs=["u", "v"], duration_ns=10)
    one = machine()
    two = replace(
        one,
        tiers=(*one.tiers, Tier("pool", 10**6, NS)),
        channels=(
            *one.channels,
            Channel("p2d", "pool", "hbm", NS),
            Channel("d2p", "hbm", "pool", NS),
        ),
    )
    solution = checked(b.build(), two, 80)
    assert (solution.makespan_ns, solution.proved) == (50, True)  # both arrive at 40


def test_a_small_tier_below_is_not_overfilled():
    graph = forward_backward()
    assert checked(graph, machine(ddr=20), 40).makespan_ns == 180
    with pytest.raises(InfeasibleError, match="proved"):
        solve(graph, machine(ddr=20), 20)  # two of them would have to be below at once
    assert checked(graph, machine(ddr=40), 20).makespan_ns == 260


def test_latency_counts():
    assert checked(forward_backward(), machine(latency=10), 20).makespan_ns == 260 + 4 * 10


SEEDS = (9, 17, 22, 26, 33, 41, 59, 61, 64, 100, 113, 126, 522, 556, 851, 1054, 1069, 1131)
"""Of the tiny graphs, some in which ops wait and whose plans, with 20 to 450 combinations of
courses, can all be replayed.
"""


# -- against every plan
# ------------------------------------------------------------------------------------------------


def tiny(seed: int) -> tuple[Graph, Hardware, int, list[int]]:
    """A graph of 4 to 6 ops with two or three tensors that may move, a machine, a budget, and those
    tensors.
    """
    draw = Random(f"tiny/{seed}")
    b = GraphBuilder(f"tiny-{seed}")
    count = draw.randint(4, 6)
    kinds = {
        f"m{k}": draw.choice(("parameter", "activation", "optimizer_state"))
        for k in range(draw.choice((2, 2, 3)))
    }
    used = {}
    for name, kind in kinds.items():
        b.tensor(
            name,
            draw.randint(3, 20),
            kind,
            None if kind == "activation" else draw.choice((None, None, "ddr")),
        )
        used[name] = sorted(
            draw.sample(range(count), 2 if len(kinds) == 3 else draw.choice((2, 2, 3)))
        )
    for i in range(count):
        inputs, outputs, mutates = [], [], []
        for name, kind in kinds.items():
            if i in used[name]:
                first = kind == "activation" and i == used[name][0]
                rewritten = kind == "optimizer_state" and draw.random() < 0.6
                (outputs if first else mutates if rewritten else inputs).append(name)
        if draw.random() < 0.5:
            outputs.append(b.tensor(f"a{i}", draw.randint(1, 12)))
        workspace = draw.choice((0, 0, draw.randint(1, 10)))
        b.op(
            f"f{i}",
            "op",
            inputs=inputs,
            outputs=outputs,
            mutates=mutates,
            duration_ns=draw.randint(3, 15),
            workspace_bytes=workspace,
        )
    graph = b.build()
    hardware = machine(up=draw.choice((1.0, 0.5)), latency=draw.choice((0, 0, 2)))
    floor, peak = working_set(graph), resident_peak(graph)
    return (
        graph,
        hardware,
        floor + round((peak - floor) * draw.choice((0, 0.3, 0.6))),
        [graph.tensor_index[name] for name in kinds],
    )


@pytest.mark.parametrize("seed", one_in(6, SEEDS))
def test_no_plan_is_better(seed: int):
    graph, hardware, budget, movable = tiny(seed)
    best, replayed = best_makespan(graph, hardware, budget, movable)
    assert replayed
    if best is None:
        with pytest.raises(InfeasibleError, match="proved"):
            solve(graph, hardware, budget, limit=5)
        return
    solution = checked(graph, hardware, budget, limit=5)
    assert (solution.makespan_ns, solution.proved) == (best, True)


# -- several streams
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "makespan"), [(100, 60), (120, 30)])
def test_streams_take_turns_where_memory_holds_one_of_them(budget: int, makespan: int) -> None:
    b = GraphBuilder("turns")
    for stream in ("compute", "aux"):
        b.op(f"on {stream}", "op", duration_ns=30, workspace_bytes=60, stream=stream)
    solution = checked(b.build(), machine(), budget)
    assert (solution.makespan_ns, solution.proved) == (makespan, True)


@pytest.mark.parametrize(("lengths", "moved_ns"), [((10, 100), 280), ((100, 10), 230)])
@pytest.mark.parametrize("moved", [True, False])
def test_the_other_stream_reads_a_tensor_when_it_is_back(lengths, moved_ns, moved) -> None:
    """``w`` (60 B) is there at 10, and a copy below at 70. In 100 B the next op (50 ns, 60 B) runs
    when its first user has ended, from 70 or from 110 on; 60 ns later ``w`` is back for the user on
    the other stream, of which nobody knows that it ends before, and for the last op (10 ns).
    """
    b = GraphBuilder("both")
    w = b.tensor("w", 60)
    b.op("make", "op", outputs=[w], duration_ns=10)
    for stream, length in zip(("compute", "aux"), lengths, strict=True):
        b.op(f"on {stream}", "op", inputs=[w], duration_ns=length, stream=stream)
    b.op("large", "op", duration_ns=50, workspace_bytes=60)
    b.op("last", "op", inputs=[w], duration_ns=10)
    solution = checked(b.build(), machine(), 100 if moved else 120)
    at_once_ns = max(10 + lengths[0] + 50 + 10, 10 + lengths[1])
    assert (solution.makespan_ns, solution.proved) == (moved_ns if moved else at_once_ns, True)


def on_streams(graph: Graph, seed: int) -> Graph:
    """The ops on two or three streams."""
    draw = Random(f"streams/{seed}")
    count = draw.choice((2, 2, 3))
    return Graph(
        graph.name,
        graph.tensors,
        tuple(replace(op, stream=f"s{draw.randrange(count)}") for op in graph.ops),
    )


# in 9 and 26 an op must not wait; in 64 a transfer makes a detach safe
@pytest.mark.parametrize("seed", one_in(4, [9, 33, 26, 61, 64, 69, 100, 175]))
def test_no_plan_on_several_streams_is_better(seed: int) -> None:
    graph, hardware, budget, movable = tiny(seed)
    graph = on_streams(graph, seed)
    best, replayed = best_makespan(graph, hardware, budget, movable)
    assert replayed
    assert len(graph.streams) > 1
    solution = checked(graph, hardware, budget, limit=5)
    assert (solution.makespan_ns, solution.proved) == (best, True)


# -- on the bar's instances
# --------------------------------------------------------------------------------------------


# in 16 the engine moves earlier than the schedule, which is forbidden and found anew
@pytest.mark.parametrize("number", one_in(4, [16, 3, 5, 17]))
def test_proved_optima_bound_every_policy(number: int):
    drawn = instance(number)
    solution = checked(drawn.graph, drawn.hardware, drawn.budget_bytes, limit=5)
    assert solution.proved
    residency = solution.plan.residency("hbm")
    durations = op_durations(drawn.graph, drawn.hardware)
    assert (
        lower_bound_ns(drawn.graph, durations, drawn.hardware, residency, drawn.budget_bytes)
        <= solution.makespan_ns
    )
    for name in ("hyperoffload", "longest_gap", "g10", "layerwise"):
        try:
            effort = {"effort": 0.1} if name == "hyperoffload" else {}
            plan = policy_named(name).plan(
                drawn.graph, drawn.hardware, drawn.budget_bytes, **effort
            )
        except InfeasibleError:
            continue
        result = replay(plan, drawn.hardware, drawn.budget_bytes)
        assert result.makespan_ns is None or result.makespan_ns >= solution.makespan_ns


def test_two_solves_are_identical():
    drawn = instance(3)
    first, second = (checked(drawn.graph, drawn.hardware, drawn.budget_bytes) for _ in range(2))
    assert (first.plan, first.makespan_ns, first.bound_ns) == (
        second.plan,
        second.makespan_ns,
        second.bound_ns,
    )


def test_the_limit_gives_the_best_so_far_and_a_true_bound():
    drawn = instance(3)
    exact = solve(drawn.graph, drawn.hardware, drawn.budget_bytes)
    hasty = checked(drawn.graph, drawn.hardware, drawn.budget_bytes, limit=0.01)
    assert hasty.bound_ns <= exact.makespan_ns < hasty.makespan_ns


def test_instances_are_what_they_say():
    for number in range(40):
        drawn = instance(number)
        assert drawn.graph == instance(number).graph
        assert drawn.budget_bytes == instance(number).budget_bytes
        assert working_set(drawn.graph) <= drawn.budget_bytes <= resident_peak(drawn.graph)
        assert 10 <= len(drawn.graph.ops) <= 40


# -- what it refuses
# --------------------------------------------------------------------------------------------------


def test_the_policy_and_its_parameters():
    drawn = instance(5)
    plan = policy_named("optimal").plan(drawn.graph, drawn.hardware, drawn.budget_bytes, limit=5.0)
    assert plan.policy == "optimal"
    result = bounded(
        replay(plan, drawn.hardware, drawn.budget_bytes), plan, drawn.hardware, drawn.budget_bytes
    )
    assert plan.proof is not None
    assert result.lower_bound_ns == result.makespan_ns == plan.proof.bound_ns
    with pytest.raises(InputError, match=r"small graphs.*largest"):
        policy_named("optimal").plan(drawn.graph, drawn.hardware, drawn.budget_bytes, largest=3)


def test_a_comparison_of_all_policies_leaves_it_out():
    assert "optimal" in policy_names()
    assert "optimal" not in [choice.name for choice in parse_choices(None)]
    assert parse_choices("optimal:limit=2")[0].parameters == {"limit": 2.0}


def test_without_the_solver_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(InputError, match=r"pip install 'hosim\[solver\]'"):
        require_solver()


def test_shared_bandwidth_is_refused():
    graph, hardware = forward_backward(), machine()
    with pytest.raises(InputError, match="h2d shares its bandwidth"):
        solve(graph, replace(hardware, fabrics=(Fabric("pcie", NS, ("h2d", "d2h")),)), 40)
    solve(graph, replace(hardware, fabrics=(Fabric("pcie", 2 * NS, ("h2d", "d2h")),)), 40)
    crossed = replace(hardware, fabrics=(Fabric("pcie", 2 * NS, ("h2d", "d2h"), collectives=1),))
    solve(graph, crossed, 40)  # it has no collectives
    ops = (
        replace(graph.ops[0], kind="all_reduce", kernel="all_reduce", sizes=(2, 8)),
        *graph.ops[1:],
    )
    with pytest.raises(InputError, match="h2d shares its bandwidth"):
        solve(Graph(graph.name, graph.tensors, ops, graph.meta), crossed, 40)


def test_each_refusal_says_what_to_do():
    graph, hardware = forward_backward(), machine()
    with pytest.raises(InfeasibleError) as proved:
        solve(graph, hardware, 19)
    assert (
        str(proved.value)
        == "out of memory: no plan of mirror fits into 19 B of hbm; the solver has proved it"
    )
    with pytest.raises(InfeasibleError) as hasty:
        solve(graph, hardware, 40, limit=0)
    assert str(hasty.value) == (
        "no plan of mirror within 40 B of hbm was found in 0 deterministic seconds (parameter "
        "limit), which proves nothing: raise the limit"
    )
    # each activation may leave between its two ops
    assert solve(graph, hardware, 40, largest=3).makespan_ns == 180
    with pytest.raises(InputError) as large:
        solve(graph, hardware, 40, largest=2)
    assert str(large.value) == (
        "policy optimal is for small graphs: mirror has 3 gaps that a tensor could spend below, "
        "and the limit is 2 (parameter largest)"
    )

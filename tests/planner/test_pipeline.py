"""The planner from end to end: what it promises of every plan, and what becomes of each kind of
tensor.
"""

import re
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, hardware, sized
from toys import hill, machine, plateau, renamed, told, training

from hosim.analysis import static_peak
from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.planner.hyperoffload import Search, plan, search, spreading
from hosim.planner.hyperoffload.tensor_choices import analyse

pytestmark = pytest.mark.slow

LITTLE = 0.02
"""Effort of the property tests: some dozen replays a plan."""


def makespan(made: Plan, hw: Hardware, budget: int) -> int:
    """Of a plan that must keep every rule and fit."""
    assert [str(finding) for finding in verify(made, hw, budget)] == []
    result = replay(made, hw, budget)
    assert result.feasible, result.error
    assert result.makespan_ns is not None
    assert result.peak_bytes[hw.device_tier] <= budget
    return result.makespan_ns


# -- promises
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [1, 3])
@settings(max_examples=8)
@given(data=st.data())
def test_what_fits_unmoved_is_not_moved(streams: int, data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=8, max_streams=streams, homes=("hbm",)))
    hw = sized(data.draw(hardware()), graph)
    resident = replay(Plan(graph), hw)
    budget = resident.peak_bytes["hbm"]
    made = plan(graph, hw, budget, effort=LITTLE)
    assert makespan(made, hw, budget) == resident.makespan_ns


@pytest.mark.parametrize("streams", [1, 3])
@settings(max_examples=5)
@given(data=st.data())
def test_a_plan_keeps_every_rule_and_its_budget_or_there_is_none(
    streams: int, data: st.DataObject
) -> None:
    graph = data.draw(graphs(max_ops=8, max_streams=streams))
    hw = sized(data.draw(hardware()), graph)
    problem = analyse(graph, hw)
    budget = data.draw(st.integers(max(problem.floor_bytes), max(1, *problem.held_bytes)))
    try:
        made = plan(graph, hw, budget, effort=LITTLE)
    except InfeasibleError as error:
        assert re.search(rf"within .*\({budget} B\)", str(error))
        return
    assert makespan(made, hw, budget) >= problem.horizon_ns
    again = plan(graph, hw, budget, effort=LITTLE)
    assert (again.cache_ops, again.initial) == (made.cache_ops, made.initial)


@pytest.mark.parametrize("make", [hill, plateau, training])
def test_any_budget_that_every_op_fits_into_is_met(make) -> None:  # type: ignore[no-untyped-def]
    graph, hw = make(), machine()
    problem = analyse(graph, hw)
    last = None
    for budget in range(max(problem.floor_bytes), max(problem.held_bytes) + 10, 10):
        made = plan(graph, hw, budget, effort=0.05)
        taken = makespan(made, hw, budget)
        assert (
            last is None or taken <= last + problem.horizon_ns // 10
        )  # more memory costs no time, but for what a short search misses
        last = taken
    assert last == problem.horizon_ns


@pytest.mark.parametrize("make", [hill, plateau, training])
@pytest.mark.parametrize("share", [0.5, 0.75])
def test_names_do_not_matter(make, share: float) -> None:  # type: ignore[no-untyped-def]
    graph, hw = make(), machine()
    problem = analyse(graph, hw)
    budget = max(max(problem.floor_bytes), int(max(problem.held_bytes) * share))
    expected = makespan(plan(graph, hw, budget, effort=0.1), hw, budget)
    draw = Random(7)
    for _ in range(3):
        tensors, ops = [t.name for t in graph.tensors], [op.name for op in graph.ops]
        draw.shuffle(tensors)
        draw.shuffle(ops)
        other = renamed(graph, tensors, ops)
        assert makespan(plan(other, hw, budget, effort=0.1), hw, budget) == expected


def test_the_search_returns_what_it_has_replayed() -> None:
    graph, hw = training(3), machine()
    outcome = search(graph, hw, 150, effort=0.1)
    assert outcome.result.feasible
    assert outcome.cost.makespan_ns == makespan(outcome.plan, hw, 150)
    assert outcome.plan.policy == "hyperoffload"


def test_more_budget_than_the_tier_has_is_the_tier() -> None:
    graph = hill(4)
    hw = machine(capacity=30)
    made = plan(graph, hw, 10**9, effort=0.1)
    assert makespan(made, hw, 30) == 160


# -- infeasible
# ------------------------------------------------------------------------------------------------


def test_an_op_that_cannot_fit_names_the_budget_that_could() -> None:
    with pytest.raises(
        InfeasibleError,
        match=r"op 'b1' alone uses 50 B .*; the smallest budget that any plan could meet is 50 B",
    ):
        plan(training(2), machine(), 49, effort=0.1)  # b1: an activation, a weight and a gradient


def test_a_machine_without_room_below_says_what_it_found() -> None:
    graph = plateau(3)
    with pytest.raises(
        InfeasibleError, match=r"no plan found within 20 B \(20 B\); .* uses 10 B \(10 B\)"
    ) as raised:
        plan(graph, machine(below=1), 20, effort=0.0)
    assert raised.value.report.startswith("out of memory")


# -- what becomes of each kind
# ---------------------------------------------------------------------------------


def moved(made: Plan, kind: str) -> dict[str, list[str]]:
    """The cache ops of each tensor of a kind that has some."""
    names = dict.fromkeys(made.graph.tensors[c.tensor].name for c in made.cache_ops)
    return {
        name: told(made, name)
        for name in names
        if made.graph.tensors[made.graph.tensor_index[name]].kind == kind
    }


def test_parameters_with_a_copy_below_are_detached_without_a_store() -> None:
    graph, hw = plateau(8), machine()
    made = plan(graph, hw, 30)
    assert makespan(made, hw, 30) == 160
    steps = moved(made, "parameter")
    assert steps
    assert made.count("store") == 0
    for name, step in steps.items():
        assert "ddr" in made.initial[graph.tensor_index[name]]
        assert [s.partition("@")[0] for s in step] in (
            ["prefetch", "detach"],
            ["detach", "prefetch"],
            ["detach"],
        )


def test_optimizer_states_are_stored_after_the_update_and_prefetched_before_the_next() -> None:
    graph, hw = training(3), machine()
    budget = max(analyse(graph, hw).held_bytes) - 40
    made = plan(graph, hw, budget)
    assert makespan(made, hw, budget) == analyse(graph, hw).horizon_ns
    steps = moved(made, "optimizer_state")
    assert steps
    for name, step in steps.items():
        update = f"u{name[1:]}"
        fetch, store, detach = step
        assert fetch.startswith("prefetch@")
        assert (
            fetch == "prefetch@start"
            or graph.op_index[fetch.partition("@")[2]] < graph.op_index[update]
        )
        assert (store, detach) == (f"store@{update}", f"detach@{update}")
        assert made.initial[graph.tensor_index[name]] == (
            "ddr",
        )  # across the step: there at its end, there at its start


def test_activations_are_stored_after_forward_and_prefetched_before_backward() -> None:
    graph, hw = hill(4), machine()
    made = plan(graph, hw, 30)
    assert makespan(made, hw, 30) == 160
    ((name, (store, detach, fetch)),) = moved(made, "activation").items()
    last_forward = f"f{int(name[1]) + 1}"  # the next layer reads it
    assert store in (
        f"store@f{name[1]}",
        f"store@{last_forward}",
    )  # once it is made, while the next layer reads it or after
    assert detach == f"detach@{last_forward}"
    assert (
        graph.op_index["f3"]
        <= graph.op_index[fetch.removeprefix("prefetch@")]
        < graph.op_index[f"b{name[1]}"]
    )


@pytest.mark.parametrize("share", [0.4, 0.5, 0.6, 0.8])
def test_short_lived_tensors_never_move(share: float) -> None:
    graph, hw = training(4), machine()
    problem = analyse(graph, hw)
    budget = max(max(problem.floor_bytes), int(max(problem.held_bytes) * share))
    made = plan(graph, hw, budget, effort=0.2)
    makespan(made, hw, budget)
    assert made.cache_ops
    assert not [
        graph.tensors[c.tensor].name
        for c in made.cache_ops
        if graph.tensors[c.tensor].name.startswith("s")
    ]


def test_expert_weights_and_kv_blocks_come_up_for_their_use() -> None:
    b = GraphBuilder("decode")
    for i in range(6):
        b.tensor(f"e{i}", 10, "expert", "ddr")
        b.tensor(f"k{i}", 6, "kv_cache")
    for i in range(6):
        b.op(f"attend{i}", "attention", mutates=[f"k{i}"], duration_ns=30)
        b.op(f"expert{i}", "matmul", inputs=[f"e{i}"], duration_ns=30)
    graph, hw = b.build(), machine()
    made = plan(graph, hw, 36)
    assert makespan(made, hw, 36) == 360
    for i in range(6):
        fetch, release = told(made, f"e{i}")
        assert fetch.startswith("prefetch@")
        assert release == f"detach@expert{i}"
    for name, step in moved(made, "kv_cache").items():
        assert f"store@attend{name[1]}" in step  # the step writes it: it goes down again


def test_static_peak_is_the_budget_from_which_on_nothing_moves() -> None:
    graph, hw = training(3), machine()
    assert plan(graph, hw, static_peak(graph).bytes, effort=0.1).cache_ops == ()
    assert plan(graph, hw, static_peak(graph).bytes - 1, effort=0.1).cache_ops != ()


def test_streams_overlap_and_the_plan_still_fits() -> None:
    b = GraphBuilder("two streams")
    for i in range(6):
        b.tensor(f"w{i}", 10, "parameter")
        b.tensor(f"x{i}", 4)
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], outputs=[f"x{i}"], duration_ns=20)
        b.op(f"c{i}", "copy", inputs=[f"x{i}"], stream="comm", duration_ns=15)
    graph: Graph = b.build()
    hw = machine()
    for budget in (30, 40, 50, 80):
        made = plan(graph, hw, budget, effort=0.2)
        assert makespan(made, hw, budget) >= 135  # 6 * 20 and the last copy's 15, if nothing waits
    assert (
        makespan(plan(graph, hw, 80), hw, 80) == 135
    )  # 60 of weights, and never more than five results


# -- even spreads
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eighths", "takes"), [(8, 240), (1, 500)])
def test_spreads_in_time_and_late_ones_are_tried(
    monkeypatch: pytest.MonkeyPatch, eighths: int, takes: int
) -> None:
    # 12 ops of 20 ns, weights of 10 B, 80 B: seven weights stay, and there is room for one more. At
    # 1 B/ns five can be there in time, and nothing waits. At an eighth none can: each of the five
    # takes 80 ns to come up and 20 to be used, and then leaves room for the next
    monkeypatch.setattr("hosim.planner.hyperoffload.arms.evenly", lambda *_: None)
    hw = machine()
    slow = replace(
        hw,
        channels=tuple(
            replace(c, bandwidth_bytes_per_s=c.bandwidth_bytes_per_s * eighths // 8)
            for c in hw.channels
        ),
    )
    run = Search(plateau(12), slow, 80, "test", 0, replay)
    brought = 4 if eighths == 8 else 2  # a step for each spread that there is
    assert len(list(spreading(run, run.plain))) == brought
    assert run.best is not None
    assert (run.best.outcome.cost.makespan_ns, run.best.source) == (takes, "spread")

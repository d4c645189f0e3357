"""Insertion pass: choices become cache ops that keep every rule, whatever the choices."""

import pytest
from drawn_choices import choices
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware, sized
from toys import hill, machine, plateau, told, training

from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, Plan
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    COPY,
    HOME,
    TensorChoice,
    analyse,
    everything,
    insert,
)


def made(graph: Graph, tensor: str, choice: TensorChoice) -> Plan:
    problem = analyse(graph, machine())
    plan = insert(problem, {graph.tensor_index[tensor]: choice}, "test")
    assert verify(plan, machine()) == ()
    assert replay(plan, machine()).feasible
    return plan


@pytest.mark.parametrize("streams", [1, 3])
@given(data=st.data())
def test_any_choices_give_a_plan_that_keeps_every_rule(streams: int, data: st.DataObject) -> None:
    machine_ = data.draw(hardware())
    graph = data.draw(
        graphs(max_ops=10, max_streams=streams, homes=[tier.name for tier in machine_.tiers])
    )
    machine_ = sized(machine_, graph)
    problem = analyse(graph, machine_)
    if any(tier not in {b.name for b in problem.below} for tier in problem.starts_below.values()):
        return  # it lives where no channel comes from: no policy of single hops can plan that
    plan = insert(problem, data.draw(choices(problem)), "test")
    assert [str(finding) for finding in verify(plan, machine_)] == []
    assert replay(plan, machine_).feasible


def test_an_activation_is_stored_once_however_often_it_leaves() -> None:
    b = GraphBuilder("twice")
    b.tensor("a", 10)
    for i in range(7):
        b.op(
            f"f{i}",
            "op",
            inputs=["a"] if i in (3, 6) else [],
            outputs=["a"] if i == 0 else [],
            duration_ns=20,
        )
    plan = made(b.build(), "a", TensorChoice("ddr", HOME, {0: 2, 3: 5}))
    assert told(plan, "a") == ["store@f0", "detach@f0", "prefetch@f2", "detach@f3", "prefetch@f5"]
    assert plan.initial == {}


def test_a_write_makes_another_store_necessary() -> None:
    b = GraphBuilder("written")
    b.tensor("w", 10, "parameter")
    for i in range(7):
        b.op(
            f"f{i}",
            "op",
            inputs=["w"] if i in (0, 6) else [],
            mutates=["w"] if i == 3 else [],
            duration_ns=20,
        )
    plan = made(b.build(), "w", TensorChoice("ddr", HOME, {0: 2, 3: 5}))
    assert told(plan, "w") == [
        "store@f0",
        "detach@f0",
        "prefetch@f2",
        "store@f3",
        "detach@f3",
        "prefetch@f5",
    ]


def test_a_copy_below_from_the_start_needs_no_store() -> None:
    plan = made(plateau(6), "w2", TensorChoice("ddr", COPY, {AT_START: AT_START, 2: 4}))
    assert told(plan, "w2") == ["detach@start", "prefetch@start", "detach@f2", "prefetch@f4"]
    assert plan.initial == {2: ("hbm", "ddr")}


def test_what_starts_below_is_fetched_and_detached_after_its_last_use() -> None:
    plan = made(plateau(6), "w2", TensorChoice("ddr", BELOW, {AT_START: 0}))
    assert told(plan, "w2") == ["prefetch@f0", "detach@f2"]
    assert plan.initial == {2: ("ddr",)}


def test_what_starts_below_and_is_written_is_stored_back() -> None:
    graph = training(2)
    plan = made(graph, "o1", TensorChoice("ddr", BELOW, {AT_START: graph.op_index["b1"]}))
    assert told(plan, "o1") == ["prefetch@b1", "store@u1", "detach@u1"]


def test_a_copy_that_the_step_makes_stale_is_made_again() -> None:
    plan = made(training(2), "o1", TensorChoice("ddr", COPY, {}))
    assert told(plan, "o1") == ["store@u1"]
    assert plan.initial == {plan.graph.tensor_index["o1"]: ("hbm", "ddr")}


def test_a_home_below_stays_the_home() -> None:
    graph = plateau(4, home="ddr")
    plan = insert(
        analyse(graph, machine()),
        {t: TensorChoice("ddr", HOME, {AT_START: AT_START}) for t in range(4)},
        "test",
    )
    assert verify(plan, machine()) == ()
    assert told(plan, "w1") == ["prefetch@start", "detach@f1"]
    assert plan.initial == {}


def test_an_output_leaves_for_good() -> None:
    b = GraphBuilder("output")
    b.tensor("y", 10, "output")
    for i in range(3):
        b.op(f"f{i}", "op", outputs=["y"] if i == 0 else [], duration_ns=20)
    plan = made(b.build(), "y", TensorChoice("ddr", HOME, {0: None}))
    assert told(plan, "y") == ["store@f0", "detach@f0"]


def test_at_one_place_stores_come_first_then_detaches_then_prefetches_by_their_use() -> None:
    graph = hill(4)
    problem = analyse(graph, machine())
    a0, a1, a2 = (graph.tensor_index[name] for name in ("a0", "a1", "a2"))
    plan = insert(
        problem,
        {
            a0: TensorChoice("ddr", HOME, {1: 4}),
            a1: TensorChoice("ddr", HOME, {2: 4}),
            a2: TensorChoice("ddr", HOME, {3: 4}),
        },
        "test",
    )
    assert [(c.op, graph.tensors[c.tensor].name) for c in plan.cache_ops if c.after == 4] == [
        ("prefetch", "a2"),
        ("prefetch", "a1"),
        ("prefetch", "a0"),
    ]
    assert [c.op for c in plan.cache_ops if c.after == 2] == ["store", "detach"]
    assert [c.after for c in plan.cache_ops] == sorted(c.after for c in plan.cache_ops)


def test_no_choices_move_nothing() -> None:
    plan = insert(analyse(hill(3), machine()), {}, "test")
    assert (plan.cache_ops, plan.initial, plan.policy) == ((), {}, "test")


def test_a_choice_is_changed_by_making_another() -> None:
    choice = TensorChoice("ddr", HOME, {5: 7})
    assert choice.with_return(2, 3).away == {2: 3, 5: 7}
    assert list(choice.with_return(2, 3).away) == [2, 5]
    assert choice.away == {5: 7}
    with pytest.raises(AttributeError):
        choice.below = "pool"  # type: ignore[misc]


@given(data=st.data())
def test_everything_away_fits_wherever_every_op_does(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=10, homes=("hbm", "ddr")))
    machine_ = machine()
    problem = analyse(graph, machine_)
    plan = insert(problem, everything(problem), "test")
    assert [str(finding) for finding in verify(plan, machine_)] == []
    budget = max(problem.floor_bytes)
    at_home = sum(
        t.size_bytes
        for k, t in enumerate(graph.tensors)
        if k in graph.initial and t.home == "hbm" and not t.persistent
    )
    first = graph.ops[0]
    fixed = sum(
        graph.tensors[t].size_bytes
        for t in graph.initial
        if t in first.uses and t not in problem.starts_below
    )
    if at_home + fixed <= budget:  # what must begin in the device tier has room there
        assert replay(plan, machine_, budget).feasible


@pytest.mark.parametrize(
    ("leaves", "store", "detach"),
    [
        (2, 2, 2),  # c may end before b: the store is issued where the tensor leaves
        (3, 1, 3),  # d awaits b: the early store is in time
    ],
)
def test_an_early_store_that_may_end_after_the_detach_is_issued_with_it(
    leaves: int, store: int, detach: int
) -> None:
    b = GraphBuilder("early")
    b.tensor("x", 10)
    b.op("a", "m", outputs=["x"], duration_ns=5)
    b.op("b", "m", stream="side", deps=["a"], duration_ns=50)
    b.op("c", "m", inputs=["x"], duration_ns=5)
    b.op("d", "m", deps=["b"], duration_ns=5)
    b.op("e", "m", duration_ns=5)
    b.op("f", "m", inputs=["x"], duration_ns=5)
    choice = TensorChoice("ddr", HOME, {2: 4}, {2: 1}, leaves={2: leaves})
    plan = made(b.build(), "x", choice)
    assert [(c.op, c.after) for c in plan.cache_ops] == [
        ("store", store),
        ("detach", detach),
        ("prefetch", 4),
    ]


def test_a_tensor_leaves_again_where_the_op_has_ended_that_awaits_its_prefetch() -> None:
    # b awaits the prefetch at a's end; nothing else says that it has been issued when b has ended
    b = GraphBuilder("again")
    b.tensor("x", 10, "parameter")
    b.op("a", "m", duration_ns=5)
    b.op("b", "m", inputs=["x"], stream="side", duration_ns=5)
    b.op("c", "m", stream="side", duration_ns=5)
    plan = made(b.build(), "x", TensorChoice("ddr", HOME, {AT_START: 0, 1: 2}))
    assert [(c.op, c.after) for c in plan.cache_ops] == [
        ("store", -1),
        ("detach", -1),
        ("prefetch", 0),
        ("detach", 1),
        ("prefetch", 2),
    ]

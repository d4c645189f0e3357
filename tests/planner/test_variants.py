"""Variants of a graph: what is expected of a plan for one, and sets of drops that are improved by what is alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import hill, machine, training

from hosim.edits import Edits
from hosim.graph import Graph, GraphBuilder
from hosim.planner.hyperoffload.tensor_choices import analyse
from hosim.planner.rewrites import RECIPES, Variants, candidates, promising


def variants(graph: Graph, budget: int, **more: object) -> Variants:
    problem = analyse(graph, machine(**more))
    return Variants(problem, Edits(graph), candidates(problem), budget)


def around(*parameters: str) -> Graph:
    """Four ops of 100 ns: 20 B from the first to the last op, which makes 20 B more, and parameters of 10 B that the first op reads."""
    b = GraphBuilder("around")
    for name in parameters:
        b.tensor(name, 10, "parameter")
    b.op("a", "op", inputs=parameters, outputs=[b.tensor("x", 20)], duration_ns=100)
    b.op("b", "op", inputs=["x"], duration_ns=100)
    b.op("c", "op", inputs=["x"], duration_ns=100)
    b.op("d", "op", inputs=["x"], outputs=[b.tensor("z", 20)], duration_ns=100)
    return b.build()


def test_what_the_peak_has_above_the_budget_leaves_before_it_and_returns_after_it():
    """The last op holds 40 B, 16 above 24. At 1 B/ns they take 20 ns with the margin.

    They leave in the 300 ns before it, but would return in 20 ns after it, fewer than the op's own 100: 400 ns, and a twentieth of 32 ns.
    """
    plain = variants(around(), 24)(frozenset())
    assert (plain.excess_bytes, plain.again_ns) == (16, 0)
    assert plain.expected_ns == (400 + 1.6, 400 + 1.6)


def test_transfers_that_take_longer_than_the_ops_are_what_takes_the_time():
    """40 B are to be away at the last op: 1,000 ns before it at 20 ns a byte with the margin, not 300, and 1,000 after it."""
    graph = around()
    order = variants(graph, 0)
    order._down_ns = order._up_ns = 20.0
    assert order(frozenset()).expected_ns == (2000 + 80, 2000 + 80)


@pytest.mark.parametrize("parameters", [(), ("p",)])
def test_a_parameter_may_stay_below_after_its_last_use(parameters):
    """10 B are to be away at the last op, at 50 ns a byte with the margin: 500 ns each way, but for what nothing uses any more."""
    order = variants(around(*parameters), 30 + 10 * len(parameters))
    order._down_ns = order._up_ns = 40.0
    exposed = 0.05 * 10 * 80
    assert order(frozenset()).expected_ns == (500 + 500 + exposed, 500 + (100 if parameters else 500) + exposed)


def test_a_parameter_may_be_below_before_its_first_use():
    """10 B are to be away at the first two ops. The parameter's need not leave before: 500 ns to return, after the first op's 100."""
    b = GraphBuilder("unused")
    b.tensor("q", 10, "parameter")
    b.op("a", "op", outputs=[b.tensor("x", 30)], duration_ns=100)
    b.op("b", "op", inputs=["x"], duration_ns=100)
    b.op("c", "op", inputs=["q"], duration_ns=100)
    order = variants(b.build(), 30)
    order._down_ns = order._up_ns = 40.0
    exposed = 0.05 * 10 * 80
    assert order(frozenset()).expected_ns == (500 + 500 + exposed, 100 + 500 + exposed)


def test_drops_of_what_is_alike_are_added_together():
    """Half of the 28 activations that are alike, at once: one alone gains nothing, as the peak moves a little."""
    order = variants(hill(30), 100)
    order._down_ns = order._up_ns = 40.0
    plain = order(frozenset())
    better = order.improved_by_groups(plain, 0)
    assert better.expected_ns[0] < plain.expected_ns[0]
    assert len(better.drops) == 14
    assert order.improved_by_groups(better, 0).expected_ns[0] <= better.expected_ns[0]


@given(st.integers(2, 6), st.sampled_from(RECIPES), st.integers(30, 90), st.sampled_from((0, 1)))
def test_a_set_of_drops_never_gets_worse(layers, recipe, share, way):
    graph = training(layers)
    order = variants(graph, 45 * layers * share // 100 + 60)
    start = order.by(recipe)
    assert order.improved_by_groups(start, way).expected_ns[way] <= start.expected_ns[way]


def test_looks_are_counted(monkeypatch):
    order = variants(hill(30), 100)
    looked = []
    start = order(frozenset())
    monkeypatch.setattr(order, "_weighed", lambda drops: looked.append(drops) or start)
    assert order.improved_by_groups(start, 0) is start
    assert 0 < len(looked) <= 60
    assert len(set(looked)) == len(looked)


def test_a_steady_recipe_runs_no_random_op_again():
    b = GraphBuilder("drops", {"repeatable": True, "seeded": True})
    for i in range(8):
        b.op(f"f{i}", "matmul", inputs=[f"d{i - 1}"] if i else [], outputs=[b.tensor(f"a{i}", 10)], duration_ns=20)
        b.op(f"r{i}", "dropout", inputs=[f"a{i}"], outputs=[b.tensor(f"d{i}", 10)], duration_ns=20)
    for i in reversed(range(8)):
        b.op(f"g{i}", "matmul", inputs=[f"a{i}", f"d{i}"], duration_ns=20)
    order = variants(b.build(), 60)
    for recipe in (1.0, (2, 1), (4, 1)):
        every, steady = order.by(recipe), order.by(recipe, steady=True)
        assert any(entry.op.startswith("r") for entry in every.edits.recompute)
        assert steady.edits.recompute
        assert all(entry.op.startswith("f") for entry in steady.edits.recompute)
    proposed = list(order.proposed(RECIPES))
    assert any(variant.drops == order.by((4, 1), steady=True).drops for variant in proposed)
    unseeded = variants(Graph("once", order.problem.graph.tensors, order.problem.graph.ops, {"repeatable": True}), 60)
    assert len(list(unseeded.proposed(RECIPES))) < len(proposed)


def test_the_last_segments_stay():
    """Of eight segments the last, the last two or the last four run once: what is made again grows with those that are dropped."""
    order = variants(hill(40), 100)
    last, two, half = [order.by((8, stay)) for stay in (1, 2, 4)]
    assert half.drops < two.drops < last.drops
    assert half.again_ns < two.again_ns < last.again_ns
    assert order.by((8, 8)).drops == frozenset()


def test_the_most_promising_ones_come_by_both_ways_in_turn():
    order = variants(training(6), 200)
    weighed = [order.by(recipe) for recipe in RECIPES]
    found = promising(weighed, 10**9)
    assert {id(variant) for variant in found} == {id(variant) for variant in weighed}
    assert found[0].expected_ns[0] == min(variant.expected_ns[0] for variant in weighed)
    assert min(found[0].expected_ns[1], found[1].expected_ns[1]) == min(variant.expected_ns[1] for variant in weighed)
    assert promising(weighed, 0) == [variant for variant in found if not variant.again_ns]

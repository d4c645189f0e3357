"""The figures of gaps, one by one, on toys with the figures derived by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware, sized
from toys import hill, machine, plateau, training

from hosim.analysis import Gap
from hosim.cache_plan import AT_START
from hosim.graph import Graph, GraphBuilder
from hosim.planner.hyperoffload import GapFigures, gap_figures
from hosim.planner.hyperoffload.tensor_choices import analyse


def figures_of(graph: Graph, name: str, budget: int, *lower: str) -> list[GapFigures]:
    found = gap_figures(analyse(graph, machine(*lower)), budget)
    return [s for s in found if graph.tensors[s.gap.tensor].name == name]


def test_an_activation_on_the_hill() -> None:
    # held 10 20 30 40 40 30 20 10; a0 is idle from the end of f1 (40) to the start of b0 (140): 5
    # ops of 20 ns. Over 30 B at f3 and b3.
    (s,) = figures_of(hill(4), "a0", 30)
    assert s.gap == Gap(0, 1, 7, version=1, written=0)
    assert (s.bytes, s.accesses, s.below) == (10, 3, "ddr")  # f0 writes it, f1 and b0 read it
    assert (s.gap_ns, s.covered_ns) == (100, 100)
    assert (s.down_ns, s.up_ns, s.transfer_ns, s.exposed_ns) == (10, 10, 20, 0)
    assert (s.over_budget_ns, s.peak_bytes, s.relief_byte_ns) == (40, 10, 400)
    assert (s.recompute_ns, s.recompute_flops) == (20, 0)


def test_pressure_is_what_all_candidates_would_take_of_the_channel() -> None:
    # over 30 B: f3 and b3. Candidates: a0 (10 of 100 ns up), a1 (10 of 60 ns), a2 (f3 to b2, 10 of
    # 20 ns). a2's gap is b3 alone, in which all three are open: 0.1 + 1/6 + 0.5. a0's gap is f2 to
    # b1: f2 has a0 alone, f3 a0 and a1, b3 all, b2 a0 and a1, b1 a0.
    found = {name: figures_of(hill(4), name, 30)[0].channel_pressure for name in ("a0", "a1", "a2")}
    three, two, one = 0.1 + 1 / 6 + 0.5, 0.1 + 1 / 6, 0.1
    assert found["a2"] == pytest.approx(three)
    assert found["a1"] == pytest.approx((two + three + two) / 3)
    assert found["a0"] == pytest.approx((one + two + three + two + one) / 5)


def test_what_covers_nothing_over_budget_presses_on_no_channel() -> None:
    assert all(
        s.channel_pressure == 0 and s.value == 0
        for s in gap_figures(analyse(hill(4), machine()), 40)
    )


def test_the_value_is_relief_by_what_it_takes() -> None:
    (s,) = figures_of(
        hill(4), "a2", 30
    )  # 20 ns of gap for 20 ns of transfers, and 10 B off for b3's 20 ns
    assert s.exposed_ns == 0
    assert s.value == pytest.approx(200 / (20 * (1 + s.channel_pressure)))


def test_what_a_gap_cannot_cover_is_exposed() -> None:
    (s,) = figures_of(hill(4, size=30), "a2", 90)  # 30 down and 30 up in 20 ns
    assert (s.gap_ns, s.transfer_ns, s.exposed_ns) == (20, 60, 40)
    assert s.value == pytest.approx(30 * 20 / (60 * (1 + s.channel_pressure) + 40))


def test_an_unwritten_parameter_needs_no_store_and_cannot_be_recomputed() -> None:
    first, last = figures_of(plateau(6), "w2", 50)
    assert (first.gap, last.gap) == (Gap(2, AT_START, 2), Gap(2, 2, 6))
    for s, ns in ((first, 40), (last, 60)):  # two ops before f2, three after it
        assert (s.down_ns, s.up_ns, s.recompute_ns) == (0, 10, None)
        assert s.gap_ns == s.covered_ns == s.over_budget_ns == ns


def test_a_written_state_is_stored() -> None:
    graph = training(2)
    first, last = figures_of(graph, "o0", 50)
    o0, update = graph.tensor_index["o0"], graph.op_index["u0"]
    assert (first.gap, last.gap) == (
        Gap(o0, AT_START, update),
        Gap(o0, update, len(graph.ops), version=1, written=update),
    )
    assert {(s.down_ns, s.up_ns) for s in (first, last)} == {(20, 20)}
    assert last.recompute_ns is None  # the update reads what it overwrites


def test_what_lives_below_relieves_nothing_before_its_first_use() -> None:
    (s,) = figures_of(plateau(6, home="ddr"), "w2", 5)
    assert (s.over_budget_ns, s.peak_bytes, s.value) == (0, 0, 0)
    assert (s.below, s.down_ns) == ("ddr", 0)


def test_an_output_need_not_come_back() -> None:
    b = GraphBuilder("output")
    b.tensor("y", 10, "output")
    b.op("f", "op", outputs=["y"], duration_ns=20, flops=7)
    b.op("g", "op", duration_ns=20)
    (s,) = figures_of(b.build(), "y", 5)
    assert s.gap == Gap(0, 0, 2, version=1, returns=False, written=0)
    assert (s.gap_ns, s.down_ns, s.up_ns, s.over_budget_ns) == (20, 10, 0, 20)
    assert (s.recompute_ns, s.recompute_flops) == (20, 7)


def test_computation_is_that_of_the_main_stream() -> None:
    b = GraphBuilder("streams")
    b.tensor("a", 10)
    b.op("f", "op", outputs=["a"], duration_ns=20)
    b.op("c", "copy", stream="comm", duration_ns=100)
    b.op("g", "op", duration_ns=30)
    b.op("h", "op", inputs=["a"], duration_ns=20)
    graph = b.build()
    (s,) = figures_of(graph, "a", 5)
    assert graph.main_stream == "compute"
    assert (s.gap_ns, s.covered_ns) == (30, 30)


def test_the_tier_is_the_fastest_that_can_hold_it() -> None:
    graph = hill(4)
    problem = analyse(graph, machine("ddr", "pool"))
    assert {s.below for s in gap_figures(problem, 30)} == {"ddr"}
    nowhere = gap_figures(analyse(graph, machine(below=9)), 30)
    assert {(s.below, s.down_ns, s.up_ns) for s in nowhere} == {(None, 0, 0)}


def test_contents_that_are_overwritten_need_no_transfer() -> None:
    b = GraphBuilder("dead")
    b.tensor("a", 10)
    for i in range(4):
        b.op(
            f"f{i}",
            "op",
            outputs=["a"] if i in (0, 2) else [],
            inputs=["a"] if i == 3 else [],
            duration_ns=20,
        )
    (s,) = figures_of(b.build(), "a", 5)
    assert (s.gap.before, s.transfer_ns, s.over_budget_ns) == (2, 0, 20)


@given(graphs(max_ops=10, max_streams=2), hardware(), st.integers(1, 200))
def test_every_gap_with_bytes_has_a_score(graph: Graph, drawn, budget: int) -> None:  # type: ignore[no-untyped-def]
    problem = analyse(graph, sized(drawn, graph))
    found = gap_figures(problem, budget)
    assert [s.gap for s in found] == sorted(
        (s.gap for s in found), key=lambda gap: (gap.tensor, gap.after)
    )
    assert {s.gap for s in found} >= {
        gap for gap in problem.gaps if graph.tensors[gap.tensor].size_bytes
    }
    assert len({s.gap for s in found}) == len(found)
    for s in found:
        inside = range(s.gap.after + 1, s.gap.before)
        assert not set(inside) & set(graph.users[s.gap.tensor])
        over = sum(problem.durations[i] for i in inside if problem.held_bytes[i] > budget)
        assert s.over_budget_ns == (0 if s.gap not in problem.gaps else over)
        assert s.covered_ns == sum(
            problem.durations[i] for i in inside if graph.ops[i].stream == graph.main_stream
        )
        assert s.relief_byte_ns == s.bytes * s.over_budget_ns
        assert s.channel_pressure >= 0
        assert (s.value > 0) == (s.relief_byte_ns > 0)
    assert gap_figures(problem, budget) == found

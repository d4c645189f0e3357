"""Absences become legal cache ops, whatever places were wished for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, happens_before, hardware, sized

from hosim import engine
from hosim.analysis import HappensBefore
from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, PREFETCH, STORE, CacheOp
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.schedule import Absence, insert

MACHINE = Hardware(
    "machine",
    (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 1000, 10**11), Tier("nvme", 1000, 10**10)),
    (
        Channel("h2d", "ddr", "hbm", 10**9),
        Channel("d2h", "hbm", "ddr", 10**9),
        Channel("nvme_read", "nvme", "ddr", 10**9),
        Channel("nvme_write", "ddr", "nvme", 10**9),
    ),
    Compute({"bf16": 10**12}),
)


def line(*uses: str, kind: str = "activation", home: str | None = None) -> Graph:
    """Ops f0, f1, ... that use the one tensor as the letters say: w(rites), r(eads), m(utates); -
    does not.
    """
    builder = GraphBuilder("line")
    builder.tensor("x", 10, kind, home)
    for i, use in enumerate(uses):
        roles = {"w": {"outputs": ["x"]}, "r": {"inputs": ["x"]}, "m": {"mutates": ["x"]}, "-": {}}[
            use
        ]
        builder.op(f"f{i}", "m", duration_ns=5, **roles)
    return builder.build()


def moves(graph: Graph, *absences: Absence, initial=None) -> list[tuple[str, int]]:
    """Sort and place of the plan's cache ops, which must be legal and run."""
    plan = insert(graph, MACHINE, "test", absences, initial)
    assert verify(plan, MACHINE) == ()
    assert engine.replay(plan, MACHINE).feasible
    return [(cache_op.op, cache_op.after) for cache_op in plan.cache_ops]


def test_dirty_contents_are_stored_and_clean_ones_are_not() -> None:
    graph = line("w", "-", "r", "-", "r", "-", "m", "-", "r")
    away = [Absence(0, a, a + 2, a, a, a + 1, "ddr") for a in (0, 2, 6)]
    assert moves(graph, *away) == [
        ("store", 0),
        ("detach", 0),
        ("prefetch", 1),
        ("detach", 2),  # the copy in ddr is still good
        ("prefetch", 3),
        ("store", 6),  # op 6 made it stale
        ("detach", 6),
        ("prefetch", 7),
    ]


def test_contents_that_are_overwritten_unread_are_dropped() -> None:
    assert moves(line("w", "r", "-", "w", "r"), Absence(0, 1, 3, 1, 1, 2, "ddr")) == [("detach", 1)]


def test_contents_that_nobody_uses_again_are_left_to_die() -> None:
    assert moves(line("w", "r", "-"), Absence(0, 1, 3, 1, 1, 2, "ddr")) == []


def test_a_parameter_of_the_device_tier_leaves_and_comes_back_across_the_step() -> None:
    graph = line("-", "-", "r", "-", kind="parameter")
    away = [Absence(0, AT_START, 2, AT_START, AT_START, 1, "ddr"), Absence(0, 2, 4, 2, 2, 3, "ddr")]
    assert moves(graph, *away) == [
        ("store", -1),
        ("detach", -1),
        ("prefetch", 1),
        ("detach", 2),
        ("prefetch", 3),
    ]


def test_what_starts_below_comes_up_and_what_is_written_goes_back() -> None:
    assert moves(line("-", "r", "-", kind="parameter", home="ddr")) == [("prefetch", -1)]
    assert moves(line("-", "m", "r", kind="parameter", home="ddr")) == [
        ("prefetch", -1),
        ("store", 1),
    ]
    assert moves(line("w", "r", kind="parameter", home="ddr")) == [
        ("store", 0)
    ]  # nobody reads what is there before
    assert moves(line("-", kind="parameter", home="ddr")) == []
    assert moves(
        line("m", "-", kind="parameter"), Absence(0, 0, 2, 0, 0, 2, "ddr"), initial={0: ("ddr",)}
    ) == [
        ("prefetch", -1),
        ("store", 0),
        ("detach", 0),
    ]


def test_a_home_that_no_channel_joins_to_the_device_is_reached_by_a_route() -> None:
    plan = insert(line("m", kind="parameter", home="nvme"), MACHINE, "test", ())
    assert verify(plan, MACHINE) == ()
    assert list(plan.cache_ops) == [
        CacheOp(PREFETCH, 0, "nvme", "hbm", -1),
        CacheOp(STORE, 0, "hbm", "nvme", 0),
    ]
    assert engine.replay(plan, MACHINE).feasible
    last = Absence(0, 0, 2, 0, 0, 2, "nvme")  # away after its last use, as far as its home
    assert moves(line("m", "-", kind="parameter", home="nvme"), last) == [
        ("prefetch", -1),
        *(("store", 0), ("detach", 0)),
    ]


def test_on_two_streams_the_release_waits_for_users_on_both() -> None:
    builder = GraphBuilder("two")
    builder.tensor("x", 10, "parameter")
    builder.op("a", "m", inputs=["x"], duration_ns=50)
    builder.op("b", "m", inputs=["x"], stream="side", duration_ns=5)
    builder.op("c", "m", stream="side", duration_ns=5)  # a need not have ended by then
    builder.op("d", "m", stream="side", deps=["a"], duration_ns=5)
    builder.op("e", "m", inputs=["x"], deps=["d"], duration_ns=5)
    assert moves(builder.build(), Absence(0, 1, 4, 1, 1, 3, "ddr")) == [
        ("store", 1),
        ("detach", 3),
        ("prefetch", 3),
    ]


def test_what_another_stream_awaits_and_writes_goes_back() -> None:
    builder = GraphBuilder("two")
    builder.tensor("x", 10, "parameter", "ddr")
    builder.op("a", "m", duration_ns=5)
    builder.op(
        "b", "m", mutates=["x"], stream="side", duration_ns=5
    )  # awaits the prefetch at a's end, so the store may follow b
    graph = builder.build()
    assert moves(graph, Absence(0, AT_START, 1, 0, 0, 0, "ddr")) == [("prefetch", 0), ("store", 1)]
    assert (
        verify(
            insert(graph, MACHINE, "test", [Absence(0, AT_START, 1, 0, 0, 0, "ddr")]), MACHINE, 1000
        )
        == ()
    )


def test_a_result_that_starts_below_and_is_written_goes_back() -> None:
    # read before the step makes it, so it is there at time 0; it survives the step without being
    # persistent
    assert moves(line("m", "r", kind="output", home="ddr")) == [("prefetch", -1), ("store", 0)]
    # at home in the device tier it is there again at the end
    assert moves(line("m", "-", kind="output", home="hbm"), Absence(0, 0, 2, 0, 0, 1, "ddr")) == [
        ("store", 0),
        ("detach", 0),
        ("prefetch", 1),
    ]


def early_store() -> Graph:
    """Op b is a place for an early store of x; nothing says that b has ended when c has, but d says
    so.
    """
    builder = GraphBuilder("early")
    builder.tensor("x", 10)
    builder.op("a", "m", outputs=["x"], duration_ns=5)
    builder.op("b", "m", stream="side", deps=["a"], duration_ns=50)
    builder.op("c", "m", inputs=["x"], duration_ns=5)
    builder.op("d", "m", deps=["b"], duration_ns=5)
    builder.op("e", "m", duration_ns=5)
    builder.op("f", "m", inputs=["x"], duration_ns=5)
    return builder.build()


def test_a_detach_waits_for_a_store_that_may_end_after_it() -> None:
    assert moves(early_store(), Absence(0, 2, 5, 1, 2, 4, "ddr")) == [
        ("store", 1),
        ("detach", 3),
        ("prefetch", 4),
    ]


def again() -> Graph:
    """x is used by b, which awaits a prefetch at a's end; nothing else joins the two."""
    builder = GraphBuilder("again")
    builder.tensor("x", 10, "parameter")
    builder.op("a", "m", duration_ns=5)
    builder.op("b", "m", inputs=["x"], stream="side", duration_ns=5)
    builder.op("c", "m", stream="side", duration_ns=5)
    return builder.build()


def test_a_tensor_leaves_again_where_its_prefetch_has_surely_been_issued() -> None:
    first, then = Absence(0, AT_START, 1, -1, -1, 0, "ddr"), Absence(0, 1, 3, 1, 1, 2, "ddr")
    assert moves(again(), first, then) == [("store", -1), ("detach", -1), ("prefetch", 0)]


def test_an_absence_without_a_safe_place_is_left_out() -> None:
    builder = GraphBuilder("race")
    builder.tensor("x", 10, "parameter")
    builder.op("a", "m", inputs=["x"], duration_ns=50)
    builder.op("b", "m", stream="side", duration_ns=5)
    builder.op(
        "c", "m", inputs=["x"], stream="side", duration_ns=5
    )  # may run before, while or after a does
    builder.op("d", "m", stream="side", duration_ns=5)
    builder.op("e", "m", inputs=["x"], stream="side", duration_ns=5)
    assert moves(builder.build(), Absence(0, 2, 4, 2, 2, 3, "ddr")) == []


@given(graphs(max_ops=10, max_streams=3))
def test_order_is_the_closure_of_producers_and_streams(graph) -> None:
    order, before, count = HappensBefore(graph), happens_before(graph), len(graph.ops)

    def ended(earlier: int, op: int) -> bool:
        return earlier == op or bool(before[op] >> earlier & 1)

    for i in range(count):
        for j in range(count):
            assert order.ended_by(i, j) == ended(i, j)
            wanted = min(2, count - 1)
            first = next((k for k in range(wanted, count) if ended(i, k) and ended(j, k)), None)
            assert order.first_after([i, j], wanted) == first
            assert order.last_before(i, j) == max([i, *(k for k in range(j + 1) if ended(i, k))])
    assert order.first_after([AT_START], 1) == 1


@st.composite
def wishes(draw):
    """A graph, a machine, absences at any places, and tensors that start below."""
    machine = draw(hardware())
    graph = draw(graphs(max_ops=10, max_streams=3, homes=[tier.name for tier in machine.tiers]))
    machine = sized(machine, graph)
    tiers, end = [tier.name for tier in machine.tiers[1:]], len(graph.ops)
    initial = {
        t: (draw(st.sampled_from(tiers)),) for t in graph.initial if draw(st.integers(0, 3)) == 0
    }
    absences = []
    for t, users in enumerate(graph.users):
        places = [
            *([AT_START] if t in graph.initial else []),
            *users,
            *([end] if graph.survives[t] else []),
        ]
        for a, b in pairwise(places):
            if b - a > 1 and draw(st.booleans()):
                release = draw(st.integers(a, b - 1))
                absences.append(
                    Absence(
                        t,
                        a,
                        b,
                        draw(st.integers(a, release)),
                        release,
                        draw(st.integers(a, b - 1)),
                        draw(st.sampled_from(tiers)),
                    )
                )
    return graph, machine, absences, initial


@given(wishes())
def test_every_wish_becomes_a_legal_plan(case) -> None:
    graph, machine, absences, initial = case
    plan = insert(graph, machine, "test", absences, initial)
    assert verify(plan, machine) == ()
    assert engine.replay(plan, machine).feasible  # there is room for everything everywhere
    if len(graph.streams) == 1:  # nothing is left out, but what comes by itself
        away = {
            (a.tensor, a.before)
            for a in absences
            if a.before < len(graph.ops) and a.tensor in graph.ops[a.before].reads
        }
        came = {
            c.tensor
            for c in plan.cache_ops
            if c.op == PREFETCH and c.destination == machine.device_tier
        }
        assert {t for t, _ in away} <= came

"""The random search of the benchmarks: it finds what is known by hand, the same each time, and only
plans without findings.
"""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import plan_states
import pytest
import random_moves
import random_search
import searching
from hypothesis import given
from hypothesis import strategies as st
from plan_states import plan_of, state_of, stays
from random_moves import KINDS, WIDTHS, Moves
from random_search import search
from searching import CASES, Row, Searched
from strategies import cases

from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier

MACHINE = Hardware(
    "two tiers",
    (Tier("hbm", 100, 10**12, "device"), Tier("ddr", 10**6, 10**11)),
    (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
    Compute({}),
)
"""1 byte a nanosecond each way."""


def layers(count: int) -> Graph:
    """Ops of 40 ns, each with a weight of 40 bytes that lies below."""
    b = GraphBuilder("layers")
    for i in range(count):
        b.tensor(f"w{i}", 40, "parameter", home="ddr")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=40)
    return b.build()


def late(count: int) -> Plan:
    """Each weight is fetched when the op before its own has ended, and goes when its own has."""
    cache_ops = [
        x
        for i in range(count)
        for x in (
            CacheOp(PREFETCH, i, "ddr", "hbm", AT_START if i == 0 else i - 1),
            CacheOp(DETACH, i, "hbm", None, after=i),
        )
    ]
    return Plan(layers(count), cache_ops=tuple(cache_ops))


def test_fetches_that_come_late_are_found_to_come_earlier() -> None:
    """Late: 40 ns to fetch and 40 ns to run, six times. In time: 40 ns for the first, and the
    others arrive while one runs.
    """
    found = search(late(6), MACHINE, 100, replays=400)
    assert (found.begin_ns, found.makespan_ns) == (480, 280)
    assert found.gain == 1 - 280 / 480
    assert verify(found.plan, MACHINE, 100) == ()
    assert replay(found.plan, MACHINE, 100).makespan_ns == 280
    assert 400 <= found.replays <= 401
    assert found.verified < found.replays


def test_tensors_that_need_not_go_are_found_to_stay() -> None:
    """Within 240 bytes all weights may begin the step above, where nothing moves: six times 40
    ns.
    """
    b = GraphBuilder("layers")
    for i in range(6):
        b.tensor(f"w{i}", 40, "parameter")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=40)
    plan = Plan(b.build(), cache_ops=late(6).cache_ops, initial=dict.fromkeys(range(6), ("ddr",)))
    machine = Hardware(
        "larger",
        (Tier("hbm", 240, 10**12, "device"), MACHINE.tiers[1]),
        MACHINE.channels,
        Compute({}),
    )
    assert search(plan, machine, 240, replays=800).makespan_ns == 240


def test_a_tensor_that_fills_the_memory_in_between_is_found_to_go() -> None:
    """``b`` has no room beside ``a``, whose store is issued at 120 ns and takes 50; issued at 20 ns
    it is over by then.

    That leaves 20 + 100 + 20 + 100 ns, the fetch of 50 ns, for which ``a`` has room when ``b`` is
    gone, and 20 ns.
    """
    b = GraphBuilder("gap")
    b.tensor("a", 50)
    b.tensor("c", 10)
    b.tensor("b", 60)
    b.op("make", "matmul", outputs=["a"], duration_ns=20)
    b.op("wait", "matmul", outputs=["c"], duration_ns=100)
    b.op("large", "matmul", inputs=["c"], outputs=["b"], duration_ns=20)
    b.op("after", "matmul", inputs=["b"], duration_ns=100)
    b.op("use", "matmul", inputs=["a"], duration_ns=20)
    stay = (
        CacheOp(STORE, 0, "hbm", "ddr", 1),
        CacheOp(DETACH, 0, "hbm", None, 1),
        CacheOp(PREFETCH, 0, "ddr", "hbm", 3),
    )
    found = search(Plan(b.build(), cache_ops=stay), MACHINE, 100, replays=200)
    assert (found.begin_ns, found.makespan_ns) == (360, 310)


def test_the_same_seed_finds_the_same() -> None:
    one, same, other = (search(late(8), MACHINE, 100, seed=seed, replays=60) for seed in (1, 1, 2))
    assert (one.plan, one.makespan_ns, one.replays, one.verified) == (
        same.plan,
        same.makespan_ns,
        same.replays,
        same.verified,
    )
    assert one.plan != other.plan


def test_it_ends_when_enough_is_saved_or_seconds_are_spent() -> None:
    told: list[str] = []
    found = search(late(6), MACHINE, 100, replays=10_000, enough=0.01, tell=told.append)
    assert found.gain >= 0.01
    assert found.replays < 1000
    assert told[0].startswith("  0% ")
    assert search(late(6), MACHINE, 100, replays=10_000, seconds=0).replays == 1


def test_a_plan_that_does_not_fit_is_no_beginning() -> None:
    with pytest.raises(ValueError, match="expected a plan that fits"):
        search(late(6), MACHINE, 39)


@given(cases(), st.integers(0, 2**32))
def test_a_state_is_a_plan_and_changes_of_all_kinds_are_states(drawn: tuple, seed: int) -> None:
    """Whether they are legal is for the verifier; here they are well-formed, and keep each tensor's
    order.
    """
    graph, hardware, plan = drawn[0], drawn[1], drawn[2]
    state = state_of(plan)
    again = plan_of(state, plan)
    order = sorted(plan.cache_ops, key=lambda x: x.after)
    assert list(again.cache_ops) == order
    moves = Moves(graph, hardware, Random(seed))
    for _ in range(20):
        move = moves.draw_move(state)
        if move is not None:
            state = state.changed(*move)
            made = plan_of(state, plan)
            assert {f.rule for f in verify(made, hardware)} & {"malformed"} == set()
            for t, listed in state.entries.items():
                assert [x.after for x in listed] == sorted(x.after for x in listed)
                own = [
                    (x.op, x.source, x.destination, x.after)
                    for x in made.cache_ops
                    if x.tensor == t
                ]
                assert own == [(x.op, x.source, x.destination, x.after) for x in listed]


def test_stays_below() -> None:
    """A tensor that begins below and goes again; one that goes in between; one that goes for
    good.
    """
    listed = state_of(late(2)).entries
    assert [list(stays(listed[t])) for t in (0, 1)] == [[(None, 0), (1, None)]] * 2
    inner = (
        CacheOp(STORE, 0, "hbm", "ddr", 0),
        CacheOp(DETACH, 0, "hbm", None, 0),
        CacheOp(PREFETCH, 0, "ddr", "hbm", 1),
    )
    entries = state_of(Plan(layers(2), cache_ops=inner)).entries[0]
    assert list(stays(entries)) == [(1, 2)]


def test_kinds_that_paid_come_more_often() -> None:
    moves = Moves(layers(4), MACHINE, Random(0))
    moves.arm = "take", "all"
    for _ in range(3):
        moves.learn(0.01)
    drawn = []
    for _ in range(200):
        moves.draw_move(state_of(late(4)))
        drawn.append(moves.arm)
    assert drawn.count(("take", "all")) > 100 > 200 * KINDS["take"] * WIDTHS["all"] * 4


# ---- apart from the planner, and its rows


def test_it_shares_nothing_with_the_planner() -> None:
    trees = [
        ast.parse(Path(str(module.__file__)).read_text())
        for module in (random_search, random_moves, plan_states)
    ]
    imported = {
        node.module or ""
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert {name for name in imported if name.startswith("hosim")} == {
        *(
            "hosim.analysis.verifying",
            "hosim.cache_plan",
            "hosim.engine",
            "hosim.errors",
            "hosim.graph",
            "hosim.hardware",
            "hosim.result",
        )
    }


def test_twelve_workloads_are_made() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 12
    assert all(case.hardware().name == case.machine for case in CASES)
    assert [
        len(case.graph().ops)
        for case in CASES
        if case.name in ("gpt2-xl-6-train", "mixtral-decode")
    ] == [310, 256]


def test_rows_are_kept_and_not_searched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Toy(Searched):
        def graph(self) -> Graph:
            return layers(6)

        def hardware(self) -> Hardware:
            return MACHINE

    monkeypatch.setattr(
        searching, "CASES", (Toy("first", "", "", "100 B"), Toy("second", "", "", "100 B"))
    )
    rows = tmp_path / "build" / "rows.csv"
    asked = ["--rows", str(rows), "--replays", "3", "--only"]
    assert searching.main([*asked, "first"]) == 0
    head, line = rows.read_text().splitlines()
    assert head == "name,plan_ms,found_ms,saved,replays,verified,seconds"
    assert line.startswith("first,0.00028,0.00028,0.0,")  # hyperoffload's plan is the best one
    rows.write_text(f"{head}\nfirst,2.0,1.5,0.25,600,300,30.0\n")
    capsys.readouterr()
    assert searching.main([*asked, ""]) == 0
    out, err = capsys.readouterr()
    assert (
        out.splitlines()[0]
        == "first                   2.000 ms      1.500 ms  25.00%    1200 replays and   600 "
        "verified a minute"
    )
    assert [line.split(":")[0] for line in err.splitlines()] == ["second"] * len(err.splitlines())
    assert list(searching.read_rows(rows)) == ["first", "second"]
    assert searching.read_rows(rows)["first"] == Row("first", 2.0, 1.5, 0.25, 600, 300, 30.0)

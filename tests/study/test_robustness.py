"""Robustness: plans made on nominal figures, replayed under jitter."""

from contextlib import contextmanager
from dataclasses import replace

import pandas as pd
import pytest
from asked import questions
from hypothesis import assume, given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from strategies import cases

import hosim
from hosim import engine
from hosim.cache_plan import CacheOp, Plan
from hosim.errors import InputError, PlanError
from hosim.graph import GraphBuilder
from hosim.io import load_hardware
from hosim.jitter import Jitter
from hosim.shipped import find_hardware
from hosim.study import compare, percentiles, robustness
from hosim.study.asked import as_choice, parse_choices

TOY = load_hardware(find_hardware("toy"))
DURATIONS = (1000, 2000, 500, 4000)


def graph():
    b = GraphBuilder("four")
    for i, duration in enumerate(DURATIONS):
        b.tensor(f"w{i}", 30, "parameter", "hbm")
        b.op(f"f{i}", "any", inputs=[f"w{i}"], duration_ns=duration)
    return b.build()


def test_everything_resident_takes_the_sum_of_the_drawn_durations():
    jitter = Jitter(3, op_sigma=0.2)
    frame = robustness(
        questions(
            graph(),
            load_hardware(find_hardware("h100-80gb-sxm")),
            parse_choices("resident"),
            10**9,
            jitter=jitter,
        ),
        5,
    )
    assert list(frame["run"]) == [0, 1, 2, 3, 4, 5]
    for run in range(6):
        drawn = Jitter(3 * 2**32 + run, op_sigma=0.2)
        wanted = (
            sum(DURATIONS)
            if run == 0
            else sum(round(d * drawn.op_factor(0, i)) for i, d in enumerate(DURATIONS))
        )
        assert frame["makespan_ns"][run] == wanted
    assert set(frame["stall_ns"]) == {0}
    assert set(frame["peak_bytes"]) == {120}


def test_run_0_is_the_comparison_and_two_reports_are_one():
    choices = parse_choices("on_demand,lookahead,hyperoffload,resident")
    frame = robustness(questions(graph(), TOY, choices, 90, jitter=Jitter(1, 0.1, 0.3)), 4)
    nominal = frame[frame["run"] == 0]
    for result, (_, row) in zip(
        compare(questions(graph(), TOY, choices, 90)), nominal.iterrows(), strict=True
    ):
        assert row["policy"] == result.policy
        assert row["feasible"] == result.feasible
        if result.feasible:
            assert (row["makespan_ns"], row["peak_bytes"]) == (
                result.makespan_ns,
                result.peak_bytes["hbm"],
            )
            assert row["stall_ns"] == sum(result.stall_ns.values())
            assert row["slowdown"] == result.slowdown
    again = robustness(questions(graph(), TOY, choices, 90, jitter=Jitter(1, 0.1, 0.3)), 4)
    assert_frame_equal(frame, again)
    other = robustness(questions(graph(), TOY, choices, 90, jitter=Jitter(2, 0.1, 0.3)), 4)
    assert not frame["makespan_ns"].equals(other["makespan_ns"])
    assert frame["makespan_ns"].dropna().nunique() > 10


def test_what_does_not_fit_is_counted():
    frame = robustness(
        questions(graph(), TOY, parse_choices("resident,on_demand"), 90, jitter=Jitter(1, 0.1)), 4
    )
    resident = frame[frame["policy"] == "resident"]
    assert len(resident) == 5
    assert not resident["feasible"].any()
    assert resident["makespan_ns"].isna().all()
    assert resident["error"].str.startswith("out of memory").all()
    table = percentiles(frame).set_index(["policy", "figure"])
    assert table.loc[("resident", "makespan_ns"), "infeasible"] == 4
    assert pd.isna(table.loc[("resident", "makespan_ns"), "p50"])
    assert table.loc[("on_demand", "makespan_ns"), "infeasible"] == 0


def test_percentiles_by_hand():
    figures = ("makespan_ns", "stall_ns", "peak_bytes")

    # 20 runs: 17 take 1..17, 3 do not fit. P50 is the 10th value, 10; P95 the 19th, which does not
    # fit. Without those three, P50 of 17 is the 9th (8.5 rounded up), and P95 the 17th (16.15
    # rounded up).
    def runs(values):
        rows = [("p", 0, True, 5, 0, 7, None)] + [
            ("p", k, v is not None, v, v, v, None) for k, v in enumerate(values, 1)
        ]
        return pd.DataFrame(rows, columns=["policy", "run", "feasible", *figures, "error"]).astype(
            dict.fromkeys(figures, "Int64")
        )

    shuffled = [*range(17, 8, -1), *range(1, 9)]
    row = percentiles(runs([*shuffled, None, None, None])).iloc[0]
    assert (row["policy"], row["figure"], row["runs"], row["infeasible"]) == (
        "p",
        "makespan_ns",
        20,
        3,
    )
    assert (row["nominal"], row["p50"]) == (5, 10)
    assert pd.isna(row["p95"])
    assert list(percentiles(runs(shuffled)).iloc[0][["infeasible", "p50", "p95"]]) == [0, 9, 17]
    assert list(percentiles(runs([4])).iloc[2][["figure", "nominal", "p50", "p95"]]) == [
        "peak_bytes",
        7,
        4,
        4,
    ]


def test_several_devices_wait_for_their_slowest():
    choices = parse_choices("on_demand")
    one = robustness(questions(graph(), TOY, choices, 90, jitter=Jitter(1, 0.3)), 8)
    many = robustness(
        questions(graph(), replace(TOY, devices=4), choices, 90, jitter=Jitter(1, 0.3)), 8
    )
    assert (many["makespan_ns"] >= one["makespan_ns"]).all()
    assert (many["makespan_ns"][1:] > one["makespan_ns"][1:]).any()


@pytest.mark.parametrize(
    ("jitter", "runs", "message"),
    [
        (Jitter(1, 0.1), 0, "runs: expected at least 1 run, got 0"),
        (
            Jitter(1),
            3,
            "jitter: without jitter all runs are the same: give --op-sigma, --transfer-sigma or "
            "--order",
        ),
    ],
)
def test_nothing_to_draw(jitter, runs, message):
    with pytest.raises(InputError) as caught:
        robustness(questions(graph(), TOY, parse_choices("on_demand"), 90, jitter=jitter), runs)
    assert str(caught.value) == message


def test_a_run_that_breaks_a_rule_does_not_fit(monkeypatch):
    """Under jitter a stream may overtake another; without jitter it is an error of the policy."""
    replayed = engine.replay
    broken = {7 * 2**32 + 2}

    def replay(plan, hardware, budget=None, *, jitter=None):
        if (jitter.seed if jitter is not None else None) in broken:
            raise PlanError("op f1 reads what is not there")
        return replayed(plan, hardware, budget, jitter=jitter)

    monkeypatch.setattr(engine, "replay", replay)
    said = []
    frame = robustness(
        questions(graph(), TOY, parse_choices("on_demand"), 90, jitter=Jitter(7, 0.1)),
        3,
        said.append,
    )
    assert said == ["on_demand: planning", *(f"on_demand: run {k} of 3" for k in range(4))]
    assert list(frame["run"]) == [0, 1, 2, 3]
    assert list(frame["feasible"]) == [True, True, False, True]
    assert list(frame["error"].dropna().items()) == [(2, "op f1 reads what is not there")]
    assert (
        list(frame["makespan_ns"].isna())
        == list(frame["peak_bytes"].isna())
        == list(frame["stall_ns"].isna())
        == [False, False, True, False]
    )
    table = percentiles(frame)
    assert list(table["infeasible"]) == [1, 1, 1]
    assert list(table["runs"]) == [3, 3, 3]
    broken.add(None)
    with pytest.raises(PlanError, match="reads what is not there"):
        robustness(
            questions(graph(), TOY, parse_choices("on_demand"), 90, jitter=Jitter(7, 0.1)), 3
        )


def test_a_policy_without_a_plan_has_a_row_for_each_run():
    frame = robustness(
        questions(graph(), TOY, parse_choices("belady"), 20, jitter=Jitter(7, 0.1)), 2
    )
    assert list(frame["run"]) == [0, 1, 2]
    assert not frame["feasible"].any()
    assert set(frame["error"]) == {
        "out of memory: op 'f0' needs 30 B of hbm for what it uses and its workspace; the budget "
        "is 20 B: give it at least that"
    }
    assert list(percentiles(frame).columns) == [
        "policy",
        "figure",
        "runs",
        "infeasible",
        "nominal",
        "p50",
        "p95",
    ]
    assert percentiles(frame).isna().sum().sum() == 9


@contextmanager
def replayed_plans():
    """The plans that are replayed, in order."""
    plans, replayed = [], engine.replay
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            engine,
            "replay",
            lambda plan, *given, **named: plans.append(plan) or replayed(plan, *given, **named),
        )
        yield plans


@given(cases(max_ops=8, max_streams=3), st.integers(0, 2**20))
def test_a_drawn_order_keeps_what_the_plan_is_for(case, seed):
    """Each op follows its producers, and the same seed draws the same order; each cache op comes
    after the op that it came after.
    """
    graph, machine, plan = case

    def policy(graph, hardware, budget_bytes):
        return plan

    drawn = []
    for _ in range(2):
        with replayed_plans() as plans:
            robustness(
                questions(
                    graph,
                    machine,
                    [as_choice(policy)],
                    machine.device.capacity_bytes,
                    jitter=Jitter(seed),
                ),
                2,
                order=True,
            )
        drawn.append(plans)
    assume(drawn[0])  # the plan is legal
    assert drawn[0] == drawn[1]
    nominal, *others = drawn[0]
    names = [
        (move.op, move.tensor, "" if move.after < 0 else graph.ops[move.after].name)
        for move in plan.cache_ops
    ]
    for one in others:
        order = [graph.op_index[op.name] for op in one.graph.ops]
        place = {i: k for k, i in enumerate(order)}
        assert sorted(place) == list(range(len(graph.ops)))
        assert all(
            place[p] < place[i] for i, producers in enumerate(graph.producers) for p in producers
        )
        assert names == [
            (move.op, move.tensor, "" if move.after < 0 else one.graph.ops[move.after].name)
            for move in one.cache_ops
        ]
        assert order != list(range(len(graph.ops))) or one.cache_ops == nominal.cache_ops


def free():
    """``w`` (60 B) is fetched after e, for f, and dropped after f; g makes 40 B that h reads. Only
    f follows e, and only h follows g.
    """
    b = GraphBuilder("free")
    b.tensor("w", 60, "parameter", home="ddr")
    b.tensor("a", 1)
    b.tensor("x", 40)
    b.op("e", "any", outputs=["a"], duration_ns=10)
    b.op("f", "any", inputs=["a", "w"], duration_ns=10)
    b.op("g", "any", outputs=["x"], duration_ns=10)
    b.op("h", "any", inputs=["x"], duration_ns=10)
    return b.build()


def test_a_plan_in_other_orders_by_hand():
    """a, w and x do not fit at a time. While x is there w waits: for ever if h, which x is for,
    comes after f, which w is for.
    """

    def holds(order):
        return not order.index("g") < order.index("f") < order.index("h")

    def policy(graph, hardware, budget_bytes):
        return Plan(
            graph,
            "by hand",
            (CacheOp("prefetch", 0, "ddr", "hbm", 0), CacheOp("detach", 0, "hbm", None, 1)),
        )

    with replayed_plans() as plans:
        frame = hosim.robustness(
            free(), TOY, [policy], 100, runs=12, op_sigma=0, transfer_sigma=0, seed=5, order=True
        )
    names = [[op.name for op in plan.graph.ops] for plan in plans[1:]]
    assert len({tuple(order) for order in names}) > 3
    assert [*frame["feasible"][1:]] == [holds(order) for order in names]
    assert 0 < sum(frame["feasible"][1:]) < 12
    assert frame["feasible"][0]
    assert set(frame["makespan_ns"].dropna()) == {
        100
    }  # 40 ns of ops and 60 of copy, wherever the two stand


def test_a_plan_that_breaks_a_rule_in_another_order():
    """w is away from g to h, which follows g: f must not come between them, where it would read
    what has gone.
    """
    b = GraphBuilder("three")
    b.tensor("w", 30, "parameter", "hbm")
    for name, deps in (("f", ()), ("g", ()), ("h", ["g"])):
        b.op(name, "any", inputs=["w"] if name != "h" else (), deps=deps, duration_ns=10)
    moves = (
        CacheOp("store", 0, "hbm", "ddr", 1),
        CacheOp("detach", 0, "hbm", None, 1),
        CacheOp("prefetch", 0, "ddr", "hbm", 2),
    )
    made, runs = b.build(), 12

    def policy(graph, hardware, budget_bytes):
        return Plan(graph, "by hand", moves)

    with replayed_plans() as plans:
        frame = hosim.robustness(
            made, TOY, [policy], 100, runs=runs, op_sigma=0, transfer_sigma=0, order=True
        )
    breaks = [*(~frame["feasible"][1:])]
    assert [[op.name for op in plan.graph.ops] for plan in plans[1:]].count(["g", "f", "h"]) == 0
    assert len(plans) == 1 + runs - sum(breaks)
    said = "in this order of its ops the plan breaks a rule: "
    assert frame["error"][1:].dropna().str.startswith(said).all()
    assert 0 < sum(breaks) < runs


def test_a_policy_that_decides_while_the_step_runs_decides_anew():
    frame = robustness(
        questions(graph(), TOY, parse_choices("on_demand"), 90, jitter=Jitter(1)), 6, order=True
    )
    assert frame["feasible"].all()
    with pytest.raises(InputError, match="--order"):
        robustness(questions(graph(), TOY, parse_choices("on_demand"), 90, jitter=Jitter(1)), 6)

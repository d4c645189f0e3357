"""Answers: the sentence, the rows and the curve, by hand."""

from __future__ import annotations

from dataclasses import replace

from rendered import facts, lines, table

from hosim.data.stages import StagesResult
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.report.answers import (
    Answer,
    answered,
    comparison_answer,
    comparison_title,
    diff_answer,
    frontier_answer,
    machines_answer,
    robustness_answer,
    stages_answer,
    sweep_answer,
    text_curve,
)
from hosim.result import ChannelFigures, Result

GIB, MS = 1 << 30, 10**6
Row = dict[str, object]
MACHINE = Hardware(
    "box",
    (Tier("hbm", 80 * GIB, 10**12, "device"), Tier("ddr", 512 * GIB, 10**11)),
    (Channel("h2d", "ddr", "hbm", 50 * 10**9),),
    Compute({}),
)


def result(policy: str, makespan_ms: int | None, stall_ms: int = 0, **more: object) -> Result:
    fields: dict[str, object] = {
        "workload": "w",
        "hardware": "box",
        "policy": policy,
        "budget_bytes": 12 * GIB,
        "feasible": makespan_ms is not None,
        "error": None if makespan_ms is not None else "out of memory",
        "makespan_ns": None if makespan_ms is None else makespan_ms * MS,
        "lower_bound_ns": 100 * MS,
        "busy_ns": 100 * MS,
        "stall_ns": {"transfer": stall_ms * MS},
        "drain_ns": 0,
        "peak_bytes": {"hbm": 11 * GIB},
        "peak_at_ns": {"hbm": 0},
        "peak_breakdown": {},
        "channels": {},
        "plan": {},
        "ideal_ns": 100 * MS,
    }
    return Result(**{**fields, **more})  # type: ignore[arg-type]


def test_the_fastest_comes_first_and_five_rows_are_shown() -> None:
    found = [result(f"p{k}", 200 + k, k) for k in range(6)] + [result("resident", None)]
    moved = {"h2d": ChannelFigures(4, 3 * GIB, 60 * MS, 0, 0, 15 * MS, 45 * MS, 0.4)}
    best = result("best", 150, 50, channels=moved)
    answer = comparison_answer(
        comparison_title("w", MACHINE, 12 * GIB, 16 * GIB),
        MACHINE,
        [*found, best],
        next_commands=[("hosim blame w", "why it waits")],
    )
    assert answer.figures[0] == ("time of a step", "150 ms")
    assert lines(answered(answer), 80) == table("""
        w on box within 12.0 GiB (16.0 GiB resident)
        Fits: 150 ms by best, 1.500x of resident 100 ms. 3.00 GiB move, 75 % of it
        overlapped.
         policy    time  vs resident    waits       hbm
         ──────────────────────────────────────────────
         best    150 ms       1.500x  50.0 ms  11.0 GiB
         p0      200 ms        2.00x        -  11.0 GiB
         p1      201 ms        2.01x  1.00 ms  11.0 GiB
         p2      202 ms        2.02x  2.00 ms  11.0 GiB
         p3      203 ms        2.03x  3.00 ms  11.0 GiB
        ... 2 more rows (--all); resident does not fit
        next: hosim blame w  (why it waits)
    """)
    every = lines(answered(answer, title=False, every=True), 80)
    assert "resident" in every[-2]
    assert sum(line.startswith(" p") for line in every) == 7


def test_a_tie_is_the_rule_s_and_has_no_rows() -> None:
    same = [result(name, 100) for name in ("hyperoffload", "static_split")]
    answer = comparison_answer("t", MACHINE, [*same, result("slow", 130)])
    assert facts(answer.verdict, "static_split").startswith("100 ms, static_split")
    tied = comparison_answer("t", MACHINE, same)
    assert (tied.rows, facts(tied.rest)) == ((), "2")
    rate = comparison_answer("t", MACHINE, same, tokens=26)  # in 100 ms
    assert facts(rate.rest, "static_split") == "2, static_split, 260"


def test_nothing_fits() -> None:
    answer = comparison_answer("t", MACHINE, [result("a", None), result("b", None)])
    assert not answer.good


def row(budget: int, makespan: int | None, **more: object) -> dict[str, object]:
    return {
        "budget": f"{budget}GiB",
        "policy": "p",
        "budget_bytes": budget * GIB,
        "feasible": makespan is not None,
        "makespan_ns": makespan and makespan * MS,
        "slowdown": makespan and makespan / 100,
        "hbm_peak_bytes": budget * GIB,
        "pareto": makespan is not None,
        "error": None if makespan else "out of memory",
        **more,
    }


def test_curves_have_a_bar_for_each_value() -> None:
    rows = [row(4, None), row(8, 200), row(12, 100)]
    swept = sweep_answer("s", rows, ["budget"], MACHINE)
    assert facts(swept.verdict) == "100 ms, 12GiB, 200 ms"
    assert list(swept.curve) == [
        swept.curve[0],
        f"8GiB   {'#' * 32}  200 ms, 2.00x",
        f"12GiB  {'#' * 16}  100 ms, 1.000x",
    ]
    assert facts(swept.rest) == "1, 3"
    priced = frontier_answer("f", [row(8, 200, cost=0.25), row(12, 100, cost=0.5)], MACHINE, "v.")
    assert [line.rpartition(", ")[2] for line in priced.curve] == ["0.25 per step", "0.5 per step"]
    none = sweep_answer("s", rows[:1], ["budget"], MACHINE)
    assert not none.good


def test_several_fields_are_rows_by_time() -> None:
    rows = [row(8, 200, k=1), row(8, 150, k=2), row(12, 100, k=1)]
    answer = sweep_answer("s", rows, ["budget", "k"], MACHINE)
    assert [cells[:3] for cells in answer.rows] == [
        ("12GiB", "1", "100 ms"),
        ("8GiB", "2", "150 ms"),
        ("8GiB", "1", "200 ms"),
    ]


def test_lines_of_a_curve_are_few_and_short() -> None:
    points = [(f"{k:,} values", float(k), "a text of some length " * 2) for k in range(1, 40)]
    drawn = text_curve(points)
    assert len(drawn) == 12
    assert (drawn[0].split()[0], drawn[-1].split()[0]) == ("1", "39")
    assert max(map(len, drawn)) <= 80
    assert lines(answered(Answer("t", "v.", curve=tuple(drawn))), 80)[2:] == [
        line.rstrip() for line in drawn
    ]


def varied(policy: str, nominal_ms: int | None, late_ms: int | None, misfits: int) -> Row:
    times = {"nominal": nominal_ms and nominal_ms * MS, "p95": late_ms and late_ms * MS}
    failed = {"runs": 100, "infeasible": misfits, "error": "out of memory"}
    return {"policy": policy, "makespan_ns": times, **failed}


def test_the_least_time_of_nearly_all_runs_comes_first() -> None:
    rows = [
        varied("late", 100, 300, 0),
        varied("never", None, None, 90),
        varied("soon", 110, 150, 4),
    ]
    answer = robustness_answer("r", {"policies": rows})
    assert answer.good
    assert facts(answer.verdict, "soon") == "soon, 95 %, 150 ms"
    assert [line.split()[0] for line in answer.curve] == ["soon", "late", "never"]
    assert [facts(line) for line in answer.curve] == [
        "150 ms, 110 ms, 96, 100",
        "300 ms, 100 ms, 100, 100",
        "10, 100",
    ]
    none = robustness_answer("r", {"policies": rows[1:2]})
    assert not none.good
    assert "out of memory" in none.verdict


def test_a_step_of_stages_says_who_waits_for_how_long() -> None:
    stages = (result("p", 150, 20), replace(result("p", 200), peak_bytes={"hbm": 7 * GIB}))
    step = StagesResult(replace(stages[1], by_device=stages), (100 * MS, 0))
    answer = stages_answer("t", step, "hbm")
    assert facts(answer.verdict) == "200 ms, 25 %"  # 100 of 400 ms
    assert answer.rows == (
        ("0", "150 ms", "100 ms", "100 ms", "20.0 ms", "11.0 GiB"),
        ("1", "200 ms", "100 ms", "-", "-", "7.00 GiB"),
    )
    assert "bubble" in answer.rest
    late = replace(step, whole=result("p", None))
    assert (stages_answer("t", late, "hbm").good, stages_answer("t", late, "hbm").rows) == (
        False,
        (),
    )


def test_a_diff_counts_the_figures_that_it_does_not_show() -> None:
    figures = [{"figure": "makespan_ns", "a": k * MS, "b": None} for k in range(1, 4)]

    def rest(top: int, others: bool = False) -> str:
        return diff_answer("v", figures, ("one", "two"), others, top).rest

    assert (rest(3), facts(rest(2)), facts(rest(1))) == ("", "1", "2")
    assert "tensors" in rest(3, others=True)
    answer = diff_answer("v", figures, ("one", "two"), False, 2)
    assert answer.columns == ("figure", "one", "two")
    assert [cells[1:] for cells in answer.rows] == [("1.00 ms", "-"), ("2.00 ms", "-")]


def test_machines_are_by_time_with_their_memory() -> None:
    """A step of nothing has a peak of 0 B."""
    slow = {"workload": "w", "policy": "p", "hardware": "box", "makespan_ns": 4 * MS}
    slow |= {"slowdown": 1.5, "peak_bytes": None, "enough_bytes": None, "error": None}
    quick = {**slow, "hardware": "big", "makespan_ns": 2 * MS, "peak_bytes": 7 * GIB}
    none = {**slow, "hardware": "tiny", "makespan_ns": None}
    machines = dict.fromkeys(("box", "big", "tiny"), MACHINE)
    answer = machines_answer([slow, quick, none], machines, "v")
    assert facts(answer.title) == "3"
    assert answer.good
    assert list(answer.rows) == [
        ("big", "2.00 ms", "1.500x", "80.0 GiB", "7.00 GiB"),
        ("box", "4.00 ms", "1.500x", "80.0 GiB", "0 B"),
    ]
    assert not machines_answer([none], machines, "v").good

"""Verdicts by metric, tolerances, and what they make of a case."""

from dataclasses import replace
from pathlib import Path

import pytest
from gate_toys import machine, offloading, put, step, suite, verdict
from hypothesis import given
from hypothesis import strategies as st
from rendered import facts

from hosim.cache_plan import Plan
from hosim.errors import InputError
from hosim.gate import check, write
from hosim.gate.judged_metrics import (
    DRIFT,
    IMPROVEMENT,
    MISSING,
    NEW,
    REGRESSION,
    SAME,
    Tolerance,
    judge_metrics,
    parse_tolerances,
)
from hosim.gate.records import LINES, Measured
from hosim.gate.verdicts import INFEASIBLE, exit_code, judge
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware

VALUES = st.dictionaries(
    st.sampled_from(["peak.hbm", "peak.ddr", "makespan", "stall.transfer", "moved.h2d"]),
    st.integers(0, 2000),
)


def verdict_of(name: str, before: int | None, now: int | None, **given: str) -> str:
    def one(value: int | None) -> dict[str, int]:
        return {} if value is None else {name: value}

    (only,) = judge_metrics(
        one(before),
        one(now),
        parse_tolerances({key.replace("_", "."): text for key, text in given.items()}, "x"),
    )
    return only.verdict


def test_of_a_peak_nothing_is_tolerated_by_default() -> None:
    assert verdict_of("peak.hbm", 100, 101) == REGRESSION
    assert verdict_of("peak.hbm", 100, 99) == IMPROVEMENT
    assert verdict_of("peak.hbm", 100, 100) == SAME


def test_of_the_makespan_one_percent_is() -> None:
    assert [verdict_of("makespan", 1000, now) for now in (989, 990, 1010, 1011)] == [
        IMPROVEMENT,
        DRIFT,
        DRIFT,
        REGRESSION,
    ]


def test_stalls_and_traffic_fail_only_if_asked_to() -> None:
    assert verdict_of("stall.transfer", 0, 10**9) == DRIFT
    assert verdict_of("stall.transfer", 0, 10**9, stall="1 ms") == REGRESSION
    assert verdict_of("moved.h2d", 100, 5000) == DRIFT
    assert verdict_of("moved.h2d", 100, 5000, moved="0 B", moved_h2d="off") == DRIFT


def test_a_latency_that_only_one_side_has_is_new_or_missing() -> None:
    assert verdict_of("tpot.p95", None, 5) == NEW
    assert verdict_of("tpot.p95", 5, None) == MISSING
    assert verdict_of("tpot.p95", 5, None, tpot="off") == DRIFT


@pytest.mark.parametrize(
    "metric",
    [
        "peak.pool",
        "moved.h2d",
        "makespan",
        "stall.weights",
        "wait.decode_queue",
        "count.kv_transfers",
    ],
)
@given(value=st.integers(0, 10**9))
def test_bytes_times_and_counts_that_one_side_does_not_have_are_nothing(
    metric: str, value: int
) -> None:
    """However large the tolerance that is a share: of nothing it is nothing."""
    strict = {metric.partition(".")[0]: "50%"}
    for none in (None, 0):
        assert verdict_of(metric, none, value, **strict) == (REGRESSION if value else SAME)
        assert verdict_of(metric, value, none, **strict) == (IMPROVEMENT if value else SAME)
    assert verdict_of("found.ddr", value, None) == (REGRESSION if value else SAME)


def test_a_tolerance_is_absolute_or_a_share() -> None:
    assert [verdict_of("peak.hbm", 1000, now, peak="64 B") for now in (1064, 1065)] == [
        DRIFT,
        REGRESSION,
    ]
    assert [
        verdict_of("peak.hbm", 1000, now, peak="1 kB", peak_hbm="2.5%") for now in (1025, 1026)
    ] == [DRIFT, REGRESSION]
    assert parse_tolerances({"stall": {"transfer": "10 us"}}, "x") == {
        "stall.transfer": Tolerance(absolute=10_000)
    }


@pytest.mark.parametrize(
    "wrong",
    [{"peak": "64"}, {"peak": "3 ms"}, {"makespan": "3 MiB"}, {"speed": "1%"}, {"makespan": "-1%"}],
)
def test_a_tolerance_without_a_unit_or_a_metric_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"hosim\.toml: tolerance\."):
        parse_tolerances(wrong, "hosim.toml")


@given(VALUES, VALUES)
def test_the_two_directions_mirror_each_other(before: dict[str, int], now: dict[str, int]) -> None:
    mirror = {
        REGRESSION: IMPROVEMENT,
        IMPROVEMENT: REGRESSION,
        NEW: MISSING,
        MISSING: NEW,
        SAME: SAME,
        DRIFT: DRIFT,
    }
    absolute = parse_tolerances({"peak": "10 B", "makespan": "10 ns", "stall": "0 ns"}, "x")
    there, back = judge_metrics(before, now, absolute), judge_metrics(now, before, absolute)
    assert [mirror[m.verdict] for m in there] == [m.verdict for m in back]


def test_a_case_without_baseline_a_baseline_without_case_and_a_lost_fit_fail(
    tmp_path: Path,
) -> None:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    cases = suite(tmp_path, offloads=True)
    (missing,) = check(cases)
    assert (missing.verdict, missing.fails(), exit_code([missing])) == (MISSING, True, 1)
    write(cases)
    cases.baseline("step").rename(cases.baseline("other"))
    found = check(cases)
    assert [(v.case, v.verdict) for v in found] == [("step", MISSING), ("other", MISSING)]
    lost = judge("x", None, Measured(None, "out of memory"), {})
    assert (lost.verdict, exit_code([*found, lost])) == (INFEASIBLE, 3)


def test_an_improvement_fails_only_if_strict(tmp_path: Path) -> None:
    put(tmp_path, offloading(step(2)), machine(), offloads=True)
    write(suite(tmp_path, offloads=True))
    put(tmp_path, offloading(step()), machine(), offloads=True)
    found = verdict(tmp_path, offloads=True)
    assert found.verdict == IMPROVEMENT
    assert (exit_code([found]), exit_code([found], strict=True)) == (0, 1)


def test_the_explanation_says_what_stays_longer_where_and_how_much(tmp_path: Path) -> None:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    write(suite(tmp_path, offloads=True))
    put(tmp_path, offloading(step(), "layers.3.relu"), machine(), offloads=True)
    fetched = verdict(tmp_path, offloads=True).explanation
    assert "layers.0.act, layers.3.relu, 11, layers.0.back, 18, +30 B" in map(facts, fetched)
    resident = offloading(step())
    put(tmp_path, type(resident)(resident.graph), machine(), offloads=True)
    stays = verdict(tmp_path, offloads=True).explanation
    text = (
        "`layers.0.act` (activation) now stays resident between op `layers.1.matmul` (#3) and "
        "op `layers.0.back` (#18): +30 B at the peak"
    )
    assert text in stays


def held_to_the_end(sizes: dict[str, int]) -> Graph:
    """Tensors that are all held at the end."""
    b = GraphBuilder("held")
    for name, size in sizes.items():
        b.tensor(name, size)
        b.op(f"{name}.made", "fill", outputs=[name], duration_ns=5)
    b.op("end", "add", inputs=list(sizes), duration_ns=5)
    return b.build()


def explained(folder: Path, before: Graph, now: Graph) -> tuple[str, ...]:
    """The explanation of a change of the workload."""
    put(folder, Plan(before), roomy(machine()), offloads=False)
    write(suite(folder, offloads=False))
    put(folder, Plan(now), roomy(machine()), offloads=False)
    return verdict(folder, offloads=False).explanation


def roomy(hardware: Hardware) -> Hardware:
    return replace(
        hardware, tiers=tuple(replace(tier, capacity_bytes=100_000) for tier in hardware.tiers)
    )


def test_the_same_of_several_layers_is_one_line(tmp_path: Path) -> None:
    names = [f"layers.{i}.mlp.7.act" for i in range(12)]  # layer 7 is as the others are
    lines = explained(
        tmp_path,
        held_to_the_end(dict.fromkeys(names, 30)),
        held_to_the_end({**dict.fromkeys(names, 34), "x": 3}),
    )
    assert lines[:2] == (
        "12 x `layers.{0-11}.mlp.7.act` (activation) has 34 B, had 30 B, together 48 B",
        "`x` (activation) is new: 3 B",
    )
    assert [facts(line, "resident") for line in lines[4:6]] == [
        "12, layers.{0-11}.mlp.7.act, 34 B, 30 B, +4 B, 48 B",
        "x, resident, x.made, 12, end, 13, +3 B",
    ]


def test_a_line_of_several_layers_is_where_its_first_op_is(tmp_path: Path) -> None:
    """The tensor between two layers, which grows by more, comes after their line."""
    lines = explained(
        tmp_path,
        held_to_the_end({"layers.0.act": 30, "x": 5, "layers.1.act": 30}),
        held_to_the_end({"layers.0.act": 34, "x": 12, "layers.1.act": 34}),
    )
    assert [facts(line) for line in lines[:2]] == [
        "2, layers.{0-1}.act, 34 B, 30 B, 8 B",
        "x, 12 B, 5 B",
    ]


def test_what_the_baseline_left_out_is_not_taken_for_new(tmp_path: Path) -> None:
    sizes = {f"{chr(97 + i // 9)}{chr(97 + i % 9)}": 10 + i for i in range(LINES + 20)}
    lines = explained(tmp_path, held_to_the_end(sizes), held_to_the_end(sizes | {"ih": 200}))
    assert [line.partition(": +")[0] for line in lines] == [
        "`ih` (activation) has 200 B, had 89 B",
        "peak.hbm: 3.98 KiB, was 3.87 KiB (+111 B, +2.8 %) at op `ih.made` (#79)",
        "`ih` (activation) has 200 B, had 89 B",
    ]


def test_numbers_with_zeros_before_them_are_not_taken_for_others(tmp_path: Path) -> None:
    sizes = dict.fromkeys(["a.007", "a.07", "a.7"], 30)
    lines = explained(tmp_path, held_to_the_end(sizes), held_to_the_end(dict.fromkeys(sizes, 40)))
    assert [line.partition(":")[0] for line in lines[4:7]] == [
        f"`{name}` (activation) has 40 B, had 30 B" for name in sizes
    ]


def test_a_changed_question_is_named_whatever_the_verdict(tmp_path: Path) -> None:
    def judged(faster: float, budget: str) -> tuple[str, tuple[str, ...]]:
        put(tmp_path, Plan(step()), machine(h2d=faster), offloads=False)
        (one,) = suite(tmp_path, offloads=False).cases
        asked = replace(suite(tmp_path, offloads=False), cases=(replace(one, budget=budget),))
        if not (tmp_path / "hosim-baselines").exists():
            write(asked)
        (found,) = check(asked)
        return found.verdict, found.explanation

    assert judged(1, "1.5 kB") == (SAME, ())
    assert judged(1, "1500 B") == (SAME, ("case: budget is 1500 B, was 1.5 kB",))
    verdict, lines = judged(2, "1.5 kB")
    assert verdict == SAME
    assert lines == ("machine: channels.h2d.bandwidth is 2 GB/s, was 1 GB/s",)

"""Verdicts on time where it is uncertain: a regression is named only where draws agree."""

from dataclasses import replace
from pathlib import Path

import pytest
from gate_toys import machine, offloading, put, step, suite
from rendered import facts

from hosim.data.draws import FEW_DRAWS, Draws, LaterDraws
from hosim.gate import Case, measure
from hosim.gate.judged_metrics import DRIFT, IMPROVEMENT, REGRESSION, SAME
from hosim.gate.records import Measured, Record, read_record, record_text, save_record
from hosim.gate.verdicts import judge


@pytest.fixture
def record(tmp_path: Path) -> Record:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    made = measure(suite(tmp_path, offloads=True).cases[0]).record
    assert made is not None
    return made


def drawn_verdict(record: Record, now_ns: int, before: list, now: list, plan: str = "2c"):
    """That of a case whose makespan was 1000 ns, with these draws of both sides."""
    sides = [
        replace(
            record,
            metrics={"makespan": whole},
            fingerprints={"graph": "0a", "plan": of},
            draws=LaterDraws.of(Draws(tuple(draws))) if draws else None,
        )
        for whole, of, draws in ((1000, "1b", before), (now_ns, plan, now))
    ]
    return judge("x", Measured(sides[0]), Measured(sides[1]), {})


def test_a_time_is_a_regression_only_where_draws_agree(record: Record) -> None:
    """Both sides meet the same draws: 2 % more in all of them is one, and in 12 of 20 is none."""
    base = [900, 1000, 1100, 1200] * 5
    longer = [ns * 102 // 100 for ns in base]
    assert drawn_verdict(record, 1020, base, longer).verdict == REGRESSION
    some = [
        new if k % 5 < 3 else old - 5 for k, (old, new) in enumerate(zip(base, longer, strict=True))
    ]
    found = drawn_verdict(record, 1020, base, some)
    assert (found.verdict, found.fails()) == (DRIFT, False)
    assert facts(found.note) == "1.02 us, 1.00 us, +20 ns, +2.0 %, 60 %"
    shorter = drawn_verdict(record, 980, base, some)
    assert (shorter.verdict, "shorter in 40 % of draws" in shorter.note) == (DRIFT, True)
    assert drawn_verdict(record, 980, longer, base).verdict == IMPROVEMENT
    assert drawn_verdict(record, 1020, [], some).verdict == REGRESSION  # nothing is known of one
    assert drawn_verdict(record, 1020, base, []).verdict == REGRESSION


def test_a_plan_that_fits_in_fewer_draws_is_noted(record: Record) -> None:
    base, tight = [1000] * 20, [None] * 9 + [1000] * 11
    found = drawn_verdict(record, 1000, base, tight)
    assert (found.verdict, facts(found.note)) == (SAME, "45 %")
    assert not drawn_verdict(record, 1000, base, tight, plan="1b").note  # the same plan
    assert not drawn_verdict(record, 1000, tight, base).note


def test_a_ceiling_that_rises_is_noted(record: Record, tmp_path: Path) -> None:
    """Of 20 draws the upper end lies between the second largest peak and the largest."""

    def side(plan: str, peak: int, drawn: list) -> Measured:
        draws = Draws((1000,) * 20, peak_bytes=tuple(drawn))
        return Measured(
            replace(
                record,
                metrics={"makespan": 1000, "peak.hbm": peak},
                fingerprints={"graph": "0a", "plan": plan},
                draws=LaterDraws.of(draws),
            )
        )

    low, high = side("1b", 70, [70] * 19 + [None]), side("2c", 70, [70] * 17 + [80, 90, 90])
    assert facts(judge("x", low, high, {}).note) == "90 B, 9, 10, 70 B"
    assert not judge("x", high, low, {}).note
    assert not judge("x", low, side("2c", 90, [90] * 20), {}).note  # a regression says it already
    assert (low.record.ceiling, high.record.ceiling) == (70, 90)
    assert side("1b", 70, [60] * 20).record.ceiling == 70  # that of the plan as it is
    save_record(high.record, tmp_path / "x.toml")
    assert "ceiling = 90  # peak.hbm in 9 of 10 draws" in (tmp_path / "x.toml").read_text()
    assert read_record(tmp_path / "x.toml").ceiling == 90
    assert "ceiling" not in record_text(low.record)


def test_draws_are_kept_in_a_baseline(record: Record, tmp_path: Path) -> None:
    drawn = replace(record, draws=LaterDraws.of(Draws((900, None, 1111))))
    whole = replace(drawn, metrics={**record.metrics, "makespan": 1000})
    save_record(whole, tmp_path / "x.toml")
    assert "9000, 0, 11110" in facts((tmp_path / "x.toml").read_text())
    assert read_record(tmp_path / "x.toml").draws().makespan_ns == (900, None, 1111)
    assert record_text(replace(whole, draws=None)).count("draws") == 0


def test_a_measured_case_has_few_draws() -> None:
    case = Case("x", workload="gpt2:phase=decode", hardware="h100-80gb-sxm", policy="layerwise")
    found = measure(case).record
    assert len(found.draws().makespan_ns) == FEW_DRAWS
    assert record_text(found).count("\ndraws = [") == 1

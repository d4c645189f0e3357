"""How near the shipped runtimes come to what people reported: what ``make runtimes`` prints,
held.
"""

from statistics import mean, median

import pytest
from judge_runtimes import fitted, is_inside, is_time, left_out, said
from practitioner_rows import FILE, Answer, Row, answer, rows

from hosim.io.runtimes import runtime_named

pytestmark = [pytest.mark.long, pytest.mark.skipif(not FILE.is_file(), reason=f"no {FILE}")]


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[Row, Answer]]:
    kept: dict[tuple[str, ...], Answer | None] = {}
    found = {}
    for row in rows():
        key = (row.workload, row.hardware, row.policy, row.runtime)
        if key not in kept:
            kept[key] = answer(row)
        if (each := kept[key]) is not None:
            found[row.id] = row, each
    return found


def errors(answers, figures, times: bool) -> list[float]:
    return [
        abs(figures[name] / row.true_s - 1)
        for name, (row, _) in answers.items()
        if is_time(row) == times
    ]


def test_all_rows_seen(answers) -> None:
    seen = left_out(answers, True)
    assert len(answers) >= 56
    assert mean(errors(answers, seen, True)) <= 0.15
    assert median(errors(answers, seen, True)) <= 0.08
    assert mean(errors(answers, seen, False)) <= 0.12


def test_memory_with_each_source_left_out(answers) -> None:
    assert mean(errors(answers, left_out(answers, False), False)) <= 0.18


def test_the_shipped_figures_are_those_that_the_fit_finds(answers) -> None:
    """But vLLM's speed: two steps on one card, on which another engine is as much faster, are the
    card's.
    """
    every = [one for one in answers.values() if one[0].runtime]
    for name in {row.runtime for row, _ in every} - {"vllm"}:
        shipped = runtime_named(name)
        found = fitted(shipped, every, shipped.speed.value)
        seen = {row.kind[0] for row, _ in every if row.runtime == name}
        names = ["speed", "cpu_optimizer"] * bool(seen & {"b", "c"}) + [
            "buffers",
            "allocated",
            "reserved",
        ] * ("a" in seen)
        for each in names:
            ours, fit = getattr(shipped, each).value, getattr(found, each).value
            assert ours == pytest.approx(fit, rel=0.03), (name, each)


def test_the_truth_is_in_the_interval(answers) -> None:
    inside = [
        is_inside(row, each, runtime_named(row.runtime))
        for row, each in answers.values()
        if row.runtime
    ]
    assert sum(inside) >= 0.8 * len(inside)


def test_the_shipped_runtimes(answers) -> None:
    figures = {
        name: said(row, each, runtime_named(row.runtime))
        for name, (row, each) in answers.items()
        if row.runtime
    }
    known = {name: one for name, one in answers.items() if name in figures}
    assert mean(errors(known, figures, True)) <= 0.16
    assert mean(errors(known, figures, False)) <= 0.06

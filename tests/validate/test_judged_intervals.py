"""How often what people reported lies within hosim's 90 % intervals, each source left out in turn:
what ``make intervals`` prints, held.
"""

import re

import pytest
from judge_intervals import (
    PHASES,
    ROOT,
    Judged,
    answered,
    by_kind,
    found_spreads,
    is_of_rows,
    judge,
    median_width,
    narrowest,
    runtime_of,
    source,
)
from judge_runtimes import Answers, ends, is_time
from practitioner_rows import FILE, Row

from hosim.analysis.costmodel.spreads import INFERENCE, TRAINING
from hosim.io.runtimes import runtime_named

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason=f"no {FILE}")

WIDEST = 1.5
BY = "runtime named", "no runtime"


def least_inside(count: int) -> int:
    """How many of so many rows are 85 %, to the nearest whole per cent: 11 of 13."""
    return -(-845 * count // 1000)


@pytest.fixture(scope="module")
def answers() -> tuple[Answers, Answers]:
    return answered(True), answered(False)


@pytest.fixture(scope="module")
def judged(answers) -> list[Judged]:
    return judge(*answers)


@pytest.mark.parametrize(
    ("of", "asks"),
    [
        ("inference", "phase=decode|phase=prefill"),
        ("training", "phase=train.*attention_kernel=flash2"),
    ],
)
def test_steps_by_a_named_runtime_are_within_the_interval(compared, of: str, asks: str) -> None:
    """Of the rows that take a second or less: the speed is fitted without their source, and its
    spread is the shipped one.
    """

    def quick(row: Row) -> object:
        return is_time(row) and row.runtime and re.search(asks, row.workload)

    found = list(answered(True, quick).values())
    inside = []
    for row, each in found:
        seen = [one for one in found if source(one[0]) != source(row)]
        ours = each.seconds(runtime_of(row, seen))
        low, high = ends(
            each, ours, 0.0, runtime_named(row.runtime).speed.spread or INFERENCE.spread
        )
        inside.append(low <= row.true_s <= high)
    subject = f"90 % interval of {len(found)} steps of {of}, each source left out"
    beyond = len(found) - least_inside(len(found))
    compared("practitioners", subject, "steps within", len(found), sum(inside), slack=beyond)


@pytest.mark.long
def test_shipped_spreads_are_those_that_left_out_sources_show(answers) -> None:
    alone, under = found_spreads(*answers)
    assert alone == {"training": TRAINING, "inference": INFERENCE}
    runtimes = [runtime_named(file.stem) for file in sorted((ROOT / "runtimes").glob("*.yaml"))]
    found = {one.name: (one.runs, one.speed.spread) for one in runtimes if is_of_rows(one)}
    assert found == {
        name: (runs, under["training" if "train" in runs else "inference"])
        for name, (runs, _) in found.items()
    }
    assert {"torchtune", "gpt-fast"} <= set(found)


@pytest.mark.long
@pytest.mark.parametrize(
    "what", [*(f"{of}, {by}" for of in (*PHASES, "times") for by in BY), "memory"]
)
def test_the_truth_is_within_the_interval(compared, judged: list[Judged], what: str) -> None:
    """Nine of ten are to be; fewer than 85 % fail."""
    timed, _, by = what.partition(", ")
    listed = [
        one for one in judged if one.kind == what or (timed == "times" and one.kind.endswith(by))
    ]
    inside = sum(one.inside for one in listed)
    subject = f"90 % interval of {len(listed)} figures ({what}), each source left out"
    beyond = len(listed) - least_inside(len(listed))
    compared("practitioners", subject, "figures inside", len(listed), inside, slack=beyond)


@pytest.mark.long
def test_intervals_are_no_wider_than_they_have_to_be(compared, judged: list[Judged]) -> None:
    for kind, listed in by_kind(judged).items():
        width, least = median_width(listed), narrowest(listed)
        compared("practitioners", kind, "median width of the interval", least, width, within=9.0)
        assert width <= WIDEST * least, kind

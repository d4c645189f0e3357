"""How often what people reported lies within hosim's 90 % intervals, each source left out in turn:
what ``make intervals`` prints, held.
"""

from math import floor

import pytest
from judge_intervals import (
    Judged,
    answered,
    by_kind,
    centre_of,
    judge,
    median_width,
    named,
    narrowest,
    runtime_of,
    source,
    unnamed,
)
from judge_runtimes import Answers, ends, is_time
from practitioner_rows import FILE

from hosim.costmodel.spreads import INFERENCE, TRAINING
from hosim.io.runtimes import runtime_named

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason=f"no {FILE}")

LEAST, WIDEST = 0.85, 1.5


@pytest.fixture(scope="module")
def answers() -> tuple[Answers, Answers]:
    return answered(True), answered(False)


@pytest.fixture(scope="module")
def judged(answers) -> list[Judged]:
    return judge(*answers)


def test_inference_by_a_named_runtime_is_within_the_interval(compared) -> None:
    """Of the rows that take a second or two: the speed is fitted without their source, and its
    spread is the shipped one.
    """
    found = [one for one in answered(True, "phase=decode|phase=prefill").values() if one[0].runtime]
    inside = []
    for row, each in found:
        seen = [one for one in found if source(one[0]) != source(row)]
        ours = each.seconds(runtime_of(row, seen))
        low, high = ends(
            each, ours, 0.0, runtime_named(row.runtime).speed.spread or INFERENCE.spread
        )
        inside.append(low <= row.true_s <= high)
    subject = f"90 % interval of {len(found)} steps of inference, each source left out"
    compared("practitioners", subject, "steps within", len(found), sum(inside), within=1 - LEAST)


@pytest.mark.long
def test_shipped_spreads_are_those_that_left_out_sources_show(answers) -> None:
    under, alone = named(answers[0]), unnamed(answers[1])
    for of, shipped in (("training", TRAINING), ("inference", INFERENCE)):
        assert shipped.mean == pytest.approx(centre_of(of, alone.found), abs=0.005)
        assert shipped.spread == pytest.approx(alone.spread(), abs=0.021)
    for name in {row.runtime for row, _ in under.found if is_time(row)} - {"vllm"}:
        assert runtime_named(name).speed.spread == pytest.approx(under.spread(), abs=0.021), name


@pytest.mark.long
@pytest.mark.parametrize(
    "what", ["times, runtime named", "times, no runtime", "memory", "training", "inference"]
)
def test_the_truth_is_within_the_interval(compared, judged: list[Judged], what: str) -> None:
    """Nine of ten are to be; fewer than 85 % fail."""
    timed, _, by = what.partition(", ")
    listed = [
        one
        for one in judged
        if one.kind.startswith(timed) or (timed == "times" and one.kind.endswith(by))
    ]
    inside = sum(one.inside for one in listed)
    subject = f"90 % interval of {len(listed)} figures ({what}), each source left out"
    beyond = len(listed) - floor(LEAST * len(listed))
    compared("practitioners", subject, "figures inside", len(listed), inside, slack=beyond)


@pytest.mark.long
def test_intervals_are_no_wider_than_they_have_to_be(compared, judged: list[Judged]) -> None:
    for kind, listed in by_kind(judged).items():
        width, least = median_width(listed), narrowest(listed)
        compared("practitioners", kind, "median width of the interval", least, width, within=9.0)
        assert width <= WIDEST * least, kind

"""How often what people reported lies within hosim's 90 % intervals, each source left out in turn:
what ``make intervals`` prints, held.
"""

import pytest
from judge_intervals import Judged, answered, by_kind, median_width, named, narrowest, unnamed
from practitioner_rows import FILE

pytestmark = [pytest.mark.long, pytest.mark.skipif(not FILE.is_file(), reason=f"no {FILE}")]

LEAST, WIDEST = 0.85, 1.5


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return [*named(answered(True)), *unnamed(answered(False))]


@pytest.mark.parametrize("what", ["times, runtime named", "times, no runtime", "memory"])
def test_the_truth_is_within_the_interval(compared, judged: list[Judged], what: str) -> None:
    """Nine of ten are to be; fewer than 85 % fail."""
    listed = [
        one
        for one in judged
        if one.kind == what or (what[:5] == "times" and one.kind.endswith(what[5:]))
    ]
    inside = sum(one.inside for one in listed)
    subject = f"90 % interval of {len(listed)} figures ({what}), each source left out"
    compared("practitioners", subject, "figures inside", len(listed), inside, within=1 - LEAST)


def test_intervals_are_no_wider_than_they_have_to_be(compared, judged: list[Judged]) -> None:
    for kind, listed in by_kind(judged).items():
        width, least = median_width(listed), narrowest(listed)
        compared("practitioners", kind, "median width of the interval", least, width, within=9.0)
        assert width <= WIDEST * least, kind

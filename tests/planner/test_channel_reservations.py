"""The reservations of a channel, against a list of its free nanoseconds."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.planner.hyperoffload.tensor_choices import ChannelTimeline, left_rates, timelines

SPAN = 60
"""Instants of the brute-force model; nothing is reserved beyond, so that all is free from there
on.
"""


class Free:
    """Every nanosecond that is busy, one by one."""

    def __init__(self) -> None:
        self.busy: set[int] = set()

    def fits(self, start: int, length: int) -> bool:
        if not length:  # an instant: not strictly inside what is busy
            return not (start in self.busy and start - 1 in self.busy)
        return not any(at in self.busy for at in range(start, start + length))

    def earliest(self, release: int, length: int) -> int:
        return next(at for at in range(release, 3 * SPAN) if self.fits(at, length))

    def latest(self, deadline: int, length: int, release: int) -> int | None:
        return next(
            (at for at in range(deadline - length, release - 1, -1) if self.fits(at, length)), None
        )


INSTANTS, LENGTHS = st.integers(0, SPAN), st.integers(1, 9)
STEPS = st.lists(st.tuples(st.booleans(), INSTANTS, INSTANTS, LENGTHS), max_size=25)


def reserved(steps: list[tuple[bool, int, int, int]]) -> tuple[ChannelTimeline, Free]:
    """Both models after the same reservations, each as early or as late as it fits, on which they
    agree.
    """
    timeline, free = ChannelTimeline(), Free()
    for late, a, b, length in steps:
        at = timeline.latest(max(a, b), length, min(a, b)) if late else timeline.earliest(a, length)
        assert at == (
            free.latest(max(a, b), length, min(a, b)) if late else free.earliest(a, length)
        )
        if at is not None:
            timeline.reserve(at, length)
            free.busy.update(range(at, at + length))
    return timeline, free


@given(STEPS, INSTANTS, LENGTHS)
def test_earliest_is_the_first_free_interval(
    steps: list[tuple[bool, int, int, int]], release: int, length: int
) -> None:
    timeline, free = reserved(steps)
    assert timeline.earliest(release, length) == free.earliest(release, length)


@given(STEPS, STEPS, INSTANTS, LENGTHS)
def test_what_a_search_has_passed_over_is_passed_over_at_once(
    steps: list[tuple[bool, int, int, int]],
    more: list[tuple[bool, int, int, int]],
    release: int,
    length: int,
) -> None:
    noted = patch.multiple(
        "hosim.planner.hyperoffload.tensor_choices.channel_reservations", _MANY=0, _EVERY=1
    )
    with noted:  # every busy interval passed is
        timeline, free = reserved(steps)
        assert timeline.earliest(release, length) == free.earliest(release, length)
        for _, a, _, size in more:
            at = timeline.earliest(a, size)
            assert at == free.earliest(a, size)
            timeline.reserve(at, size)
            free.busy.update(range(at, at + size))
        assert timeline.earliest(release, length) == free.earliest(release, length)


@given(STEPS, INSTANTS, LENGTHS, INSTANTS)
def test_latest_is_the_last_free_interval_before_the_deadline(
    steps: list[tuple[bool, int, int, int]], deadline: int, length: int, release: int
) -> None:
    timeline, free = reserved(steps)
    assert timeline.latest(deadline, length, release) == free.latest(deadline, length, release)


@given(STEPS, INSTANTS)
def test_what_takes_no_time_fits_at_every_edge(
    steps: list[tuple[bool, int, int, int]], at: int
) -> None:
    timeline, free = reserved(steps)
    assert timeline.earliest(at, 0) == free.earliest(at, 0)
    assert timeline.latest(at, 0, 0) == free.latest(at, 0, 0)
    timeline.reserve(at, 0)
    assert timeline.earliest(0, 1) == free.earliest(0, 1)


def test_by_hand() -> None:
    timeline = ChannelTimeline()
    timeline.reserve(10, 10)
    timeline.reserve(30, 10)
    assert timeline.earliest(0, 10) == 0
    assert timeline.earliest(0, 11) == 40  # 11 fit neither before 10 nor between 20 and 30
    assert timeline.latest(40, 10, 0) == 20
    assert timeline.latest(40, 10, 21) is None
    timeline.reserve(20, 10)  # joins both: 10 to 40 is one interval
    assert timeline.latest(40, 10, 0) == 0
    assert timeline.earliest(5, 6) == 40


def two_ways(fabric: int, h2d: int = 40, nvme: int = 26) -> tuple[Hardware, dict[str, str]]:
    """Rates in bytes a second; both ways cross one fabric."""
    tiers = Tier("hbm", 10**6, 1000, "device"), Tier("ddr", 10**9, 1000), Tier("nvme", 10**9, 1000)
    channels = Channel("h2d", "ddr", "hbm", h2d), Channel("nvme_read", "nvme", "hbm", nvme)
    return Hardware(
        "two", tiers, channels, Compute({}), fabrics=(Fabric("link", fabric, ("h2d", "nvme_read")),)
    ), {
        "ddr": "h2d",
        "nvme": "nvme_read",
    }


@pytest.mark.parametrize(
    ("fabric", "left", "together"),
    [
        (66, {"ddr": 40, "nvme": 26}, False),
        (55, {"ddr": 40, "nvme": 15}, False),
        (43, {"ddr": 40, "nvme": 26}, True),
        (30, {"ddr": 30, "nvme": 26}, True),
    ],
    ids=["room for both", "some is left", "next to nothing is left", "not even for one"],
)
def test_what_a_fabric_leaves_the_slower_way(
    fabric: int, left: dict[str, int], together: bool
) -> None:
    machine, ways = two_ways(fabric)
    assert left_rates(machine, ways) == left
    found = timelines(machine, ways, 1)
    assert (found["ddr"] is found["nvme"]) == together

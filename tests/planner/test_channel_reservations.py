"""The reservations of a channel, against a list of its free nanoseconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.engine.cells import flags, ints, longs
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.planner.hyperoffload.kernels import GapSweep, form_of
from hosim.planner.hyperoffload.tensor_choices import left_rates, timelines

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
FORMS = pytest.mark.parametrize("form", [GapSweep, form_of(GapSweep)], ids=["plain", "as run"])
DECLARED = GapSweep.__mro__[1].__annotations__ | GapSweep.__annotations__
ROOM = 60
"""More than the intervals that any test reserves."""


class Reserved:
    """One channel of a sweep: of trips, number k takes k nanoseconds."""

    def __init__(self, form: type[GapSweep]) -> None:
        made = {"Longs": longs, "Ints": ints, "Flags": flags, "Int": lambda values: values[0]}
        cells = {name: made[kind]([0] * ROOM) for name, kind in DECLARED.items()}
        cells |= {"room": ROOM, "trip_ns": longs(range(10)), "smallest": longs([1])}
        self.kernel = form(cells, 0, 0, 0, 0)

    def earliest(self, release: int, length: int) -> int:
        return self.kernel.earliest(0, length, release)

    def latest(self, deadline: int, length: int, release: int) -> int | None:
        found = self.kernel.latest(0, length, deadline, release)
        return None if found < 0 else found

    def reserve(self, start: int, length: int) -> None:
        self.kernel.reserve(0, start, length)


def reserved(
    form: type[GapSweep], steps: list[tuple[bool, int, int, int]]
) -> tuple[Reserved, Free]:
    """Both models after the same reservations, each as early or as late as it fits, on which they
    agree.
    """
    timeline, free = Reserved(form), Free()
    for late, a, b, length in steps:
        at = timeline.latest(max(a, b), length, min(a, b)) if late else timeline.earliest(a, length)
        assert at == (
            free.latest(max(a, b), length, min(a, b)) if late else free.earliest(a, length)
        )
        if at is not None:
            timeline.reserve(at, length)
            free.busy.update(range(at, at + length))
    return timeline, free


@FORMS
@given(steps=STEPS, release=INSTANTS, length=LENGTHS)
def test_earliest_is_the_first_free_interval(
    form: type[GapSweep], steps: list[tuple[bool, int, int, int]], release: int, length: int
) -> None:
    timeline, free = reserved(form, steps)
    for _ in range(2):
        assert timeline.earliest(release, length) == free.earliest(release, length)


@FORMS
@given(steps=STEPS, deadline=INSTANTS, length=LENGTHS, release=INSTANTS)
def test_latest_is_the_last_free_interval_before_the_deadline(
    form: type[GapSweep],
    steps: list[tuple[bool, int, int, int]],
    deadline: int,
    length: int,
    release: int,
) -> None:
    timeline, free = reserved(form, steps)
    assert timeline.latest(deadline, length, release) == free.latest(deadline, length, release)


@FORMS
@given(steps=STEPS, at=INSTANTS)
def test_what_takes_no_time_fits_at_every_edge(
    form: type[GapSweep], steps: list[tuple[bool, int, int, int]], at: int
) -> None:
    timeline, free = reserved(form, steps)
    assert timeline.earliest(at, 0) == free.earliest(at, 0)
    assert timeline.latest(at, 0, 0) == free.latest(at, 0, 0)
    timeline.reserve(at, 0)
    assert timeline.earliest(0, 1) == free.earliest(0, 1)


@FORMS
def test_by_hand(form: type[GapSweep]) -> None:
    timeline = Reserved(form)
    timeline.reserve(12, 8)
    timeline.reserve(32, 8)
    assert timeline.earliest(0, 9) == 0
    assert timeline.earliest(5, 9) == 20  # 9 do not fit between 5 and 12
    assert timeline.latest(40, 9, 0) == 23
    assert timeline.latest(40, 9, 24) is None
    timeline.reserve(20, 12)  # joins both: 12 to 40 is one interval
    assert timeline.latest(40, 9, 0) == 3
    assert timeline.earliest(5, 8) == 40


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
    first, smallest = timelines(machine, ways, 10)
    assert (first["ddr"] == first["nvme"]) == together
    assert smallest == {tier: 10 * 10**9 // left[tier] // 2 for tier in first.values()}

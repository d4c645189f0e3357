"""Reserved bandwidth by op, against an account that keeps every nanosecond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hosim.policies.own import Slots


def test_a_transfer_takes_the_first_free_time_and_then_what_is_left() -> None:
    slots = Slots([10, 10, 10, 10])
    assert slots.end_after(1, 15) == 3  # all of slot 1 and half of slot 2
    assert slots.end_after(1, 15, reserve=True) == 3
    assert slots.end_after(1, 5) == 3  # the other half of slot 2
    assert slots.end_after(1, 6) == 4
    assert slots.start_before(4, 15) == 2  # slot 3 and what is left of slot 2
    assert slots.start_before(4, 16) == 0  # slot 1 is full
    assert slots.end_after(3, 11) == 4  # not done when the step ends
    assert slots.start_before(3, 16) == -1


@given(
    st.lists(st.integers(0, 6), max_size=8),
    st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 15)), max_size=8),
)
def test_like_an_account_by_the_nanosecond(durations, requests) -> None:
    slots = Slots(durations)
    owner = [i for i, duration in enumerate(durations) for _ in range(duration)]
    free = [True] * len(owner)
    for forwards, place, ns in requests:
        place = min(place, len(durations))
        if forwards:
            wanted = [n for n, i in enumerate(owner) if free[n] and i >= place][:ns]
            end = (
                place if not ns else owner[wanted[-1]] + 1 if len(wanted) == ns else len(durations)
            )
            assert slots.end_after(place, ns) == end
            assert slots.end_after(place, ns, reserve=True) == end
        else:
            wanted = [n for n in range(len(owner) - 1, -1, -1) if free[n] and owner[n] < place][:ns]
            start = place if not ns else owner[wanted[-1]] if len(wanted) == ns else -1
            assert slots.start_before(place, ns) == start
            assert slots.start_before(place, ns, reserve=True) == start
        for n in wanted:
            free[n] = False

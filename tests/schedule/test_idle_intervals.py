"""From where on bytes fit: against a look at every op."""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hosim.planner.schedule import fits_from


@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=20),
    st.integers(0, 9),
    st.integers(3, 15),
    st.integers(0, 5),
    st.integers(3, 20),
)
def test_bytes_fit_from_the_last_op_that_is_too_full_on(
    held: list[int], size: int, most: int, begin: int, end: int
) -> None:
    end = min(end, len(held))
    full = [i for i in range(begin, end) if held[i] + size > most]
    with patch("hosim.planner.schedule.idle_intervals._LOOK", 2):
        assert fits_from(np.array(held, dtype=np.int64), size, most, begin, end) == (
            full[-1] + 1 if full else begin
        )

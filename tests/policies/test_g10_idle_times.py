"""G10 takes the idle time with the most relief, the first of equals, as ops come to fit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hosim.policies.own import by_relief

OPS = 6
STRETCHES = st.tuples(st.integers(0, OPS - 1), st.integers(1, OPS)).filter(
    lambda ends: ends[0] < ends[1]
)


@given(
    st.lists(st.tuples(STRETCHES, st.sampled_from([1.0, 2.0])), max_size=12),
    st.lists(st.integers(0, OPS - 1), max_size=12),
)
def test_the_most_relief_first_and_of_equals_the_first_listed(
    drawn: list[tuple[tuple[int, int], float]], fitting: list[int]
) -> None:
    over_ns = np.array([1, 1, 2, 3, 1, 2], dtype=np.int64)
    left = dict(enumerate(drawn))
    begins, ends = np.array([stretch for stretch, _ in drawn], dtype=np.int64).reshape(-1, 2).T
    idle = by_relief(begins, ends, np.array([weight for _, weight in drawn]), over_ns)
    for op in [*fitting, *range(OPS)]:
        relief = {
            n: weight * int(over_ns[begin:end].sum()) for n, ((begin, end), weight) in left.items()
        }
        best = max(relief, key=lambda n: (relief[n], -n), default=None)
        found = next(idle, None)
        assert found == (best if best is not None and relief[best] > 0 else None)
        if found is not None:
            del left[found]
        over_ns[op] = 0

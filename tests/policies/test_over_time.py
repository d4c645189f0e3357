"""Time over a line, summed over stretches of ops while some of them come to be under it: against
plain sums.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hosim.policies.own import OverTime

OPS = st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=20)


@given(
    OPS,
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 2**20)), max_size=6),
)
def test_sums_are_those_of_the_ops_still_over(
    ops: list[tuple[int, bool]], drops: list[tuple[int, int, int]]
) -> None:
    durations, over = np.array([d for d, _ in ops], dtype=np.int64), np.array([o for _, o in ops])
    stretches = [(a, b) for a in range(len(ops) + 1) for b in range(a, len(ops) + 1)]
    times = OverTime(durations, over)
    for begin, end, which in drops:
        a, b = sorted((min(begin, len(ops)), min(end, len(ops))))
        under = np.array([bool(which >> k & 1) for k in range(b - a)], dtype=bool)
        times.drop(a, b, under)
        over[a:b] &= ~under
    expected = [int(durations[a:b][over[a:b]].sum()) for a, b in stretches]
    assert [times.within(a, b) for a, b in stretches] == expected
    assert times.within_each(*np.array(stretches).T).tolist() == expected
    assert times.count == over.sum()

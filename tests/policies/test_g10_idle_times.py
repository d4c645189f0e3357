"""G10 takes the idle time with the most relief, the first of equals, however few of them wait in
its queue.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.analysis import Gap
from hosim.policies.own import IdleTimes, OverTime

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
    durations = np.array([1, 1, 2, 3, 1, 2], dtype=np.int64)
    over = np.ones(OPS, dtype=bool)
    above = OverTime(durations, over)
    left = dict(enumerate(drawn))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hosim.policies.own.g10._QUEUED", 2)
        patched.setattr("hosim.policies.own.g10._LOOKS", 1)
        patched.setattr("hosim.policies.own.g10._PART", 3)
        gaps = [Gap(t, begin - 1, end) for t, ((begin, end), _) in left.items()]
        idle = IdleTimes(gaps, np.array([weight for _, weight in drawn]), above)
        for op in [*fitting, *range(OPS)]:
            relief = {
                n: weight * int(durations[begin:end][over[begin:end]].sum())
                for n, ((begin, end), weight) in left.items()
            }
            best = max(relief, key=lambda n: (relief[n], -n), default=None)
            found = idle.pop()
            assert found == (best if best is not None and relief[best] > 0 else None)
            if found is not None:
                del left[found]
            above.drop(op, op + 1, np.ones(1, dtype=bool))
            over[op] = False

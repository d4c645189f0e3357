"""A sweep's points take what direct calls take, and two processes do nearly twice as many: no graph is read again for a point.

In CPU time, which says the same on a busy machine; elapsed time and 1,000 points are for ``sweep_rate.py``.
"""

import sys
import time

import pytest
import sweep_rate
from sweep_rate import COST, RATE, asked, cost_of_a_point, cpu_of_children, points, rate

from hosim.study.runners import here, pool

POINTS = 8


@pytest.mark.slow
def test_a_point_costs_what_a_direct_call_costs() -> None:
    cost = cost_of_a_point(asked(), points(4))
    print(f"a point of a sweep takes {cost:.3f} times the CPU of a direct call")
    assert cost <= COST


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the CPU time of processes in /proc")
def test_two_processes_spend_little_more_than_one() -> None:
    one = rate(asked(), points(POINTS), here, time.process_time, 1)
    begin = time.process_time()
    two = rate(asked(), points(POINTS), pool(2), cpu_of_children, 2)
    asking = (time.process_time() - begin) / POINTS
    print(
        f"CPU a point: {one.cpu_seconds:.3f} s alone, {two.cpu_seconds:.3f} s in a pool of two, {asking:.3f} s to ask; "
        f"points a second: {one.per_second:.2f} alone, {two.per_second:.2f} by two"
    )
    assert one.found.rows == two.found.rows
    # two cores give 2 / (what a point takes more) times the rate of one
    assert 2 * one.cpu_seconds / (two.cpu_seconds + asking) >= RATE


def test_the_points_asked_for_are_as_many() -> None:
    assert [len(points(n)) for n in (1, 5, 24, 1000)] == [1, 5, 24, 1000]
    assert len({tuple(point.items()) for point in sweep_rate.points(1000)}) == 1000

"""A sweep's points take what direct calls take, and two processes do nearly twice as many: no graph is read again for a point.

In CPU time, which says the same on a busy machine; elapsed time and 1,000 points are for ``sweep_rate.py``.
"""

import sys
import time

import pytest
import sweep_rate
from sweep_rate import COST, RATE, asked, cost_of_a_point, cpu_of_children, points, rate

from hosim.study.runners import here, pool
from hosim.study.sweep import sweep

POINTS = 8


@pytest.mark.slow
def test_a_point_costs_what_a_direct_call_costs() -> None:
    cost = cost_of_a_point(asked(), points(4))
    print(f"a point of a sweep takes {cost:.3f} times the CPU of a direct call")
    assert cost <= COST


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the CPU time of processes in /proc")
def test_two_processes_spend_little_more_than_one() -> None:
    of, at, two = asked(), points(POINTS), pool(2)
    sweep(of, at[:2], runner=two)  # starts the processes, which then wait for more
    alone = rate(of, at, here, time.process_time)
    begin = time.process_time()
    together = rate(of, at, two, cpu_of_children)
    asking = time.process_time() - begin
    print(
        f"CPU a point: {alone.cpu_seconds / POINTS:.3f} s alone, {together.cpu_seconds / POINTS:.3f} s in a pool of two and "
        f"{asking / POINTS:.3f} s to ask; elapsed {alone.seconds:.1f} s alone, {together.seconds:.1f} s by two"
    )
    assert alone.found.rows == together.found.rows
    # two cores give 2 / (what a point takes more) times the rate of one
    assert 2 * alone.cpu_seconds / (together.cpu_seconds + asking) >= RATE


def test_the_points_asked_for_are_as_many() -> None:
    assert [len(points(n)) for n in (1, 5, 24, 1000)] == [1, 5, 24, 1000]
    assert len({tuple(point.items()) for point in sweep_rate.points(1000)}) == 1000

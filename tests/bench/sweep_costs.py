"""A sweep's points take what direct calls take, and two processes do nearly twice as many: no graph
is read again for a point.

In CPU time, which says the same on a busy machine; elapsed time and 1,000 points are for
``sweep_rate.py``.
"""

from time import process_time

from measures import cpu_seconds, measure
from sweep_rate import COST, RATE, asked, cost_of_a_point, cpu_of_children, points, rate

from hosim.study import sweep
from hosim.study.runs import here, pool

POINTS = 8


@measure("a point of a sweep, in direct calls", most=COST)
def a_point() -> float:
    return cost_of_a_point(asked(), points(4))


@measure(
    "CPU for a point in a pool of two processes, asking included, in points of one process",
    most=2 / RATE,
)
def pooled() -> float:
    # two cores give 2 / this times the rate of one
    of, at, two = asked(), points(POINTS), pool(2)
    sweep(of, at[:2], runner=two)  # starts the processes, which then wait for more
    alone = rate(of, at, here, process_time)
    found = []
    asking = cpu_seconds(lambda: found.append(rate(of, at, two, cpu_of_children)))
    assert alone.found.rows == found[0].found.rows
    return (found[0].cpu_seconds + asking) / alone.cpu_seconds

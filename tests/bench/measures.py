"""What a subject of ``make bench`` is made of: functions that each measure one figure, with the
bound aimed at.

Times are CPU seconds of this process wherever it does the work itself, and ratios inside one run
where there is something to compare with: another process on the same core then weighs little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One row of the table: ``take`` gives the figure, which should be at most ``most``."""

    what: str
    most: float
    unit: str
    take: Callable[[], float]


def measure(
    what: str, *, most: float, unit: str = "times"
) -> Callable[[Callable[[], float]], Measure]:
    """Make a measure of a function: ``@measure("loading, in parsing of its JSON", most=5)``."""
    return lambda take: Measure(what, most, unit, take)


Clock = Callable[[Callable[[], object]], float]
"""Gives the seconds that a call takes."""


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def least(
    calls: Sequence[Callable[[], object]], rounds: int = 5, clock: Clock = cpu_seconds
) -> list[float]:
    """The least seconds of each call, taken in turn so many times: what else the machine does
    weighs on all alike.
    """
    taken = [[clock(call) for call in calls] for _ in range(rounds)]
    return [min(column) for column in zip(*taken, strict=True)]


def cpu_of_children(call: Callable[[], object]) -> float:
    """CPU seconds of the processes that a call starts and waits for."""
    before = os.times()
    call()
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )

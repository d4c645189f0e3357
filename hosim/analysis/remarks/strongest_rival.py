"""Find the best alternative in a comparison, and how far ``hyperoffload`` is ahead
of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hosim.result import Result

OURS, OPTIMUM = "hyperoffload", "optimal"
NO_RIVALS = (OURS, "hybrid", OPTIMUM)
"""Policies that are no rivals: hosim's planner, what uses it, and the optimum."""


@dataclass(frozen=True, slots=True)
class StrongestRival:
    """The fastest other policy that fits, and the part of its makespan that ``hyperoffload`` takes
    less; negative if it takes more.
    """

    policy: str
    makespan_ns: int
    ahead: float


def _fitting(results: Iterable[Result]) -> list[tuple[int, str]]:
    """Makespan and policy of the results that fit."""
    return [
        (result.makespan_ns, result.policy)
        for result in results
        if result.feasible and result.makespan_ns is not None
    ]


def fastest_with_ours(results: Iterable[Result]) -> int | None:
    """The smallest makespan of results among which ``hyperoffload`` or the optimum fits: others
    alone do not say how fast a plan can be.
    """
    fitting = _fitting(results)
    known = any(policy.partition(":")[0] in NO_RIVALS for _, policy in fitting)
    return min(makespan for makespan, _ in fitting) if known else None


def least_in_parts(results: Iterable[Result]) -> int | None:
    """The least that a plan among results would take that moves no bytes which no op uses, were it
    for them alone.
    """
    times = []
    for result in results:
        if result.feasible and result.makespan_ns is not None:
            moved = sum(channel.bytes for channel in result.channels.values())
            busy = sum(channel.busy_ns for channel in result.channels.values())
            times.append(
                result.makespan_ns - (busy * (result.unused_bytes or 0) // moved if moved else 0)
            )
    return min(times, default=None)


def strongest_rival(results: Iterable[Result]) -> StrongestRival | None:
    """The best alternative among the results that fit; none without one, or without
    ``hyperoffload`` among them.
    """
    fitting = _fitting(results)
    ours = [makespan for makespan, policy in fitting if policy.partition(":")[0] == OURS]
    rivals = [
        (makespan, policy)
        for makespan, policy in fitting
        if policy.partition(":")[0] not in NO_RIVALS
    ]
    if not ours or not rivals:
        return None
    makespan_ns, policy = min(rivals, key=lambda rival: rival[0])
    return StrongestRival(policy, makespan_ns, 1 - min(ours) / makespan_ns if makespan_ns else 0.0)

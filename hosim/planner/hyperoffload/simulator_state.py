"""The state of a simulated step at an instant, and snapshots of it that do not depend on when that instant is.

A tensor that does not move has no state here: the sizes of what ops allocate and release are known beforehand. Of a tensor that moves the
state says how it differs from one that does not, so that it is 0 wherever it does not differ; ``mark`` is the sum of all states, each times
a random number of its tensor. Two states with equal marks are equal, but for a chance of about 1 in 2^60.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from hosim.planner.hyperoffload.simulated_moves import SimulatedMove
from hosim.planner.hyperoffload.transfer_rates import Rate

NEVER = 1 << 62
"""Later than anything, in nanoseconds."""

END, CHANNEL, MOVE, CLASS, PHASE, LEFT, RATE, SINCE = range(8)
"""Fields of a transfer under way: the instant at which its phase ends at the present rate, what it is, what was left at some instant."""

LATENT, FLOWING = 0, 1
"""Phases of a transfer: its latency, then its bytes flow."""

Flow = list[Any]
"""A transfer under way, by the fields above."""

Work = list[int]
"""What is left of an op that copies slow down: [since when, parts of a nanosecond left, how many these are, and as a fraction (two more
integers, 0 where it stands still) the factor by which it takes longer]."""

ROOM, ORDER = -1, -2
"""What an op waited for, if not for a tensor: room, or other ops."""


@dataclass(slots=True)
class RunState:
    """What a simulated step has come to at ``now``.

    Tiers are numbered from the device tier (0) on, streams and channels as they are listed.

    ``pending`` are the moves of a tensor that are issued and not over, in order; ``queues`` have those that wait on a channel, with their
    place in the order of issue. ``taken`` is what copies take of the device tier's bandwidth. ``blamed`` is what the next op of each
    stream was last seen to wait for. ``pinned`` and ``most_pinned`` are bytes by tier. ``instants`` counts how often time went on.
    ``failed`` says that a rule was met that no simulation covers.
    """

    now: int
    total: int
    done: list[int]
    running: list[int]
    op_end: list[int]
    work: list[Work | None]
    idle_since: list[int]
    blamed: list[int]
    held: list[int]
    states: bytearray | list[int]
    mark: int
    pending: dict[int, tuple[SimulatedMove, ...]]
    queues: list[deque[tuple[int, SimulatedMove]]]
    issued: int
    flows: list[Flow]
    taken: Rate
    pinned: list[int]
    most_pinned: list[int]
    peaks: list[int]
    tight: list[bool]
    last: int = 0
    instants: int = 0
    failed: bool = False
    stalls: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class RunSnapshot:
    """A state between two instants, with times from then on, and what happens until the next snapshot.

    ``time`` is when it was in the best run, ``until`` the length of what follows it, ``peaks`` the most bytes held in each tier then,
    ``tight`` where something found no room, and ``stalls`` the waits of ops: (op, nanoseconds, what it waited for), and that of the step
    for its last transfer, as one of the op after the last.
    """

    time: int
    total: int
    done: tuple[int, ...]
    running: tuple[int, ...]
    op_ends: tuple[int, ...]
    work: tuple[tuple[int, ...] | None, ...]
    idle_for: tuple[int, ...]
    held: tuple[int, ...]
    states: bytearray | list[int]
    mark: int
    pending: dict[int, tuple[SimulatedMove, ...]]
    queued: tuple[SimulatedMove, ...]
    flows: tuple[tuple[object, ...], ...]
    taken: Rate
    pinned: tuple[int, ...]
    most_pinned: tuple[int, ...]
    blamed: tuple[int, ...]
    peaks: Sequence[int] = ()
    tight: Sequence[bool] = ()
    stalls: Sequence[tuple[int, int, int]] = ()


def snapshot(state: RunState, time: int) -> RunSnapshot:
    """The state as it is, at ``time`` of the best run."""
    now = state.now
    queued = sorted([entry for queue in state.queues for entry in queue])
    flows = []
    for end, channel, move, kind, phase, left, rate, since in state.flows:
        flows.append((channel, move, kind, phase, end - now, left - rate * (now - since) if phase and left else left, rate))
    work: list[tuple[int, ...] | None] = []
    for entry in state.work:
        if entry is None:
            work.append(None)
            continue
        entry = entry.copy()
        advance(entry, now)
        since, left, parts, slow, fast = entry
        common = gcd(left, parts)
        work.append((since - now, left // common, parts // common, slow, fast))
    return RunSnapshot(
        time,
        state.total,
        tuple(state.done),
        tuple(state.running),
        tuple([end - now if end < NEVER else NEVER for end in state.op_end]),
        tuple(work),
        tuple([now - since for since in state.idle_since]),
        tuple(state.held),
        state.states[:],
        state.mark,
        state.pending.copy(),
        tuple([move for _, move in queued]),
        tuple(sorted(flows)),
        state.taken,
        tuple(state.pinned),
        tuple(state.most_pinned),
        tuple(state.blamed),
    )


def restored(kept: RunSnapshot, channels: int) -> RunState:
    """A state from which a run can go on, at instant 0."""
    queues: list[deque[tuple[int, SimulatedMove]]] = [deque() for _ in range(channels)]
    for place, move in enumerate(kept.queued):
        queues[move.channel].append((place, move))
    return RunState(
        0,
        kept.total,
        list(kept.done),
        list(kept.running),
        list(kept.op_ends),
        [None if entry is None else list(entry) for entry in kept.work],
        [-idle for idle in kept.idle_for],
        list(kept.blamed),
        list(kept.held),
        kept.states[:],
        kept.mark,
        kept.pending.copy(),
        queues,
        len(kept.queued),
        [[end, channel, move, kind, phase, left, rate, 0] for channel, move, kind, phase, end, left, rate in kept.flows],
        kept.taken,
        list(kept.pinned),
        list(kept.most_pinned),
        list(kept.held),
        [False] * len(kept.held),
    )


def advance(work: Work, now: int) -> None:
    """Note what is done of an op by now."""
    since, left, parts, slow, fast = work
    if now > since:
        if slow:
            work[1], work[2] = left * slow - (now - since) * fast * parts, parts * slow
        work[0] = now


def goes_on_alike(one: RunSnapshot, other: RunSnapshot) -> bool:
    """Whether ops, transfers and queues are the same: all but what tensors are where, and what that holds."""
    return (
        one.done == other.done
        and one.op_ends == other.op_ends
        and one.flows == other.flows
        and one.queued == other.queued
        and one.pending == other.pending
        and one.running == other.running
        and one.work == other.work
        and one.pinned == other.pinned
        and one.most_pinned == other.most_pinned
    )


def with_time(kept: RunSnapshot, time: int) -> RunSnapshot:
    """The same snapshot at another instant of a run; what follows it is not told."""
    return RunSnapshot(
        time,
        kept.total,
        kept.done,
        kept.running,
        kept.op_ends,
        kept.work,
        kept.idle_for,
        kept.held,
        kept.states,
        kept.mark,
        kept.pending,
        kept.queued,
        kept.flows,
        kept.taken,
        kept.pinned,
        kept.most_pinned,
        kept.blamed,
    )

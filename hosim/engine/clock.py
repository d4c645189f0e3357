"""simpy's clock with an end to every instant: the one place where the order of events is decided.

simpy orders events by (time, priority, sequence), which makes every run the same. :class:`Clock` adds rule 0 of docs/contract.md: after
the last event of an instant, and before time moves on, the instant is settled. :class:`Alarm` is the only kind of event.

The loop and the alarm use three private attributes of simpy's ``Environment``: ``_queue``, ``_eid`` and ``_now``. That is why
pyproject.toml bounds simpy below 5; ``tests/engine/test_clock.py`` has what is relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heapify, heappop, heappush

import simpy
from simpy.events import NORMAL

Process = Generator[None, simpy.Event, None]
"""What a stream or a channel does: sleeps at each ``yield`` until its alarm rings."""

NEVER = 2**62
"""Later than anything, in nanoseconds."""


class Clock(simpy.Environment):
    """A simpy environment whose :meth:`run_instants` calls back at the end of each instant that asked for it.

    ``time`` is the current instant, in nanoseconds: simpy's ``now`` without a call. ``unsettled`` are the positions of the devices at which
    something is left to be done at this instant: whatever ends at it says so; ``to_come`` are the events, in a heap, the next one first.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.time = 0
        self.unsettled: set[int] = set()
        self.to_come: list[tuple[int, int, int, simpy.Event]] = self._queue  # type: ignore[assignment]

    def run_instants(self, settle: Callable[[], None]) -> None:
        """Process events until none is left, and ``settle`` at the end of every instant until nothing of it is unsettled.

        The loop body is that of simpy's ``step``, without a call for each event, as it is the hottest line of hosim; and an alarm keeps
        its callback, to ring again. An error in a callback ends the run.
        """
        schedule, unsettled = self.to_come, self.unsettled
        while unsettled and (not schedule or schedule[0][0] > self.time):
            settle()
        while schedule:
            self.time, _, _, event = heappop(schedule)
            self._now = self.time
            event.callbacks[0](event)
            while unsettled and (not schedule or schedule[0][0] > self.time):
                settle()


class SteppedClock(Clock):
    """A clock that simpy's ``run`` drives: simpy's own processes run on it beside alarms.

    ``settle`` is called at the end of each instant that asked for it, and clears ``unsettled``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.settle: Callable[[], None] = self.unsettled.clear

    def step(self) -> None:
        """Process the next event; an alarm keeps its callback, to ring again."""
        schedule = self.to_come
        while self.unsettled and (not schedule or schedule[0][0] > self.time):
            self.settle()
        if schedule:
            self.time = schedule[0][0]
            if isinstance(schedule[0][3], Alarm):
                self._now = self.time
                _, _, _, event = heappop(schedule)
                for callback in event.callbacks:
                    callback(event)
                return
        super().step()


class Alarm(simpy.Event):
    """Wakes one process again and again, at times that others set.

    simpy's ``Process`` and ``Timeout`` make an event for each sleep, whose delay is known when it begins. A stream or a channel
    sleeps until somebody starts something on it: then its alarm is set to the end. Reusing one event, and handing it to the
    generator without simpy's ``Process`` between them, halves what an op costs.
    """

    def __init__(self, clock: Clock, process: Process) -> None:
        super().__init__(clock)
        next(process)  # up to its first sleep
        self.callbacks = [process.send]
        self._schedule = clock.to_come
        self._sequence = clock._eid
        self.rings_at = NEVER

    def ring_at(self, time: int) -> None:
        """Wake the process at ``time``; it must not be set already."""
        self.rings_at = time
        heappush(self._schedule, (time, NORMAL, next(self._sequence), self))

    def move_to(self, time: int) -> None:
        """Wake the process at ``time`` and not later, when it was set to."""
        schedule = self._schedule
        for place, entry in enumerate(schedule):
            if entry[3] is self:  # there are no more entries than streams and channels
                del schedule[place]
                heapify(schedule)
                break
        self.ring_at(time)

"""simpy's clock with an end to every instant: the one place where the order of events is decided.

simpy orders events by (time, priority, sequence), which makes every run the same. :class:`Clock` adds rule 0 of design.md section 3: after
the last event of an instant, and before time moves on, the instant is settled.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop

import simpy


class Clock(simpy.Environment):
    """A simpy environment whose :meth:`run_instants` calls back at the end of each instant that asked for it.

    ``unsettled`` is set by whatever ends at an instant and leaves something to be done at it.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.unsettled = True

    @property
    def time(self) -> int:
        """The current instant, in nanoseconds."""
        return self._now  # type: ignore[return-value]

    def is_last(self) -> bool:
        """Whether no further event is due at this instant."""
        queue = self._queue
        return not queue or queue[0][0] > self._now

    def run_instants(self, settle: Callable[[], None]) -> None:
        """Process events until none is left, and ``settle`` at the end of every instant that is unsettled.

        The loop body is that of simpy's ``step``, without a call for each event: it is the hottest line of hosim.
        """
        queue = self._queue
        if self.unsettled:
            settle()
        while queue:
            self._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event._ok and not event._defused:
                raise event._value  # a process failed: its error is the replay's
            if self.unsettled and (not queue or queue[0][0] > self._now):
                settle()

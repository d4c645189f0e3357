"""A simpy event that a process sleeps on and that others set to a time."""

from __future__ import annotations

import simpy


class Alarm(simpy.Event):
    """Like simpy's ``Timeout``, but its delay is set after a process has begun to wait for it.

    So one process per stream and per channel can sleep while idle and be woken at the end of what others start for it, with one
    event in the queue for each op or transfer and none for the waking.
    """

    def ring_after(self, delay: int) -> None:
        """Succeed ``delay`` nanoseconds from now."""
        self._ok = True
        self._value = None
        self.env.schedule(self, delay=delay)

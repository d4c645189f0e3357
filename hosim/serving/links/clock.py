"""simpy's clock with an end to every instant, for serving: what has ended at it is settled before
time moves on.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import simpy

NEVER = 2**62
"""Later than anything, in nanoseconds."""


class SteppedClock(simpy.Environment):
    """simpy's environment whose ``settle`` is called at the end of each instant that asked for it,
    and clears ``unsettled``.

    ``unsettled`` are the positions of engines at which something is left to be done at this
    instant. ``end_ns`` is the last instant at which something happened; alarms that were moved ring
    for nothing, and later.
    """

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The current instant: whole, as all delays are."""

    def __init__(self) -> None:
        super().__init__()
        self.unsettled: set[int] = set()
        self.settle: Callable[[], None] = self.unsettled.clear
        self.end_ns = 0
        self.rung_for_nothing = 0

    def step(self) -> None:
        """Process the next event, after all is settled that has to be before it."""
        while self.unsettled and self.peek() > self.now:
            self.settle()
        before = self.rung_for_nothing
        super().step()
        if self.rung_for_nothing == before:
            self.end_ns = self.now


class Alarm:
    """Calls again and again, at times that others set: ``rings_at`` is the next one."""

    def __init__(self, clock: SteppedClock, call: Callable[[], None]) -> None:
        self._clock = clock
        self._call = call
        self.rings_at = NEVER
        self._set = 0

    def ring_at(self, time: int) -> None:
        """Call at ``time``, and not when it was set to before."""
        self.rings_at = time
        self._set += 1
        self._clock.timeout(time - self._clock.now, self._set).callbacks.append(self._ring)

    def _ring(self, event: simpy.Event) -> None:
        if event.value == self._set:
            self.rings_at = NEVER
            self._call()
        else:
            self._clock.rung_for_nothing += 1

"""Lets a session of hyper-parallel record a later step than its first, from what the library calls:
a schedule at each op.

The library calls nothing of a planner after a step. At the first op of the second step the schedule
finds the session, and the executor's ``reset``, which the library calls when the third step begins,
puts the recording one in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LaterStep:
    """Stands for ``pre_actions`` of a schedule until its session's first op; ``switch`` lets the
    session record its next step.
    """

    def __init__(
        self, schedule: Any, active: Callable[[], Any], switch: Callable[[Any], None]
    ) -> None:
        self._schedule = schedule
        self._actions = schedule.pre_actions
        self._active = active
        self._switch = switch
        schedule.pre_actions = self

    def __call__(self, op: int) -> Any:
        """The actions before an op."""
        session = self._active()
        if session is not None:
            self._schedule.pre_actions = self._actions
            self._at_the_next_step(session)
        return self._actions(op)

    def _at_the_next_step(self, session: Any) -> None:
        def reset() -> None:
            self._switch(session)
            session.executor.reset()

        session.executor.reset = reset

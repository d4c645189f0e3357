"""Calls that wait for events of a GPU, which says nothing by itself: the host makes them when it
looks.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from hosim.errors import ExecutionError


class DeferredCalls:
    """Calls in the order of their queues. An event has ``done``, ``wait`` and the name of its
    ``queue``.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[int, list[Any], Callable[[], None]]]] = {}
        self._count = count()

    def later(self, after: Sequence[Any], then: Callable[[], None]) -> None:
        """Call ``then`` once all of ``after`` is done, when the host next checks; calls that wait
        for one queue keep their order.
        """
        if all([event.done() for event in after]):
            then()
        else:
            self._waiting.setdefault(after[-1].queue, deque()).append(
                (next(self._count), list(after), then)
            )

    def look(self) -> None:
        """Make the calls whose events are done."""
        for waiting in self._waiting.values():
            while waiting and all([event.done() for event in waiting[0][1]]):
                waiting.popleft()[2]()

    def find(self, room: Callable[[], bool]) -> None:
        """Wait until there is room. Raises :class:`ExecutionError` if there never will be."""
        self.look()
        while not room():
            if not any(self._waiting.values()):
                raise ExecutionError("finds no room")
            self.wait_for_first()

    def wait_for_first(self) -> None:
        """Wait for what the first of the calls to come waits for."""
        _, after, _ = min(
            waiting[0] for waiting in self._waiting.values() if waiting
        )  # by number, which no two share
        for event in after:
            event.wait()
        self.look()

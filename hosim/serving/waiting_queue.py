"""The queue of an engine whose requests have priorities: the least value first, then whoever came
first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class WaitingByPriority(Generic[Item]):
    """Describe what a ``deque`` offers a scheduler, in the order of ``key``: whatever comes in, at
    either end, goes to its place.
    """

    def __init__(self, key: Callable[[Item], tuple[int, ...]]) -> None:
        self._key: Callable[[Item], tuple[int, ...]] = lambda item: tuple(
            [-part for part in key(item)]
        )
        self._items: list[Item] = []  # the first one last, so that it is taken at once

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return reversed(self._items)

    def __getitem__(self, place: int) -> Item:
        return self._items[-1 - place]

    def append(self, item: Item) -> None:
        """Add an item."""
        place = bisect_left(self._items, self._key(item), key=self._key)
        self._items.insert(place, item)

    appendleft = append

    def popleft(self) -> Item:
        """Remove the first one."""
        return self._items.pop()

    def remove(self, item: Item) -> None:
        """Remove an item; keys are never equal."""
        del self._items[bisect_left(self._items, self._key(item), key=self._key)]

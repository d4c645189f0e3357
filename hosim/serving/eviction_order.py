"""The order in which things are given up: the least rank first, and of equal ranks the one that was
added first.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Rank = tuple[float, ...]


class EvictionOrder(Generic[Item]):
    """Things by rank. To add, discard and pop takes a time that grows with the logarithm of their
    number.
    """

    def __init__(self) -> None:
        self._live: dict[Item, int] = {}
        self._heap: list[tuple[Rank, int, Item]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def add(self, item: Item, rank: Rank) -> None:
        """Add an item, or give it another rank."""
        if (
            len(self._heap) > 2 * len(self._live) + 1000
        ):  # of those that were discarded there are more
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapify(self._heap)
        serial = self._live[item] = next(self._serial)
        heappush(self._heap, (rank, serial, item))

    def discard(self, item: Item) -> None:
        """Remove an item, if it is there."""
        self._live.pop(item, None)

    def pop(self) -> Item:
        """Remove the first one; there has to be one."""
        while True:
            _, serial, item = heappop(self._heap)
            if self._live.get(item) == serial:
                del self._live[item]
                return item

"""A tier below the device: the contents of which blocks are there, which of them goes first, and
how much room is left.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from hosim.serving.blocks.block_copies import Awaited
from hosim.serving.eviction_order import EvictionOrder, Rank


class BlockTier:
    """Room for ``capacity`` blocks. Contents go by name; ``reserved`` blocks belong to sequences
    that were swapped out.

    What is being written, or read, cannot be given up. With ``lives_ns`` contents are gone once
    nobody has written, read or ranked them for longer, by the clock ``now_ns``.
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        lives_ns: int | None = None,
        now_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.name = name
        self._lives_ns, self._now_ns = lives_ns, now_ns
        self._used: OrderedDict[Hashable, int] = OrderedDict()
        self.capacity = capacity
        self.reserved = 0
        self.peak = 0
        self._writes: dict[Hashable, Awaited] = {}
        self._readers: dict[Hashable, int] = {}
        self._ranks: dict[Hashable, Rank] = {}
        self._order: EvictionOrder[Hashable] = EvictionOrder()

    def __contains__(self, key: Hashable) -> bool:
        self._age()
        return key in self._writes

    def _age(self) -> None:
        """Give up what nobody has used for too long."""
        if self._lives_ns is None:
            return
        ends = self._now_ns() - self._lives_ns
        while self._used:
            key, used = next(iter(self._used.items()))
            if used >= ends:
                return
            del self._used[key]
            if key in self._order:  # the others are used now, and come back when they are not
                self._order.discard(key)
                del self._writes[key], self._ranks[key]

    @property
    def held(self) -> int:
        """Blocks that are taken."""
        self._age()
        return len(self._writes) + self.reserved

    def give_up(self, count: int) -> list[Hashable]:
        """Give up contents until there is room for ``count`` blocks, or nothing more can go; their
        names.
        """
        gone = []
        while self.held + count > self.capacity and len(self._order):
            key = self._order.pop()
            del self._writes[key], self._ranks[key]
            self._used.pop(key, None)
            gone.append(key)
        return gone

    @property
    def could_free(self) -> int:
        """Blocks that are free, or can be given up."""
        return self.capacity - self.held + len(self._order)

    def add(self, key: Hashable, write: Awaited, rank: Rank) -> None:
        """Contents come, and are there when ``write`` is over."""
        self._writes[key] = write
        self._ranks[key] = rank
        self.peak = max(self.peak, self.held)
        write.then(lambda: self._settle(key))

    def reserve(self, count: int) -> None:
        """Take room for a sequence that is swapped out, or give it back (a negative count)."""
        self.reserved += count
        self.peak = max(self.peak, self.held)

    def written(self, key: Hashable) -> Awaited:
        """Return the copy that brings the contents here."""
        return self._writes[key]

    def rank(self, key: Hashable, rank: Rank) -> None:
        """Contents have another rank from now on."""
        self._ranks[key] = rank
        if key in self._order:
            self._settle(key)

    def read(self, key: Hashable) -> None:
        """Contents are read: they stay until :meth:`has_read`."""
        self._readers[key] = self._readers.get(key, 0) + 1
        self._order.discard(key)

    def has_read(self, key: Hashable) -> None:
        """One who read contents is through."""
        self._readers[key] -= 1
        if not self._readers[key]:
            del self._readers[key]
            self._settle(key)

    def _settle(self, key: Hashable) -> None:
        if self._writes[key].over and key not in self._readers:
            self._order.add(key, self._ranks[key])
            if self._lives_ns is not None:
                self._used[key] = self._now_ns()
                self._used.move_to_end(key)

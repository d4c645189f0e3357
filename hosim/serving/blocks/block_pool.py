"""The blocks of a paged key-value cache: who holds which, and which full blocks can be shared with
later requests; and the contents that a tier below the device has, which of them goes first, and how
much room is left.

As in vLLM: a block that nobody holds keeps its contents until it is needed for others, the least
recently freed first, and of one request the last block first. A request whose prompt begins with
the contents of such blocks takes them over.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from hosim.serving.blocks.block_copies import Awaited
from hosim.serving.blocks.kv_policies import EvictionOrder, Rank

# -- the device ------------------------------------------------------------------------------------


class Reach(NamedTuple):
    """The places of a prompt's contents, from its first block: a block of the device, or ``-1 - j``
    for the ``j``-th of ``below``.

    For those ``below`` it has the place of the tier and the name.
    """

    slots: list[int]
    below: list[tuple[int, Hashable]]


class BlockPool:
    """``count`` blocks by number. Contents are named by keys, which :meth:`name` gives to full
    blocks.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._holders: list[
            int
        ] = []  # of the blocks that were ever taken; the others follow by number
        # in the order in which they are taken, when all were; a dict would search its first item
        # among all that were deleted
        self._freed: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}

    @property
    def free(self) -> int:
        """Return the number of blocks that nobody holds."""
        return self.count - len(self._holders) + len(self._freed)

    def found(self, keys: Iterable[Hashable]) -> list[int]:
        """The blocks with the contents of ``keys``, up to the first that is not there. Nobody holds
        them yet.
        """
        blocks = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def reach(self, keys: Iterable[Hashable]) -> Reach:
        """:meth:`found`, as where they are."""
        return Reach(self.found(keys), [])

    def has_room(self, reach: Reach, count: int) -> bool:
        """Return whether ``count`` blocks can be held that begin with those reached."""
        device = [slot for slot in reach.slots if slot >= 0] if reach.below else reach.slots
        return count - len(device) <= self.free - self.idle(device)

    def not_held(self, reach: Reach) -> int:
        """Return the number of blocks of what was reached that are below, or held by nobody: these
        take room.
        """
        return len(reach.below) + self.idle(slot for slot in reach.slots if slot >= 0)

    def claim(self, reach: Reach, hit: bool = True) -> tuple[list[int], list[Awaited]]:
        """Hold what was reached: the blocks, and what has to be over before they can be read."""
        self.hold(reach.slots)
        return reach.slots, []

    def idle(self, blocks: Iterable[int]) -> int:
        """Return the number of these blocks that nobody holds."""
        return sum(self._holders[block] == 0 for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold blocks that :meth:`found` gave."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._freed[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """Hold ``count`` blocks whose contents are lost; there have to be so many free ones."""
        return self._taken(count)[0]

    def _taken(self, count: int) -> tuple[list[int], list[tuple[int, Hashable]]]:
        """Hold free blocks: the blocks, and those of them that had named contents."""
        taken: list[int] = []
        lost: list[tuple[int, Hashable]] = []
        for _ in range(count):
            if len(self._holders) < self.count:
                block = len(self._holders)
                self._holders.append(1)
            else:
                block = self._next_idle()
                self._holders[block] = 1
                key = self._key_of.pop(block, None)
                if key is not None:
                    del self._block_of[key]
                    lost.append((block, key))
            taken.append(block)
        return taken, lost

    def _next_idle(self) -> int:
        """The block that goes first of those that nobody holds, which is taken from them."""
        return self._freed.popitem(last=False)[0]

    def receive(self, count: int) -> tuple[list[int], list[Awaited]]:
        """Hold ``count`` blocks for contents from elsewhere: the blocks, and what has to be over
        before they can be written.
        """
        return self.take(count), []

    def name(self, block: int, key: Hashable) -> None:
        """Say what a full block holds. If another block holds the same, that one keeps the name."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def unname(self, block: int) -> None:
        """A block does not get the contents that :meth:`name` said."""
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]

    def release(self, blocks: Sequence[int]) -> None:
        """Hold the blocks of a request no longer."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._freed[block] = None


# -- a tier below it -------------------------------------------------------------------------------


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

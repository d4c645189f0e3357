"""The blocks of a paged key-value cache: who holds which, and which full blocks can be shared with
later requests.

As in vLLM: a block that nobody holds keeps its contents until it is needed for others, the least
recently freed first, and of one request the last block first. A request whose prompt begins with
the contents of such blocks takes them over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hosim.serving.blocks.block_copies import Awaited


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
        self._count = count
        self._holders: list[
            int
        ] = []  # of the blocks that were ever taken; the others follow by number
        # in the order in which they are taken, when all were; a dict would search its first item
        # among all that were deleted
        self._freed: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}

    @property
    def count(self) -> int:
        """Return the number of blocks."""
        return self._count

    @property
    def free(self) -> int:
        """Return the number of blocks that nobody holds."""
        return self._count - len(self._holders) + len(self._freed)

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
        taken = []
        for _ in range(count):
            if len(self._holders) < self._count:
                block = len(self._holders)
                self._holders.append(1)
            else:
                block, _ = self._freed.popitem(last=False)
                if block in self._key_of:
                    del self._block_of[self._key_of.pop(block)]
                self._holders[block] = 1
            taken.append(block)
        return taken

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

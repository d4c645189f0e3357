"""A request on an engine: the tokens that it has, where its blocks are, and those that it leaves
below the device, of which attention reads few in each step.
"""

from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
from itertools import takewhile
from typing import Protocol

from hosim.serving.blocks import Awaited, SparseReads, TieredPool
from hosim.serving.requests import Request


class HandedOver(Protocol):
    """A prompt that another engine computes, whose blocks can be fetched."""

    @property
    def is_computed(self) -> bool:
        """Return whether all of it has been computed."""

    def fetch(self, blocks: int, after: Sequence[Awaited]) -> Awaited:
        """Bring the contents of its last ``blocks`` blocks, once all of ``after`` are over."""


class EngineSequence:
    """A request that is waiting or running: the tokens that it has, those that are in the cache,
    and its blocks.
    """

    __slots__ = (
        "admitted",
        "blocks",
        "buffer",
        "computed",
        "gone",
        "handed",
        "latest",
        "loads",
        "named",
        "number",
        "prefetched",
        "request",
        "swapped",
        "tokens",
        "wanted",
    )

    def __init__(self, number: int, request: Request) -> None:
        self.number = number
        self.request = request
        self.tokens = request.prompt_tokens
        self.wanted = request.prompt_tokens + request.output_tokens
        self.computed = 0
        self.latest = 0  # tokens that the latest iteration with it computes
        self.admitted = False
        self.blocks: list[int] = []
        # so many of its first blocks are below alone; these are of the device and stand for them
        self.gone = 0
        self.buffer: list[int] = []
        self.named = 0
        self.loads: list[Awaited] = []
        self.prefetched = False
        self.swapped = False
        self.handed: HandedOver | None = None

    def key(self, block: int, block_tokens: int) -> Hashable:
        """The name of a block's contents; one of its own where no other request can have them."""
        return self.request.block_key(block, block_tokens) or (-1, self.number, block)

    def keys(self, block_tokens: int) -> Iterator[Hashable]:
        """The keys of the full blocks before its last token, which is always computed."""
        return (self.key(block, block_tokens) for block in range((self.tokens - 1) // block_tokens))

    @property
    def rank(self) -> tuple[int, int, int]:
        """By priority, and then by arrival."""
        return self.request.priority, self.request.arrival_ns, self.number

    @property
    def is_loading(self) -> bool:
        """Return whether its blocks are still on their way."""
        if self.loads:
            self.loads = [load for load in self.loads if not load.over]
        return bool(self.loads)

    @property
    def is_received(self) -> bool:
        """Return whether its blocks are still on their way from another engine: until then they
        cannot be given up.
        """
        return self.handed is not None and self.is_loading


# -- sequences that leave blocks below the device --------------------------------------------------


class Thinned:
    """Gives up the device's blocks of sequences that decode, as far as the first tier below has
    their contents.

    What a sequence has there stays until the sequence ends or is preempted. ``sequences`` counts
    those that were thinned.
    """

    def __init__(self, pool: TieredPool, reads: SparseReads, block_tokens: int) -> None:
        self._pool = pool
        self._reads = reads
        self._block_tokens = block_tokens
        self.sequences = 0

    def spare(self, running: Sequence[EngineSequence], wanted: int) -> bool:
        """Thin sequences, the one that gives most first, until ``wanted`` blocks are free; does
        nothing and says so if they cannot.
        """
        lacking = wanted - self._pool.free
        able = [sequence for sequence in running if self._most(sequence) > 0]
        if sum(self._most(sequence) for sequence in able) < lacking:
            return False
        found = [
            (gain, -place, keys)
            for place, sequence in enumerate(able)
            for gain, keys in [self._gain(sequence)]
            if gain > 0
        ]
        if sum(gain for gain, *_ in found) < lacking:
            return False
        for _, place, keys in sorted(found, key=lambda one: one[:2], reverse=True):
            if self._pool.free >= wanted:
                break
            self._thin(able[-place], keys)
        return self._pool.free >= wanted

    def missed(self, sequence: EngineSequence) -> Fraction:
        """Blocks that come up for a step of a sequence."""
        return (
            self._reads.missed(sequence.gone, sequence.gone + len(sequence.blocks))
            if sequence.gone
            else Fraction(0)
        )

    def give_back(self, sequence: EngineSequence) -> None:
        """A sequence has ended, or is preempted: what stands for its blocks below is free."""
        if sequence.gone:
            self._pool.unpin(
                [sequence.key(block, self._block_tokens) for block in range(sequence.gone)]
            )
            self._pool.release(sequence.buffer)
            sequence.gone, sequence.buffer = 0, []

    def _droppable(self, sequence: EngineSequence) -> int:
        """Return the number of further blocks of a sequence that could go; none while its prompt is
        computed, or computed again, which reads all of them.
        """
        decodes = sequence.computed == sequence.tokens - 1 or (
            sequence.computed == sequence.tokens and sequence.latest == 1
        )
        if not sequence.blocks or not decodes or sequence.is_loading:
            return 0
        return max(0, sequence.named - self._reads.window - sequence.gone)

    def _most(self, sequence: EngineSequence) -> int:
        """Blocks that would be free at most."""
        drop = self._droppable(sequence)
        return drop - (self._reads.held(sequence.gone + drop) - len(sequence.buffer))

    def _gain(self, sequence: EngineSequence) -> tuple[int, list[object]]:
        """Blocks that would be free, and the names of those that would go, whose contents are
        below.
        """
        wanted = range(sequence.gone, sequence.gone + self._droppable(sequence))
        keys: list[object] = list(
            takewhile(
                self._pool.is_below, (sequence.key(block, self._block_tokens) for block in wanted)
            )
        )
        alone = self._pool.held_once(sequence.blocks[: len(keys)])
        return alone - (self._reads.held(sequence.gone + len(keys)) - len(sequence.buffer)), keys

    def _thin(self, sequence: EngineSequence, keys: list[object]) -> None:
        self._pool.pin(keys)
        self.sequences += not sequence.gone
        self._pool.release(sequence.blocks[: len(keys)])
        sequence.blocks = sequence.blocks[len(keys) :]
        sequence.gone += len(keys)
        sequence.buffer += self._pool.take(self._reads.held(sequence.gone) - len(sequence.buffer))

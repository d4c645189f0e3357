"""Sequences that leave the blocks of their cache below the device, of which attention reads few in
each step.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import takewhile

from hosim.serving.blocks import SparseReads, TieredPool
from hosim.serving.engine_sequence import EngineSequence


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

"""A prompt whose cache is sent layer by layer while it is computed, as Mooncake and vLLM's
connectors can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hosim.serving.blocks import Awaited, BlockPool, KvTransfers, when_over


class SentByLayers:
    """The cache of one prompt of ``tokens`` tokens, on its way between two engines.

    What is ready is sent once the other engine has blocks for it: all that was ready before as one
    transfer, and each layer of what an iteration fills when it has been computed. A block is sent
    when it is full, or the prompt ends in it. ``wake`` is called when all is there.
    """

    def __init__(
        self,
        transfers: KvTransfers,
        number: int,
        ends: tuple[int, int],
        tokens: int,
        block_tokens: int,
        wake: Callable[[], None],
    ) -> None:
        self._transfers = transfers
        self._number = number
        self._ends = ends
        self._tokens = tokens
        self._block_tokens = block_tokens
        self._wake = wake
        self._whole = -(-tokens // block_tokens)
        self._ready: list[tuple[int, int, int, int]] = []
        self._copy = Awaited()
        self._may_send = False
        self._left = 0
        self._skipped = 0
        self._held: tuple[BlockPool, Sequence[int]] | None = None

    @property
    def is_computed(self) -> bool:
        """Return whether all of the prompt has been computed."""
        return self._held is not None

    def filled(self, before: int, after: int) -> tuple[int, int]:
        """The blocks that are full, or the prompt's last, when its tokens from ``before`` to
        ``after`` are computed.
        """
        first, last = (
            self._whole if tokens == self._tokens else tokens // self._block_tokens
            for tokens in (before, after)
        )
        return first, last

    def ready(self, first: int, last: int, layer: int = 0, layers: int = 1) -> None:
        """One of so many layers of blocks has been computed."""
        self._ready.append((first, last, layer, layers))
        if self._may_send:
            self._send()

    def prefilled(self, pool: BlockPool, blocks: Sequence[int]) -> None:
        """All of the prompt has been computed; ``blocks`` of the sender's ``pool`` are held until
        all is there.
        """
        self._held = pool, blocks
        self._wake()
        self._end()

    def fetch(self, blocks: int, after: Sequence[Awaited]) -> Awaited:
        """The other engine has room for the last ``blocks`` blocks."""
        self._skipped = self._whole - blocks
        self._left = blocks * self._transfers.block_bytes
        self._transfers.asked(self._number, self._copy)
        when_over(after, self._begin)
        return self._copy

    def _begin(self) -> None:
        self._may_send = True
        self._send()

    def _send(self) -> None:
        """Send what is ready."""
        size = 0
        for first, last, layer, layers in self._ready:
            whole = (
                (last - max(first, self._skipped)) * self._transfers.block_bytes
                if last > self._skipped
                else 0
            )
            size += whole * (layer + 1) // layers - whole * layer // layers
        self._ready.clear()
        part = Awaited()
        part.then(lambda: self._there(size))
        if size:
            self._transfers.send(self._ends, size, part)
        else:
            part.end()

    def _there(self, size: int) -> None:
        self._left -= size
        self._end()

    def _end(self) -> None:
        if self._held is not None and self._may_send and not self._left and not self._copy.over:
            pool, blocks = self._held
            pool.release(blocks)
            self._copy.end()
            self._wake()

"""Host memory of one tier: blocks are kept and reused, because pinning memory takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hosim.errors import ExecutionError
from hosim.lower.transfers import Event
from hosim.units import human_size

Later = Callable[[Sequence[Event], Callable[[], None]], None]
"""Calls a function once some events are done."""


class HostPool:
    """At most ``capacity_bytes`` of host memory.

    Released bytes are reused for blocks of the same size, because layers are alike, and so are steps. Unused bytes are freed when other
    blocks need the room.
    """

    def __init__(self, tier: str, capacity_bytes: int, later: Later, pinned: bool) -> None:
        self.tier = tier
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0
        self._later = later
        self._pinned = pinned
        self._unused: dict[int, list[Any]] = {}
        self._unused_bytes = 0

    def block(self, size_bytes: int, owner: str) -> HostBlock:
        """A block that has no bytes yet. Raises :class:`ExecutionError` if it can never have them."""
        if size_bytes > self.capacity_bytes:
            wanted, there = human_size(size_bytes), human_size(self.capacity_bytes)
            raise ExecutionError(f"tensor {owner!r} of {wanted} does not fit into {self.tier} of {there}")
        return HostBlock(self, size_bytes)

    def take(self, size_bytes: int) -> Any:
        """A flat tensor of bytes; ``None`` if there is no room now."""
        if self.held_bytes + size_bytes > self.capacity_bytes:
            return None
        self.held_bytes += size_bytes
        unused = self._unused.get(size_bytes)
        if unused:
            self._unused_bytes -= size_bytes
            return unused.pop()
        if self.held_bytes + self._unused_bytes > self.capacity_bytes:
            self.close()
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=self._pinned)

    def give_back(self, buffer: Any) -> None:
        """Take back bytes that hold nothing any more."""
        self.held_bytes -= buffer.numel()
        self._unused_bytes += buffer.numel()
        self._unused.setdefault(buffer.numel(), []).append(buffer)

    def later(self, after: Sequence[Event], then: Callable[[], None]) -> None:
        """Call ``then`` once ``after`` is done."""
        self._later(after, then)

    def close(self) -> None:
        """Return unused bytes to the system."""
        self._unused.clear()
        self._unused_bytes = 0


class HostBlock:
    """A tensor's bytes in host memory; ``bytes`` is a flat tensor of them."""

    def __init__(self, pool: HostPool, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.valid = False
        self.bytes: Any = None
        self._pool = pool

    def take(self) -> bool:
        """Reserve the bytes if they are free; returns whether the block has them."""
        if self.bytes is None:
            self.bytes = self._pool.take(self.size_bytes)
        return self.bytes is not None

    def release(self, after: Sequence[Event] = ()) -> None:
        """Give the bytes back once all of ``after`` is done."""
        self._pool.later(after, self._release)

    def _release(self) -> None:
        self.valid = False
        if self.bytes is not None:
            buffer, self.bytes = self.bytes, None
            self._pool.give_back(buffer)

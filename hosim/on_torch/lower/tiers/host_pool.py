"""The memory of the tiers below the device tier, on a real machine: files where a folder is named,
else host memory in large slabs. Pinning takes milliseconds for each call, and torch's pinned memory
is never given back.
"""

from __future__ import annotations

import mmap
import os
from bisect import insort
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch

from hosim.errors import ExecutionError, InputError
from hosim.hardware import Hardware
from hosim.on_torch.lower.tiers.file_tier import FileTier, Later
from hosim.on_torch.lower.tiers.transfers import Event
from hosim.units import human_size

SLAB_BYTES = 256 << 20
"""The bytes of a slab, where the tier has so many and no block needs more."""

ALIGNMENT = 64
"""Blocks begin at multiples of this."""


class Pinning(Protocol):
    """An interface that pins host memory, so that a device copies it by itself."""

    def pin(self, address: int, size_bytes: int) -> None:
        """Pin memory. Raises :class:`ExecutionError` if that fails."""

    def unpin(self, address: int) -> None:
        """Undo it."""


class Slab:
    """Memory from the system, with its free ranges as (first byte, bytes)."""

    def __init__(self, size_bytes: int, pinning: Pinning | None) -> None:
        self.size_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.size_bytes)
        self.bytes: Any = torch.frombuffer(self._map, dtype=torch.uint8)
        self._pinning = pinning
        self.free = [(0, self.size_bytes)]
        if pinning is not None:
            pinning.pin(self.bytes.data_ptr(), self.size_bytes)

    def take(self, size_bytes: int) -> int | None:
        """The first byte of the smallest free range with so many bytes, which is taken; ``None`` if
        there is none.
        """
        fitting = [(size, start) for start, size in self.free if size >= size_bytes]
        if not fitting:
            return None
        size, start = min(fitting)
        self.free.remove((start, size))
        if size > size_bytes:
            insort(self.free, (start + size_bytes, size - size_bytes))
        return start

    def give_back(self, start: int, size_bytes: int) -> None:
        """Make a range free, as one with its free neighbours."""
        for other, size in list(self.free):
            if other + size == start or start + size_bytes == other:
                self.free.remove((other, size))
                start, size_bytes = min(start, other), size_bytes + size
        insort(self.free, (start, size_bytes))

    def close(self) -> None:
        """Return it to the system."""
        if self._pinning is not None:
            self._pinning.unpin(self.bytes.data_ptr())
        self.bytes = None
        with suppress(BufferError):  # somebody still has a view; then it goes with that
            self._map.close()


class HostPool:
    """At most ``capacity_bytes`` of host memory in blocks.

    Blocks lie in slabs, which are kept, because layers are alike, and so are steps. Where free
    ranges are too small, one more slab may make the memory from the system larger than the
    capacity. ``system_bytes`` is what all slabs have.
    """

    def __init__(
        self, tier: str, capacity_bytes: int, later: Later, pinning: Pinning | None = None
    ) -> None:
        self.tier = tier
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0
        self.system_bytes = 0
        self.later = later
        self._pinning = pinning
        self._slabs: list[Slab] = []

    def block(self, size_bytes: int, owner: str) -> HostBlock:
        """A block that has no bytes yet. Raises :class:`ExecutionError` if it can never have
        them.
        """
        if size_bytes > self.capacity_bytes:
            wanted, there = human_size(size_bytes), human_size(self.capacity_bytes)
            raise ExecutionError(
                f"tensor {owner!r} of {wanted} does not fit into {self.tier} of {there}"
            )
        return HostBlock(self, size_bytes)

    def take(self, size_bytes: int) -> tuple[Slab, int] | None:
        """A range of a slab, by its first byte; ``None`` if there is no room now."""
        if self.held_bytes + size_bytes > self.capacity_bytes:
            return None
        wanted = _aligned(size_bytes)
        for slab in self._slabs:
            start = slab.take(wanted)
            if start is not None:
                break
        else:
            slab = self._grow(wanted)
            taken = slab.take(wanted)
            assert taken is not None
            start = taken
        self.held_bytes += size_bytes
        return slab, start

    def _grow(self, size_bytes: int) -> Slab:
        usual = min(SLAB_BYTES, self.capacity_bytes)
        if self.system_bytes + max(usual, size_bytes) > self.capacity_bytes:
            usual = 0
            self.shrink()
        slab = Slab(max(usual, size_bytes), self._pinning)
        self._slabs.append(slab)
        self.system_bytes += slab.size_bytes
        return slab

    def give_back(self, slab: Slab, start: int, size_bytes: int) -> None:
        """Take back bytes that hold nothing any more."""
        self.held_bytes -= size_bytes
        slab.give_back(start, _aligned(size_bytes))

    def shrink(self) -> None:
        """Return slabs without blocks to the system."""
        self._drop([slab for slab in self._slabs if slab.free == [(0, slab.size_bytes)]])

    def close(self) -> None:
        """Return all slabs to the system; blocks lose what they hold."""
        self._drop(list(self._slabs))

    def _drop(self, slabs: Sequence[Slab]) -> None:
        for slab in slabs:
            self._slabs.remove(slab)
            self.system_bytes -= slab.size_bytes
            slab.close()


class HostBlock:
    """A tensor's bytes in host memory; ``bytes`` is a flat tensor of them."""

    def __init__(self, pool: HostPool, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.valid = False
        self.bytes: Any = None
        self._pool = pool
        self._place: tuple[Slab, int] | None = None

    def take(self) -> bool:
        """Reserve the bytes if they are free; returns whether the block has them."""
        if self._place is None:
            self._place = self._pool.take(self.size_bytes)
            if self._place is not None:
                slab, start = self._place
                self.bytes = slab.bytes[start : start + self.size_bytes]
        return self._place is not None

    def release(self, after: Sequence[Event] = ()) -> None:
        """Give the bytes back once all of ``after`` is done."""
        self._pool.later(after, self._release)

    def _release(self) -> None:
        self.valid = False
        if self._place is not None:
            (slab, start), self._place, self.bytes = self._place, None, None
            self._pool.give_back(slab, start, self.size_bytes)


def memory_of_tiers(
    hardware: Hardware,
    directories: Mapping[str, str | os.PathLike[str]],
    later: Later,
    *,
    direct: bool,
    pinning: Pinning | None = None,
) -> dict[str, HostPool | FileTier]:
    """Return the memory that holds the bytes of each tier but the device tier, by name.

    Raises :class:`InputError` for a folder of no such tier and for one that cannot be used, and for
    channels that share a queue, as each is run by itself here; nothing stays open then.
    """
    for channel in hardware.channels:
        if channel.queue is not None:
            raise InputError(
                f"{hardware.name} says that channels share a queue, and plans run here with one for "
                "each; leave that out of the profile",
                where=f"channels.{channel.name}.queue",
            )
    below = {
        tier.name: tier.capacity_bytes
        for tier in hardware.tiers
        if tier.name != hardware.device_tier
    }
    for name in directories:
        if name not in below:
            known = ", ".join(below) or "none"
            raise InputError(
                f"no tier {name!r} below the device tier of {hardware.name} (tiers: {known})",
                source="directories",
            )
    made: dict[str, HostPool | FileTier] = {}
    try:
        for name, capacity in below.items():
            if name in directories:
                made[name] = FileTier(name, directories[name], capacity, later, direct)
            else:
                made[name] = HostPool(name, capacity, later, pinning)
    except BaseException:
        for tier in made.values():
            tier.close()
        raise
    return made


def shrink_host_memory(tiers: Mapping[str, HostPool | FileTier]) -> None:
    """Give host memory that holds nothing back to the system."""
    for tier in tiers.values():
        if isinstance(tier, HostPool):
            tier.shrink()


def _aligned(size_bytes: int) -> int:
    return max(1, -(-size_bytes // ALIGNMENT)) * ALIGNMENT

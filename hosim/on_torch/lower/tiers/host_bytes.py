"""Bytes in memory and in files, and copies of them by the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from hosim.on_torch.lower.tiers.file_tier import FileBlock


class DeviceBytes:
    """Bytes of a storage of the device tier, while a transfer reads or fills them; ``bytes`` is a
    flat tensor of them.
    """

    bytes: Any = None
    size_bytes: int

    def open(self, storage: Any, size_bytes: int) -> None:
        """Name the storage."""
        self.size_bytes = size_bytes
        self.bytes = _flat(storage)

    def close(self) -> None:
        """Release the storage, so that it may be freed."""
        self.bytes = None


class HostBytes:
    """Bytes of the host's memory that are of no tier; ``bytes`` is a flat tensor of them."""

    def __init__(self, flat: Any) -> None:
        self.bytes = flat
        self.size_bytes = len(flat)

    @classmethod
    def of_storage(cls, storage: Any) -> HostBytes:
        """All bytes of a storage."""
        return cls(_flat(storage))


def _flat(storage: Any) -> torch.Tensor:
    """All bytes of a storage, as a flat tensor."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def copy_bytes(source: Any, destination: Any, start: int, stop: int, part: int) -> None:
    """Copy the bytes ``[start, stop)`` of a tensor. A place that has only the part from ``part`` on
    counts from there.

    Other Python threads run meanwhile.
    """
    if isinstance(source, FileBlock) and isinstance(destination, FileBlock):
        between = bytearray(stop - start)
        source.read(start, between)
        destination.write(start, between)
    elif isinstance(source, FileBlock):
        source.read(start, _buffer(_address(destination, start, stop, part), stop - start))
    elif isinstance(destination, FileBlock):
        destination.write(start, _buffer(_address(source, start, stop, part), stop - start))
    else:
        ctypes.memmove(
            _address(destination, start, stop, part),
            _address(source, start, stop, part),
            stop - start,
        )


def part_of(place: Any, start: int, stop: int) -> Any:
    """The bytes ``[start, stop)`` of a tensor at a place that has all of them, or only these."""
    return place.bytes[start:stop] if place.bytes.numel() >= stop else place.bytes[: stop - start]


def _address(place: Any, start: int, stop: int, part: int) -> int:
    """The address of byte ``start`` of a tensor, without numpy, which would fix a storage's size
    for good.
    """
    size = place.bytes.numel()
    skipped = part if size < stop else 0
    assert stop - skipped <= size
    address: int = place.bytes.data_ptr() + start - skipped
    return address


def _buffer(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address))

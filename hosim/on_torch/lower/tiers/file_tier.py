"""A tier of files: one file for each tensor, in a folder of its own that is removed when the tier
is closed.

Bytes are read and written in chunks, through the system's cache or, with ``direct``, around it.
Direct transfers need memory, offsets and lengths that are multiples of :data:`ALIGNMENT`: they use
an aligned buffer, and pad a file's last part.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch

from hosim.errors import ExecutionError, InputError
from hosim.on_torch.lower.tiers.transfers import Event
from hosim.units import human_size

ALIGNMENT = 4096
CHUNK_BYTES = 8 << 20

Later = Callable[[Sequence[Event], Callable[[], None]], None]
"""Calls a function once some events are done."""


class FileTier:
    """Files of at most ``capacity_bytes`` in a new folder under ``directory``.

    Raises :class:`InputError` if the folder does not exist or cannot be written to, or if
    ``direct`` is set for a file system without direct transfers.
    """

    def __init__(
        self,
        tier: str,
        directory: str | os.PathLike[str],
        capacity_bytes: int,
        later: Later,
        direct: bool = False,
    ) -> None:
        self.tier = tier
        self.capacity_bytes = capacity_bytes
        self.held_bytes = 0
        self.direct = direct
        self.later = later
        self._numbers = count()
        parent = Path(directory)
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=f"hosim-{tier}-", dir=parent))
        except OSError as error:
            raise InputError(
                f"cannot make a folder for tier {tier}: {error.strerror}; give a writable one",
                source=str(parent),
            ) from error
        self._remove = weakref.finalize(
            self, shutil.rmtree, self.folder, ignore_errors=True
        )  # at the interpreter's end, too
        if direct:
            try:
                self._check_direct()
            except OSError as error:
                self.close()
                raise InputError(
                    f"its file system has no direct transfers ({error.strerror}); leave "
                    "direct out, or give another folder",
                    source=str(parent),
                ) from error

    def _check_direct(self) -> None:
        probe = self.folder / "probe"
        file = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            with mmap.mmap(-1, ALIGNMENT) as buffer:
                os.pwrite(file, buffer, 0)
        finally:
            os.close(file)
            probe.unlink()

    def block(self, size_bytes: int, owner: str) -> FileBlock:
        """A file that does not exist yet. Raises :class:`ExecutionError` if it can never fit."""
        if size_bytes > self.capacity_bytes:
            wanted, there = human_size(size_bytes), human_size(self.capacity_bytes)
            raise ExecutionError(
                f"tensor {owner!r} of {wanted} does not fit into {self.tier} of {there}"
            )
        return FileBlock(self, self.folder / f"{next(self._numbers)}.bin", size_bytes)

    def close(self) -> None:
        """Remove the folder."""
        self._remove()


class FileBlock:
    """A tensor's bytes in a file."""

    def __init__(self, tier: FileTier, path: Path, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.valid = False
        self.path = path
        self._tier = tier
        self._taken = False

    def take(self) -> bool:
        """Reserve the bytes in the tier if they are free; returns whether the block has them."""
        tier = self._tier
        if not self._taken and tier.held_bytes + self.size_bytes <= tier.capacity_bytes:
            tier.held_bytes += self.size_bytes
            self._taken = True
        return self._taken

    def release(self, after: Sequence[Event] = ()) -> None:
        """Remove the file once all of ``after`` is done."""
        self._tier.later(after, self._release)

    def _release(self) -> None:
        self.valid = False
        if self._taken:
            self._taken = False
            self._tier.held_bytes -= self.size_bytes
            with contextlib.suppress(OSError):
                self.path.unlink()

    def write(self, start: int, data: Any) -> None:
        """Write ``data`` (a buffer) at ``start``. Raises :class:`OSError`."""
        file = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | self._flags(start, start + len(data)), 0o600
        )
        try:
            if self._is_direct(start, start + len(data)):
                self._write_direct(file, start, data)
            else:
                _write(file, memoryview(data), start)
        finally:
            os.close(file)

    def read(self, start: int, data: Any) -> None:
        """Fill ``data`` (a buffer) from ``start`` on. Raises :class:`OSError`, and
        :class:`ExecutionError` for a file that is too short.
        """
        file = os.open(self.path, os.O_RDONLY | self._flags(start, start + len(data)))
        try:
            read = (
                self._read_direct(file, start, data)
                if self._is_direct(start, start + len(data))
                else _read(file, memoryview(data), start)
            )
        finally:
            os.close(file)
        if read < len(data):
            raise ExecutionError(
                f"{self.path} ends after {start + read} B; expected {self.size_bytes} B: another "
                "program changed it"
            )

    def _is_direct(self, start: int, stop: int) -> bool:
        """Unaligned parts go through the system's cache; whole tensors never do."""
        return (
            self._tier.direct
            and start % ALIGNMENT == 0
            and (stop % ALIGNMENT == 0 or stop == self.size_bytes)
        )

    def _flags(self, start: int, stop: int) -> int:
        return os.O_DIRECT if self._is_direct(start, stop) else 0

    def _write_direct(self, file: int, start: int, data: Any) -> None:
        source = memoryview(data)
        with (
            mmap.mmap(-1, _padded(min(CHUNK_BYTES, len(source)))) as buffer,
            memoryview(buffer) as aligned,
        ):
            for at in range(0, len(source), CHUNK_BYTES):
                chunk = source[at : at + CHUNK_BYTES]
                aligned[: len(chunk)] = chunk
                _write(file, aligned[: _padded(len(chunk))], start + at)
        if (start + len(source)) % ALIGNMENT:
            os.ftruncate(file, start + len(source))

    def _read_direct(self, file: int, start: int, data: Any) -> int:
        target = memoryview(data)
        done = 0
        with (
            mmap.mmap(-1, _padded(min(CHUNK_BYTES, len(target)))) as buffer,
            memoryview(buffer) as aligned,
        ):
            while done < len(target):
                wanted = min(CHUNK_BYTES, len(target) - done)
                read = min(
                    wanted, _read(file, aligned[: _padded(wanted)], start + done, direct=True)
                )
                target[done : done + read] = aligned[:read]
                done += read
                if read < wanted:
                    break
        return done


def _padded(size: int) -> int:
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


def _write(file: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done : done + CHUNK_BYTES], start + done)


def _read(file: int, data: memoryview, start: int, direct: bool = False) -> int:
    """The number of bytes read, fewer than wanted at the file's end."""
    done = 0
    while done < len(data):
        read = os.preadv(file, [data[done : done + CHUNK_BYTES]], start + done)
        done += read
        if not read or (direct and read % ALIGNMENT):
            break
    return done


# -- bytes in memory and in files, and copies of them by the CPU -----------------------------------


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

"""A tier of files: one file for each tensor, in a folder of its own that is removed when the tier
is closed.

Bytes are read and written in chunks, through the system's cache or, with ``direct``, around it.
Direct transfers need memory, offsets and lengths that are multiples of :data:`ALIGNMENT`: they use
an aligned buffer, and pad a file's last part.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

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
        self._later = later
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
                message = (
                    f"its file system has no direct transfers ({error.strerror}); leave "
                    "direct out, or give another folder"
                )
                raise InputError(message, source=str(parent)) from error

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

    def later(self, after: Sequence[Event], then: Callable[[], None]) -> None:
        """Call ``then`` once ``after`` is done."""
        self._later(after, then)

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

"""A reader of zip files without compression, as torch writes them. It accepts only files whose
parts all agree.

Programs that read zip files interpret damaged ones differently, so that one program may check
something else than the next one reads. This reader walks the directory at the end of the file entry
by entry: each name occurs once, nothing is compressed or encrypted, the header before an entry's
data agrees with the directory, and no two entries share a byte. Data are read on request, and
compared with their checksum.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO

from hosim.errors import InputError
from hosim.limits import within

_END, _ENTRY, _LOCAL = (
    struct.Struct("<IHHHHIIH"),
    struct.Struct("<IHHHHHHIIIHHHHHII"),
    struct.Struct("<IHHHHHIIIHH"),
)
_LOCATOR64, _END64 = struct.Struct("<IIQI"), struct.Struct("<IQHHIIQQQQ")
_DESCRIPTOR, _UTF8 = 1 << 3, 1 << 11
"""Flags of an entry: its size follows its data; its name is UTF-8."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """An entry of a zip file; ``start`` is the position of its local header, ``data`` that of its
    data.
    """

    name: str
    flags: int
    crc: int
    size: int
    start: int
    data: int = 0


@dataclass(frozen=True, slots=True)
class ZipWindow:
    """The part of an open file that contains a zip file."""

    stream: BinaryIO
    begin: int
    size: int

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes at a position. Raises :class:`InputError` if the file ends
        before them.
        """
        if position < 0 or position + length > self.size:
            raise _damaged("it ends too early")
        self.stream.seek(self.begin + position)
        data = self.stream.read(length)
        if len(data) != length:
            raise _damaged("it ends too early")
        return data

    def inside(self, record: StoredRecord) -> ZipWindow:
        """Return the window of a record that is a zip file itself."""
        return ZipWindow(self.stream, self.begin + record.data, record.size)

    def content(self, record: StoredRecord) -> bytes:
        """Return the data of a record. Raises :class:`InputError` if they are too many or do not
        match their checksum.
        """
        within("unpacked_bytes", record.size, where=ascii(record.name)[1:61])
        data = self.read(record.data, record.size)
        if zlib.crc32(data) != record.crc:
            raise _damaged(
                f"the contents of {ascii(record.name)[:60]} are not those that were written"
            )
        return data


def _damaged(reason: str) -> InputError:
    return InputError(f"damaged or not an archive of torch ({reason}); write it again")


def records_of(window: ZipWindow) -> Mapping[str, StoredRecord]:
    """Return the records of a zip file by name. Raises :class:`InputError` if it is damaged,
    ambiguous, compressed or encrypted.
    """
    count, length, start = _directory(window)
    within("archive_records", count)
    within("unpacked_bytes", length, where="directory of the archive")
    found: dict[str, StoredRecord] = {}
    folded: set[str] = set()
    for entry in _entries(window.read(start, length), count):
        if entry.name.casefold() in folded:
            raise _damaged(f"{ascii(entry.name)[:60]} is there twice")
        folded.add(entry.name.casefold())
        found[entry.name] = _located(window, entry)
    ranges = [
        *sorted((record.start, record.data + record.size) for record in found.values()),
        (start, start),
    ]
    if any(stop > following for (_, stop), (following, _) in pairwise(ranges)):
        raise _damaged("two of its records overlap")
    return found


def _directory(window: ZipWindow) -> tuple[int, int, int]:
    """Return the number of entries, the length of the directory, and its position."""
    last = window.size - _END.size
    if last < 0:
        raise _damaged(f"it has {window.size} bytes")
    signature, disk, first, here, count, length, start, comment = _END.unpack(
        window.read(last, _END.size)
    )
    if signature != 0x06054B50 or comment or disk or first or here != count:
        raise _damaged("no directory at its end")
    locator = last - _LOCATOR64.size
    if locator >= 0 and window.read(locator, 4) == b"PK\x06\x07":
        _, _, position, disks = _LOCATOR64.unpack(window.read(locator, _LOCATOR64.size))
        last = locator - _END64.size
        signature, _, _, _, disk, first, here, large, long, far = _END64.unpack(
            window.read(last, _END64.size)
        )
        if (
            signature != 0x06064B50
            or position != last
            or disks != 1
            or disk
            or first
            or here != large
        ):
            raise _damaged("no directory at its end")
        if (
            count not in (large, 0xFFFF)
            or length not in (long, 0xFFFFFFFF)
            or start not in (far, 0xFFFFFFFF)
        ):
            raise _damaged("two directories")
        count, length, start = large, long, far
    if start + length != last:
        raise _damaged("its directory is not where it says")
    return count, length, start


def _entries(directory: bytes, count: int) -> Iterator[StoredRecord]:
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(directory):
            raise _damaged("its directory ends too early")
        head = _ENTRY.unpack_from(directory, at)
        (
            signature,
            _,
            _,
            flags,
            method,
            _,
            _,
            crc,
            packed,
            size,
            named,
            extra,
            comment,
            disk,
            _,
            _,
            start,
        ) = head
        at += _ENTRY.size
        raw, more = directory[at : at + named], directory[at + named : at + named + extra]
        at += named + extra + comment
        if signature != 0x02014B50 or at > len(directory) or disk:
            raise _damaged("its directory ends too early")
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise _damaged("the name of a record is not UTF-8") from None
        size, packed, start = _large(more, size, packed, start)
        if flags & ~(_DESCRIPTOR | _UTF8):
            raise _damaged(
                f"{ascii(name)[:60]} is encrypted, or marked in a way that torch does not"
            )
        if method or packed != size:
            raise _damaged(f"{ascii(name)[:60]} is compressed, which torch never does")
        yield StoredRecord(name, flags, crc, size, start)
    if at != len(directory):
        raise _damaged("its directory has more than its entries")


def _large(extra: bytes, *numbers: int) -> list[int]:
    """Return the size, packed size and position of an entry; those too large for its head come from
    the extra field.
    """
    at = 0
    large: list[int] = []
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1 and at + 4 + length <= len(extra):
            large += struct.unpack_from(f"<{length // 8}Q", extra, at + 4)
        at += 4 + length
    left = iter(large)
    return [next(left, number) if number == 0xFFFFFFFF else number for number in numbers]


def _located(window: ZipWindow, entry: StoredRecord) -> StoredRecord:
    """Return ``entry`` with the position of its data. Raises :class:`InputError` unless its local
    header agrees with the directory.
    """
    head = window.read(entry.start, _LOCAL.size)
    signature, _, flags, method, _, _, crc, packed, size, named, extra = _LOCAL.unpack(head)
    name = window.read(entry.start + _LOCAL.size, named)
    later = bool(flags & _DESCRIPTOR)  # sizes and checksum may follow the data
    same = (
        signature == 0x04034B50
        and flags == entry.flags
        and not method
        and name == entry.name.encode()
    )
    sizes = {entry.size, 0xFFFFFFFF} | ({0} if later else set())
    if not same or not {size, packed} <= sizes or not (crc == entry.crc or (later and not crc)):
        raise _damaged(f"{ascii(entry.name)[:60]} is not what its directory says")
    data = entry.start + _LOCAL.size + int(named) + int(extra)
    if data + entry.size > window.size:
        raise _damaged("it ends too early")
    return replace(entry, data=data)

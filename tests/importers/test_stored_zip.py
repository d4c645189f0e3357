"""The reader of zip files without compression, on files written byte by byte."""

from __future__ import annotations

import io
import struct
import zlib

import pytest

from hosim.errors import InputError
from hosim.importers.stored_zip import StoredRecord, ZipWindow, records_of

ELSEWHERE = 0xFFFFFFFF
"""Stands in the head of an entry for a number that its extra field has."""
OTHER = struct.pack("<HH2s", 9, 2, b"ab")
"""A field of another kind."""
DATA = b"the data"


def large(*numbers: int, claimed: int = 0) -> bytes:
    """The field for large numbers; it may claim to have another number of bytes."""
    return struct.pack(f"<HH{len(numbers)}Q", 1, claimed or 8 * len(numbers), *numbers)


def archive(size: int, packed: int, start: int, extra: bytes) -> ZipWindow:
    """A zip file of one record, at 3, with these numbers and this extra field in the directory."""
    crc = zlib.crc32(DATA)
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 0, crc, len(DATA), len(DATA), 1, 0) + b"a" + DATA
    head = (0x02014B50, 45, 45, 0, 0, 0, 0, crc, packed, size, 1, len(extra), 0, 0, 0, 0, start)
    entry = struct.pack("<IHHHHHHIIIHHHHHII", *head) + b"a" + extra
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 1, 1, len(entry), 3 + len(local), 0)
    content = b"xyz" + local + entry + end
    return ZipWindow(io.BytesIO(content), 0, len(content))


@pytest.mark.parametrize(
    ("numbers", "extra"),
    [
        ((8, 8, 3), b""),
        ((8, 8, 3), OTHER),
        ((ELSEWHERE, ELSEWHERE, ELSEWHERE), large(8, 8, 3)),
        ((ELSEWHERE, ELSEWHERE, ELSEWHERE), OTHER + large(8, 8, 3)),
        ((ELSEWHERE, ELSEWHERE, ELSEWHERE), large(8, 8, 3) + OTHER),
        ((ELSEWHERE, ELSEWHERE, 3), large(8, 8)),
        ((8, 8, ELSEWHERE), large(3)),
        ((8, ELSEWHERE, ELSEWHERE), large(8, 3)),
        ((8, 8, 3), large(7, 7, 7)),  # what is in the head needs no other number
    ],
)
def test_numbers_too_large_for_the_head_of_an_entry_are_in_its_extra_field(numbers: tuple[int, int, int], extra: bytes) -> None:
    window = archive(*numbers, extra)
    (record,) = records_of(window).values()
    assert record == StoredRecord("a", 0, zlib.crc32(DATA), 8, 3, 3 + 30 + 1)
    assert window.content(record) == DATA


@pytest.mark.parametrize("extra", [b"", OTHER, large(8, 8, 3, claimed=25), large(8, 8, 3)[:-1], struct.pack("<HH3Q", 2, 24, 8, 8, 3)])
def test_numbers_that_are_nowhere(extra: bytes) -> None:
    with pytest.raises(InputError, match="it ends too early"):
        records_of(archive(ELSEWHERE, ELSEWHERE, ELSEWHERE, extra))

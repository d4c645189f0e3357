"""The reader of zip files without compression, on files written byte by byte."""

from __future__ import annotations

import io
import re
import struct
import zlib
from pathlib import Path

import pytest

from hosim.errors import InputError
from hosim.io import load_any
from hosim.io.importers.stored import StoredRecord, ZipWindow, records_of

ELSEWHERE = 0xFFFFFFFF
"""Stands in the head of an entry for a number that its extra field has."""
OTHER = struct.pack("<HH2s", 9, 2, b"ab")
"""A field of another kind."""
DATA = b"the data"
CRC = zlib.crc32(DATA)
LATER, UTF8 = 8, 2048


def large(*numbers: int, claimed: int = 0) -> bytes:
    """The field for large numbers; it may claim to have another number of bytes."""
    return struct.pack(f"<HH{len(numbers)}Q", 1, claimed or 8 * len(numbers), *numbers)


def local(name: bytes = b"a", flags: int = 0, extra: bytes = b"", **more: int) -> bytes:
    """A record: what precedes its data, and these."""
    said = {"signature": 0x04034B50, "method": 0, "crc": CRC, "packed": 8, "size": 8} | more
    head = (
        said["signature"],
        45,
        flags,
        said["method"],
        0,
        0,
        said["crc"],
        said["packed"],
        said["size"],
        len(name),
        len(extra),
    )
    return struct.pack("<IHHHHHIIIHH", *head) + name + extra + DATA


def entry(
    start: int = 0,
    name: bytes = b"a",
    flags: int = 0,
    extra: bytes = b"",
    comment: bytes = b"",
    **more: int,
) -> bytes:
    """What the directory says of a record."""
    said = {"signature": 0x02014B50, "method": 0, "packed": 8, "size": 8, "disk": 0} | more
    sizes = (said["packed"], said["size"], len(name), len(extra), len(comment))
    head = (
        said["signature"],
        45,
        45,
        flags,
        said["method"],
        0,
        0,
        CRC,
        *sizes,
        said["disk"],
        0,
        0,
        start,
    )
    return struct.pack("<IHHHHHHIIIHHHHHII", *head) + name + extra + comment


def end(count: int, length: int, start: int, **more: int) -> bytes:
    """The end of a file."""
    said = {"signature": 0x06054B50, "disk": 0, "first": 0, "here": count, "comment": 0} | more
    return struct.pack(
        "<IHHHHIIH",
        said["signature"],
        said["disk"],
        said["first"],
        said["here"],
        count,
        length,
        start,
        said["comment"],
    )


def end64(count: int, length: int, start: int, **more: int) -> bytes:
    """A second end before it, for numbers that are too large for that, and where it is."""
    said = {
        "signature": 0x06064B50,
        "disk": 0,
        "first": 0,
        "here": count,
        "position": start + length,
        "disks": 1,
    } | more
    second = struct.pack(
        "<IQHHIIQQQQ",
        said["signature"],
        44,
        45,
        45,
        said["disk"],
        said["first"],
        said["here"],
        count,
        length,
        start,
    )
    return second + struct.pack("<IIQI", 0x07064B50, 0, said["position"], said["disks"])


def window(*parts: bytes) -> ZipWindow:
    content = b"".join(parts)
    return ZipWindow(io.BytesIO(content), 0, len(content))


def archive(records: bytes, directory: bytes, count: int = 1, **more: int) -> ZipWindow:
    """A file of these records and this directory; ``more`` is said at its end."""
    return window(records, directory, end(count, len(directory), len(records), **more))


def refused(found: ZipWindow) -> str:
    """Why."""
    with pytest.raises(InputError) as error:
        records_of(found)
    return re.sub(
        r"^damaged or not an archive of torch \((.*)\); write it again$", r"\1", str(error.value)
    )


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
def test_numbers_too_large_for_the_head_of_an_entry_are_in_its_extra_field(
    numbers: tuple[int, int, int], extra: bytes
) -> None:
    size, packed, start = numbers
    found = archive(b"xyz" + local(), entry(start, extra=extra, packed=packed, size=size))
    (record,) = records_of(found).values()
    assert record == StoredRecord("a", 0, CRC, 8, 3, 3 + 30 + 1)
    assert found.content(record) == DATA


@pytest.mark.parametrize(
    "extra",
    [
        b"",
        OTHER,
        large(8, 8, 3, claimed=25),
        large(8, 8, 3)[:-1],
        struct.pack("<HH3Q", 2, 24, 8, 8, 3),
    ],
)
def test_numbers_that_are_nowhere(extra: bytes) -> None:
    directory = entry(ELSEWHERE, extra=extra, packed=ELSEWHERE, size=ELSEWHERE)
    assert refused(archive(b"xyz" + local(), directory)) == "it ends too early"


def test_the_smallest_file_and_those_that_are_smaller() -> None:
    assert records_of(window(end(0, 0, 0))) == {}
    assert refused(window(end(0, 0, 0)[1:])) == "it has 21 bytes"
    assert refused(window()) == "it has 0 bytes"
    assert (
        refused(window(end64(0, 0, 0)[-20:], end(0, 0, 20))) == "it ends too early"
    )  # says that a second end is before its first byte


def test_records_side_by_side() -> None:
    """In any order, with a comment, with names in UTF-8, and with sizes that follow the data; each
    is 31 bytes and its data.
    """
    records = (
        local() + local("é".encode(), UTF8, OTHER) + local(b"c", LATER, crc=0, packed=0, size=0)
    )
    second = 39
    third = second + 30 + 2 + 6 + 8
    directory = (
        entry(third, b"c", LATER) + entry(0, comment=b"hello") + entry(second, "é".encode(), UTF8)
    )
    found = archive(records, directory, 3)
    assert list(records_of(found).values()) == [
        StoredRecord("c", LATER, CRC, 8, third, third + 31),
        StoredRecord("a", 0, CRC, 8, 0, 31),
        StoredRecord("é", UTF8, CRC, 8, second, second + 38),
    ]
    assert [found.content(record) for record in records_of(found).values()] == [DATA] * 3


def test_a_file_in_a_file() -> None:
    inner = local() + entry() + end(1, len(entry()), 39)
    stream = io.BytesIO(b"12345" + inner + b"6")
    outer = ZipWindow(stream, 2, 3 + len(inner))
    inside = outer.inside(StoredRecord("b", 0, 0, len(inner), 0, 3))
    assert inside == ZipWindow(stream, 5, len(inner))
    assert inside.content(records_of(inside)["a"]) == DATA


def test_what_is_read_of_a_record() -> None:
    found = archive(local(), entry())
    (record,) = records_of(found).values()
    other = StoredRecord("a", 0, CRC + 1, 8, 0, record.data)
    with pytest.raises(
        InputError, match=r"\(the contents of 'a' are not those that were written\)"
    ):
        found.content(other)
    for position, length in ((-1, 1), (0, found.size + 1), (found.size, 1)):
        with pytest.raises(InputError, match="it ends too early"):
            found.read(position, length)
    assert (found.read(0, 2), found.read(found.size, 0)) == (b"PK", b"")
    with pytest.raises(InputError, match="it ends too early"):
        ZipWindow(found.stream, 1, found.size).read(0, found.size)


def test_how_much_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = archive(local(), entry())
    monkeypatch.setenv("HOSIM_LIMITS", "unpacked_bytes=47")
    (record,) = records_of(found).values()  # a directory of 47 bytes
    long = StoredRecord("n" * 70, 0, CRC, 48, 0, record.data)
    with pytest.raises(InputError) as caught:
        found.content(long)
    assert str(caught.value).startswith(
        f"{'n' * 60}: expected at most 47B after unpacking, got 48B; HOSIM_LIMITS="
    )
    monkeypatch.setenv("HOSIM_LIMITS", "unpacked_bytes=46")
    assert refused(found).startswith(
        "directory of the archive: expected at most 46B after unpacking, got 47B; HOSIM_LIMITS="
    )
    monkeypatch.setenv("HOSIM_LIMITS", "archive_records=1")
    assert list(records_of(found)) == ["a"]
    assert refused(archive(local(), entry(), 2)).startswith("expected at most 1 ")


DIRECTORY = len(entry())
SECOND = (local(), entry(), end64(1, DIRECTORY, 39))


@pytest.mark.parametrize("count", [1, 0xFFFF])
@pytest.mark.parametrize("length", [DIRECTORY, ELSEWHERE])
@pytest.mark.parametrize("start", [39, ELSEWHERE])
def test_a_second_end_has_the_numbers_that_are_too_large_for_the_first(
    count: int, length: int, start: int
) -> None:
    assert list(records_of(window(*SECOND, end(count, length, start, here=count)))) == ["a"]


@pytest.mark.parametrize(
    ("count", "length", "start"),
    [
        (2, DIRECTORY, 39),
        (1, DIRECTORY + 1, 39),
        (1, DIRECTORY, 38),
        (0xFFFE, ELSEWHERE, ELSEWHERE),
    ],
)
def test_two_ends_that_disagree(count: int, length: int, start: int) -> None:
    assert refused(window(*SECOND, end(count, length, start))) == "two directories"


@pytest.mark.parametrize(
    "wrong",
    [{"signature": 1}, {"position": 38}, {"disks": 2}, {"disk": 1}, {"first": 1}, {"here": 2}],
)
def test_a_second_end_with_a_number_that_is_not_right(wrong: dict[str, int]) -> None:
    parts = local(), entry(), end64(1, DIRECTORY, 39, **wrong), end(1, DIRECTORY, 39)
    assert refused(window(*parts)) == "no directory at its end"


@pytest.mark.parametrize(
    "wrong", [{"signature": 1}, {"comment": 1}, {"disk": 1}, {"first": 1}, {"here": 2}]
)
def test_an_end_with_a_number_that_is_not_right(wrong: dict[str, int]) -> None:
    assert refused(archive(local(), entry(), **wrong)) == "no directory at its end"


NOT_WHAT = "'a' is not what its directory says"
EARLY = "its directory ends too early"


@pytest.mark.parametrize(
    ("records", "directory", "count", "why"),
    [
        (local(), entry(), 2, EARLY),
        (local(), entry()[:-1], 1, EARLY),
        (local(), entry(signature=1), 1, EARLY),
        (local(), entry(disk=1), 1, EARLY),
        (local(), entry() + b"x", 1, "its directory has more than its entries"),
        (local(), entry(name=b"\xff"), 1, "the name of a record is not UTF-8"),
        (
            local(flags=1),
            entry(flags=1),
            1,
            "'a' is encrypted, or marked in a way that torch does not",
        ),
        (
            local(b"n" * 70, 1),
            entry(name=b"n" * 70, flags=1),
            1,
            f"'{'n' * 59} is encrypted, or marked in a way that torch does not",
        ),
        (local(method=8), entry(method=8), 1, "'a' is compressed, which torch never does"),
        (local(packed=7), entry(packed=7), 1, "'a' is compressed, which torch never does"),
        (
            local(b"n" * 70),
            entry(name=b"n" * 70, method=8),
            1,
            f"'{'n' * 59} is compressed, which torch never does",
        ),
        (local() + local(), entry() + entry(39), 2, "'a' is there twice"),
        (local() + local(b"A"), entry() + entry(39, b"A"), 2, "'A' is there twice"),
        (
            local(b"n" * 70) * 2,
            entry(name=b"n" * 70) + entry(108, b"n" * 70),
            2,
            f"'{'n' * 59} is there twice",
        ),
        (local(), entry(size=9, packed=9), 1, NOT_WHAT),
        (local(signature=1), entry(), 1, NOT_WHAT),
        (local(flags=LATER), entry(), 1, NOT_WHAT),
        (local(method=8), entry(), 1, NOT_WHAT),
        (local(b"b"), entry(), 1, NOT_WHAT),
        (local(size=7), entry(), 1, NOT_WHAT),
        (local(packed=7), entry(), 1, NOT_WHAT),
        (local(size=0), entry(), 1, NOT_WHAT),
        (local(crc=0), entry(), 1, NOT_WHAT),
        (local(flags=LATER, crc=1), entry(flags=LATER), 1, NOT_WHAT),
        (
            local(b"n" * 70),
            entry(name=b"n" * 69 + b"m"),
            1,
            f"'{'n' * 59} is not what its directory says",
        ),
        (local()[:-1], entry(), 1, "two of its records overlap"),
        (local()[:-1] + local(b"b"), entry() + entry(38, b"b"), 2, "two of its records overlap"),
        (local() + local(b"b")[:-1], entry(39, b"b") + entry(), 2, "two of its records overlap"),
        (local(size=90, packed=90), entry(size=90, packed=90), 1, "it ends too early"),
    ],
)
def test_what_is_refused(records: bytes, directory: bytes, count: int, why: str) -> None:
    assert refused(archive(records, directory, count)) == why


def test_a_directory_that_is_not_where_it_says() -> None:
    assert (
        refused(window(local(), entry(), b"x", end(1, DIRECTORY, 39)))
        == "its directory is not where it says"
    )


def test_a_record_up_to_the_end_of_the_file_is_no_record() -> None:
    """Its data are as many as there are, and yet they are the directory's."""
    rest = DIRECTORY + 22 + 8
    assert (
        refused(archive(local(size=rest, packed=rest), entry(size=rest, packed=rest)))
        == "two of its records overlap"
    )
    assert (
        refused(
            archive(local(size=rest + 1, packed=rest + 1), entry(size=rest + 1, packed=rest + 1))
        )
        == "it ends too early"
    )


def test_sizes_that_stand_elsewhere_before_the_data_too() -> None:
    for size, packed in ((ELSEWHERE, ELSEWHERE), (8, ELSEWHERE), (ELSEWHERE, 8)):
        assert list(records_of(archive(local(size=size, packed=packed), entry()))) == ["a"]


def test_a_record_without_a_name() -> None:
    assert list(records_of(archive(local(b""), entry(name=b"")))) == [""]


def test_a_file_without_records_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.pt2").write_bytes(b"PK\x03\x04" + end(0, 0, 4))
    with pytest.raises(InputError) as error:
        load_any(tmp_path / "a.pt2")
    said = (
        "this archive holds no exported program, or is damaged; write it again with "
        "torch.export.save"
    )
    assert str(error.value) == f"{tmp_path}/a.pt2: {said}"

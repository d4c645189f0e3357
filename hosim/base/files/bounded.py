"""The contents of a file within the limits of :mod:`hosim.limits`: bytes, unpacked if they are
gzip, and JSON.

A file is refused before there is memory for it: by its size, or while it is unpacked piece by
piece. A text of JSON is refused by what stands in it, before it becomes objects, which take up to a
hundred times the room.
"""

import io
import json
import mmap
import os
import re
import stat
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from hosim.errors import InputError
from hosim.limits import limit, refusal, within

HEAD = 64 * 1024
"""The number of unpacked bytes of a file that tell its format."""

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON can hold and no file of text."""
_PIECE = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 31  # zlib's number for this format
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{},:\\'))
_ONE_BRACKET = bytes.maketrans(b"{}", b"[]")


def read_bytes(source: str) -> bytes:
    """The content of the file ``source``, unpacked if it is gzip. Raises :class:`InputError`, also
    for more than is allowed.
    """
    with opened(source) as file:
        _no_larger(file, source)
        if file.peek(2).startswith(_GZIP_MAGIC):
            return _collected(_unpacked(_pieces(file), source), "unpacked_bytes", source)
        if source.endswith(".gz"):
            raise InputError(
                "named .gz but not a gzip file; compress it or drop the .gz from its name",
                source=source,
            )
        return _collected(_pieces(file), "file_bytes", source)


@contextmanager
def mapped(source: str) -> Iterator[memoryview]:
    """The content of the model in the file ``source``, of which only what is looked at takes
    memory; unpacked if it is gzip.

    Raises :class:`InputError`.
    """
    with opened(source) as file:
        zipped = file.peek(2).startswith(_GZIP_MAGIC)
        size = os.fstat(file.fileno()).st_size
        if not zipped and size:
            within("model_bytes", size, source=source)
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # the map is closed when its last view is gone: an error may hold one
    yield memoryview(read_bytes(source) if zipped or not size else content)


def read_head(source: str) -> bytes:
    """The first bytes of the file ``source``, at most :data:`HEAD`, unpacked if it is gzip, and
    without the mark that some editors put before UTF-8. Raises :class:`InputError`.
    """
    with opened(source) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InputError(
                "expected a file, this is a device or a pipe; write it to a file first",
                source=source,
            )
        start = file.read(HEAD)
        pieces = (
            _unpacked(iter([start]), source, whole=len(start) < HEAD)
            if start.startswith(_GZIP_MAGIC)
            else iter([start])
        )
        found = b""
        for piece in pieces:
            found += piece
            if len(found) >= HEAD:
                break
        return found[:HEAD].removeprefix(BOM_UTF8)


def read_directory(source: str) -> bytes:
    """The directory at the end of the zip file ``source``, in which all names stand; empty if it is
    damaged or none of a likely size.

    It is believed only where it helps to say what a file is. Raises :class:`InputError` if the file
    cannot be read.
    """
    with opened(source) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - HEAD))
        tail = file.read(HEAD)
        at, large = tail.rfind(b"PK\x05\x06"), tail.rfind(b"PK\x06\x06")
        if at < 0:
            return b""
        length, start = (int.from_bytes(tail[at + n : at + n + 4], "little") for n in (12, 16))
        if large >= 0:
            length, start = (
                int.from_bytes(tail[large + n : large + n + 8], "little") for n in (40, 48)
            )
        if length > size or length > _LONGEST_DIRECTORY or start > size:
            return b""
        file.seek(start)
        return file.read(length)


_LONGEST_DIRECTORY = 1 << 24


def read_json(
    source: str,
    what: str,
    advice: str,
    *,
    parse_float: Callable[[str], Any] = float,
    constants: bool = True,
) -> Any:
    """The data in a file of JSON of another program, plain or gzip: ``what`` it should be, and the
    ``advice`` if it is damaged.

    ``constants`` says whether ``NaN`` and ``Infinity`` are numbers. Raises :class:`InputError`.
    """
    content = read_bytes(source)
    check_json(content, source)
    try:
        return json.loads(
            content,
            parse_float=parse_float,
            parse_constant=_CONSTANTS.__getitem__ if constants else _refuse,
        )
    except (ValueError, ArithmeticError) as error:
        raise InputError(
            f"damaged JSON of {what} ({str(error)[:100]}); {advice}", source=source
        ) from None
    except RecursionError:
        raise refusal("nesting_depth", source=source) from None


_CONSTANTS = {name: float(name) for name in ("NaN", "Infinity", "-Infinity")}


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


class HasName(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """Its name."""


def check_names(source: str | None, **listed: Iterable[HasName]) -> None:
    """Raise the refusal of a name that is longer than is allowed, or no text; what is listed, by
    its place in the file.
    """
    for where, named in listed.items():
        names = [one.name for one in named]
        within("name_length", max(map(len, names), default=0), source=source, where=where)
        if "".join(names).isascii():
            continue
        for name in names:
            if SURROGATE.search(name):
                raise InputError(
                    f"expected names that are text, got {name[:60]!r}", source=source, where=where
                )


def check_json(content: bytes, source: str) -> None:
    """Raise the refusal of a text of JSON with more values, deeper lists and objects, or longer
    numbers than is allowed.

    It sees only what stands in the text, so that it takes a fraction of the time and none of the
    room of the objects.
    """
    opened = content.count(b"[") + content.count(b"{")
    within("values", opened + content.count(b","), source=source)
    check_digits(content, source, is_json=True)
    deepest = limit("nesting_depth")
    if opened > deepest and _is_deeper(content, deepest):
        raise refusal("nesting_depth", source=source)


def check_lines(content: bytes, source: str) -> None:
    """Raise the refusal of a text of YAML or TOML with more values or longer numbers than is
    allowed.
    """
    within("yaml_values", sum(map(content.count, (b"\n", b",", b"[", b"{"))), source=source)
    check_digits(content, source)


def check_digits(content: bytes, source: str, *, is_json: bool = False) -> None:
    """Raise the refusal of a number of more digits than is allowed. Digits in a string of JSON are
    no number.
    """
    most = limit("integer_digits")
    # more than ``most`` digits in a row cover two neighbours of a sample of every ``step``-th byte,
    # and all bytes between them
    step = (most + 1) // 2
    long = re.compile(rb"[0-9]{%d,}" % (most + 1))
    in_string, known = False, 0
    for pair in re.finditer(rb"[0-9](?=[0-9])", content[::step]):
        at = pair.start() * step
        if (
            at < known
            or not content[at : at + step].isdigit()
            or not (found := long.search(content, max(known, at - most), at + 2 * most))
        ):
            continue
        in_string ^= is_json and _opens_string(content[known : found.start()])
        if not in_string:
            raise refusal("integer_digits", source=source, where=f"byte {found.start()}")
        end = _DIGITS.match(content, found.end())
        known = found.end() if end is None else end.end()


_DIGITS = re.compile(rb"[0-9]*")


def _opens_string(text: bytes) -> bool:
    """Return whether as many strings of JSON end in a text as begin, but for one."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return text.count(b'"') % 2 == 1


def _is_deeper(content: bytes, deepest: int) -> bool:
    """Return whether lists and objects lie deeper in one another. What is no JSON may seem deep or
    not; the parser says what is wrong with it.
    """
    kept = content.translate(None, _NOT_STRUCTURE)
    if b"\\" in kept:
        content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
        kept = content.translate(None, _NOT_STRUCTURE)
    # a comma or a bracket lies between two strings, so that two quotes side by side are one string,
    # without brackets in it
    outside = b"".join(kept.replace(b'""', b"").split(b'"')[::2])
    brackets, deep = outside.translate(_ONE_BRACKET, b",:\\"), b"[" * (deepest + 1)
    for _ in range(deepest):
        if deep in brackets:
            return True
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            break
        brackets = inner
    return b"[]" in brackets


@contextmanager
def opened(source: str) -> Iterator[io.BufferedReader]:
    """The file ``source``, opened; whatever is wrong with it is an :class:`InputError`."""
    try:
        with open(source, "rb", opener=_no_waiting) as file:
            if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                if os.path.exists(os.path.realpath(source)):  # as a shell's own pipes do not
                    raise InputError(
                        "expected a file, this is a pipe; write it to a file first", source=source
                    )
                os.set_blocking(file.fileno(), True)
            yield file
    except FileNotFoundError:
        raise InputError("no such file", source=source) from None
    except IsADirectoryError:
        raise InputError("expected a file, this is a directory", source=source) from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise InputError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", source=source
        ) from None


def _no_waiting(path: str, flags: int) -> int:
    """Opens a file, and a pipe that nobody writes to as well."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _no_larger(file: io.BufferedReader, source: str) -> None:
    """Raise the refusal of a file whose size is known to be too large."""
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode):
        within("file_bytes", found.st_size, source=source)


def _pieces(file: io.BufferedReader) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _collected(pieces: Iterator[bytes], name: str, source: str) -> bytes:
    """The pieces as one, which may be as long as the limit called ``name`` allows."""
    most = limit(name)
    found = io.BytesIO()  # grows in place, and gives up its buffer without a copy
    for piece in pieces:
        found.write(piece)
        if found.tell() > most:
            raise refusal(name, source=source)
    return found.getvalue()


def _unpacked(pieces: Iterator[bytes], source: str, *, whole: bool = True) -> Iterator[bytes]:
    """The content of a gzip file, in pieces of a bounded size. Unless ``whole``, more of the file
    follows.
    """
    member = zlib.decompressobj(_GZIP)
    try:
        for packed in pieces:
            rest, full = packed, False
            while rest or full:
                if member.eof:
                    rest = rest.lstrip(b"\0")  # padding
                    if not rest:
                        break
                    member = zlib.decompressobj(_GZIP)
                piece = member.decompress(rest, _PIECE)
                yield piece
                full = len(piece) == _PIECE
                rest = member.unused_data if member.eof else member.unconsumed_tail
    except zlib.error as error:
        raise InputError(
            f"damaged gzip file ({error}); write or download it again", source=source
        ) from None
    if whole and not member.eof:
        raise InputError(
            "damaged gzip file (Compressed file ended before the end-of-stream marker was "
            "reached); write or download it again",
            source=source,
        )

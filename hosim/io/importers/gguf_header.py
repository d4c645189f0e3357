"""The header of a GGUF, the file of llama.cpp: its metadata, and name, shape and type of each
weight. No weight is read.

Source: ggml's page on GGUF. Versions 2 and 3, little endian. A model in several files has a header
in each.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from typing import Any

from hosim.base.files import opened
from hosim.errors import InputError
from hosim.io.models import TYPES
from hosim.limits import Budget, limit, within
from hosim.plain_text import shown

MAGIC = b"GGUF"

_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Formats of :mod:`struct` by the number of a type of metadata."""
_TEXT, _ARRAY = 8, 9
_KEPT_TEXT, _KEPT_ITEMS = 10_000, 4_096
"""Bytes of a text and entries of an array up to which they are kept. Longer ones, such as a
vocabulary, are passed over.
"""
_LEAST_TENSOR, _LEAST_KEY = 32, 13
"""Bytes that an entry takes at least: a name's length, dimensions, type and place; a key's length,
a type and a value.
"""
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class GgufWeight:
    """A weight: its dimensions, the contiguous one first, and the name of its type."""

    shape: tuple[int, ...]
    type: str


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a GGUF file, which comes before its weights. Of long arrays ``metadata`` has
    their length alone.
    """

    metadata: Mapping[str, Any]
    weights: Mapping[str, GgufWeight]


@dataclass(frozen=True, slots=True)
class Passed:
    """An array that was passed over, and how many entries it has."""

    length: int


def is_gguf(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is one."""
    return head.startswith(MAGIC)


def read_gguf(path: str | os.PathLike[str]) -> GgufHeader:
    """The header of the file, with the weights of all files of which it is one. Raises
    :class:`InputError`.
    """
    source = os.fspath(path)
    found = _read_one(source)
    count = found.metadata.get("split.count", 1)
    if (
        not isinstance(count, int)
        or isinstance(count, bool)
        or not 0 <= count <= limit("archive_records")
    ):
        raise InputError(
            f"expected a number of files, got {shown(count, 60)}",
            source=source,
            where="split.count",
        )
    if count <= 1:
        return found
    named = _PART.search(source)
    if named is None or int(named[2]) != count:
        raise InputError(
            f"is one of {count} files; keep the name that ends as in -00001-of-{count:05}.gguf",
            source=source,
        )
    parts = []
    for n in range(1, count + 1):
        other = f"{source[: named.start()]}-{n:05}-of-{count:05}.gguf"
        if not os.path.isfile(other):
            raise InputError(
                f"is one of {count} files, and number {n} is not beside it; download it, too",
                source=source,
            )
        parts.append(found if other == source else _read_one(other))
    weights: dict[str, GgufWeight] = {}
    for n, part in enumerate(parts):
        for name, weight in part.weights.items():
            if name in weights:
                raise InputError(
                    f"weight {shown(name, 60)} is listed twice, the second time in file {n + 1} "
                    f"of {count}",
                    source=source,
                )
            weights[name] = weight
    return GgufHeader({**found.metadata, **parts[0].metadata}, weights)


def _read_one(source: str) -> GgufHeader:
    with opened(source) as file:
        return _HeaderReader(file, source).header()


class _HeaderReader:
    """Reads on in a file, and refuses what goes past its end."""

    def __init__(self, file: BufferedReader, source: str) -> None:
        self._file, self._source = file, source
        self._left = os.fstat(file.fileno()).st_size
        self._records = Budget("values")

    def header(self) -> GgufHeader:
        if self._take(4, "magic") != MAGIC:
            raise self._refusal(
                "expected a GGUF, which begins with these four letters; unpack it first if it is "
                "compressed"
            )
        version = self._number("I", "version")
        if version not in (2, 3):
            big = version in (2 << 24, 3 << 24)
            raise self._refusal(
                "expected version 2 or 3, "
                f"{'got a big-endian file' if big else f'got {version}'}; convert it again"
            )
        tensors, keys = self._number("Q", "tensor_count"), self._number("Q", "metadata_kv_count")
        self._check_count(tensors, _LEAST_TENSOR, "tensor_count")
        self._check_count(keys, _LEAST_KEY, "metadata_kv_count")
        within("records", tensors, source=self._source, where="tensor_count")
        metadata: dict[str, Any] = {}
        for n in range(keys):
            key = self._name(f"metadata[{n}]")
            if key in metadata:
                raise self._refusal("is given twice", key)
            metadata[key] = self._value(self._number("I", key), key)
        weights: dict[str, GgufWeight] = {}
        for n in range(tensors):
            name = self._name(f"tensors[{n}]")
            if name in weights:
                raise self._refusal("is listed twice", name)
            weights[name] = self._weight(name)
        return GgufHeader(metadata, weights)

    def _weight(self, name: str) -> GgufWeight:
        count = self._number("I", name)
        if not 1 <= count <= 4:
            raise self._refusal(f"expected 1 to 4 dimensions, got {count}", name)
        shape = tuple([self._number("Q", name) for _ in range(count)])
        number = self._number("I", name)
        self._number("Q", name)  # where it lies
        if number not in TYPES:
            raise self._refusal(
                "expected a type of ggml that hosim knows "
                f"({', '.join(each.name for each in TYPES.values())}), got {number}",
                name,
            )
        if not all([0 < each <= 2**40 for each in shape]) or prod(shape) > 2**50:
            raise self._refusal(
                f"expected dimensions of at least 1 and at most 2^50 elements, got {shape}", name
            )
        kind = TYPES[number]
        if shape[0] % kind.block:
            raise self._refusal(
                f"expected rows in blocks of {kind.block}, as {kind.name} has them, got {shape[0]}",
                name,
            )
        return GgufWeight(shape, kind.name)

    def _value(self, kind: int, where: str) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind], where)
        if kind == _TEXT:
            length = self._length(where)
            if length > _KEPT_TEXT:
                self._pass(length, where)
                return None
            return self._take(length, where).decode(errors="replace")
        if kind != _ARRAY:
            raise self._refusal(f"expected a type of metadata from 0 to 12, got {kind}", where)
        return self._array(where)

    def _array(self, where: str) -> Any:
        kind, count = self._number("I", where), self._number("Q", where)
        if kind in _NUMBERS:
            each = struct.calcsize(f"<{_NUMBERS[kind]}")
            self._check_count(count, each, where)
            if count > _KEPT_ITEMS:
                self._pass(count * each, where)
                return Passed(count)
            return list(struct.unpack(f"<{count}{_NUMBERS[kind]}", self._take(count * each, where)))
        if kind != _TEXT:
            raise self._refusal(
                f"expected an array of numbers or texts, got one of type {kind}", where
            )
        self._check_count(count, 8, where)
        for _ in range(count):
            self._records.draw(source=self._source, where=where)
            self._pass(self._length(where), where)
        return Passed(count)

    def _name(self, where: str) -> str:
        length = self._length(where)
        within("name_length", length, source=self._source, where=where)
        try:
            return self._take(length, where).decode()
        except UnicodeDecodeError:
            raise self._refusal("expected a name in UTF-8", where) from None

    def _length(self, where: str) -> int:
        length: int = self._number("Q", where)
        self._check_count(length, 1, where)
        return length

    def _check_count(self, count: int, each: int, where: str) -> None:
        if count * each > self._left:
            raise self._refusal(
                f"says {count:,}, which goes past the end of the file; download it again", where
            )

    def _number(self, form: str, where: str) -> Any:
        size = struct.calcsize(f"<{form}")
        return struct.unpack(f"<{form}", self._take(size, where))[0]

    def _take(self, count: int, where: str) -> bytes:
        found = self._file.read(count) if count <= self._left else b""
        if len(found) < count:
            raise self._refusal("the file ends here; download it again", where)
        self._left -= count
        return found

    def _pass(self, count: int, where: str) -> None:
        self._check_count(count, 1, where)
        self._file.seek(count, os.SEEK_CUR)
        self._left -= count

    def _refusal(self, message: str, where: str = "") -> InputError:
        return InputError(
            message, source=self._source, where=shown(where, 100).strip("'\"") if where else None
        )

"""Protobuf's wire format: the fields of a message by number, without a description of the message.

This is enough to read the few fields that matter without the format's own library. Anything else raises :class:`WireError`, which each
importer turns into its own message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from hosim.limits import limit, refusal

Fields = Mapping[int, Sequence[int | bytes]]


class WireError(Exception):
    """Bytes that are not protobuf's wire format, or a field of another type than expected."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at a place, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise WireError


def messages(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The messages of a stream, each preceded by its length, with the places where they begin."""
    at = 0
    while at < len(content):
        size, begin = varint(content, at)
        at = begin + size
        if at > len(content):
            raise WireError
        yield begin, content[begin:at]


class Reader:
    """Reads the messages of one file. More fields than the limit ``records`` allows, in all messages together, are refused."""

    def __init__(self) -> None:
        self._left = limit("records")

    def fields(self, message: bytes) -> Fields:
        """The values of a message by field number, in order: integers, or bytes for fields with a length or a fixed size.

        Raises :class:`WireError`, and :class:`InputError` for too many fields.
        """
        found: dict[int, list[int | bytes]] = {}
        for key, value in _fields(message, 0):
            self._left -= 1
            if self._left < 0:
                raise refusal("records")
            found.setdefault(key, []).append(value)
        return found


def begins(data: bytes, at: int, keys: Sequence[int]) -> bool:
    """Whether the message at a place, preceded by its length, begins with these fields; ``data`` may end within it."""
    _, at = varint(data, at)
    return [key for key, _ in islice(_fields(data, at), len(keys))] == keys


def _fields(message: bytes, at: int) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message from a place on, by number."""
    while at < len(message):
        key, at = varint(message, at)
        value: int | bytes
        match key & 7:
            case 0:
                value, at = varint(message, at)
            case 1 | 2 | 5 as wire:
                size, at = varint(message, at) if wire == 2 else (8 if wire == 1 else 4, at)
                value = message[at : at + size]
                at += size
                if at > len(message):
                    raise WireError
            case _:
                raise WireError
        yield key >> 3, value


def parts(message: Fields, number: int) -> Sequence[bytes]:
    """Every value of a field that has a length: strings, bytes, messages inside."""
    values = message.get(number, ())
    found = [value for value in values if isinstance(value, bytes)]
    if len(found) < len(values):
        raise WireError
    return found


def text(message: Fields, number: int) -> str:
    """The last value of a string field; empty if there is none. Raises :class:`WireError` unless it is UTF-8."""
    try:
        return (parts(message, number) or (b"",))[-1].decode()
    except UnicodeDecodeError:
        raise WireError from None


def number(message: Fields, key: int) -> int:
    """The last value of a field of whole numbers, with its sign; 0 if there is none."""
    value = message.get(key, (0,))[-1]
    if not isinstance(value, int):
        raise WireError
    return signed(value)


def numbers(message: Fields, key: int) -> list[int]:
    """All values of a repeated field of whole numbers, packed or not, with their signs."""
    found = []
    for value in message.get(key, ()):
        if isinstance(value, int):
            found.append(signed(value))
            continue
        at = 0
        while at < len(value):
            one, at = varint(value, at)
            found.append(signed(one))
    return found


def signed(value: int) -> int:
    """A 64 bit whole number as protobuf's ``int64`` means it."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value

"""Protobuf's wire format: the fields of a message by number, without a description of the message.

This is enough to read the few fields that matter without the format's own library. Anything else
raises :class:`WireError`, which each importer turns into its own message.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from hosim.limits import Budget

Part = bytes | memoryview
"""Bytes of a message; a view if they are many, so that weights are not copied."""

Fields = Mapping[int, Sequence[int | Part]]

_COPIED = 4096


class WireError(Exception):
    """Bytes that are not protobuf's wire format, or a field of another type than expected."""


def varint(data: Part, at: int) -> tuple[int, int]:
    """The integer at a place, and the place behind it."""
    if at < len(data) and data[at] < 128:
        return data[at], at + 1
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
    """Reads the messages of one file. More fields than the limit ``records`` allows, in all
    messages together, are refused.
    """

    def __init__(self) -> None:
        self._budget = Budget("records")

    def fields(self, message: Part) -> Fields:
        """The values of a message by field number, in order: integers, or bytes for fields with a
        length or a fixed size.

        Raises :class:`WireError`, and :class:`InputError` for too many fields.
        """
        found: dict[int, list[int | Part]] = {}
        for begin, key, body, end in places(message):
            self._budget.draw()
            value: int | Part
            if body is None:
                value, _ = varint(message, varint(message, begin)[1])
            else:
                value = message[body:end] if end - body > _COPIED else bytes(message[body:end])
            found.setdefault(key, []).append(value)
        return found


def is_message(data: Part, at: int, end: int, types: Mapping[int, Collection[int]]) -> bool:
    """Return whether a message from ``at`` to ``end`` has fields of these wire types by number, in
    their order; ``data`` may end within it.
    """
    last = 0
    try:
        for begin, key, _, _ in places(memoryview(data)[:end], at):
            if key < last or data[begin] & 7 not in types.get(key, ()):
                return False
            last = key
    except WireError:
        return end > len(data) and last > 0
    return end <= len(data) or last > 0


def places(message: Part, at: int = 0) -> Iterator[tuple[int, int, int | None, int]]:
    """The fields of a message from a place on: where each begins, its number, where its bytes begin
    (``None`` for an integer), its end.

    An integer lies behind the field's key. Raises :class:`WireError`.
    """
    length = len(message)
    while at < length:
        begin = at
        key, at = varint(message, at)
        body: int | None = None
        match key & 7:
            case 0:
                _, at = varint(message, at)
            case 1 | 2 | 5 as wire:
                size, body = varint(message, at) if wire == 2 else (8 if wire == 1 else 4, at)
                at = body + size
                if at > length:
                    raise WireError
            case _:
                raise WireError
        if not key >> 3:
            raise WireError
        yield begin, key >> 3, body, at


def header(number: int, size: int) -> bytes:
    """Return the header of a field with a length, which comes before its bytes."""
    return _encoded(number << 3 | 2) + _encoded(size)


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def parts(message: Fields, number: int) -> Sequence[Part]:
    """Every value of a field that has a length: strings, bytes, messages inside."""
    values = message.get(number, ())
    found = [value for value in values if not isinstance(value, int)]
    if len(found) < len(values):
        raise WireError
    return found


def text(message: Fields, number: int) -> str:
    """The last value of a string field; empty if there is none. Raises :class:`WireError` unless it
    is UTF-8.
    """
    try:
        return bytes((parts(message, number) or (b"",))[-1]).decode()
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

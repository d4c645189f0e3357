"""Messages of protobuf, and MindIR files of a few nodes, written by hand."""

from __future__ import annotations

from pathlib import Path


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def floats(*dims: int) -> bytes:
    return b"".join(number(1, d) for d in dims) + number(2, 1)


def value(field: int, name: bytes, *dims: int) -> bytes:
    return text(field, text(1, name) + (text(2, floats(*dims)) if dims else b""))


def primitive(
    operator: bytes, inputs: list[bytes], *dims: int, output: bytes = b"y", attributes: bytes = b""
) -> bytes:
    shape = attribute(b"shape", 19, text(12, floats(*dims)))
    listed = b"".join(text(1, i) for i in inputs)
    return text(
        1,
        listed
        + text(2, output)
        + text(4, operator)
        + text(5, shape)
        + attributes
        + text(7, b"Default/net/here"),
    )


def attribute(name: bytes, kind: int, value: bytes = b"") -> bytes:
    return text(1, name) + number(16, kind) + value


def constant(output: bytes, kind: int, value: bytes = b"") -> bytes:
    """A node that is a constant."""
    return text(
        1, text(2, output) + text(4, b"Constant") + text(5, attribute(b"value", kind, value))
    )


def mindir(folder: Path, *parts: bytes) -> Path:
    (folder / "x.mindir").write_bytes(
        text(1, b"1.1") + text(2, b"MindSpore") + text(7, b"".join(parts))
    )
    return folder / "x.mindir"


def named(name: bytes, value: bytes) -> bytes:
    """An attribute of a node that is text."""
    return text(5, attribute(name, 8, text(5, value)))


def parameter(name: bytes, *dims: int) -> bytes:
    return text(3, floats(*dims) + text(7, name))


WRITES = text(5, attribute(b"side_effect_mem", 9, number(3, 1)))

"""Writes ``data/chakra_small.et``: a handmade Chakra trace of two operators on the host, three
kernels and an all-reduce.

Run as ``python tests/formats/make_chakra.py``. The encoder knows only what protobuf needs for these
fields.
"""

from pathlib import Path

DATA = Path(__file__).parents[1] / "importers/data"


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(content: bytes) -> bytes:
    return varint(len(content)) + content


def tensor(storage: int, elements: int, device: str = "cuda:0") -> list:
    return [100 + storage, storage, 0, elements, 4, device]


def node(
    number, name, deps, micros, inputs, outputs, *, host, thread, kind=4, comm=None, shapes=((), ())
) -> bytes:
    attributes = [field(1, "is_cpu_op") + field(27, int(host)), field(1, "tid") + field(9, thread)]
    if comm is not None:
        attributes.append(field(1, "comm_type") + field(9, comm))
    head = (
        field(1, number)
        + field(2, name)
        + field(3, kind)
        + field(5, b"".join(map(varint, deps)))
        + field(7, micros)
    )
    sides = zip((inputs, outputs), shapes, strict=True)
    parts = [
        field(1, repr(values)) + (field(2, repr(listed)) if listed else b"")
        for values, listed in sides
    ]
    operands = field(8, parts[0]) + field(9, parts[1])
    return message(head + operands + b"".join(field(10, attribute) for attribute in attributes))


def trace() -> bytes:
    x, w, y, z = tensor(1, 10), tensor(2, 100), tensor(3, 20), tensor(2, 50)
    return b"".join(
        [
            message(field(2, field(1, "schema") + field(29, "1.0.1"))),
            node(10, "aten::mm(0)", [], 5, [x, w], [y], host=True, thread=1),
            node(11, "gemm", [10], 40, [x, w], [y], host=False, thread=7),
            node(12, "aten::mm(1)", [11], 2, [x, w], [y], host=True, thread=1),
            node(20, "ncclAllReduce", [11], 30, [y], [y], host=False, thread=14, kind=7, comm=0),
            node(30, "aten::exp(0)", [12], 3, [y], [z], host=True, thread=1),
            node(31, "exp", [30, 32], 20, [y], [z], host=False, thread=7),
            node(32, "memset", [11], 0, [y], [y], host=False, thread=7),
        ]
    )


if __name__ == "__main__":
    (DATA / "chakra_small.et").write_bytes(trace())

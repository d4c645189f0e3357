"""Chakra execution traces (MLCommons), protobuf or JSON, as workload graphs.

Every node is an op that waits for its ``data_deps`` and takes its recorded duration, in whole
microseconds. Host nodes run on ``host<thread>``, device nodes on ``compute`` (the busiest stream)
and ``stream<id>``. Device nodes use the tensors that the trace lists for them. Host nodes hold no
tensors, but a tensor that a host operator returns without taking it is a new storage. The FLOP of a
host operator follow from its name and shapes (:mod:`hosim.io.importers.aten_flops`); the longest
device node that waits for it gets them.

The protobuf is read by its wire format, and only the fields that are used: one
``GlobalMetadata``, then messages ``Node`` of ``et_def.proto``, each preceded by its length.
"""

import heapq
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from struct import unpack
from typing import Any

from hosim.base.files import formats, read_bytes, read_head, read_json
from hosim.errors import InputError, errors_of, expect
from hosim.graph import Graph, GraphBuilder
from hosim.io.importers import CallShapes, aten_flops, composed_flops, op_kind
from hosim.io.importers.torch_programs import Storages, TracedTensor
from hosim.notes import ASSUMED, MISSING
from hosim.plain_text import counted

_NOTES = {
    "kinds": "not in the trace: input for what is there at the start, activation for what is made",
    "sizes": "the furthest byte that a recorded tensor reaches in its storage, its elements side "
    "by side",
    "mutations": "what a node of the device both takes and returns; it may write more",
    "workspaces": "not in the trace",
    "durations": "whole microseconds; without one num_ops, tensor_size and comm_size are the "
    "FLOP, the bytes and the message of an op",
    "ctrl_deps": "left out: they say which operator called which",
}
_COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
)
_KINDS = {2: "load", 3: "store", 5: "send", 6: "recv", 7: "collective"}
_TENSOR = re.compile(
    r"\[(\d{1,18}), (\d{1,18}), (\d{1,18}), (\d{1,18}), (\d{1,3}), '([\w:]*)'\]", re.ASCII
)
_PART = re.compile(
    r"\((\d{1,9})\)$", re.ASCII
)  # an operator that calls others has several nodes: name(0), name(1)
_LARGEST = 1 << 60
_MESSAGES = (5, 6, 7)
"""Types of nodes that send or receive."""


@dataclass(frozen=True, slots=True)
class _ChakraNode:
    where: str
    id: int
    name: str
    type: int
    data_deps: Sequence[int]
    duration_us: int | None
    on_host: bool
    thread: int | None
    collective: int | None
    inputs: Sequence[TracedTensor] = ()
    outputs: Sequence[TracedTensor] = ()
    call: CallShapes | None = None
    num_ops: int = 0
    moved_bytes: int = 0

    @property
    def duration_ns(self) -> int | None:
        """The duration in the trace, in nanoseconds; a host node without one takes no time."""
        if self.duration_us is None and self.on_host and not (self.num_ops or self.moved_bytes):
            return 0
        return None if self.duration_us is None else self.duration_us * 1000

    @property
    def operator(self) -> str:
        """The operator without its library and its part number."""
        return _PART.sub("", self.name).rpartition("::")[2]


def import_chakra(path: str | os.PathLike[str]) -> Graph:
    """Return the graph of the Chakra trace at ``path`` (plain or gzip), named after the file. Sizes
    are in bytes, durations in nanoseconds.

    Raises :class:`InputError`, with the node's place in the file, for a damaged file and for
    circular dependencies.
    """
    source = os.fspath(path)
    with errors_of(source):
        is_json = read_head(source).lstrip()[:1] == b"{"
        nodes = _json_nodes(source) if is_json else _wire_nodes(read_bytes(source))
        return _build(Path(path).name.split(".")[0], nodes)


def _json_nodes(source: str) -> Sequence[_ChakraNode]:
    document = read_json(source, "a Chakra trace", "write or download it again")
    nodes, key = "a list of at least one node", "workload_graph"
    listed = expect(document.get(key), list, nodes, key, when=bool)
    return [_json_node(raw, f"{key}[{i}]") for i, raw in enumerate(listed)]


def _json_node(raw: Any, where: str) -> _ChakraNode:
    expect(raw, dict, "an object", where)

    def number(key: str, default: int | None = None) -> int:
        what, place = "a whole number of at least 0", f"{where}.{key}"
        return expect(raw.get(key, default), int, what, place, when=lambda n: 0 <= n < _LARGEST)

    deps = expect(raw.get("data_deps", []), list, "a list of ids", f"{where}.data_deps", when=_ids)
    name = expect(raw.get("Name"), str, "a name", f"{where}.Name")
    on_cpu = expect(raw.get("is_cpu_op"), bool, "true or false", f"{where}.is_cpu_op")
    duration = number("runtime") if raw.get("runtime") is not None else None
    kind, collective = (
        number("NodeType"),
        number("comm_type") if raw.get("comm_type") is not None else None,
    )
    moved = number("comm_size" if kind in _MESSAGES else "tensor_size", 0)
    measured = where, number("Id"), name, kind, deps, duration, on_cpu, None, collective
    return _ChakraNode(*measured, num_ops=number("num_ops", 0), moved_bytes=moved)


def _ids(listed: Sequence[Any]) -> bool:
    return all(type(one) is int for one in listed)


def _wire_nodes(content: bytes) -> Sequence[_ChakraNode]:
    nodes = []
    end = 0
    reader = formats.Reader()
    try:
        for i, (begin, message) in enumerate(formats.messages(content)):
            end = begin + len(message)
            if i:
                nodes.append(_wire_node(reader, reader.fields(message), f"node {i}"))
    except formats.WireError:
        where = f"node {len(nodes) + 1}"
        raise InputError(
            f"damaged or cut off after byte {end}; expected protobuf of a Chakra node", where=where
        ) from None
    if not nodes:
        raise InputError("expected at least one node")
    return nodes


def _wire_node(reader: formats.Reader, fields: formats.Fields, where: str) -> _ChakraNode:
    attributes: dict[bytes, int | formats.Part] = {}
    for raw in fields.get(10, ()):
        if isinstance(raw, bytes):
            attribute = reader.fields(raw)
            name = attribute.get(1, [b""])[0]
            values = [value[-1] for number, value in attribute.items() if number > 2]
            if isinstance(name, bytes):
                attributes[name] = values[-1] if values else 0
    thread, collective = attributes.get(b"tid"), attributes.get(b"comm_type")
    kind = _number(fields, 3, where)
    moved = b"comm_size" if kind in _MESSAGES else b"tensor_size"
    return _ChakraNode(
        where,
        _number(fields, 1, where),
        formats.text(fields, 2),
        kind,
        formats.numbers(fields, 5),
        _number(fields, 7, where) if 7 in fields else None,
        bool(attributes.get(b"is_cpu_op", 0)),
        thread if isinstance(thread, int) else None,
        collective if isinstance(collective, int) else None,
        _tensors(reader, fields, 8, where),
        _tensors(reader, fields, 9, where),
        _call(reader, fields) if attributes.get(b"is_cpu_op", 0) else None,
        *(_figure(attributes.get(name, 0), name.decode(), where) for name in (b"num_ops", moved)),
    )


def _figure(value: int | formats.Part, name: str, where: str) -> int:
    """Return a whole number of an attribute, in whichever of its types it is written."""
    if not isinstance(value, int):
        number = unpack("<d", value)[0] if len(value) == 8 else -1
        value = int(number) if number >= 0 and number == number // 1 else _LARGEST
    if value >= _LARGEST:
        raise InputError(f"expected a whole number below 2^60 as {name}", where=where)
    return value


def _call(reader: formats.Reader, fields: formats.Fields) -> CallShapes | None:
    """Return an operator's call with its shapes and values, if the trace has them, and the shapes
    of its results.
    """
    given, made = (
        reader.fields(info) if isinstance(info := fields.get(n, (b"",))[-1], bytes) else {}
        for n in (8, 9)
    )
    shapes, values, results = (
        _list(formats.text(part, n)) for part, n in ((given, 2), (given, 1), (made, 2))
    )
    operator = _PART.sub("", formats.text(fields, 2)).rpartition("::")[2]
    return (
        CallShapes(operator, [_dims(s) for s in shapes], values, [_dims(s) for s in results])
        if shapes
        else None
    )


def _list(text: str) -> Sequence[Any]:
    """Read a list in Python's notation; empty for any other text."""
    try:
        found = json.loads(text.replace("'", '"').replace("True", "true").replace("False", "false"))
    except (ValueError, RecursionError):
        return ()
    return found if isinstance(found, list) else ()


def _dims(shape: Any) -> Sequence[int] | None:
    """Return the shape, if it has sizes, else None; the trace has empty lists for arguments that
    are no tensors.
    """
    return (
        shape
        if isinstance(shape, list)
        and shape
        and all(type(n) is int and 0 <= n < 1 << 32 for n in shape)
        else None
    )


def _number(fields: formats.Fields, number: int, where: str) -> int:
    value = fields.get(number, (0,))[-1]
    if not isinstance(value, int) or value >= _LARGEST:
        raise InputError(f"expected a whole number below 2^60 in field {number}", where=where)
    return value


def _tensors(
    reader: formats.Reader, fields: formats.Fields, number: int, where: str
) -> Sequence[TracedTensor]:
    """Return the tensors in the ``values`` of an input or output, which are lists in Python's
    notation.
    """
    listed = formats.parts(fields, number)
    text = formats.text(reader.fields(listed[-1]), 1) if listed else ""
    if text and not (text.startswith("[") and text.endswith("]")):
        raise InputError(f"expected a list of values in field {number}", where=where)
    found = []
    for match in _TENSOR.finditer(text):
        _, storage, offset, elements, item_bytes = map(int, match.groups()[:5])
        reach = (offset + elements) * item_bytes
        if reach < _LARGEST:
            found.append(TracedTensor(storage, reach, match[6]))
    return found


def _in_order(nodes: Sequence[_ChakraNode]) -> Iterator[_ChakraNode]:
    """Yield the nodes by id, but each after those that it waits for."""
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise InputError("expected every node's id once")
    for node in nodes:
        for dep in node.data_deps:
            if dep not in by_id:
                raise InputError(
                    f"waits for node {dep}, which the trace does not have", where=node.where
                )
    sorter = TopologicalSorter({node.id: node.data_deps for node in nodes})
    try:
        sorter.prepare()
    except CycleError as error:
        circle = set(error.args[1])
        first = next(node for node in nodes if node.id in circle)
        raise InputError(
            "its data_deps form a circle, directly or indirectly", where=first.where
        ) from None
    ready: list[int] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heapq.heappush(ready, number)
        number = heapq.heappop(ready)
        yield by_id[number]
        sorter.done(number)


def _build(name: str, nodes: Sequence[_ChakraNode]) -> Graph:
    ordered = list(_in_order(nodes))
    by_id = {node.id: node for node in nodes}
    builder = GraphBuilder(name, {"source": "Chakra execution trace", **_NOTES, **_unsaid(ordered)})
    storages = Storages()
    announced: set[int] = set()
    uses = []
    for node in ordered:
        if node.on_host:
            part = _PART.search(node.name)
            if part is None or not int(part[1]):
                given = {t.storage for t in node.inputs}
                announced |= {t.storage for t in node.outputs if t.storage not in given}
            uses.append(_OpStorages([], [], []))
        else:
            uses.append(_uses(node, storages, announced))
    streams = _streams(nodes)
    flops = _flops(ordered)
    for n, (size_bytes, at_start) in enumerate(zip(storages.sizes, storages.at_start, strict=True)):
        builder.tensor(f"storage{n}", size_bytes, "input" if at_start else "activation")
    names: dict[int, str] = {}
    for node, use in zip(ordered, uses, strict=True):
        names[node.id] = builder.op(
            f"{node.name[:100]}.{node.id}",
            _kind(node, by_id),
            inputs=[f"storage{n}" for n in use.reads],
            outputs=[f"storage{n}" for n in use.made],
            mutates=[f"storage{n}" for n in use.writes],
            deps=[names[dep] for dep in dict.fromkeys(node.data_deps)],
            stream=streams[node.on_host, node.thread],
            duration_ns=node.duration_ns,
            flops=node.num_ops or flops.get(node.id, 0),
            bytes_accessed=node.moved_bytes,
            dtype="fp32",
        )
    return builder.build()


def _unsaid(ordered: Sequence[_ChakraNode]) -> Mapping[str, Sequence[str]]:
    """Return lines on the times that the trace does not give for its nodes, and on the assumptions
    about them.
    """
    silent = sum([node.duration_us is None and node.duration_ns == 0 for node in ordered])
    counted_in = any([node.num_ops and node.duration_us is None for node in ordered])
    missing = (
        [f"durations of {counted(silent, 'op')} of the host, which take no time"] if silent else []
    )
    assumed = ["FLOP are in fp32, as the trace names no dtype"] if counted_in else []
    return {key: lines for key, lines in ((MISSING, missing), (ASSUMED, assumed)) if lines}


def _flops(ordered: Sequence[_ChakraNode]) -> Mapping[int, int]:
    """Return the FLOP by device node: those of each host operator go to the longest node that waits
    for a part of it.
    """
    whole: dict[int, _ChakraNode] = {}
    waiting: dict[int, _ChakraNode] = {}
    for node in ordered:
        if node.on_host:
            before = (
                (whole[d] for d in node.data_deps if d in whole)
                if _PART.search(node.name) and not node.name.endswith("(0)")
                else ()
            )
            whole[node.id] = next(
                (first for first in before if first.operator == node.operator), node
            )
            continue
        first = next((whole[d] for d in node.data_deps if d in whole), None)
        if first is not None and (
            first.id not in waiting
            or (waiting[first.id].duration_us or 0) < (node.duration_us or 0)
        ):
            waiting[first.id] = node
    calls = {node.id: node.call for node in ordered if node.call is not None}
    counted = {}
    for number, node in waiting.items():
        flops = None
        if number in calls:
            flops = aten_flops(calls[number])
            flops = composed_flops(calls[number]) if flops is None else flops
        if flops is not None and flops < _LARGEST:
            counted[node.id] = flops
    return counted


@dataclass(frozen=True, slots=True)
class _OpStorages:
    """The storages of one op, by number."""

    reads: Sequence[int]
    made: Sequence[int]
    writes: Sequence[int]


def _uses(node: _ChakraNode, storages: Storages, announced: set[int]) -> _OpStorages:
    inputs = [t for t in node.inputs if t.on_accelerator]
    outputs = [t for t in node.outputs if t.on_accelerator]
    given = {t.storage for t in inputs}
    made: dict[int, None] = {}
    numbers: dict[int, int] = {}
    for tensor in (*inputs, *outputs):
        unknown = tensor.storage not in given and not storages.knows(tensor)
        if tensor.storage in announced or unknown:
            announced.discard(tensor.storage)
            numbers[tensor.storage] = storages.fresh(tensor)
            made[numbers[tensor.storage]] = None
        else:
            numbers[tensor.storage] = storages.existing(tensor)
    writes = [n for n in dict.fromkeys(numbers[t.storage] for t in outputs) if n not in made]
    reads = [
        n
        for n in dict.fromkeys(numbers[t.storage] for t in inputs)
        if n not in made and n not in writes
    ]
    return _OpStorages(reads, list(made), writes)


def _streams(nodes: Sequence[_ChakraNode]) -> Mapping[tuple[bool, int | None], str]:
    """Name the stream of every host thread and device stream; ``compute`` is the busiest device
    stream, the first of equals.
    """
    busy: Counter[int | None] = Counter()
    for node in nodes:
        if not node.on_host:
            busy[node.thread] += node.duration_us or 0
    streams = {
        (True, node.thread): f"host{'' if node.thread is None else node.thread}"
        for node in nodes
        if node.on_host
    }
    for rank, (thread, _) in enumerate(busy.most_common()):
        streams[False, thread] = (
            "compute" if rank == 0 else f"stream{'' if thread is None else thread}"
        )
    return streams


def _kind(node: _ChakraNode, by_id: Mapping[int, _ChakraNode]) -> str:
    """Return ``all_reduce`` and the like for a transfer, else the kind of the host operator that
    the node is or first waits for.
    """
    if node.type == 7 and node.collective is not None and node.collective < len(_COLLECTIVES):
        return _COLLECTIVES[node.collective]
    if node.type in _KINDS:
        return _KINDS[node.type]
    dep = (
        node if node.on_host else next((by_id[d] for d in node.data_deps if by_id[d].on_host), None)
    )
    return "kernel" if dep is None else op_kind(dep.operator) or "kernel"

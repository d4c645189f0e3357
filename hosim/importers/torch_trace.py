"""PyTorch execution traces (``torch.profiler.ExecutionTraceObserver``, JSON) as workload graphs.

An op is an outermost operator call of the trace, including the calls inside it. Operators that only make a view compute nothing and are
left out, and so are those without a tensor on an accelerator (in a trace that has such tensors). A tensor that an operator touches without
taking it was allocated by it: it is a new storage if the operator returns it or a later op uses it, else workspace. The trace shows which
arguments are written (``(a!)`` in an operator's schema), but neither durations nor streams nor the role of a tensor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.importers.op_kinds import op_kind
from hosim.importers.traced_tensors import Storages, TracedTensor, dtype_of, traced_tensors
from hosim.io.bounded import read_json

__all__ = ["import_torch_trace", "is_torch_trace"]

_NOTES = {
    "durations": "not in the trace; the cost model estimates them from the bytes of the operands alone (no flops)",
    "sizes": "the furthest byte that a recorded tensor reaches in its storage; old traces have no strides: elements side by side",
    "kinds": "from the autograd and optimizer ranges, from what is there at the start, and from the names weight and bias",
    "mutations": "only those that an operator's schema declares; running statistics of a batch norm are not",
    "streams": "not in the trace; everything runs on compute",
}

_PHASES = ("forward", "backward", "optimizer")
_COMMA = re.compile(r",\s+")  # lists in a schema's defaults have a comma and a space too, but only after the tensors of an operator
_WEIGHT = re.compile(r"Tensor\S* (weight|bias)\b")


@dataclass(frozen=True, slots=True)
class _TraceNode:
    where: str
    id: int
    parent: int
    name: str
    schema: str
    inputs: Sequence[Sequence[TracedTensor]]  # one entry per argument
    outputs: Sequence[TracedTensor]
    types: Any


@dataclass(slots=True)
class _Call:
    """An outermost operator call: storages by number."""

    node: _TraceNode
    phase: str
    reads: list[int]
    writes: list[int]
    made: list[int]
    returned: set[int]
    weights: set[int]


def is_torch_trace(head: bytes) -> bool:
    """Whether an execution trace begins like this: JSON with a schema version and nodes of the observer."""
    return head.lstrip()[:1] == b"{" and b"[pytorch|profiler|execution_" in head


def import_torch_trace(path: str | os.PathLike[str]) -> Graph:
    """The graph of the execution trace at ``path`` (plain or gzip), named after the file. Sizes are bytes; no op has a duration.

    Raises :class:`InputError` for a file that is damaged, with the path inside it.
    """
    source = os.fspath(path)
    document = _document(Path(path))
    try:
        nodes = [_node(i, raw) for i, raw in enumerate(_nodes(document))]
        return _build(Path(path).name.split(".")[0], document.get("schema"), nodes)
    except InputError as error:
        raise InputError(error.message, source=source, where=error.where) from None


def _document(path: Path) -> Mapping[str, Any]:
    source = os.fspath(path)
    document = read_json(source, "an execution trace", "record it again")
    if not isinstance(document, dict):
        raise InputError("expected an object with the key nodes", source=source)
    return document


def _nodes(document: Mapping[str, Any]) -> Sequence[Any]:
    nodes = document.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        raise InputError("expected a list of at least one node", where="nodes")
    return nodes


def _node(position: int, raw: Any) -> _TraceNode:
    """One node, of schema 1.0 (``inputs`` is a list, ``op_schema`` a key) or a later 1.x (``inputs.values``, ``attrs``)."""
    where = f"nodes[{position}]"
    if not isinstance(raw, dict):
        raise InputError("expected an object", where=where)
    attrs = {a["name"]: a.get("value") for a in _listed(raw.get("attrs")) if isinstance(a, dict) and isinstance(a.get("name"), str)}
    parent: Any = raw.get("parent", raw.get("ctrl_deps"))
    schema = raw.get("op_schema", attrs.get("op_schema", ""))
    for key, value, expected in (("id", raw.get("id"), int), ("parent", parent, int), ("name", raw.get("name"), str)):
        if type(value) is not expected:
            raise InputError(f"expected {'a name' if expected is str else 'a whole number'}", where=f"{where}.{key}")
    if not isinstance(schema, str):
        raise InputError("expected text", where=f"{where}.op_schema")
    inputs, _ = _operands(raw, "input", where)
    outputs, types = _operands(raw, "output", where)
    return _TraceNode(where, raw["id"], parent, raw["name"], schema, inputs, [t for tensors in outputs for t in tensors], types)


def _operands(raw: Mapping[str, Any], side: str, where: str) -> tuple[Sequence[Sequence[TracedTensor]], Any]:
    """The tensors of every input or output, and the list of types."""
    values = raw.get(f"{side}s", [])
    shapes, strides, types = raw.get(f"{side}_shapes"), None, raw.get(f"{side}_types")
    if isinstance(values, dict):
        values, shapes, strides, types = (values.get(key) for key in ("values", "shapes", "strides", "types"))
    if not isinstance(values, list):
        raise InputError("expected a list", where=f"{where}.{side}s")
    shapes, strides = (part if isinstance(part, list) and len(part) == len(values) else [None] * len(values) for part in (shapes, strides))
    return [traced_tensors(*argument) for argument in zip(values, shapes, strides, strict=True)], types


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _build(name: str, schema: Any, nodes: Sequence[_TraceNode]) -> Graph:
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise InputError("expected every node's id once", where="nodes")
    accelerated = any(t.on_accelerator for node in nodes for t in _tensors(node))
    storages = Storages()
    calls, left_out = [], 0
    for root, phase, inside in _outermost(nodes, by_id):
        call = _call(root, phase, inside, storages, accelerated)
        reads_to_host = bool(call.reads) and not call.returned
        if call.writes or call.made or reads_to_host:
            calls.append(call)
        else:
            left_out += 1
    if not calls:
        raise InputError("expected operators with tensors; the trace holds none", where="nodes")
    meta = {"source": "PyTorch execution trace", "schema": str(schema)[:40], "left_out": left_out, **_NOTES}
    return _graph(name, calls, storages, meta)


def _outermost(nodes: Sequence[_TraceNode], by_id: Mapping[int, _TraceNode]) -> Iterator[tuple[_TraceNode, str, Sequence[_TraceNode]]]:
    """The outermost operator calls, in program order (ids increase as calls begin), with their phase and all calls inside them."""
    owner: dict[int, tuple[int | None, str]] = {}
    inside: dict[int, list[_TraceNode]] = {}
    phases: dict[int, str] = {}
    for node in sorted(nodes, key=lambda n: n.id):
        above = owner.get(node.parent) if node.parent != node.id else (None, "forward")
        if above is None:
            if node.parent in by_id:
                raise InputError("expected a parent that begins before it, hence has a smaller id", where=f"{node.where}.parent")
            above = (None, "forward")  # a trace may start inside a range
        root, phase = above
        if node.name.startswith("Optimizer.step"):
            phase = "optimizer"
        elif node.name.startswith("autograd::engine::evaluate_function"):
            phase = "backward"
        if root is None and node.schema:
            root = node.id
            inside[root], phases[root] = [], phase
        owner[node.id] = (root, phase)
        if root is not None:
            inside[root].append(node)
    for root, members in inside.items():
        yield by_id[root], phases[root], members


def _tensors(node: _TraceNode) -> Iterator[TracedTensor]:
    for tensors in node.inputs:
        yield from tensors
    yield from node.outputs


def _call(root: _TraceNode, phase: str, inside: Sequence[_TraceNode], storages: Storages, accelerated: bool) -> _Call:
    def kept(tensors: Iterable[TracedTensor]) -> list[TracedTensor]:
        return [t for t in tensors if t.device and (t.on_accelerator or not accelerated)]

    given = {t.storage: storages.existing(t) for tensors in root.inputs for t in kept(tensors)}
    made: dict[int, int] = {}
    for node in inside:
        for tensor in kept(_tensors(node)):
            if tensor.storage in given or tensor.storage in made:
                storages.existing(tensor)
            else:
                made[tensor.storage] = storages.fresh(tensor)
    numbers = given | made
    arguments = list(zip(_arguments(root.schema), root.inputs, strict=False))
    written = {given[t.storage] for argument, tensors in arguments if "!)" in argument for t in kept(tensors)}
    weights = {given[t.storage] for argument, tensors in arguments if _WEIGHT.search(argument) for t in kept(tensors)}
    returned = {numbers[t.storage] for t in kept(root.outputs)}
    reads = [n for n in given.values() if n not in written]
    return _Call(root, phase, reads, sorted(written), list(made.values()), returned, weights)


def _arguments(schema: str) -> Sequence[str]:
    """The arguments of a schema such as ``aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)``."""
    arguments = schema.partition("(")[2].rpartition("->")[0]
    return [text for text in _COMMA.split(arguments) if text != "*"]


def _graph(name: str, calls: Sequence[_Call], storages: Storages, meta: Mapping[str, Any]) -> Graph:
    used_later = {n for call in calls for n in (*call.reads, *call.writes)}
    kinds = _kinds(calls, storages)
    builder = GraphBuilder(name, meta)
    names: dict[int, str] = {}

    def named(numbers: Sequence[int]) -> list[str]:
        for n in numbers:
            if n not in names:
                names[n] = builder.tensor(f"storage{n}", storages.sizes[n], kinds[n], persistent=storages.at_start[n] or None)
        return [names[n] for n in numbers]

    for call in calls:
        outputs = [n for n in call.made if n in used_later or n in call.returned]
        short = call.node.name.rpartition("::")[2] or call.node.name
        builder.op(
            f"{short}.{call.node.id}",
            op_kind(short),
            inputs=named(call.reads),
            outputs=named(outputs),
            mutates=named(call.writes),
            bytes_accessed=sum(storages.sizes[n] for n in (*call.reads, *outputs, *call.writes)),
            dtype=dtype_of(call.node.types),
            workspace_bytes=sum(storages.sizes[n] for n in call.made if n not in used_later and n not in call.returned),
        )
    return builder.build()


def _kinds(calls: Sequence[_Call], storages: Storages) -> Sequence[str]:
    """The kind of every storage, from the ops that make, read and write it."""
    used: dict[str, set[int]] = {phase: set() for phase in _PHASES}
    written: dict[str, set[int]] = {phase: set() for phase in _PHASES}
    weights: set[int] = set()
    kinds = ["activation"] * len(storages.sizes)
    for call in calls:
        used[call.phase].update(call.reads, call.writes)
        written[call.phase].update(call.writes)
        weights |= call.weights
        for n in call.made:
            kinds[n] = "gradient" if call.phase == "backward" else "activation"
    for n, at_start in enumerate(storages.at_start):
        if not at_start:
            continue
        if n in written["optimizer"]:
            kinds[n] = "parameter" if n in used["forward"] | used["backward"] else "optimizer_state"
        elif n in written["backward"]:
            kinds[n] = "gradient"
        elif n in weights:
            kinds[n] = "parameter"
        else:
            kinds[n] = "buffer" if n in written["forward"] else "input"
    return kinds

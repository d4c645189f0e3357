"""PyTorch execution traces (``torch.profiler.ExecutionTraceObserver``, JSON) as workload graphs.

An op is an outermost operator call of the trace, including the calls inside it; if these run
several kernels (:func:`kernels_inside`), each kernel is an op. Operators that only make a view
compute nothing and are omitted. So are those without a tensor on an accelerator, if the trace has
such tensors. A tensor that an op touches without taking it was allocated by the op: it is a new
storage if the operator returns it or a later op uses it, else workspace. The trace shows the
arguments that are written (``(a!)`` in an operator's schema), but no durations, streams or roles of
tensors. FLOP follow from the shapes of the arguments (:mod:`hosim.io.importers.aten_flops`).
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from hosim.analysis.costmodel.kernels import KernelSizes
from hosim.base.files import read_json
from hosim.data.unknown_ops import UNKNOWN_OPS, is_unknown
from hosim.errors import InputError, errors_of, expect
from hosim.graph import Graph, GraphBuilder
from hosim.io.importers.aten_flops import CallShapes, aten_flops, aten_kernel, composed_flops
from hosim.io.importers.op_kinds import op_kind
from hosim.io.importers.stored import LARGEST
from hosim.io.importers.torch_programs.traced_tensors import (
    Storages,
    TracedTensor,
    dtype_of_types,
    traced_tensors,
)

_PREPARING = {"fill", "allocate"}


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A call by ids: its parent, and the storages that it writes, or returns without taking them.
    ``shapes`` are those of an operator, else None.
    """

    id: int
    parent: int
    shapes: CallShapes | None
    sets: frozenset[int]


def kernels_inside(calls: Sequence[TracedCall]) -> Sequence[int]:
    """Return the kernels of the first of ``calls``, as ids in the order in which they begin; the
    other calls are inside it.

    A parent has a smaller id than the calls that it makes. The result is empty for a call that only
    allocates, fills or makes a view.
    """
    found: dict[int, list[int]] = {}
    written: dict[int, frozenset[int]] = {}
    inside: dict[int, list[int]] = {}
    for call in sorted(calls, key=lambda c: -c.id):
        members = inside.pop(call.id, [])
        kernels = _joined([found.pop(member) for member in members])
        below = [written.pop(member) for member in members]
        sets = below[0] if len(below) == 1 else frozenset().union(*below)
        if call.shapes is not None:
            prepares = op_kind(call.shapes.operator) in _PREPARING
            if aten_flops(call.shapes) is not None or (
                call.sets and not (kernels and call.sets <= sets)
            ):
                kernels = [] if prepares else [call.id]
            sets = frozenset() if prepares else call.sets
        found[call.id], written[call.id] = kernels, sets
        inside.setdefault(call.parent, []).append(call.id)
    return sorted(found[min(found)])


def _joined(lists: list[list[int]]) -> list[int]:
    """Join the lists. The longest one is extended, so that deep traces take no longer than wide
    ones.
    """
    if not lists:
        return []
    longest = max(lists, key=len)
    for one in lists:
        if one is not longest:
            longest.extend(one)
    return longest


_NOTES = {
    "durations": "not in the trace; the cost model estimates them from FLOP and bytes, which "
    "follow from the operands' shapes",
    "sizes": "the furthest byte that a recorded tensor reaches in its storage; old traces have no "
    "strides: elements side by side",
    "kinds": "from the autograd and optimizer ranges, from what is there at the start, and from "
    "the names weight and bias",
    "mutations": "only those that an operator's schema declares; running statistics of a batch "
    "norm are not",
    "streams": "not in the trace; everything runs on compute",
}

_OVERWRITES = {"copy_", "fill_", "zero_"}
_GATHERS = {"embedding", "gather"}
_PHASES = ("forward", "backward", "optimizer")
_COMMA = re.compile(
    r",\s+"
)  # lists in a schema's defaults have this, too, but come after an operator's tensors
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
    types: tuple[Any, Any]  # of inputs and outputs
    shapes: CallShapes

    @property
    def sets(self) -> frozenset[int]:
        """The ids of the storages that the call writes, or returns without taking them."""
        given = {t.storage for tensors in self.inputs for t in tensors}
        written = {
            t.storage
            for argument, tensors in self.arguments()
            if "!)" in argument
            for t in tensors
            if t.reach_bytes
        }
        return frozenset(
            written.union(
                t.storage for t in self.outputs if t.reach_bytes and t.storage not in given
            )
        )

    def arguments(self) -> Sequence[tuple[str, Sequence[TracedTensor]]]:
        """Each argument of the schema with its tensors."""
        return list(zip(_arguments(self.schema), self.inputs, strict=False))


@dataclass(frozen=True, slots=True)
class _Computed:
    """The computation of a kernel."""

    flops: int | None
    bytes_accessed: int
    dtype: str
    kernel: KernelSizes


@dataclass(slots=True)
class _Call:
    """An op; storages are given by number. ``name`` is that of the operator call if the op is the
    whole call, else that of its kernel.
    """

    node: _TraceNode
    name: str
    phase: str
    reads: list[int]
    writes: list[int]
    made: list[int]
    returned: set[int]
    weights: set[int]
    work: _Computed


def import_torch_trace(path: str | os.PathLike[str]) -> Graph:
    """Return the graph of the execution trace at ``path`` (plain or gzip), named after the file.
    Sizes are in bytes; no op has a duration.

    Raises :class:`InputError` for a damaged file, with the place in it.
    """
    source = os.fspath(path)
    document = _document(Path(path))
    with errors_of(source):
        nodes = [_node(i, raw) for i, raw in enumerate(_nodes(document))]
        return _build(Path(path).name.split(".")[0], document.get("schema"), nodes)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call in an execution trace: its operator, its thread, and all tensors that it takes and
    returns.
    """

    name: str
    thread: int
    inputs: tuple[TracedTensor, ...]
    outputs: tuple[TracedTensor, ...]


def recorded_calls(path: str | os.PathLike[str]) -> tuple[RecordedCall, ...]:
    """Return the calls in the execution trace at ``path``, in the order in which they began. Raises
    :class:`InputError` for a damaged file.
    """
    listed = []
    with errors_of(os.fspath(path)):
        for i, raw in enumerate(_nodes(_document(Path(path)))):
            node, attrs = _node(i, raw), _attributes(raw)
            began, thread = (raw.get(key, attrs.get(key)) for key in ("rf_id", "tid"))
            if type(began) is int and type(thread) is int:
                inputs = tuple(tensor for argument in node.inputs for tensor in argument)
                listed.append((began, RecordedCall(node.name, thread, inputs, tuple(node.outputs))))
    return tuple(call for _, call in sorted(listed, key=lambda item: item[0]))


def _attributes(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        a["name"]: a.get("value")
        for a in _listed(raw.get("attrs"))
        if isinstance(a, dict) and isinstance(a.get("name"), str)
    }


def _document(path: Path) -> Mapping[str, Any]:
    source = os.fspath(path)
    document = read_json(source, "an execution trace", "record it again")
    return expect(document, dict, "an object with the key nodes", source=source)


def _nodes(document: Mapping[str, Any]) -> Sequence[Any]:
    return expect(document.get("nodes"), list, "a list of at least one node", "nodes", when=bool)


def _node(position: int, raw: Any) -> _TraceNode:
    """Read a node of schema 1.0 (``inputs`` is a list, ``op_schema`` a key) or of a later 1.x
    (``inputs.values``, ``attrs``).
    """
    where = f"nodes[{position}]"
    expect(raw, dict, "an object", where)
    attrs = _attributes(raw)
    parent: Any = raw.get("parent", raw.get("ctrl_deps"))
    schema = raw.get("op_schema", attrs.get("op_schema", ""))
    for key, value in (("id", raw.get("id")), ("parent", parent)):
        expect(value, int, "a whole number", f"{where}.{key}")
    expect(raw.get("name"), str, "a name", f"{where}.name")
    expect(schema, str, "text", f"{where}.op_schema")
    inputs, given, values, taken = _operands(raw, "input", where)
    outputs, made, _, types = _operands(raw, "output", where)
    operator = raw["name"].rpartition("::")[2] or raw["name"]
    call = CallShapes(operator, given, values, made)
    tensors = [t for tensors in outputs for t in tensors]
    return _TraceNode(
        where, raw["id"], parent, raw["name"], schema, inputs, tensors, (taken, types), call
    )


def _operands(
    raw: Mapping[str, Any], side: str, where: str
) -> tuple[Sequence[Sequence[TracedTensor]], Sequence[Any], Sequence[Any], Any]:
    """Return the tensors of every input or output, the shapes of those that are one tensor, the
    values, and the list of types.
    """
    values = raw.get(f"{side}s", [])
    shapes, strides, types = raw.get(f"{side}_shapes"), None, raw.get(f"{side}_types")
    if isinstance(values, dict):
        values, shapes, strides, types = (
            values.get(key) for key in ("values", "shapes", "strides", "types")
        )
    expect(values, list, "a list", f"{where}.{side}s")
    shapes, strides = (
        part if isinstance(part, list) and len(part) == len(values) else [None] * len(values)
        for part in (shapes, strides)
    )
    tensors = [traced_tensors(*argument) for argument in zip(values, shapes, strides, strict=True)]
    single = [
        _dims(shape) if len(found) == 1 else None
        for found, shape in zip(tensors, shapes, strict=True)
    ]
    return tensors, single, values, types


def _dims(shape: Any) -> Sequence[int] | None:
    """The shape, if it is a list of sizes with no more elements than any tensor has; else None."""
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < LARGEST for n in shape):
        return None
    return shape if prod(shape) < LARGEST else None


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _build(name: str, schema: Any, nodes: Sequence[_TraceNode]) -> Graph:
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise InputError("expected every node's id once", where="nodes")
    accelerated = any(t.on_accelerator for node in nodes for t in _tensors(node))
    storages = Storages()
    calls, without_work = [], 0
    for root, phase, inside in _outermost(nodes, by_id):
        added = 0
        for call in _ops(root, phase, inside, storages, accelerated):
            reads_to_host = bool(call.reads) and not call.returned
            if call.writes or call.made or reads_to_host:
                calls.append(call)
                added += 1
        without_work += not added
    if not calls:
        raise InputError("expected operators with tensors; the trace holds none", where="nodes")
    meta = {
        "source": "PyTorch execution trace",
        "schema": str(schema)[:40],
        "calls_without_work": without_work,
        **_NOTES,
    }
    return _graph(name, calls, storages, meta)


def _outermost(
    nodes: Sequence[_TraceNode], by_id: Mapping[int, _TraceNode]
) -> Iterator[tuple[_TraceNode, str, Sequence[_TraceNode]]]:
    """Yield the outermost operator calls in program order (ids increase as calls begin), with their
    phase and all calls inside them.
    """
    owner: dict[int, tuple[int | None, str]] = {}
    inside: dict[int, list[_TraceNode]] = {}
    phases: dict[int, str] = {}
    for node in sorted(nodes, key=lambda n: n.id):
        above = owner.get(node.parent) if node.parent != node.id else (None, "forward")
        if above is None:
            if node.parent in by_id:
                raise InputError(
                    "expected a parent that begins before it, hence has a smaller id",
                    where=f"{node.where}.parent",
                )
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


def _ops(
    root: _TraceNode,
    phase: str,
    inside: Sequence[_TraceNode],
    storages: Storages,
    accelerated: bool,
) -> Iterator[_Call]:
    """Yield the ops of an outermost call: the call itself, or its kernels if there are several."""
    kernels = kernels_inside(
        [
            TracedCall(
                n.id, n.parent, n.shapes if n.schema else None, n.sets if n.schema else frozenset()
            )
            for n in inside
        ]
    )
    if len(kernels) < 2:
        kernel = next((n for n in inside if n.id in kernels), root)
        yield _call(root, kernel, phase, inside, storages, accelerated, set())
        return
    members: dict[int, list[_TraceNode]] = {number: [] for number in kernels}
    owner: dict[int, int] = {}
    allocated: set[int] = set()
    for node in inside:
        over = node.id if node.id in members else owner.get(node.parent)
        if over is not None:
            owner[node.id] = over
            members[over].append(node)
    calling = {node.parent for node in inside}
    for node in inside:
        if node.id in members:
            yield _call(node, node, phase, members[node.id], storages, accelerated, allocated)
        elif node.id not in owner and node.id not in calling and node.schema:
            given = {t.storage for tensors in node.inputs for t in tensors}
            for tensor in _kept(node.outputs, accelerated):
                if tensor.storage not in given:
                    allocated.add(storages.fresh(tensor))


def _kept(tensors: Iterable[TracedTensor], accelerated: bool) -> list[TracedTensor]:
    return [t for t in tensors if t.device and (t.on_accelerator or not accelerated)]


def _call(
    root: _TraceNode,
    kernel: _TraceNode,
    phase: str,
    inside: Sequence[_TraceNode],
    storages: Storages,
    accelerated: bool,
    allocated: set[int],
) -> _Call:
    """Return the op of a call, with the computation of ``kernel`` in it. The op makes the storages
    that are ``allocated`` and not yet used, which are removed from there.
    """
    given = {
        t.storage: storages.existing(t)
        for tensors in root.inputs
        for t in _kept(tensors, accelerated)
    }
    made: dict[int, int] = {}
    for node in inside:
        for tensor in _kept(_tensors(node), accelerated):
            if tensor.storage in given or tensor.storage in made:
                storages.existing(tensor)
            else:
                made[tensor.storage] = storages.fresh(tensor)
    numbers = given | made
    first = {storage: n for storage, n in given.items() if n in allocated}
    allocated.difference_update(first.values())
    arguments = [(argument, _kept(tensors, accelerated)) for argument, tensors in root.arguments()]
    written = {
        given[t.storage]
        for argument, tensors in arguments
        if "!)" in argument
        for t in tensors
        if t.storage not in first
    }
    weights = {
        given[t.storage]
        for argument, tensors in arguments
        if _WEIGHT.search(argument)
        for t in tensors
    }
    returned = {numbers[t.storage] for t in _kept(root.outputs, accelerated)}
    reads = [n for storage, n in given.items() if n not in written and storage not in first]
    work = _work(root, kernel, accelerated)
    return _Call(
        root,
        root.shapes.operator,
        phase,
        reads,
        sorted(written),
        [*first.values(), *made.values()],
        returned,
        weights,
        work,
    )


def _work(root: _TraceNode, kernel: _TraceNode, accelerated: bool) -> _Computed:
    flops = aten_flops(kernel.shapes)
    if flops is None:
        flops = composed_flops(kernel.shapes)
    types = kernel.types[0 if flops else 1]
    return _Computed(
        flops,
        _traffic(root, accelerated),
        dtype_of_types(types),
        aten_kernel(kernel.shapes, flops or 0),
    )


def _traffic(call: _TraceNode, accelerated: bool) -> int:
    """The bytes that a call reads and writes: the elements that each tensor shows, twice if they
    are changed.
    """
    kind, operator = op_kind(call.shapes.operator), call.shapes.operator
    if kind == "allocate":
        return 0
    given = {t.storage for tensors in call.inputs for t in tensors}
    made = sum(
        t.shown_bytes for t in set(_kept(call.outputs, accelerated)) if t.storage not in given
    )
    total, seen = made, set[TracedTensor]()
    for place, (argument, tensors) in enumerate(call.arguments()):
        times = 1 if "!)" not in argument or operator in _OVERWRITES else 2
        for tensor in _kept(tensors, accelerated):
            if tensor not in seen:
                gathered = made and not place and kind in _GATHERS
                total += min(tensor.shown_bytes, made) if gathered else times * tensor.shown_bytes
                seen.add(tensor)
    return total


def _arguments(schema: str) -> Sequence[str]:
    """The arguments of a schema such as ``aten::add_.Tensor(Tensor(a!) self, Tensor other, *,
    Scalar alpha=1) -> Tensor(a!)``.
    """
    arguments = schema.partition("(")[2].rpartition("->")[0]
    return [text for text in _COMMA.split(arguments) if text != "*"]


def _graph(name: str, calls: Sequence[_Call], storages: Storages, meta: Mapping[str, Any]) -> Graph:
    used_later = {n for call in calls for n in (*call.reads, *call.writes)}
    kinds = _kinds(calls, storages)
    builder = GraphBuilder(name, meta)
    names: dict[int, str] = {}
    unknown: list[str] = []

    def named(numbers: Sequence[int]) -> list[str]:
        for n in numbers:
            if n not in names:
                names[n] = builder.tensor(
                    f"storage{n}",
                    storages.sizes[n],
                    kinds[n],
                    persistent=storages.at_start[n] or None,
                )
        return [names[n] for n in numbers]

    for call in calls:
        outputs = [n for n in call.made if n in used_later or n in call.returned]
        work = call.work
        added = builder.op(
            f"{call.name}.{call.node.id}",
            op_kind(call.name),
            inputs=named(call.reads),
            outputs=named(outputs),
            mutates=named(call.writes),
            bytes_accessed=work.bytes_accessed,
            flops=work.flops or 0,
            dtype=work.dtype,
            workspace_bytes=sum(
                storages.sizes[n]
                for n in call.made
                if n not in used_later and n not in call.returned
            ),
            kernel=work.kernel[0],
            sizes=work.kernel[1],
        )
        if is_unknown(call.node.name, op_kind(call.name), work.flops):
            unknown.append(added)
    if unknown:
        builder.meta = {**meta, UNKNOWN_OPS: unknown}
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

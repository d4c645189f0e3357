"""The workload format: ``hosim.workload/1`` and :class:`~hosim.graph.Graph`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NotRequired

from pydantic import TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from hosim.errors import GraphError, InputError
from hosim.graph import PERSISTENT_KINDS, Graph, Op, Tensor, unguarded
from hosim.io import reading
from hosim.io.validators import STRICT, Count, Format, Name

Kind = Literal["parameter", "gradient", "optimizer_state", "activation", "kv_cache", "expert", "input", "output", "buffer"]


@with_config(STRICT)
class TensorModel(TypedDict):
    """One storage."""

    name: Name
    bytes: Count
    kind: NotRequired[Kind]
    home: NotRequired[Name | None]
    persistent: NotRequired[bool | None]


@with_config(STRICT)
class OpModel(TypedDict):
    """One computation; tensors and ops by name."""

    name: Name
    kind: str
    stream: NotRequired[Name]
    inputs: NotRequired[list[str]]
    outputs: NotRequired[list[str]]
    mutates: NotRequired[list[str]]
    deps: NotRequired[list[str]]
    duration_ns: NotRequired[Count | None]
    flops: NotRequired[Count]
    bytes_accessed: NotRequired[Count]
    dtype: NotRequired[Name]
    workspace_bytes: NotRequired[Count]


@with_config(STRICT)
class WorkloadModel(TypedDict):
    """A workload: tensors and ops in listed order."""

    format: Literal["hosim.workload/1"]
    name: str
    meta: NotRequired[dict[str, Any]]
    tensors: NotRequired[list[TensorModel]]
    ops: NotRequired[list[OpModel]]


FORMAT = Format("workload", lambda: TypeAdapter(WorkloadModel))

_SPACED_COLON = re.compile(rb'"[ \t\r\n]+:')

# a file of 100,000 ops has 300,000 of these: half of the time of loading was theirs
_tensor, _new_op = unguarded(Tensor), unguarded(Op)


def load_workload(path: str | os.PathLike[str]) -> Graph:
    """Load the graph of a workload file or of a workload spec.

    Parameters
    ----------
    path
        A JSON or YAML file, compressed if its name ends in ``.gz``.

    Returns
    -------
    Graph
        The graph.

    Raises
    ------
    InputError
        If the file is neither; names the file and the path inside it.

    References
    ----------
    ``docs/formats.md`` describes the file.

    Examples
    --------
    >>> import os, tempfile
    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_workload(b.build(), os.path.join(folder, "toy.json.gz"))
    ...     load_workload(os.path.join(folder, "toy.json.gz")) == b.build()
    True
    """
    source = os.fspath(path)
    with reading.no_collection():
        raw = reading.read_bytes(source)
        checked = _checked_at_once(raw)
        if checked is not None:
            return _graph(checked, source)
        data = reading.parse(reading.decode(raw, source), source)
        if isinstance(data, Mapping) and data.get("format") == reading.format_of("spec"):
            from hosim.importers.spec import import_spec

            return import_spec(source)
        return workload_from_dict(data, source=source)


def save_workload(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a workload file. Equal graphs give equal bytes.

    Parameters
    ----------
    graph
        The graph.
    path
        Where to write: YAML if the name ends in ``.yaml``, else JSON; compressed if it ends in ``.gz``.

    Raises
    ------
    InputError
        If the file cannot be written.

    References
    ----------
    ``docs/formats.md`` describes the file.

    Examples
    --------
    >>> import os, tempfile
    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_workload(b.build(), os.path.join(folder, "toy.json.gz"))
    ...     load_workload(os.path.join(folder, "toy.json.gz")) == b.build()
    True
    """
    with reading.no_collection():
        reading.write(path, workload_to_dict(graph))


def workload_from_dict(data: object, source: str | None = None) -> Graph:
    """The graph of a workload as :func:`workload_to_dict` gives it; ``source`` names it in errors. Raises :class:`InputError`."""
    return _graph(FORMAT.check(data, source), source)


def _checked_at_once(raw: bytes) -> WorkloadModel | None:
    """The workload in a JSON text, in half the time that parsing and then checking takes; ``None`` where anything is or may be wrong.

    Its parser lets a later key replace an equal one, and lets numbers be no numbers, which no file of hosim's may: each key that is left
    has to have its colon, and no other.
    """
    try:
        checked = FORMAT.adapter.validate_json(raw)
    except ValidationError:
        return None
    keys = len(checked) + _keys(checked.get("meta", {}))
    keys += sum(map(len, checked.get("tensors", ()))) + sum(map(len, checked.get("ops", ())))
    plain = raw.count(b'":') == keys and not _SPACED_COLON.search(raw) and b"NaN" not in raw and b"Infinity" not in raw
    return checked if plain else None


def _keys(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list) else 0


def _graph(checked: WorkloadModel, source: str | None) -> Graph:
    tensors = tuple(
        [
            _tensor(t["name"], t["bytes"], kind := t.get("kind", "activation"), t.get("home"), _persistent(t, kind))
            for t in checked.get("tensors", ())
        ]
    )
    tensor_at = {tensor.name: i for i, tensor in enumerate(tensors)}
    op_at: dict[str, int] = {}
    ops = []
    for i, op in enumerate(checked.get("ops", ())):
        try:
            ops.append(_op(op, tensor_at.__getitem__, op_at.__getitem__))
        except KeyError:
            raise _unresolved(i, op, tensor_at, op_at, source) from None
        op_at[op["name"]] = i
    try:
        return Graph(checked["name"], tensors, tuple(ops), checked.get("meta", {}))
    except GraphError as error:
        raise InputError(error.message, source=source, where=error.where) from None


def _persistent(tensor: TensorModel, kind: Kind) -> bool:
    given = tensor.get("persistent")
    return kind in PERSISTENT_KINDS if given is None else given


def _op(op: OpModel, tensor: Callable[[str], int], earlier: Callable[[str], int]) -> Op:
    """The op with positions for names; raises :class:`KeyError` for a name that is not there."""
    inputs, outputs, mutates, deps = op.get("inputs"), op.get("outputs"), op.get("mutates"), op.get("deps")
    return _new_op(
        op["name"],
        op["kind"],
        tuple(map(tensor, inputs)) if inputs else (),
        tuple(map(tensor, outputs)) if outputs else (),
        tuple(map(tensor, mutates)) if mutates else (),
        tuple(map(earlier, deps)) if deps else (),
        op.get("stream", "compute"),
        op.get("duration_ns"),
        op.get("flops", 0),
        op.get("bytes_accessed", 0),
        op.get("dtype", "bf16"),
        op.get("workspace_bytes", 0),
    )


def _unresolved(i: int, op: OpModel, tensor_at: Mapping[str, int], op_at: Mapping[str, int], source: str | None) -> InputError:
    """What is wrong with the first name of an op that :func:`_op` could not find."""
    listed = (("inputs", op.get("inputs", [])), ("outputs", op.get("outputs", [])), ("mutates", op.get("mutates", [])))
    tensors = [("tensor", key, names, tensor_at) for key, names in listed]
    for what, key, names, at in [*tensors, ("earlier op", "deps", op.get("deps", []), op_at)]:
        for j, name in enumerate(names):
            if name not in at:
                return InputError(reading.unknown_name(what, name, at), source=source, where=f"ops[{i}].{key}[{j}]")
    raise AssertionError("every name of the op is known")


def workload_to_dict(graph: Graph) -> dict[str, Any]:
    """The graph as its file says it; keys that are empty, zero or at their default are left out."""
    names = [tensor.name for tensor in graph.tensors]
    op_names = [op.name for op in graph.ops]
    data: dict[str, Any] = {"format": reading.format_of("workload"), "name": graph.name}
    if graph.meta:
        data["meta"] = dict(graph.meta)
    data["tensors"] = [_tensor_to_dict(tensor) for tensor in graph.tensors]
    data["ops"] = [_op_to_dict(op, names, op_names) for op in graph.ops]
    return data


def _tensor_to_dict(tensor: Tensor) -> dict[str, Any]:
    data: dict[str, Any] = {"name": tensor.name, "bytes": tensor.size_bytes, "kind": tensor.kind}
    if tensor.home is not None:
        data["home"] = tensor.home
    if tensor.persistent != (tensor.kind in PERSISTENT_KINDS):
        data["persistent"] = tensor.persistent
    return data


def _op_to_dict(op: Op, names: list[str], op_names: list[str]) -> dict[str, Any]:
    data: dict[str, Any] = {"name": op.name, "kind": op.kind}
    if op.stream != "compute":
        data["stream"] = op.stream
    if op.inputs:
        data["inputs"] = [names[t] for t in op.inputs]
    if op.outputs:
        data["outputs"] = [names[t] for t in op.outputs]
    if op.mutates:
        data["mutates"] = [names[t] for t in op.mutates]
    if op.deps:
        data["deps"] = [op_names[d] for d in op.deps]
    if op.duration_ns is not None:
        data["duration_ns"] = op.duration_ns
    if op.flops:
        data["flops"] = op.flops
    if op.bytes_accessed:
        data["bytes_accessed"] = op.bytes_accessed
    if op.dtype != "bf16":
        data["dtype"] = op.dtype
    if op.workspace_bytes:
        data["workspace_bytes"] = op.workspace_bytes
    return data

"""The workload format: ``hosim.workload/1`` and :class:`~hosim.graph.Graph`."""

import os
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from hosim.base.collector import no_collection
from hosim.base.files import (
    check_json,
    check_names,
    check_no_name,
    content_of,
    format_of,
    name_of_file,
    read_bytes,
    write,
)
from hosim.errors import InputError, errors_of
from hosim.graph import DEVICE, KINDS, PERSISTENT_KINDS, Graph, Op, Tensor
from hosim.io.key_tables import (
    COUNT,
    FLAG,
    NAME,
    TEXT,
    Key,
    KeyTable,
    Kind,
    Names,
    format_key,
    inside,
    keys,
    literal,
    optional,
    several,
)
from hosim.io.validators import Count, Format, Name

_TENSOR = KeyTable(
    "TensorModel",
    "One storage.",
    Tensor,
    Key("name", NAME),
    Key("bytes", COUNT, "size_bytes"),
    Key("kind", literal(*KINDS)),
    Key("home", optional(NAME), brief=True),
    Key(
        "persistent",
        optional(FLAG),
        get=lambda tensor: (
            None if tensor.persistent == (tensor.kind in PERSISTENT_KINDS) else tensor.persistent
        ),
        brief=True,
    ),
    Key("of", NAME, brief=True),
)


_PROCESSORS = Kind(
    dict[Name, Count | None],
    lambda others: {name or DEVICE: duration for name, duration in others},
    lambda others: tuple(
        [(name if name != DEVICE else "", duration) for name, duration in others.items()]
    ),
)
"""Other processors of an op, each with the op's duration there or ``null``."""


def _op(tensors: Names, ops: Names) -> KeyTable[Op]:
    return KeyTable(
        "OpModel",
        "One computation; refers to tensors and ops by name.",
        Op,
        Key("name", NAME),
        Key("kind", TEXT),
        Key("stream", NAME, brief=True),
        *keys(tensors.many, "inputs", "outputs", "mutates", brief=True),
        Key("deps", ops.many, brief=True),
        Key("duration_ns", optional(COUNT), brief=True),
        *keys(COUNT, "flops", "bytes_accessed", brief=True),
        Key("dtype", NAME, brief=True),
        Key("workspace_bytes", COUNT, brief=True),
        Key("kernel", NAME, brief=True),
        Key("sizes", several(COUNT), brief=True),
        Key("processor", NAME, brief=True),
        Key("also_on", _PROCESSORS, brief=True),
        Key("message", NAME, brief=True),
    )


def _workload(graph: Graph) -> KeyTable[Graph]:
    return KeyTable(
        "WorkloadModel",
        "A workload: tensors and ops in listed order.",
        Graph,
        format_key("workload"),
        Key("name", TEXT),
        Key("meta", Kind(dict[str, Any], dict), brief=True),
        Key("tensors", several(_TENSOR.kind), default=()),
        Key(
            "ops",
            several(_op(Names("tensor", {}, graph.tensors), Names("op", {}, graph.ops)).kind),
            default=(),
        ),
    )


FORMAT = Format("workload", lambda: _workload(Graph("", (), ())).adapter)

_SPACED_COLON = re.compile(rb'"[ \t\r\n]+:')


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
    source = name_of_file(path)
    check_no_name(source, "hosim.load({!r})")
    with no_collection():
        raw = read_bytes(source)
        if raw.startswith(b"{"):
            check_json(raw, source)
            checked = _checked_at_once(raw)
            if checked is not None:
                return _graph(checked, source)
        data = content_of(raw, source)
        if isinstance(data, Mapping) and data.get("format") == format_of("spec"):
            from hosim.io.spec import import_spec

            return import_spec(source)
        return workload_from_dict(data, source=source)


def save_workload(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a workload file. Equal graphs give equal bytes.

    Parameters
    ----------
    graph
        The graph.
    path
        Where to write: YAML if the name ends in ``.yaml``, else JSON; compressed if it ends in
        ``.gz``.

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
    if not isinstance(graph, Graph):
        raise InputError(f"expected a graph, got {type(graph).__name__}", source="graph")
    with no_collection():
        write(path, workload_to_dict(graph))


def workload_from_dict(data: object, source: str | None = None) -> Graph:
    """Return the graph of a workload in a mapping like that of :func:`workload_to_dict`; ``source``
    names it in errors. Raises :class:`InputError`.
    """
    return _graph(FORMAT.check(data, source), source)


def _checked_at_once(raw: bytes) -> dict[str, Any] | None:
    """Return the workload in a JSON text, in half the time of parsing and then checking; ``None``
    if anything is or may be wrong.

    This parser accepts repeated keys and NaN, which hosim's files must not have. Therefore the
    number of colons must equal the number of keys.
    """
    try:
        checked = FORMAT.adapter.validate_json(raw)
    except ValidationError:
        return None
    keys = len(checked) + _keys(checked.get("meta", {}))
    keys += sum(map(len, checked.get("tensors", ()))) + sum(map(len, checked.get("ops", ())))
    plain = (
        raw.count(b'":') == keys
        and not _SPACED_COLON.search(raw)
        and b"NaN" not in raw
        and b"Infinity" not in raw
    )
    return checked if plain else None


def _keys(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list) else 0


def _graph(checked: Mapping[str, Any], source: str | None) -> Graph:
    tensors = tuple(map(_TENSOR.read, checked.get("tensors", ())))
    op_at: dict[str, int] = {}
    table = _op(
        Names("tensor", {tensor.name: i for i, tensor in enumerate(tensors)}),
        Names("earlier op", op_at),
    )
    ops: list[Op] = []
    with errors_of(source):
        try:
            for op in checked.get("ops", ()):
                ops.append(table.read(op))
                op_at[op["name"]] = len(ops) - 1
        except InputError as error:
            raise inside("ops", inside(len(ops), error)) from None
        graph = Graph(checked["name"], tensors, tuple(ops), checked.get("meta", {}))
    check_names(source, tensors=graph.tensors, ops=graph.ops, name=[graph])
    return graph


def workload_to_dict(graph: Graph) -> dict[str, Any]:
    """Return the graph as in its file; keys that are empty, zero or at their default
    are omitted.
    """
    return _workload(graph).write(graph)

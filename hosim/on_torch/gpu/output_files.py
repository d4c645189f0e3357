"""Files of the kit: recordings, written beside and then renamed, and workloads and plans, written
and read with the standard library alone, as a GPU machine may have nothing else; and the lines that
the kit prints while it works.
"""

import contextlib
import csv
import gzip
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.edits import Edits, Recompute
from hosim.errors import GraphError, InputError
from hosim.graph import MAIN_STREAM, PERSISTENT_KINDS, Graph, Op


def write_json(path: Path, content: Any) -> None:
    """Write JSON, gzipped (the same bytes for the same content) if the name ends in ``.gz``; whole
    or not at all.
    """
    if path.suffix == ".gz":
        write_whole(
            path,
            gzip.compress(
                json.dumps(content, separators=(",", ":")).encode(), compresslevel=9, mtime=0
            ),
        )
    else:
        write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write CSV; a row that lacks a column has an empty cell there."""
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_whole(path, text.getvalue().encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, or leave what was there. Raises :class:`InputError` where that cannot be."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def say(text: str) -> None:
    """A line on stderr, at once."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


# -- workloads and plans ---------------------------------------------------------------------------


def workload_mapping(graph: Graph) -> dict[str, Any]:
    """The graph as the mapping of a workload file."""
    tensors = []
    for tensor in graph.tensors:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "bytes": tensor.size_bytes,
            "kind": tensor.kind,
        }
        if tensor.home is not None:
            entry["home"] = tensor.home
        if tensor.persistent != (tensor.kind in PERSISTENT_KINDS):
            entry["persistent"] = tensor.persistent
        if tensor.of:
            entry["of"] = tensor.of
        tensors.append(entry)
    return {
        "format": "hosim.workload/1",
        "name": graph.name,
        "meta": dict(graph.meta),
        "tensors": tensors,
        "ops": [_op(graph, op) for op in graph.ops],
    }


def _op(graph: Graph, op: Op) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": op.name, "kind": op.kind}
    if op.stream != MAIN_STREAM:
        entry["stream"] = op.stream
    for key in ("inputs", "outputs", "mutates"):
        entry[key] = [graph.tensors[t].name for t in getattr(op, key)]
    entry["deps"] = [graph.ops[i].name for i in op.deps]
    for key in ("duration_ns", "flops", "bytes_accessed", "dtype", "workspace_bytes", "kernel"):
        entry[key] = getattr(op, key)
    entry["sizes"] = list(op.sizes)
    return {key: value for key, value in entry.items() if value not in (None, [], "")}


def plan_of_mapping(data: Any, workload: Graph, source: str) -> Plan:
    """The plan in a plan file, for its workload. Raises :class:`InputError` for a plan of another
    one.
    """
    if not isinstance(data, Mapping):
        raise InputError("expected a plan, an object of JSON; plan again", source=source)
    if data.get("workload") != workload.name:
        raise InputError(
            f"expected a plan for {workload.name}, got one for {data.get('workload')}; plan again",
            source=source,
        )
    try:
        if data.get("processors"):
            raise ValueError("it chooses processors of ops")
        again = tuple(
            Recompute(row["op"], row["before"], row["name"]) for row in data.get("recompute", ())
        )
        edits = Edits(workload, tuple(data.get("order", ())), again)
        graph = edits.graph()
        moves = tuple(
            CacheOp(
                row["op"],
                graph.tensor_index[row["tensor"]],
                row["from"],
                row.get("to"),
                AT_START if row["after"] is None else graph.op_index[row["after"]],
            )
            for row in data["cache_ops"]
        )
        initial = {
            graph.tensor_index[name]: tuple(tiers)
            for name, tiers in data.get("initial", {}).items()
        }
        changed = edits if edits.order or edits.recompute else None
        return Plan(
            workload if changed is None else graph, data["policy"], moves, initial, edits=changed
        )
    except (GraphError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the plan is not for this decoder ({error}); plan again", source=source
        ) from error

"""Activation traces of hyper-parallel as workload graphs.

Source: github mindspore-ai/hyper-parallel (Apache-2.0), ``ir/trace.py`` of its ``hyper_offload``:
the dataclass ``ActivationTrace``, which its ``WarmupExecutor`` fills and its session gives to the
planner. It has no file format; the JSON read here is ``dataclasses.asdict`` of it, with kinds of
accesses by name and sets as lists (:mod:`hosim.formats.bridges.hyper_parallel_planner` writes it)::

    {"ops": [{"name": "mm.default", "duration_ms": 0.12, "accesses": [{"op_id": 0, "storage_id": 3, "kind": "WRITE"}]}],
     "storage_sizes": {"3": 4096}, "retained_sids": [], "memory_limit_bytes": 1073741824,
     "d2h_bandwidth_gbps": 16.0, "h2d_bandwidth_gbps": 16.0}

Its ``gbps`` are GiB/s, the unit in which its warm-up measures them. It traces storages of
activations only, not of parameters and inputs.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosim.base.files import read_json
from hosim.errors import InputError, errors_of, expect
from hosim.graph import Graph, GraphBuilder
from hosim.io.importers import op_kind

_NOTES = {
    "storages": "of activations alone; parameters, optimizer states and inputs are not traced",
    "kinds": "output for what is still referenced at the end of the step, activation for the rest",
    "durations": "as measured in the warm-up step, op by op",
    "workspaces": "not in the trace",
}
_LARGEST = 1 << 60
_DEFAULT_GBPS = 16.0


@dataclass(frozen=True, slots=True)
class TracedOp:
    """One op: the storages that it reads and those that it writes, each once, in the order of the
    trace.
    """

    name: str
    duration_ns: int | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ActivationTrace:
    """A trace in integers: bytes by storage; ``limit_bytes`` is the device memory for activations
    (``None``: all of it).
    """

    ops: tuple[TracedOp, ...]
    sizes: Mapping[int, int]
    retained: frozenset[int]
    limit_bytes: int | None
    d2h_bytes_per_s: int
    h2d_bytes_per_s: int


def import_hyper_parallel(path: str | os.PathLike[str]) -> Graph:
    """Return the graph of the trace at ``path`` (plain or gzip), named after the file. Sizes are in
    bytes, durations in nanoseconds.

    Raises :class:`InputError` for a damaged file, with the place in it.
    """
    source = os.fspath(path)
    document = read_json(source, "an activation trace", "write it again")
    with errors_of(source):
        return graph_of(read_document(document), Path(path).name.split(".")[0])


def read_document(document: Any) -> ActivationTrace:
    """Return the trace in the data of such a file. Raises :class:`InputError` with the path inside
    it.
    """
    expect(document, dict, "an object with ops and storage_sizes")
    sizes = _sizes(document.get("storage_sizes"))
    listed = expect(document.get("ops"), list, "a list of at least one op", "ops", when=bool)
    limit, given = document.get("memory_limit_bytes"), document.get("retained_sids", [])
    retained = expect(given, list, "a list of storage ids", "retained_sids")
    return ActivationTrace(
        tuple([_op(raw, i, sizes) for i, raw in enumerate(listed)]),
        sizes,
        frozenset(_whole(sid, f"retained_sids[{j}]") for j, sid in enumerate(retained)),
        None if limit is None else _whole(limit, "memory_limit_bytes"),
        _rate(document, "d2h_bandwidth_gbps"),
        _rate(document, "h2d_bandwidth_gbps"),
    )


def graph_of(trace: ActivationTrace, name: str, *, retained_to_the_end: bool = False) -> Graph:
    """Return the workload of a trace: a tensor for each storage that an op accesses, one op after
    the other on ``compute``.

    The first access of a storage produces it if it writes; a later write mutates it, as an in-place
    op does. A storage that is read before it is written exists from the start. With
    ``retained_to_the_end`` the last op uses every retained storage, so that a plan has them in the
    device tier when the step ends; the workload itself does not require that.
    """
    rates = {"h2d_bytes_per_s": trace.h2d_bytes_per_s, "d2h_bytes_per_s": trace.d2h_bytes_per_s}
    meta = {
        "source": "activation trace of hyper-parallel",
        **_NOTES,
        "memory_limit_bytes": trace.limit_bytes,
        **rates,
    }
    builder = GraphBuilder(name, meta)
    there: set[int] = set()
    for op in trace.ops:
        for sid in (*op.reads, *op.writes):
            if sid not in there:
                at_start = sid in op.reads
                kind = "output" if sid in trace.retained else "input" if at_start else "activation"
                builder.tensor(
                    _name(sid),
                    trace.sizes[sid],
                    kind,
                    "hbm" if at_start else None,
                    persistent=False,
                )
                there.add(sid)
    made: set[int] = set()
    for i, op in enumerate(trace.ops):
        outputs = [sid for sid in op.writes if sid not in made and sid not in op.reads]
        made.update(op.reads, op.writes)
        mutates = [sid for sid in op.writes if sid not in outputs]
        inputs = [sid for sid in op.reads if sid not in mutates]
        if retained_to_the_end and i == len(trace.ops) - 1:
            inputs += sorted((trace.retained & made) - {*inputs, *outputs, *mutates})
        builder.op(
            f"{op.name[:100]}.{i}",
            op_kind("aten." + op.name.removeprefix("aten.")),
            inputs=list(map(_name, inputs)),
            outputs=list(map(_name, outputs)),
            mutates=list(map(_name, mutates)),
            duration_ns=op.duration_ns,
        )
    return builder.build()


def _name(sid: int) -> str:
    return f"storage{sid}"


def _sizes(raw: Any) -> Mapping[int, int]:
    sizes: dict[int, int] = {}
    listed = expect(raw, dict, "an object of bytes by storage id", "storage_sizes")
    for key, value in listed.items():
        where = f"storage_sizes.{key[:40]}"
        if not (key.isascii() and key.isdecimal() and len(key) < 19):
            raise InputError("expected a storage id, a whole number of at least 0", where=where)
        if int(key) in sizes:
            raise InputError("expected every storage id once", where=where)
        sizes[int(key)] = _whole(value, where)
    return sizes


def _op(raw: Any, i: int, sizes: Mapping[int, int]) -> TracedOp:
    where = f"ops[{i}]"
    expect(raw, dict, "an object", where)
    name = expect(raw.get("name"), str, "a name", f"{where}.name", when=bool)
    duration = raw.get("duration_ms")
    if duration is not None and (not _is_number(duration) or not 0 <= duration < _LARGEST / 10**6):
        raise InputError("expected milliseconds of at least 0", where=f"{where}.duration_ms")
    accesses = expect(raw.get("accesses", []), list, "a list of accesses", f"{where}.accesses")
    by_kind: dict[str, list[int]] = {"READ": [], "WRITE": []}
    for j, access in enumerate(accesses):
        place = f"{where}.accesses[{j}]"
        expect(access, dict, "an object", place)
        if access.get("op_id", i) != i:
            raise InputError(
                f"expected the number of its op, {i}, got {access['op_id']!r:.40}",
                where=f"{place}.op_id",
            )
        kind = access.get("kind")
        if kind not in ("READ", "WRITE"):
            raise InputError(f"expected READ or WRITE, got {kind!r:.40}", where=f"{place}.kind")
        sid = _whole(access.get("storage_id"), f"{place}.storage_id")
        if sid not in sizes:
            raise InputError(
                f"storage {sid} has no size in storage_sizes", where=f"{place}.storage_id"
            )
        by_kind[kind].append(sid)
    return TracedOp(
        name,
        None if duration is None else round(duration * 10**6),
        _once(by_kind["READ"]),
        _once(by_kind["WRITE"]),
    )


def _once(sids: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(sids))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any, where: str) -> int:
    return expect(
        value, int, "a whole number of at least 0", where, when=lambda n: 0 <= n < _LARGEST
    )


def _rate(document: Mapping[str, Any], key: str) -> int:
    """Bytes per second of a figure in GiB/s."""
    value = document.get(key, _DEFAULT_GBPS)
    rate = round(value * 2**30) if _is_number(value) and 0 < value < 2**30 else 0
    if not rate:
        raise InputError("expected GiB/s above 0", where=key)
    return rate

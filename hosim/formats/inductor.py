"""The graph that inductor writes for a simulator (``export_graph_for_simulator`` of torch 2.13,
JSON) as a workload graph.

The ops are inductor's scheduler nodes (fused kernels) in their order. A buffer that allocates
nothing, but waits for a buffer that frees nothing, reuses that buffer's memory: both are one
tensor, which the op of the second buffer mutates.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosim.base.files import read_json
from hosim.data.unknown_ops import UNKNOWN_OPS
from hosim.errors import InputError, errors_of, expect
from hosim.graph import Graph, GraphBuilder

_NOTES = {
    "durations": "not in the file; the cost model estimates them from the bytes of the operands "
    "alone (no flops)",
    "inputs": "only those that inductor may free during the graph; weights and other inputs that "
    "outlive it are not in the file",
    "kinds": "input, output, and activation for the rest",
}
_LARGEST = 1 << 60


@dataclass(frozen=True, slots=True)
class _Buffer:
    where: str
    name: str
    size_alloc: int
    size_free: int
    is_input: bool
    is_output: bool
    deps: Sequence[str]


def import_inductor(path: str | os.PathLike[str]) -> Graph:
    """Return the graph in the file at ``path`` (plain or gzip), named after it. Sizes are in bytes;
    no op has a duration.

    Raises :class:`InputError` for a damaged file, with the place in it.
    """
    source = os.fspath(path)
    document = read_json(source, "an inductor graph", "export it again")
    with errors_of(source):
        return _build(Path(path).name.split(".")[0], document)


def _objects(document: Any, key: str) -> Sequence[Mapping[str, Any]]:
    return expect(
        document.get(key) if isinstance(document, dict) else None,
        list,
        "a list of objects, at least one",
        key,
        when=lambda found: found and all(isinstance(raw, dict) for raw in found),
    )


def _names(raw: Mapping[str, Any], key: str, where: str) -> Sequence[str]:
    names = expect(
        raw.get(key),
        list,
        "a list of names",
        f"{where}.{key}",
        when=lambda found: all(isinstance(name, str) for name in found),
    )
    return list(dict.fromkeys(names))


def _name(raw: Mapping[str, Any], where: str) -> str:
    return expect(raw.get("name"), str, "a name", f"{where}.name", when=bool)


def _buffer(raw: Mapping[str, Any], where: str) -> _Buffer:
    allocated, freed = (
        expect(
            raw.get(key),
            int,
            "bytes of at least 0",
            f"{where}.{key}",
            when=lambda size: 0 <= size < _LARGEST,
        )
        for key in ("size_alloc", "size_free")
    )
    is_input, is_output = (
        expect(raw.get(key), bool, "true or false", f"{where}.{key}")
        for key in ("is_input", "is_output")
    )
    name, deps = _name(raw, where), _names(raw, "deps", where)
    return _Buffer(where, name, allocated, freed, is_input, is_output, deps)


def _build(name: str, document: Any) -> Graph:
    buffers: dict[str, _Buffer] = {}
    for i, raw in enumerate(_objects(document, "buffers")):
        buffer = _buffer(raw, f"buffers[{i}]")
        if buffer.name in buffers:
            raise InputError("expected every buffer's name once", where=f"{buffer.where}.name")
        buffers[buffer.name] = buffer
    storage = _storages(buffers)
    returned = {storage[buffer.name] for buffer in buffers.values() if buffer.is_output}
    builder = GraphBuilder(name, {"source": "inductor's export_graph_for_simulator", **_NOTES})
    sizes: dict[str, int] = {}
    for buffer in buffers.values():
        if storage[buffer.name] != buffer.name:
            continue
        sizes[buffer.name] = max(buffer.size_alloc, buffer.size_free)
        kind = "output" if buffer.name in returned else "input" if buffer.is_input else "activation"
        builder.tensor(
            buffer.name,
            sizes[buffer.name],
            kind,
            "hbm" if buffer.is_input else None,
            persistent=False,
        )
    written: set[str] = set()
    kernels: list[str] = []
    for i, raw in enumerate(_objects(document, "nodes")):
        where = f"nodes[{i}]"
        made = _names(raw, "buffer_names", where)
        if unknown := [b for b in made if b not in buffers]:
            raise InputError(f"unknown buffer {unknown[0]!r}", where=f"{where}.buffer_names")
        own = dict.fromkeys(storage[b] for b in made)
        reads = [
            s
            for s in dict.fromkeys(storage[d] for b in made for d in buffers[b].deps)
            if s not in own
        ]
        mutates = [s for s in own if s in written or buffers[s].is_input]
        outputs = [s for s in own if s not in mutates]
        written |= own.keys()
        touched = sum(sizes[s] for s in (*reads, *own))
        kernels.append(_name(raw, where))
        builder.op(
            kernels[-1],
            "kernel",
            inputs=reads,
            outputs=outputs,
            mutates=mutates,
            bytes_accessed=touched,
            dtype="fp32",
        )
    builder.meta = {**builder.meta, UNKNOWN_OPS: kernels}
    return builder.build()


def _storages(buffers: Mapping[str, _Buffer]) -> Mapping[str, str]:
    """Return the buffer whose memory each buffer uses: its own, or the one that it reuses."""
    storage: dict[str, str] = {}
    for buffer in buffers.values():
        for dep in buffer.deps:
            if dep not in storage:
                raise InputError(
                    f"waits for {dep!r}, which is not a buffer listed before it",
                    where=f"{buffer.where}.deps",
                )
        left = (
            d for d in buffer.deps if not buffers[d].size_free and buffers[storage[d]].size_alloc
        )
        given = None if buffer.is_input or buffer.size_alloc else next(left, None)
        storage[buffer.name] = buffer.name if given is None else storage[given]
    return storage

"""Tell whether an edited graph still computes what the workload computes: every op sees the
contents that it saw there.

Independent of how edits are applied (:mod:`hosim.edits`): both graphs are walked with a name for
the contents of each tensor, which says which op of the workload made them, as its how-manieth
output. A recomputed op makes the contents that its original made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hosim.analysis.verifying.finding import Finding
from hosim.edits import Edits
from hosim.graph import MAIN_STREAM, Graph, Op

Contents = tuple[str, str, int]
"""Contents of a tensor: the op that made them, whether as an output or in place, and its place
there; ``("", tensor, 0)`` at time 0.
"""


def check_edits(graph: Graph, edits: Edits) -> Iterator[Finding]:
    """Yield what ``graph`` computes otherwise than the workload of ``edits``; O(uses)."""
    base = edits.base
    original = {entry.name: entry.op for entry in edits.recompute}
    chosen = dict(edits.processors)
    expected = {op.name: (op, seen) for op, seen in _walk(base, {})}
    runs = dict.fromkeys(expected, 0)
    for i, (op, seen) in enumerate(_walk(graph, original)):
        name = original.get(op.name, op.name)
        if name not in expected:
            yield Finding(
                "edit", f"op {op.name!r} is neither one of {base.name!r} nor a recomputed one", i
            )
            continue
        runs[name] += op.name == name
        first, should_see = expected[name]
        if op.name != name and op.mutates:
            yield Finding(
                "edit", f"op {op.name!r} runs {name!r} again, which changes a tensor in place", i
            )
        if (op.kind, op.flops, op.bytes_accessed, op.workspace_bytes, op.kernel, op.sizes) != (
            first.kind, first.flops, first.bytes_accessed, first.workspace_bytes, first.kernel, first.sizes
        ) or (op.processor, op.stream, op.duration_ns) != _runs_on(first, chosen.get(name, first.processor)):  # fmt: skip
            yield Finding("edit", f"op {op.name!r} is not the op {name!r} of {base.name!r}", i)
        if _made(graph, op) != _made(base, first):
            yield Finding(
                "edit",
                f"op {op.name!r} makes other tensors, or follows other ops, than op {name!r} of "
                f"{base.name!r}",
                i,
            )
        if len(seen) != len(should_see):
            yield Finding(
                "edit",
                f"op {op.name!r} reads {len(seen)} tensors, op {name!r} of {base.name!r} "
                f"{len(should_see)}",
                i,
            )
        elif seen != should_see:
            t = next(t for t, a, b in zip(op.reads, seen, should_see, strict=True) if a != b)
            tensor = graph.tensors[t].name
            yield Finding(
                "edit",
                f"op {op.name!r} reads other contents in tensor {tensor!r} than op {name!r} of "
                f"{base.name!r} does",
                i,
                t,
            )
    for t, (here, there) in enumerate(zip(graph.tensors, base.tensors, strict=False)):
        if here != there:
            yield Finding(
                "edit",
                f"tensor {here.name!r} is not tensor {there.name!r} of {base.name!r}",
                tensor=t,
            )
    for name, count in runs.items():
        if count != 1:
            yield Finding("edit", f"op {name!r} of {base.name!r} is listed {count} times, not once")
    yield from _at_the_end(graph, base, original)


def _made(graph: Graph, op: Op) -> tuple[list[int], set[str]]:
    """The sizes of what an op makes, and the ops that it names as those it follows."""
    return [graph.tensors[t].size_bytes for t in op.outputs], {graph.ops[d].name for d in op.deps}


def _runs_on(op: Op, processor: str) -> tuple[str, str, int | None] | None:
    """Processor, stream and measured duration of an op of the workload on a processor; None if it
    may not run there.
    """
    if processor == op.processor:
        return processor, op.stream, op.duration_ns
    for other, duration_ns in op.also_on:
        if other == processor:
            return processor, processor or MAIN_STREAM, duration_ns
    return None


def _at_the_end(graph: Graph, base: Graph, original: Mapping[str, str]) -> Iterator[Finding]:
    """Tensors that survive the step with other contents than the workload's."""
    ends = []
    for g, names in ((base, {}), (graph, original)):
        contents = _start(g)
        for op in g.ops:
            _write(op, names.get(op.name, op.name), contents)
        ends.append(
            {g.tensors[t].name: contents[t] for t, survives in enumerate(g.survives) if survives}
        )
    for name in ends[0]:
        if ends[1].get(name) != ends[0][name]:
            yield Finding(
                "edit",
                f"tensor {name!r} survives the step with other contents than in {base.name!r}",
                tensor=graph.tensor_index.get(name),
            )


def _walk(graph: Graph, original: Mapping[str, str]) -> Iterator[tuple[Op, tuple[Contents, ...]]]:
    """Each op with the contents that it reads."""
    contents = _start(graph)
    for op in graph.ops:
        yield op, tuple([contents[t] for t in op.reads])
        _write(op, original.get(op.name, op.name), contents)


def _start(graph: Graph) -> list[Contents]:
    return [("", tensor.name, 0) for tensor in graph.tensors]


def _write(op: Op, name: str, contents: list[Contents]) -> None:
    listed: Iterable[tuple[str, tuple[int, ...]]] = (
        ("output", op.outputs),
        ("in place", op.mutates),
    )
    for how, tensors in listed:
        for k, t in enumerate(tensors):
            contents[t] = (name, how, k)

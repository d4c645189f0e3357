"""The record that a baseline keeps of a graph: the bytes of its tensors, what its ops take, and the
roles that each op reads and writes.

A role is a name without its numbers: ``layers.{}.act`` is the role of ``layers.0.act`` and
``layers.1.act``. Layers that are alike are one line, and an op that is put in does not change what
follows it, though its names count on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from hosim.gate.records.baselines import as_word
from hosim.gate.records.record import GraphRecord, Item, Listing
from hosim.graph import MAIN_STREAM, Graph, Op, Tensor

_NUMBER = re.compile(r"[0-9]+")


def role_of(name: str) -> str:
    """A name without its numbers.

    >>> role_of("layers.12.mlp.linear_3")
    'layers.{}.mlp.linear_{}'
    """
    return _NUMBER.sub("{}", name)


def _shapes_of(graph: Graph) -> dict[str, list[str]]:
    """The names of the ops of each shape, in program order."""
    roles = [role_of(tensor.name) for tensor in graph.tensors]
    ops = [role_of(op.name) for op in graph.ops]
    found: dict[str, list[str]] = {}
    for op in graph.ops:
        found.setdefault(_shape(op, roles, ops), []).append(op.name)
    return found


def _label(tensor: Tensor) -> str:
    """The kind of a tensor, and where it begins, if the graph says so."""
    return f"{tensor.kind} in {tensor.home}" if tensor.home else tensor.kind


def _shape(op: Op, roles: list[str], ops: list[str]) -> str:
    """``matmul layers.{}.up reads 1*x 1*layers.{}.w writes 1*layers.{}.act``: kind and role of an
    op, and how often it uses which roles.
    """
    words = [as_word(op.kind), as_word(role_of(op.name))]
    for verb, used in (("reads", op.inputs), ("changes", op.mutates), ("writes", op.outputs)):
        words += _counted(verb, [roles[t] for t in used])
    words += _counted("after", [ops[i] for i in op.deps])
    words += _counted(
        "on", [op.stream] * (op.stream != MAIN_STREAM) + [op.processor] * bool(op.processor)
    )
    words += _counted("as", [op.kernel] * bool(op.kernel))
    return " ".join([*words, *_counted("in", [op.dtype])])


def _counted(verb: str, roles: Iterable[str]) -> list[str]:
    count = Counter(roles)
    return [verb, *(f"{n}*{as_word(role)}" for role, n in sorted(count.items()))] if count else []


def _reads_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The tensors that each op uses, by name, those that are there for longest first."""
    tensors, users = graph.tensors, graph.users
    return {
        op.name: tuple([tensors[t].name for t in sorted(op.uses, key=lambda t: (users[t][0], t))])
        for op in graph.ops
    }


def graph_record(
    graph: Graph,
) -> tuple[GraphRecord, dict[str, list[str]], dict[str, tuple[str, ...]]]:
    """Return a baseline's record of a graph; the names of the ops of each shape; and the tensors
    that each op uses, the oldest first.
    """

    def of_ops(values: Iterable[int | None]) -> Listing:
        named = zip(graph.ops, values, strict=True)
        return Listing(
            tuple(
                Item(op.kind, op.name, value)
                for op, value in sorted(named, key=lambda pair: pair[0].name)
                if value
            )
        )

    shapes = _shapes_of(graph)
    record = GraphRecord(
        tensors=Listing(
            tuple(
                sorted(
                    [Item(_label(t), t.name, t.size_bytes) for t in graph.tensors],
                    key=lambda t: (t.label, t.name),
                )
            )
        ),
        workspaces=of_ops(op.workspace_bytes for op in graph.ops),
        times=of_ops(op.duration_ns for op in graph.ops),
        flops=of_ops(op.flops for op in graph.ops),
        shapes={shape: len(names) for shape, names in shapes.items()},
    )
    return record, shapes, _reads_of(graph)

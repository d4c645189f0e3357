"""The record that a baseline keeps of a graph: the bytes of its tensors, what its ops take, and the
roles that each op reads and writes.

A role is a name without its numbers: ``layers.{}.act`` is the role of ``layers.0.act`` and
``layers.1.act``. Layers that are alike are one line, and an op that is put in does not change what
follows it, though its names count on.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import count

from hosim.base.groups import grouped, summed
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
    return grouped((_shape(op, roles, ops), op.name) for op in graph.ops)


def _label(tensor: Tensor) -> str:
    """The kind of a tensor, and where it begins, if the graph says so."""
    return f"{tensor.kind} in {tensor.home}" if tensor.home else tensor.kind


def _whole_tensors(graph: Graph) -> Listing:
    """The bytes of tensors by kind and name. Parts of one are it: which part a step reads follows
    from its inputs.
    """
    held = summed(
        ((_label(tensor), tensor.of or tensor.name), tensor.size_bytes) for tensor in graph.tensors
    )
    return Listing(tuple([Item(label, name, size) for (label, name), size in sorted(held.items())]))


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
    times = Counter(roles)
    return [verb, *(f"{n}*{as_word(role)}" for role, n in sorted(times.items()))] if times else []


def _reads_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The tensors that each op uses, by name, those that are there for longest first."""
    tensors, users = graph.tensors, graph.users
    return {
        op.name: tuple([tensors[t].name for t in sorted(op.uses, key=lambda t: (users[t][0], t))])
        for op in graph.ops
    }


def _again_of(graph: Graph) -> dict[str, list[str]]:
    """The ops that compute what an earlier one has, from the same contents, as those behind a
    checkpoint do: their names by the last part of their role.
    """
    fresh = count(len(graph.tensors))
    contents = list(range(len(graph.tensors)))
    known: dict[tuple[object, ...], list[int]] = {}
    found: dict[str, list[str]] = {}
    for op in graph.ops:
        # sorted, for names decide the order in a graph without them
        reads = tuple(sorted([contents[t] for t in (*op.inputs, *op.mutates)]))
        made = sorted(op.outputs, key=lambda t: graph.tensors[t].size_bytes)
        sizes = tuple([graph.tensors[t].size_bytes for t in made])
        written = [*made, *op.mutates]
        what = role_of(op.name.rpartition(".")[2]).removesuffix("_{}")
        key = what, op.kind, op.flops, reads, sizes
        if reads and written and key in known:
            found.setdefault(what, []).append(op.name)
        else:
            known[key] = [next(fresh) for _ in written]
        for t, content in zip(written, known[key], strict=True):
            contents[t] = content
    return found


_Ops = dict[str, list[str]]


def graph_record(graph: Graph) -> tuple[GraphRecord, _Ops, _Ops, dict[str, tuple[str, ...]]]:
    """Return a baseline's record of a graph; the names of the ops of each shape, and of those that
    compute again what an earlier one has; and the tensors that each op uses, the oldest first.
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

    shapes, again = _shapes_of(graph), _again_of(graph)
    record = GraphRecord(
        tensors=_whole_tensors(graph),
        workspaces=of_ops(op.workspace_bytes for op in graph.ops),
        times=of_ops(op.duration_ns for op in graph.ops),
        flops=of_ops(op.flops for op in graph.ops),
        shapes={shape: len(names) for shape, names in shapes.items()},
        again={what: len(names) for what, names in again.items()},
    )
    return record, shapes, again, _reads_of(graph)

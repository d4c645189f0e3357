"""A graph in an order that depends only on what it computes, and fingerprints without names.

Policies break ties by a tensor's position, so the order in which a file lists its tensors could
change a plan. Here a tensor's position follows from its uses; tensors with the same uses (and of a
part, of its whole), size, kind, home and persistence are alike: whichever comes first, all figures
are the same, so the name says which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hosim.cache_plan import Plan
from hosim.graph import Graph, Op


def canonical(graph: Graph) -> Graph:
    """``graph`` with its tensors in the order of their uses (unused ones last), and each op's lists
    in that order.

    The graph itself if it is in that order. For :meth:`Graph.derived`.

    >>> from hosim.graph import GraphBuilder
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("y", 4),
    ...     b.tensor("x", 4, "input"),
    ...     b.op("f", "relu", inputs=["x"], outputs=["y"]),
    ... )
    >>> [tensor.name for tensor in canonical(b.build()).tensors]
    ['x', 'y']
    """
    uses: list[list[int]] = [[] for _ in graph.tensors.each()]
    for i, op in enumerate(graph.ops):
        for role, tensors in enumerate((op.inputs, op.outputs, op.mutates)):
            for t in tensors:
                uses[t].append(3 * i + role)

    wholes: dict[str, list[int]] = {}
    for t, tensor in enumerate(graph.tensors.each()):
        if tensor.of:
            wholes.setdefault(tensor.of, []).extend(uses[t])
    for whole_uses in wholes.values():
        whole_uses.sort()

    def place(t: int) -> tuple[object, ...]:
        tensor = graph.tensors[t]
        own = (
            uses[t],
            tensor.size_bytes,
            tensor.kind,
            tensor.home or "",
            bool(tensor.persistent),
            wholes.get(tensor.of, []),
        )
        return not uses[t], *own, tensor.name

    order = sorted(range(len(graph.tensors)), key=place)
    if all([a < b for a, b in pairwise(order)]) and all(
        [
            ascend(op.inputs) and ascend(op.outputs) and ascend(op.mutates) and ascend(op.deps)
            for op in graph.ops
        ]
    ):
        return graph
    new = inverse(order)

    def moved(tensors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted([new[t] for t in tensors]))

    ops = tuple(
        [
            replace(
                op,
                inputs=moved(op.inputs),
                outputs=moved(op.outputs),
                mutates=moved(op.mutates),
                deps=tuple(sorted(op.deps)),
            )
            for op in graph.ops
        ]
    )
    return Graph(graph.name, tuple([graph.tensors[t] for t in order]), ops, graph.meta)


def canonical_places(graph: Graph) -> list[int]:
    """The place of each tensor in :func:`canonical` order; for :meth:`Graph.derived`."""
    places = {tensor.name: place for place, tensor in enumerate(graph.derived(canonical).tensors)}
    return [places[tensor.name] for tensor in graph.tensors]


def ascend(positions: Sequence[int]) -> bool:
    """Return whether each of some positions is behind the one before it."""
    return all([a < b for a, b in pairwise(positions)])


def inverse(order: Sequence[int]) -> list[int]:
    """The place of each position in ``order``."""
    new = [0] * len(order)
    for at, t in enumerate(order):
        new[t] = at
    return new


def graph_fingerprint(graph: Graph) -> str:
    """A fingerprint (16 hexadecimal digits) of what a canonical graph computes and holds:
    everything but names.
    """
    first: dict[str, int] = {}
    parts = [
        (first.setdefault(t.of, place),) if t.of else ()
        for place, t in enumerate(graph.tensors.each())
    ]
    tensors = [
        (t.size_bytes, t.kind, t.home, t.persistent, *part)
        for t, part in zip(graph.tensors, parts, strict=True)
    ]
    return digest(repr(tensors), *map(_told, graph.ops))


def _told(op: Op) -> str:
    """An op without its name, and without the fields that are newer than the first baselines where
    it does not have them.
    """
    told = repr(replace(op, name=""))[:-1]
    for newer in (", message=''", ", also_on=()", ", processor=''", ", kernel='', sizes=()"):
        told = told.removesuffix(newer)
    return f"{told})"


def plan_fingerprint(plan: Plan, label: str) -> str:
    """A fingerprint of a plan of a canonical graph; if the policy decides during the replay, of the
    policy's ``label``.
    """
    cache_ops = [(c.op, c.tensor, c.source, c.destination, c.after) for c in plan.cache_ops]
    edited = graph_fingerprint(plan.graph) if plan.edits is not None else ""
    return digest(
        repr(cache_ops),
        repr(sorted(plan.initial.items())),
        edited,
        label if plan.runtime is not None else "",
    )


def digest(*parts: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

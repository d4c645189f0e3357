"""A graph in an order that depends only on what it computes, and fingerprints without names.

Policies break ties by a tensor's position, so the order in which a file lists its tensors could
change a plan. Here a tensor's position follows from its uses; tensors with the same uses (and of a
part, of its whole), size, kind, home and persistence are alike: whichever comes first, all figures
are the same, so the name says which.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from hosim.cache_plan import Plan
from hosim.data.columns import Ops, Tensors
from hosim.graph import Graph, Op

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
    import numpy as np  # here, as it takes longer to import than listing policies takes

    tensors, ops = graph.tensors, graph.ops
    order = _order_of_uses(graph)
    named, listed = np.asarray(ops.named, "q"), ops.listed()
    most = max(len(tensors), len(ops), 1)
    if (np.diff(order) > 0).all() and (np.diff(listed * most + named) > 0).all():
        return graph
    moved = np.zeros(len(tensors) + 1, "q")  # one more, as there may be none
    moved[order] = np.arange(len(tensors))
    awaited = listed % len(ops.lists) == ops.lists.index("deps")
    moved = np.where(awaited, named, moved[np.where(awaited, 0, named)])
    named = np.sort(listed * most + moved) % most
    return Graph(
        graph.name,
        Tensors.like_these(
            map(tensors.names.__getitem__, order.tolist()),
            tensors.alike,
            np.asarray(tensors.codes)[order],
        ),
        Ops.like_these(ops.names, ops.alike, ops.codes, named),
        graph.meta,
    )


def _order_of_uses(graph: Graph) -> npt.NDArray[np.int64]:
    """The tensors by what uses them, and how: each with the first use first."""
    import numpy as np

    tensors, ops, listed = graph.tensors, graph.ops, graph.ops.listed()
    used = listed % len(ops.lists) != ops.lists.index("deps")
    users = np.asarray(ops.named)[used]
    by_tensor = np.argsort(users, kind="stable")
    uses = listed[used][by_tensor]
    begin = np.searchsorted(users[by_tensor], np.arange(len(tensors) + 1))
    none = len(ops.lists) * len(ops)
    first = np.append(uses, none)[begin[:-1]]
    first[begin[:-1] == begin[1:]] = none
    order = np.argsort(first, kind="stable")

    def uses_of(t: int) -> list[int]:
        return list(uses[begin[t] : begin[t + 1]].tolist())

    parts = defaultdict[str, list[int]](list)
    for t in tensors.those(lambda tensor: tensor.of):
        parts[tensors.like(t).of] += uses_of(t)
    wholes = {name: sorted(found) for name, found in parts.items()}
    names = tensors.names

    def place(t: int) -> tuple[object, ...]:
        like = tensors.like(t)
        own = like.size_bytes, like.kind, like.home or "", bool(like.persistent)
        return uses_of(t), *own, wholes.get(like.of, []), names[t]

    changes = [*(np.flatnonzero(np.diff(first[order])) + 1).tolist(), len(tensors)]
    for at, until in pairwise([0, *changes]):
        if until - at > 1:
            order[at:until] = sorted(order[at:until].tolist(), key=place)
    return order


def canonical_places(graph: Graph) -> list[int]:
    """The place of each tensor in :func:`canonical` order; for :meth:`Graph.derived`."""
    places = graph.derived(canonical).tensor_index
    return [places[name] for name in graph.tensor_index]


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
    return digest(
        repr([(c.op, c.tensor, c.source, c.destination, c.after) for c in plan.cache_ops]),
        repr(sorted(plan.initial.items())),
        graph_fingerprint(plan.graph) if plan.edits is not None else "",
        label if plan.runtime is not None else "",
    )


def digest(*parts: str) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

"""Cache ops as nodes of a torch.fx graph: which node is which. Imports torch. The ops themselves:
:mod:`hosim.io.importers.cache_nodes`.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from hosim.cache_plan import DETACH, PREFETCH, CacheOp
from hosim.io import importers

__all__ = ["READY", "add", "add_initial", "add_ready", "is_cache_node", "number_of"]

is_cache_node = importers.is_cache_node
READY = importers.ready

_NUMBERED = (importers.prefetch, importers.store, importers.detach)


def number_of(node: Node) -> int | None:
    """The position in the plan of a node's cache op; ``None`` for every other node, including
    ``ready`` and ``initial``.
    """
    return int(node.args[-1]) if node.op == "call_function" and node.target in _NUMBERED else None


def add(graph: Graph, cache_op: CacheOp, number: int, x: Node) -> Node:
    """Insert the node of a cache op on the storage of ``x`` at the graph's insertion point."""
    name = f"{cache_op.op}_op_{number}"
    if cache_op.op == DETACH:
        return _node(graph, importers.detach, (x, cache_op.source, number), name, None)
    target = importers.prefetch if cache_op.op == PREFETCH else importers.store
    arguments = (x, cache_op.source, cache_op.destination, number)
    return _node(graph, target, arguments, name, x if cache_op.op == PREFETCH else None)


def add_ready(graph: Graph, view: Node, prefetched: Node) -> Node:
    """The node that gives ``view`` to consumers that have to wait for a prefetch of its storage."""
    return _node(graph, importers.ready, (view, prefetched), f"{view.name}_ready", view)


def add_initial(graph: Graph, x: Node, tiers: tuple[str, ...]) -> Node:
    """The node that says where the storage of ``x`` has valid copies at time 0."""
    return _node(graph, importers.initial, (x, list(tiers)), f"{x.name}_initial", None)


def _node(graph: Graph, target: Any, args: tuple[Any, ...], name: str, like: Node | None) -> Node:
    node = graph.create_node("call_function", target, args, name=name)
    node.meta["val"] = None if like is None else like.meta.get("val")
    return node

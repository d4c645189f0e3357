"""Describe how large an ONNX model is once its functions are written out, found without writing
them out. Imports onnx.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx

from hosim.errors import InputError
from hosim.limits import limit, refusal, within

_Key = tuple[str, str, str]


def check_calls(model: onnx.ModelProto) -> None:
    """Raise :class:`InputError` if functions call each other in a circle, too deep, or so often
    that there are too many nodes.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    calls = {
        key: {_called(node) for node in _nodes(f.node)} & functions.keys()
        for key, f in functions.items()
    }
    sizes: dict[_Key, int] = {}
    depths: dict[_Key, int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            depths[key] = within(
                "nesting_depth",
                1 + max((depths[called] for called in calls[key]), default=0),
                where=key[1][:100],
            )
            sizes[key] = _size(functions[key].node, sizes)
    except CycleError as error:
        raise InputError(
            "function calls itself, directly or indirectly; export the model again",
            where=error.args[1][0][1][:100],
        ) from None
    if _size(model.graph.node, sizes) > limit("nodes"):
        raise refusal("nodes", where="functions, written out where they are called")


def _size(nodes: Sequence[onnx.NodeProto], sizes: Mapping[_Key, int]) -> int:
    """Return how many there are with the called functions written out; any number beyond the limit
    if there are more.
    """
    total, most = 0, limit("nodes")
    for node in _nodes(nodes):
        total += sizes.get(_called(node), 1)
        if total > most:
            break
    return total


def _nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """These nodes and those of the graphs in their attributes."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                pending += graph.node


def _called(node: onnx.NodeProto) -> _Key:
    """The function that a node calls, if there is one of this name."""
    return node.domain, node.op_type, node.overload

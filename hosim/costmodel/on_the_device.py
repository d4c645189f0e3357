"""A workload as if all its ops ran on the device: what slowdowns are against, where ops run on other processors."""

from __future__ import annotations

from dataclasses import replace

from hosim.graph import MAIN_STREAM, Graph, Op


def on_the_device(graph: Graph) -> Graph:
    """The graph with each op of another processor on the device instead, on its main stream.

    There it takes what the workload says (:attr:`Op.also_on`), or the time of the cost model. An op of which only the time on the other
    processor is known takes that time, on a stream of its own (:func:`base_line`).
    """
    ops = list(graph.ops)
    for i in graph.elsewhere:
        ops[i] = _on_device(ops[i])
    return Graph(graph.name, graph.tensors, tuple(ops), graph.meta)


def _on_device(op: Op) -> Op:
    if _known_on_device(op):
        return replace(op, processor="", stream=MAIN_STREAM, duration_ns=dict(op.also_on).get(""), also_on=())
    return replace(op, processor="", also_on=())


def _known_on_device(op: Op) -> bool:
    measured = dict(op.also_on).get("") is not None
    return measured or op.duration_ns is None or bool(op.flops or op.bytes_accessed)


def base_of(graph: Graph) -> str:
    """Which ops take their time on another processor in the step that slowdowns are against; empty if none does."""
    tiers = sorted({graph.ops[i].processor for i in graph.elsewhere if not _known_on_device(graph.ops[i])})
    return f"ops on {' and '.join(tiers)}" if tiers else ""


def base_line(graph: Graph) -> str | None:
    """What slowdowns are against, if it is not the step with all its ops on the device."""
    base = graph.derived(base_of)
    return f"slowdowns are against the step with {base}: nothing says how long these take on the device" if base else None

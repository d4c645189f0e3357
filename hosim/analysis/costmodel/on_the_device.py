"""A workload as if all its ops ran on the device: what slowdowns are against, where ops run on
other processors.
"""

from dataclasses import replace

from hosim.analysis.costmodel.op_time import op_durations
from hosim.analysis.costmodel.peaks import peak_for
from hosim.graph import MAIN_STREAM, Graph, Op
from hosim.hardware import Hardware


def on_the_device(graph: Graph, hardware: Hardware) -> Graph:
    """The graph with each op of another processor on the device instead, on its main stream.

    There it takes what the workload says (:attr:`Op.also_on`), or the time of the cost model. An op
    of which only the time on the other processor is known takes that time, on a stream of its own
    (:func:`base_line`).
    """
    ops, durations = list(graph.ops), op_durations(graph, hardware)
    for i in graph.elsewhere:
        op = ops[i]
        if known_on_device(op, hardware):
            ops[i] = replace(
                op,
                processor="",
                stream=MAIN_STREAM,
                duration_ns=dict(op.also_on).get(""),
                also_on=(),
            )
        else:
            ops[i] = replace(op, processor="", duration_ns=durations[i], also_on=())
    return Graph(graph.name, graph.tensors, tuple(ops), graph.meta)


def known_on_device(op: Op, hardware: Hardware) -> bool:
    """Return whether something says how long an op of another processor takes on the device."""
    if dict(op.also_on).get("") is not None:
        return True
    worked = op.duration_ns is None or bool(op.flops or op.bytes_accessed)
    return worked and (not op.flops or peak_for(hardware, op.dtype) is not None)


def base_of(graph: Graph, hardware: Hardware) -> str:
    """Return the ops that take their time on another processor in the step that slowdowns are
    against; empty if none does.
    """
    tiers = sorted(
        {
            graph.ops[i].processor
            for i in graph.elsewhere
            if not known_on_device(graph.ops[i], hardware)
        }
    )
    return f"ops on {' and '.join(tiers)}" if tiers else ""


def base_line(graph: Graph, hardware: Hardware) -> str | None:
    """Return a line on the baseline of slowdowns, if it is not the step with all its ops on the
    device.
    """
    base = graph.derived_on(hardware, base_of)
    return (
        f"slowdowns are against the step with {base}: nothing says how long these take on the "
        "device"
        if base
        else None
    )

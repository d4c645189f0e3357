"""One draw as a world of its own: the workload with the times of that draw, and the machine with its
links.
"""

from dataclasses import replace

from hosim.analysis.costmodel.op_time import op_durations
from hosim.analysis.costmodel.spreads.drawn_times import DrawnTimes
from hosim.data.draws import FEW_DRAWS
from hosim.graph import Graph
from hosim.hardware import Hardware


def drawn_world(graph: Graph, hardware: Hardware, draw: int) -> tuple[Graph, Hardware]:
    """The workload whose ops take what one of few draws says, and the machine with the links of that
    draw.

    Copies take as long as in :mod:`hosim.engine.drawn_replays`, but for their latencies, which a
    draw does not change, and for rounding.
    """
    times = graph.derived_on(hardware, DrawnTimes)
    drawn = times.durations(op_durations(graph, hardware), FEW_DRAWS)[draw].tolist()
    ops = [
        op if op.duration_ns is not None else replace(op, duration_ns=ns)
        for op, ns in zip(graph.ops, drawn, strict=True)
    ]
    return Graph(graph.name, graph.tensors, ops, graph.meta), drawn_machine(hardware, times, draw)


def drawn_machine(hardware: Hardware, times: DrawnTimes, draw: int, kind: str = "") -> Hardware:
    """The machine with the links of one of few draws, for tensors of a kind; what several channels
    share is as its first channel.
    """
    slower = {
        channel.name: float(times.copies(channel, kind, FEW_DRAWS)[draw])
        for channel in hardware.channels
    }

    def rate(bytes_per_s: int, channel: str) -> int:
        return max(1, round(bytes_per_s / slower[channel]))

    channels = [
        replace(
            one,
            bandwidth_bytes_per_s=rate(one.bandwidth_bytes_per_s, one.name),
            pageable_bytes_per_s=one.pageable_bytes_per_s
            and rate(one.pageable_bytes_per_s, one.name),
        )
        for one in hardware.channels
    ]
    fabrics = [
        replace(one, bandwidth_bytes_per_s=rate(one.bandwidth_bytes_per_s, one.channels[0]))
        if one.channels
        else one
        for one in hardware.fabrics
    ]
    return replace(hardware, channels=tuple(channels), fabrics=tuple(fabrics))

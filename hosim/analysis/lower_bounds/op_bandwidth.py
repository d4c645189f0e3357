"""Describe what ops leave of the device tier's bandwidth to copies, where the two compete
(docs/contract.md, rule 13).
"""

from __future__ import annotations

from collections.abc import Sequence

from hosim.costmodel import memory_uses
from hosim.costmodel.transfers import sent_bytes
from hosim.graph import Graph
from hosim.hardware import Hardware


def free_bytes(graph: Graph, hardware: Hardware, durations: Sequence[int]) -> list[float]:
    """By op, the bytes that copies can move at the device tier while the op takes no longer than
    alone.

    Every byte beyond costs at least the time in which the memory moves it: while copies flow at r
    bytes per second, an op that uses s of the bandwidth B advances by r / s less than its speed at
    least, and s is at most B.
    """
    bandwidth, device = hardware.device.bandwidth_bytes_per_s, hardware.device_tier
    most = min(
        bandwidth,
        sum(
            c.bandwidth_bytes_per_s
            for c in hardware.channels
            if device in (c.source, c.destination)
        ),
    )
    uses = memory_uses(graph, hardware, durations)
    crossing = sent_bytes(graph, hardware)  # copies slow these on fabrics alone
    found = []
    for i, duration in enumerate(durations):
        if i not in uses or i in crossing:
            found.append(most * duration / 1e9)
            continue
        launch = uses[i].launch_ns
        left = max(0.0, float(uses[i].reached - uses[i].used))
        found.append((min(most, left) * (duration - launch) + most * launch) / 1e9)
    return found

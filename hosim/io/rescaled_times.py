"""Durations that were measured on another machine, scaled to this one. The other machine needs a
shipped profile.
"""

from hosim.analysis.costmodel import rescaled_from
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io.hardware_file import load_hardware
from hosim.measured_on import is_for, measured_on, profile_of
from hosim.shipped import find_hardware


def rescaled(graph: Graph, hardware: Hardware) -> Graph:
    """Return the graph with its durations scaled from the machine that they were measured on;
    unchanged if that is this one.

    Raises :class:`InputError` if the graph has no durations, does not say where they were measured,
    or no shipped profile is for that device.
    """
    device = measured_on(graph)
    if device is None:
        raise InputError(
            "nothing to rescale: the workload needs durations, and meta.measured_on that names "
            "their device",
            source=graph.name,
        )
    if is_for(hardware.name, hardware.source, device):
        return graph
    name = profile_of(device)
    if name is None:
        raise InputError(
            f"cannot be rescaled: its durations were measured on {device}, which no shipped "
            "profile is for",
            source=graph.name,
        )
    return rescaled_from(graph, load_hardware(find_hardware(name)), hardware)

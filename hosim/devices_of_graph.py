"""The number of devices that run a workload: by its graph, unless the caller gives another."""

from hosim.analysis.costmodel import under_runtime
from hosim.analysis.costmodel.transfers import meeting_ranks
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.limits import within

DEVICES = "devices"
"""The key of a graph's ``meta`` for the number of devices that run the program together."""

LAYERS = "layers"
"""The key of the ``meta`` of a pipeline stage with ``layers_on``: the number of layers of all
stages.
"""


def devices_of(graph: Graph) -> int:
    """Return the number of devices that a graph is for: from its ``meta``, else the ranks of its
    largest collective, else 1.

    Raises :class:`InputError` if the value in ``meta`` is not a positive integer, or is below the
    ranks of a collective.
    """
    said, ranks = graph.meta.get(DEVICES), graph.derived(_most_ranks)
    if said is None:
        return ranks
    if type(said) is not int or said < 1:
        raise InputError(
            f"expected a number of devices of at least 1, got {said!r}",
            source=graph.name,
            where=f"meta.{DEVICES}",
        )
    if said < ranks:
        raise InputError(
            f"expected at least the {ranks} devices of a collective, got {said}",
            source=graph.name,
            where=f"meta.{DEVICES}",
        )
    return said


def _most_ranks(graph: Graph) -> int:
    return max([1, *meeting_ranks(graph).values()])


def on_devices(graph: Graph, hardware: Hardware, devices: int | None = None) -> Hardware:
    """Return the machine with ``devices`` devices, by default as many as the graph is for, under
    the graph's runtime if it names one.

    A graph for one device runs on the profile's number of devices. Raises :class:`InputError` if
    the profile has several devices, but fewer than the graph is for.
    """
    hardware = under_runtime(graph, hardware)
    if devices is None:
        needed = devices_of(graph)
        if needed == 1:
            return hardware
        if 1 < hardware.devices < needed:
            raise InputError(
                f"the workload {graph.name} is for {needed} devices, and the machine has "
                f"{hardware.devices}: raise devices of the profile, "
                f"or say how many run it (--devices {hardware.devices})",
                source=hardware.name,
                where="devices",
            )
        return hardware.of_devices(
            within("devices", needed, source=graph.name, where=f"meta.{DEVICES}")
        )
    return hardware.of_devices(within("devices", devices, source="devices"))


def other_devices_line(graph: Graph, hardware: Hardware) -> str | None:
    """Return a note if a graph for several devices runs on another number, else ``None``."""
    needed = devices_of(graph)
    if needed in (1, hardware.devices):
        return None
    return f"the program is for {needed} devices, and {hardware.name} runs it on {hardware.devices}"

"""The number of devices that run a workload: the graph's, unless a caller gives another."""

from hosim.analysis.costmodel import under_runtime
from hosim.analysis.costmodel.transfers import meeting_ranks
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.limits import within

DEVICES = "devices"
"""The key of a graph's ``meta`` under which the number of devices is that run the program
together.
"""

LAYERS = "layers"
"""The key of the ``meta`` of a pipeline stage whose layers may run elsewhere (``layers_on``): how
many layers all stages have.
"""


def devices_of(graph: Graph) -> int:
    """Return the number of devices that a graph is for: what its ``meta`` says, or as many as its
    largest collective has ranks; 1 if nothing says it.

    Raises :class:`InputError` if ``meta`` says something else than a number of devices, or fewer
    than a collective has ranks.
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
    """The machine with as many devices as the graph is for, or as many as ``devices`` says, under
    the graph's runtime if it names one.

    A graph that is for one device, or does not say it, runs on those of the profile. Raises
    :class:`InputError` if the profile says that the machine has several, but fewer than the graph
    is for.
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
    """Return a note for readers if a graph for several devices runs on another number of them;
    ``None`` if it does not.
    """
    needed = devices_of(graph)
    if needed in (1, hardware.devices):
        return None
    return f"the program is for {needed} devices, and {hardware.name} runs it on {hardware.devices}"

"""Collectives whose time is a guess: nobody says how fast the links that they cross are.

Without a duration, and on a machine that says nothing of its links, a collective takes the time of
its bytes in the device tier. Over PCIe it takes tens of times as long, so every figure of such a
workload has to say so.
"""

from collections.abc import Sequence

from hosim.analysis.costmodel.op_time import kernel_times_of, op_durations
from hosim.analysis.costmodel.transfers import sent_bytes
from hosim.edits import CROSSING_KINDS
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.plain_text import counted


def guessed_collectives(graph: Graph, hardware: Hardware) -> Sequence[int]:
    """The collectives, by position, that take the time of their bytes in the device tier, for want
    of a better one.

    These have no ``duration_ns``, are timed as no kernel, and cross no fabric of the machine
    (docs/contract.md, rule 19).

    >>> import hosim
    >>> b = hosim.GraphBuilder("sum over devices")
    >>> _ = b.tensor("x", 4096, "input"), b.op("sum", "all_reduce", mutates=["x"])
    >>> guessed_collectives(b.build(), hosim.load_hardware(hosim.find_hardware("toy")))
    (0,)
    """
    found = [
        i
        for i in graph.ops.those(lambda op: op.kind in CROSSING_KINDS and op.duration_ns is None)
        if graph.ops[i].bytes_accessed
        or any([graph.tensors[t].size_bytes for t in graph.ops[i].uses])
    ]
    if not found:
        return ()
    known = {*kernel_times_of(graph, hardware), *graph.derived_on(hardware, sent_bytes)}
    return tuple([i for i in found if i not in known])


def timed_as(memory: str) -> str:
    """Return a text on how they are timed, why that is a guess, and what to do; ``memory`` names
    the device tier.
    """
    return (
        f"timed as if links between devices were as fast as {memory}, since nothing says how fast "
        "they are. The step may take much longer. "
        "Give link= where hosim builds the workload, the durations, or a fabric with collectives "
        "in the profile"
    )


def guessed_collectives_line(graph: Graph, hardware: Hardware) -> str | None:
    """Return a note on them for readers of figures of this workload on this machine, as one line;
    None if there are none.
    """
    found = graph.derived_on(hardware, guessed_collectives)
    if not found:
        return None
    durations = op_durations(graph, hardware)
    share = 100 * sum([durations[i] for i in found]) / max(1, sum(durations))
    return (
        f"{counted(len(found), 'collective')} ({share:.2g} % of the time of all ops) "
        f"{timed_as(hardware.device_tier)}"
    )

"""Machines whose tiers below have processors, and graphs some of whose ops run on them, for
hypothesis.
"""

from dataclasses import replace

from hypothesis import strategies as st
from strategies import graphs, hardware

from hosim.hardware import Compute, Hardware


@st.composite
def machines(draw) -> Hardware:
    """A machine whose tiers below have processors, and memories that are not much faster than
    channels.
    """
    machine = draw(hardware(fabrics=True, uneven=True))
    tiers = [
        replace(machine.tiers[0], bandwidth_bytes_per_s=draw(st.sampled_from((10**12, 11 * 10**9))))
    ]
    for tier in machine.tiers[1:]:
        peaks = {"bf16": draw(st.sampled_from((10**9, 10**11)))}
        compute = Compute(
            peaks,
            draw(st.sampled_from((1.0, 0.6))),
            draw(st.sampled_from((0, 4))),
            beside_copies=0.9,
        )
        tiers.append(
            replace(
                tier,
                compute=compute,
                bandwidth_bytes_per_s=draw(st.sampled_from((4, 11, 100))) * 10**9,
            )
        )
    return replace(machine, tiers=tuple(tiers))


@st.composite
def on_processors(draw, machine, measured):
    """A graph some of whose streams belong to tiers below."""
    names = [tier.name for tier in machine.tiers]
    graph = draw(graphs(9, 3, homes=names, measured=measured))
    owner = {stream: draw(st.sampled_from(("", *names[1:]))) for stream in graph.streams}
    return replace(graph, ops=tuple(replace(op, processor=owner[op.stream]) for op in graph.ops))

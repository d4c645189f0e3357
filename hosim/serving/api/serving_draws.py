"""The same requests in a draw of what is uncertain: kernels, the host, links between tiers and the
room for the cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hosim.costmodel.spreads import DrawnTimes
from hosim.data.draws import FEW_DRAWS
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.serving import ModelledIterations
from hosim.serving.blocks import KvLink, KvSetup
from hosim.serving.weights import WeightSetup

if TYPE_CHECKING:
    from hosim.serving.api.serve_setup import ServeSetup

_OnMachine = TypeVar("_OnMachine", KvSetup, KvLink, WeightSetup)

_KIND = "kv_cache"


def is_drawn(setup: ServeSetup) -> bool:
    """Whether something of the times is drawn: not where they are recorded."""
    return isinstance(setup.time_of, ModelledIterations) and setup.time_of.is_drawn


def in_draw(setup: ServeSetup, draw: int) -> ServeSetup:
    """The setup in a draw. Between engines that prefill and those that decode, links of which only
    a rate is known stay as they are.
    """
    modelled, prefill = setup.time_of, setup.prefill
    assert isinstance(modelled, ModelledIterations)
    graph = modelled.graph(1)

    def drawn(one: _OnMachine | None) -> _OnMachine | None:
        return None if one is None else replace(one, machine=_machine(one.machine, graph, draw))

    if prefill is not None and isinstance(prefill.time_of, ModelledIterations):
        prefill = replace(prefill, time_of=prefill.time_of.in_draw(draw))
    return replace(
        setup,
        time_of=modelled.in_draw(draw),
        blocks=setup.drawn_blocks[draw] if setup.drawn_blocks else setup.blocks,
        prefill=prefill,
        kv=drawn(setup.kv),
        link=drawn(setup.link),
        weights=drawn(setup.weights),
    )


def _machine(machine: Hardware, graph: Graph, draw: int) -> Hardware:
    """The machine with the links of a draw; what several channels share is as its first channel."""
    times = DrawnTimes(graph, machine)
    slower = {
        channel.name: float(times.copies(channel, _KIND, FEW_DRAWS)[draw])
        for channel in machine.channels
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
        for one in machine.channels
    ]
    fabrics = [
        replace(one, bandwidth_bytes_per_s=rate(one.bandwidth_bytes_per_s, one.channels[0]))
        if one.channels
        else one
        for one in machine.fabrics
    ]
    return replace(machine, channels=tuple(channels), fabrics=tuple(fabrics))

"""The same requests in a draw of what is uncertain: kernels, the host, links between tiers and the
room for the cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hosim.analysis.costmodel.spreads import DrawnTimes, drawn_machine
from hosim.serving import ModelledIterations
from hosim.serving.blocks import KvLink, KvSetup
from hosim.serving.weights import WeightSetup

if TYPE_CHECKING:
    from hosim.serving.api.serve_setup import ServeSetup

_OnMachine = TypeVar("_OnMachine", KvSetup, KvLink, WeightSetup)


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
        if one is None:
            return None
        times = DrawnTimes(graph, one.machine)
        return replace(one, machine=drawn_machine(one.machine, times, draw, "kv_cache"))

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
        request_ns=modelled.figure_ns("request", draw),
    )

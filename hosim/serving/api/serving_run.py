"""``hosim.serve``: serve requests over time on one engine or several, also in draws of the times of
kernels, host and links and of the room for the cache.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from hosim.analysis.costmodel.spreads import DrawnTimes, drawn_machine
from hosim.api import Machine
from hosim.errors import InputError
from hosim.io.options import keywords
from hosim.serving import ModelledIterations, Served
from hosim.serving.api.serve_setup import ServeSetup
from hosim.serving.blocks import KvLink, KvSetup
from hosim.serving.requests import Request, RequestRows
from hosim.serving.serve_options import SERVE
from hosim.serving.weights import WeightSetup
from hosim.units import LARGEST

_OnMachine = TypeVar("_OnMachine", KvSetup, KvLink, WeightSetup)


@keywords(*SERVE)
def serve(
    model: str | os.PathLike[str] | Mapping[str, Any],
    hardware: Machine,
    requests: str | os.PathLike[str] | RequestRows | Sequence[Request],
    **options: Any,
) -> Served:
    """Serve requests over time on one engine or several with a paged cache, as vLLM does.

    Batching is continuous, and prompts are prefilled in chunks. The cache shares blocks of equal
    prefixes. If there are too few blocks, the sequence that was admitted last is preempted. The
    cache is in device memory, and with ``kv`` also in lower tiers.

    Parameters
    ----------
    model
        A preset, a path of a ``config.json``, or the parameters of a builder: ``{"model":
        "llama-3.1-8b", "tensor": 8}``.
    hardware
        The machine; its profile must describe the processor.
    requests
        A file (:func:`hosim.serving.requests.request_files.read_requests`), arrivals to draw such
        as ``"poisson:rate=10"`` (:func:`hosim.serving.requests.drawn_requests.draw_requests`), or
        requests in order of arrival.

    Returns
    -------
    Served
        The times of each request. ``frame()`` returns a row per request, ``summary()`` latencies,
        throughput and figures of the cache.

    Raises
    ------
    InputError
        If an argument or a file is invalid, or a request does not fit in the cache.
    InfeasibleError
        If the weights leave no room for a cache, or the policy for them finds no plan that fits.

    References
    ----------
    ``docs/serving.md`` describes the model and compares it with a real server.

    Examples
    --------
    >>> served = serve(
    ...     "llama-3.1-8b", "h100-80gb-sxm", [Request(0, 100, 3), Request(1_000_000, 50, 2)]
    ... )
    >>> [len(tokens) for tokens in served.token_ns], served.preemptions
    ([3, 2], 0)
    """
    from hosim.serving.api.serve_setup import read_setup

    return served(read_setup(model, hardware, requests, **options))


def served(setup: ServeSetup) -> Served:
    """Serve the requests of a setup."""
    from hosim.serving import (
        ROUTERS,
        ServingEngine,
        serve_disaggregated,
        serve_on_instances,
        serve_requests,
    )

    limits, router = setup.limits, ROUTERS[setup.router]
    asked = _later(setup.requests, setup.request_ns)
    blocks, time_of = setup.blocks, setup.time_of
    how: dict[str, Any] = {"ahead": setup.ahead, "kv": setup.kv, "weights": setup.weights}
    if setup.link is not None:
        ways = setup.decodes, router, setup.link
        decoder = ServingEngine(blocks, time_of)
        found = serve_disaggregated(asked, limits, decoder, *ways, prefill=setup.prefill, **how)
    elif setup.instances == 1:
        found = serve_requests(asked, limits, blocks, time_of, **how)
    else:
        found = serve_on_instances(asked, limits, blocks, time_of, setup.instances, router, **how)
    _check_years(found)
    again = partial(_served_in_draw, setup) if is_drawn(setup) else None
    arrived = _later(found.requests, -setup.request_ns)
    return replace(found, requests=arrived, about=setup.about, again=again)


def _check_years(found: Served) -> None:
    if max(sample.end_ns for sample in found.samples) > LARGEST:
        raise InputError(
            "the last token comes more than 2^63-1 ns (292 years) after time 0; check when the "
            "requests arrive",
            where="requests",
        )


def _later(requests: Sequence[Request], by_ns: int) -> tuple[Request, ...]:
    """Return the requests with arrivals ``by_ns`` later; for 0 the same objects, because each copy
    would be checked again.
    """
    if not by_ns:
        return tuple(requests)
    return tuple([replace(one, arrival_ns=one.arrival_ns + by_ns) for one in requests])


def _served_in_draw(setup: ServeSetup, draw: int) -> Served | None:
    """Serve a setup's requests in a draw; ``None`` if the cache has no room for one of them."""
    try:
        return served(in_draw(setup, draw))
    except InputError:
        return None


def is_drawn(setup: ServeSetup) -> bool:
    """Return whether some times are drawn; recorded times are not."""
    return isinstance(setup.time_of, ModelledIterations) and setup.time_of.is_drawn


def in_draw(setup: ServeSetup, draw: int) -> ServeSetup:
    """Return the setup in a draw. A link between prefill and decode engines of which only the rate
    is known does not change.
    """
    modelled, prefill = setup.time_of, setup.prefill
    assert isinstance(modelled, ModelledIterations)
    graph, time_of = modelled.graph(1), modelled.in_draw(draw)

    def drawn(one: _OnMachine | None) -> _OnMachine | None:
        if one is None:
            return None
        times = DrawnTimes(graph, one.machine)
        return replace(one, machine=drawn_machine(one.machine, times, draw, "kv_cache"))

    if prefill is not None and isinstance(prefill.time_of, ModelledIterations):
        prefill = replace(prefill, time_of=prefill.time_of.in_draw(draw))
    weights = drawn(setup.weights)
    return replace(
        setup,
        time_of=time_of,
        blocks=setup.drawn_blocks[draw] if setup.drawn_blocks else setup.blocks,
        prefill=prefill,
        kv=drawn(setup.kv),
        link=drawn(setup.link),
        weights=weights and replace(weights, lead_ns=time_of.beside_ns),
        request_ns=modelled.figure_ns("request", draw),
    )

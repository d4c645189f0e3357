"""Prefill and decode on engines of their own: a request's cache goes from one to the other when its
prompt has been computed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import simpy

from hosim.serving.blocks import KvLink, KvSetup, KvTransfers
from hosim.serving.engine_loop import Engine, IterationTime, check_room, figures_below, streams_of
from hosim.serving.instances import arrivals, of_engines
from hosim.serving.links import SteppedClock
from hosim.serving.requests import Request
from hosim.serving.routers import Router
from hosim.serving.scheduler import EngineLimits, Scheduler
from hosim.serving.sent_by_layers import SentByLayers
from hosim.serving.served import Served
from hosim.serving.weights import WeightSetup, weight_figures


@dataclass(frozen=True)
class PrefillEngine:
    """An engine that prefills: the blocks of its cache, and what its iterations take."""

    blocks: int
    time_of: IterationTime


def serve_disaggregated(
    requests: Sequence[Request],
    limits: EngineLimits,
    blocks: int,
    time_of: IterationTime,
    decodes: int,
    router: Router,
    link: KvLink,
    *,
    ahead: bool = True,
    kv: KvSetup | None = None,
    prefill: PrefillEngine | None = None,
    weights: WeightSetup | None = None,
) -> Served:
    """Like :func:`hosim.serving.instances.serve_on_instances`, on engines that prefill, whose
    number ``link`` says, and those that decode.

    The router chooses one that prefills when a request arrives, and one that decodes when its
    prompt has been computed. There the request waits in the queue until blocks for all of its
    prompt are free. Then those that the device does not have are transferred, and the last token of
    the prompt is computed again, which gives the first token of the answer. The sender holds its
    blocks until they are there. Where ``link`` sends by layers, the engine that decodes is chosen
    when the first iteration with the prompt begins, and each layer is transferred when it has been
    computed, if that engine has room for the prompt. ``prefill`` says what those are that prefill,
    if they are unlike the others.

    Raises :class:`InputError` for a request that the cache of an engine has no room for.
    """
    clock = SteppedClock()
    prefills = link.peers.senders
    count = prefills + decodes
    channels = link.channels(clock, count)
    pools = [None] * count if kv is None else kv(clock, blocks, count, channels)
    swaps = kv is not None and kv.swaps
    first = prefill or PrefillEngine(blocks, time_of)
    by_layers = link.layers > 1
    schedulers = [
        Scheduler(
            requests, limits, first.blocks, pool, swaps, prefills=True, whole_prompts=by_layers
        )
        for pool in pools[:prefills]
    ]
    schedulers += [Scheduler(requests, limits, blocks, pool, swaps) for pool in pools[prefills:]]
    check_room(requests, schedulers[prefills], limits)
    check_room(requests, schedulers[0], limits)
    transfers = KvTransfers(link, channels, len(requests))
    chosen: list[int] = []
    decoded_by = [-1] * len(requests)
    engines: list[Engine] = []
    sent: dict[int, SentByLayers] = {}

    def way_of(number: int) -> tuple[tuple[int, int], Callable[[], None]]:
        """From which engine to which a request goes, and what wakes both."""
        sender = chosen[number]
        receiver = decoded_by[number] = prefills + router(
            number, requests[number], schedulers[prefills:]
        )

        def wake() -> None:
            engines[sender].wake()
            engines[receiver].wake()

        return (sender, receiver), wake

    def hand_over(number: int, held: list[int]) -> None:
        """A prompt has been computed."""
        pool = schedulers[chosen[number]].pool
        if number in sent:
            transfers.prefilled_ns[number] = clock.now
            sent.pop(number).prefilled(pool, held)
            return
        ends, wake = way_of(number)
        engines[ends[1]].offer(number, transfers.handed(number, ends, held, pool, wake))

    def begins(sender: int, begin_ns: int, end_ns: int) -> None:
        """An iteration of an engine that sends by layers begins."""
        filled = []
        for number, before, after in schedulers[sender].parts:
            if number not in sent:
                ends, wake = way_of(number)
                sent[number] = SentByLayers(
                    transfers,
                    number,
                    ends,
                    requests[number].prompt_tokens,
                    limits.block_tokens,
                    wake,
                )
                sent[number].ready(*sent[number].filled(0, before))
                engines[ends[1]].offer(number, sent[number])
            filled.append((sent[number], *sent[number].filled(before, after)))
        clock.process(layers_of(filled, begin_ns, end_ns))

    def layers_of(
        filled: list[tuple[SentByLayers, int, int]], begin_ns: int, end_ns: int
    ) -> Generator[simpy.Event, Any, None]:
        """The layers of an iteration, which take equal parts of its time."""
        for layer in range(link.layers):
            yield clock.timeout(
                begin_ns - (-(end_ns - begin_ns) * (layer + 1) // link.layers) - clock.now
            )
            for one, first, last in filled:
                one.ready(first, last, layer, link.layers)

    streams = streams_of(weights, channels)
    for i, scheduler in enumerate(schedulers):
        sends = partial(begins, i) if i < prefills and by_layers else None
        own, goes_on = (first.time_of, hand_over) if i < prefills else (time_of, None)
        engines.append(
            Engine(clock, requests, scheduler, own, goes_on, sends, streams[i] if streams else None)
        )
    clock.process(
        arrivals(clock, requests, engines[:prefills], schedulers[:prefills], router, chosen)
    )
    for engine in engines:
        clock.process(engine.ahead() if ahead else engine.in_turn())
    clock.run()
    stall_ns = sum(engine.stall_ns["kv_transfer"] for engine in engines)
    figures = None if kv is None else figures_below(kv, engines, limits, clock.end_ns)
    served = of_engines(requests, engines, chosen, decoded_by, blocks, figures)
    moved = (
        None if weights is None else weight_figures(weights, channels, streams, len(served.samples))
    )
    return replace(served, handed=transfers.hand_overs(chosen, decodes, stall_ns), weights=moved)

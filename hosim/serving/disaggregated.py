"""Prefill and decode on engines of their own: a request's cache goes from one to the other when its prompt has been computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hosim.engine.clock import SteppedClock
from hosim.serving.engine_loop import Engine, IterationTime, check_room, figures_below
from hosim.serving.instances import arrivals, of_engines
from hosim.serving.kv_link import KvLink, KvTransfers
from hosim.serving.kv_setup import KvSetup
from hosim.serving.request import Request
from hosim.serving.routers import Router
from hosim.serving.scheduler import EngineLimits, Scheduler
from hosim.serving.served import Served


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
) -> Served:
    """As :func:`hosim.serving.instances.serve_on_instances`, on engines that prefill, whose number ``link`` says, and those that decode.

    The router chooses one that prefills when a request arrives, and one that decodes when its prompt has been computed. There the request
    waits in the queue until blocks for all of its prompt are free. Then those that the device does not have are transferred, and the last
    token of the prompt is computed again, which gives the first token of the answer. The sender holds its blocks until they are there.

    Raises :class:`InputError` for a request that the cache of an engine has no room for.
    """
    clock = SteppedClock()
    prefills = link.peers.senders
    count = prefills + decodes
    channels = link.channels(clock, count)
    pools = [None] * count if kv is None else kv(clock, blocks, count, channels)
    swaps = kv is not None and kv.swaps
    schedulers = [Scheduler(requests, limits, blocks, pool, swaps, prefills=i < prefills) for i, pool in enumerate(pools)]
    check_room(requests, schedulers[0], limits)
    transfers = KvTransfers(link, channels, len(requests))
    chosen: list[int] = []
    decoded_by = [-1] * len(requests)
    engines: list[Engine] = []

    def hand_over(number: int, held: list[int]) -> None:
        """A prompt has been computed."""
        sender = chosen[number]
        receiver = prefills + router(number, requests[number], schedulers[prefills:])
        decoded_by[number] = receiver

        def wake() -> None:
            engines[sender].wake()
            engines[receiver].wake()

        engines[receiver].offer(number, transfers.handed(number, (sender, receiver), held, schedulers[sender].pool, wake))

    engines += [Engine(clock, requests, scheduler, time_of, hand_over if i < prefills else None) for i, scheduler in enumerate(schedulers)]
    clock.process(arrivals(clock, requests, engines[:prefills], schedulers[:prefills], router, chosen))
    for engine in engines:
        clock.process(engine.ahead() if ahead else engine.in_turn())
    clock.run()
    stall_ns = sum(engine.stall_ns["kv_transfer"] for engine in engines)
    figures = None if kv is None else figures_below(kv, engines, limits, clock.time)
    served = of_engines(requests, engines, chosen, decoded_by, blocks, figures)
    return replace(served, handed=transfers.hand_overs(chosen, decodes, stall_ns))

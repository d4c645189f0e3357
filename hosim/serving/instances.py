"""Several engines behind a router: each has its own cache, and a request stays on the engine that
it went to.
"""

from collections.abc import Sequence
from dataclasses import replace

import simpy

from hosim.serving.arrivals import Arrivals
from hosim.serving.blocks import KvFigures, KvSetup
from hosim.serving.engine_loop import Engine, IterationTime, check_room, figures_below, streams_of
from hosim.serving.links import SteppedClock
from hosim.serving.requests import Request
from hosim.serving.routers import Router
from hosim.serving.scheduler import EngineLimits, Scheduler
from hosim.serving.served import Served
from hosim.serving.weights import WeightSetup, weight_figures


def serve_on_instances(
    requests: Sequence[Request],
    limits: EngineLimits,
    blocks: int,
    time_of: IterationTime,
    instances: int,
    router: Router,
    *,
    ahead: bool = True,
    kv: KvSetup | None = None,
    weights: WeightSetup | None = None,
) -> Served:
    """Like :func:`hosim.serving.engine_loop.serve_requests`, on equal engines with a cache of
    ``blocks`` blocks each.

    With ``kv`` the caches go on in the tiers below, which engines share as far as the machine's
    devices do. So do copies of ``weights``.

    Raises :class:`InputError` for a request that the cache of an engine has no room for.
    """
    clock = SteppedClock()
    env = simpy.Environment() if kv is None and weights is None else clock
    channels = None if weights is None else weights.channels(clock, instances)
    streams = streams_of(weights, channels)
    pools = [None] * instances if kv is None else kv(clock, blocks, instances, channels)
    chosen = [-1] * len(requests)
    engines: list[Engine] = []

    def offer(number: int) -> None:
        offer_by(router, number, arrivals, engines, chosen)

    arrivals = Arrivals(env, requests, offer)
    for i, pool in enumerate(pools):
        one = Scheduler(arrivals.requests, limits, blocks, pool, kv is not None and kv.swaps)
        stream = streams[i] if streams else None
        engines.append(Engine(env, requests, one, time_of, weights=stream, ended=arrivals.ended))
    check_room(requests, engines[0].scheduler, limits)
    env.process(arrivals.run())
    for engine in engines:
        env.process(engine.ahead() if ahead else engine.in_turn())
    env.run()
    found = of_engines(
        arrivals.requests,
        engines,
        chosen,
        chosen,
        blocks,
        None if kv is None else figures_below(kv, engines, limits, clock.end_ns),
    )
    if weights is None or channels is None:
        return found
    return replace(found, weights=weight_figures(weights, channels, streams, len(found.samples)))


def of_engines(
    requests: Sequence[Request],
    engines: Sequence[Engine],
    begun: Sequence[int],
    ended: Sequence[int],
    blocks: int,
    kv: KvFigures | None,
) -> Served:
    """Return the outcome of several engines, of which a request's first was ``begun`` and its last,
    which gives the tokens, ``ended``.
    """
    samples = [
        replace(sample, instance=i) for i, engine in enumerate(engines) for sample in engine.samples
    ]
    return Served(
        tuple(requests),
        tuple(engines[i].scheduled_ns[number] for number, i in enumerate(begun)),
        tuple(tuple(engines[i].token_ns[number]) for number, i in enumerate(ended)),
        tuple(sorted(samples, key=lambda sample: (sample.start_ns, sample.instance))),
        sum(engine.scheduler.preemptions for engine in engines),
        sum(engine.scheduler.hit_tokens for engine in engines),
        blocks,
        instances=tuple(ended),
        kv=kv,
    )


def offer_by(
    router: Router, number: int, arrivals: Arrivals, engines: Sequence[Engine], chosen: list[int]
) -> None:
    """A request goes to the engine that the router chooses by what is there at this instant."""
    schedulers = [engine.scheduler for engine in engines]
    chosen[number] = router(arrivals.order[number], arrivals.requests[number], schedulers)
    engines[chosen[number]].offer(number)

"""Engines behind a router: when requests arrive, to which engine they go, and what the engines did.
Each has its own cache, and a request stays on the engine that it went to.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import simpy

from hosim.serving.blocks import EngineChannels, KvFigures, KvSetup, SteppedClock
from hosim.serving.engine_loop import Engine, IterationTime, check_room, figures_below
from hosim.serving.requests import Request
from hosim.serving.scheduler import EngineLimits, Scheduler
from hosim.serving.served import Served
from hosim.serving.weights import WeightFigures, WeightSetup, WeightStream, weight_figures

# -- arrivals: at times of their own, or after the last token of the request that they follow ------


class Arrivals:
    """The requests of a run, each of which is offered, by its number, when it arrives.

    ``requests`` are those that have arrived with the time at which they did, and all others as they
    were asked for. ``order`` says for each that has arrived how many came before it.
    """

    def __init__(
        self, env: simpy.Environment, requests: Sequence[Request], offer: Callable[[int], None]
    ) -> None:
        self._env = env
        self._offer = offer
        self.requests = list(requests)
        self.order: dict[int, int] = {}
        self._timed = [i for i, request in enumerate(requests) if request.follows is None]
        self._turns: defaultdict[int, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            if request.follows is not None:
                self._turns[request.follows].append(number)

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Requests that follow none arrive."""
        for number in self._timed:
            yield from self._at(number, self.requests[number].arrival_ns)

    def ended(self, number: int) -> None:
        """A request has its last token: those that follow it are on their way."""
        for turn in self._turns.pop(number, ()):
            self._env.process(self._at(turn, int(self._env.now) + self.requests[turn].arrival_ns))

    def _at(self, number: int, arrival_ns: int) -> Generator[simpy.Event, Any, None]:
        if arrival_ns > self._env.now:
            yield self._env.timeout(arrival_ns - int(self._env.now))
        request = self.requests[number]
        if request.follows is not None:
            self.requests[number] = replace(request, arrival_ns=arrival_ns, follows=None)
        self.order[number] = len(self.order)
        self._offer(number)


# -- routers: to which of several engines a request goes when it arrives ---------------------------


Router = Callable[[int, Request, Sequence[Scheduler]], int]
"""The place of the engine for a request, given how many arrived before it and the schedulers of all
engines.
"""


def round_robin(number: int, request: Request, engines: Sequence[Scheduler]) -> int:
    """One engine after the other."""
    return number % len(engines)


def least_load(number: int, request: Request, engines: Sequence[Scheduler]) -> int:
    """The engine with the fewest requests that run or wait; of several the first."""
    return min(
        range(len(engines)), key=lambda i: (len(engines[i].running) + len(engines[i].waiting), i)
    )


def prefix(number: int, request: Request, engines: Sequence[Scheduler]) -> int:
    """The engine that has the fewest tokens of prompts to compute up to this one's last: those that
    are ahead of it there, and its own.

    Blocks of its prompt that the engine's cache holds now need not be computed; those that wait
    there count in full. So equal prefixes meet, unless it takes longer there.
    """
    return min(
        range(len(engines)),
        key=lambda i: (
            engines[i].tokens_ahead() + request.prompt_tokens - engines[i].cached(request),
            i,
        ),
    )


ROUTERS: Mapping[str, Router] = {
    "round_robin": round_robin,
    "least_load": least_load,
    "prefix": prefix,
}
"""The routers by name."""


# -- engines ---------------------------------------------------------------------------------------


def serve_requests(
    requests: Sequence[Request],
    limits: EngineLimits,
    blocks: int,
    time_of: IterationTime,
    *,
    ahead: bool = True,
    kv: KvSetup | None = None,
    weights: WeightSetup | None = None,
) -> Served:
    """Serve requests, sorted by arrival, with a cache of ``blocks`` blocks, and with ``kv`` in the
    tiers below the device as well.

    With ``weights`` some layers come up while iterations compute.

    ``ahead`` says that the next iteration is scheduled when the one before begins (vLLM's
    asynchronous scheduling): what arrives later waits for the one after. Raises :class:`InputError`
    for a request that the cache has no room for.
    """
    found = serve_on_instances(
        requests, limits, blocks, time_of, 1, round_robin, ahead=ahead, kv=kv, weights=weights
    )
    return replace(found, instances=())


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
    """Like :func:`serve_requests`, on equal engines with a cache of ``blocks`` blocks each.

    With ``kv`` the caches go on in the tiers below, which engines share as far as the machine's
    devices do. So do copies of ``weights``.

    Raises :class:`InputError` for a request that the cache of an engine has no room for.
    """
    clock = SteppedClock()
    env = simpy.Environment() if kv is None and weights is None else clock
    channels = None if weights is None else weights.channels(clock, instances)
    pools = [None] * instances if kv is None else kv(clock, blocks, instances, channels)
    chosen = [-1] * len(requests)
    engines: list[Engine] = []
    arrivals = Arrivals(
        env, requests, lambda number: offer_by(router, number, arrivals, engines, chosen)
    )
    for pool, stream in zip(pools, streams_of(weights, channels, instances), strict=True):
        one = Scheduler(arrivals.requests, limits, blocks, pool, kv is not None and kv.swaps)
        engines.append(Engine(env, requests, one, time_of, weights=stream, ended=arrivals.ended))
    check_room(requests, engines[0].scheduler, limits)
    run_engines(env, arrivals, engines, ahead)
    below = figures_below(kv, engines, limits, clock.end_ns)
    planned = planned_figures(weights, channels, engines)
    return of_engines(arrivals.requests, engines, chosen, chosen, blocks, below, planned)


def streams_of(
    weights: WeightSetup | None, channels: EngineChannels | None, engines: int
) -> Sequence[WeightStream | None]:
    """The weights of each engine; ``None`` if all stay in the device."""
    if weights is None or channels is None:
        return [None] * engines
    return [WeightStream(weights, channels, engine) for engine in range(engines)]


def planned_figures(
    weights: WeightSetup | None, channels: EngineChannels | None, engines: Sequence[Engine]
) -> WeightFigures | None:
    """The figures of weights that a policy planned, if one did."""
    if weights is None or channels is None:
        return None
    streams = [engine.weights for engine in engines if engine.weights is not None]
    return weight_figures(weights, channels, streams, sum(len(one.samples) for one in engines))


def run_engines(
    env: simpy.Environment, arrivals: Arrivals, engines: Sequence[Engine], ahead: bool
) -> None:
    """Let requests arrive, and engines serve them until nothing happens any more."""
    env.process(arrivals.run())
    for engine in engines:
        env.process(engine.run(ahead))
    env.run()


def of_engines(
    requests: Sequence[Request],
    engines: Sequence[Engine],
    begun: Sequence[int],
    ended: Sequence[int],
    blocks: int,
    kv: KvFigures | None,
    weights: WeightFigures | None,
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
        weights=weights,
    )


def offer_by(
    router: Router, number: int, arrivals: Arrivals, engines: Sequence[Engine], chosen: list[int]
) -> None:
    """A request goes to the engine that the router chooses by what is there at this instant."""
    chosen[number] = routed(router, number, arrivals, engines)
    engines[chosen[number]].offer(number)


def routed(router: Router, number: int, arrivals: Arrivals, engines: Sequence[Engine]) -> int:
    """The engine that the router chooses for a request that has arrived."""
    schedulers = [engine.scheduler for engine in engines]
    return router(arrivals.order[number], arrivals.requests[number], schedulers)

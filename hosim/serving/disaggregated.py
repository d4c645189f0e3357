"""Prefill and decode on engines of their own: a request's cache goes from one to the other when its
prompt has been computed.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import simpy

from hosim.serving.arrivals import Arrivals
from hosim.serving.blocks import Awaited, BlockPool, KvLink, KvSetup, KvTransfers, when_over
from hosim.serving.engine_loop import Engine, IterationTime, check_room, figures_below, streams_of
from hosim.serving.instances import of_engines, offer_by
from hosim.serving.links import SteppedClock
from hosim.serving.requests import Request
from hosim.serving.routers import Router
from hosim.serving.scheduler import EngineLimits, Scheduler
from hosim.serving.served import Served
from hosim.serving.weights import WeightSetup, weight_figures

# -- sent by layers
# --------------------------------------------------------------------------------------------------
# A prompt whose cache is sent layer by layer while it is computed, as Mooncake and vLLM's
# connectors can.


class SentByLayers:
    """The cache of one prompt of ``tokens`` tokens, on its way between two engines.

    What is ready is sent once the other engine has blocks for it: all that was ready before as one
    transfer, and each layer of what an iteration fills when it has been computed. A block is sent
    when it is full, or the prompt ends in it. ``wake`` is called when all is there.
    """

    def __init__(
        self,
        transfers: KvTransfers,
        number: int,
        ends: tuple[int, int],
        tokens: int,
        block_tokens: int,
        wake: Callable[[], None],
    ) -> None:
        self._transfers = transfers
        self._number = number
        self._ends = ends
        self._tokens = tokens
        self._block_tokens = block_tokens
        self._wake = wake
        self._whole = -(-tokens // block_tokens)
        self._ready: list[tuple[int, int, int, int]] = []
        self._copy = Awaited()
        self._may_send = False
        self._left = 0
        self._skipped = 0
        self._held: tuple[BlockPool, Sequence[int]] | None = None

    @property
    def is_computed(self) -> bool:
        """Return whether all of the prompt has been computed."""
        return self._held is not None

    def filled(self, before: int, after: int) -> tuple[int, int]:
        """The blocks that are full, or the prompt's last, when its tokens from ``before`` to
        ``after`` are computed.
        """
        first, last = (
            self._whole if tokens == self._tokens else tokens // self._block_tokens
            for tokens in (before, after)
        )
        return first, last

    def ready(self, first: int, last: int, layer: int = 0, layers: int = 1) -> None:
        """One of so many layers of blocks has been computed."""
        self._ready.append((first, last, layer, layers))
        if self._may_send:
            self._send()

    def prefilled(self, pool: BlockPool, blocks: Sequence[int]) -> None:
        """All of the prompt has been computed; ``blocks`` of the sender's ``pool`` are held until
        all is there.
        """
        self._held = pool, blocks
        self._wake()
        self._end()

    def fetch(self, blocks: int, after: Sequence[Awaited]) -> Awaited:
        """The other engine has room for the last ``blocks`` blocks."""
        self._skipped = self._whole - blocks
        self._left = blocks * self._transfers.block_bytes
        self._transfers.asked(self._number, self._copy)
        when_over(after, self._begin)
        return self._copy

    def _begin(self) -> None:
        self._may_send = True
        self._send()

    def _send(self) -> None:
        """Send what is ready."""
        size = 0
        for first, last, layer, layers in self._ready:
            whole = (
                (last - max(first, self._skipped)) * self._transfers.block_bytes
                if last > self._skipped
                else 0
            )
            size += whole * (layer + 1) // layers - whole * layer // layers
        self._ready.clear()
        part = Awaited()
        part.then(lambda: self._there(size))
        if size:
            self._transfers.send(self._ends, size, part)
        else:
            part.end()

    def _there(self, size: int) -> None:
        self._left -= size
        self._end()

    def _end(self) -> None:
        if self._held is not None and self._may_send and not self._left and not self._copy.over:
            pool, blocks = self._held
            pool.release(blocks)
            self._copy.end()
            self._wake()


@dataclass(frozen=True)
class ServingEngine:
    """An engine: the blocks of its cache, and the time of its iterations."""

    blocks: int
    time_of: IterationTime


def serve_disaggregated(
    requests: Sequence[Request],
    limits: EngineLimits,
    decoder: ServingEngine,
    decodes: int,
    router: Router,
    link: KvLink,
    *,
    ahead: bool = True,
    kv: KvSetup | None = None,
    prefill: ServingEngine | None = None,
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
    blocks, count = decoder.blocks, prefills + decodes
    channels = link.channels(clock, count)
    pools = [None] * count if kv is None else kv(clock, blocks, count, channels)
    swaps = kv is not None and kv.swaps
    first = prefill or decoder
    by_layers = link.layers > 1

    def offer(number: int) -> None:
        offer_by(router, number, arrivals, engines[:prefills], chosen)

    arrivals = Arrivals(clock, requests, offer)
    asked = arrivals.requests
    schedulers = [
        Scheduler(asked, limits, first.blocks, pool, swaps, prefills=True, whole_prompts=by_layers)
        for pool in pools[:prefills]
    ]
    schedulers += [Scheduler(asked, limits, blocks, pool, swaps) for pool in pools[prefills:]]
    check_room(requests, schedulers[prefills], limits)
    check_room(requests, schedulers[0], limits)
    transfers = KvTransfers(link, channels, len(requests))
    chosen = [-1] * len(requests)
    decoded_by = [-1] * len(requests)
    engines: list[Engine] = []
    sent: dict[int, SentByLayers] = {}

    def way_of(number: int) -> tuple[tuple[int, int], Callable[[], None]]:
        """From which engine to which a request goes, and what wakes both."""
        sender = chosen[number]
        receiver = decoded_by[number] = prefills + router(
            arrivals.order[number], asked[number], schedulers[prefills:]
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
        own, goes_on = (first.time_of, hand_over) if i < prefills else (decoder.time_of, None)
        engines.append(
            Engine(
                clock,
                requests,
                scheduler,
                own,
                goes_on,
                sends,
                streams[i] if streams else None,
                arrivals.ended,
            )
        )
    clock.process(arrivals.run())
    for engine in engines:
        clock.process(engine.ahead() if ahead else engine.in_turn())
    clock.run()
    stall_ns = sum(engine.stall_ns["kv_transfer"] for engine in engines)
    figures = None if kv is None else figures_below(kv, engines, limits, clock.end_ns)
    served = of_engines(asked, engines, chosen, decoded_by, blocks, figures)
    moved = (
        None if weights is None else weight_figures(weights, channels, streams, len(served.samples))
    )
    return replace(served, handed=transfers.hand_overs(chosen, decodes, stall_ns), weights=moved)

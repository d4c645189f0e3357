"""Prefill and decode on engines of their own: a request's cache goes from one to the other when its
prompt has been computed.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import simpy

from hosim.serving.blocks import (
    Awaited,
    BlockPool,
    KvLink,
    KvSetup,
    KvTransfers,
    SteppedClock,
    when_over,
)
from hosim.serving.engine_loop import Engine, IterationTime, check_room, figures_below
from hosim.serving.instances import (
    Arrivals,
    Router,
    of_engines,
    offer_by,
    planned_figures,
    routed,
    run_engines,
    streams_of,
)
from hosim.serving.requests import Request
from hosim.serving.scheduler import EngineLimits, Scheduler
from hosim.serving.served import Served
from hosim.serving.weights import WeightSetup

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


# -- the way of each prompt ------------------------------------------------------------------------


@dataclass(eq=False)
class _PromptWays:
    """The ways of prompts from the first of ``engines``, which prefill, to the others, which
    decode. ``chosen`` has the engine that prefills each request, ``decoded_by`` the other one.
    """

    clock: SteppedClock
    link: KvLink
    router: Router
    block_tokens: int
    arrivals: Arrivals
    transfers: KvTransfers
    chosen: list[int]
    decoded_by: list[int]
    engines: list[Engine] = field(default_factory=list)
    sent: dict[int, SentByLayers] = field(default_factory=dict)

    def of(self, number: int) -> tuple[tuple[int, int], Callable[[], None]]:
        """From which engine to which a request goes, and what wakes both."""
        sender, first = self.chosen[number], self.link.peers.senders
        receiver = first + routed(self.router, number, self.arrivals, self.engines[first:])
        self.decoded_by[number] = receiver

        def wake() -> None:
            self.engines[sender].wake()
            self.engines[receiver].wake()

        return (sender, receiver), wake

    def hand_over(self, number: int, held: list[int]) -> None:
        """A prompt has been computed."""
        pool = self.engines[self.chosen[number]].scheduler.pool
        if number in self.sent:
            self.transfers.prefilled_ns[number] = self.clock.now
            self.sent.pop(number).prefilled(pool, held)
            return
        ends, wake = self.of(number)
        self.engines[ends[1]].offer(number, self.transfers.handed(number, ends, held, pool, wake))

    def begins(self, sender: int, begin_ns: int, end_ns: int) -> None:
        """An iteration of an engine that sends by layers begins."""
        filled = []
        for number, before, after in self.engines[sender].scheduler.parts:
            if number not in self.sent:
                ends, wake = self.of(number)
                tokens = self.arrivals.requests[number].prompt_tokens
                self.sent[number] = SentByLayers(
                    self.transfers, number, ends, tokens, self.block_tokens, wake
                )
                self.sent[number].ready(*self.sent[number].filled(0, before))
                self.engines[ends[1]].offer(number, self.sent[number])
            filled.append((self.sent[number], *self.sent[number].filled(before, after)))
        self.clock.process(self._layers_of(filled, begin_ns, end_ns))

    def _layers_of(
        self, filled: list[tuple[SentByLayers, int, int]], begin_ns: int, end_ns: int
    ) -> Generator[simpy.Event, Any, None]:
        """The layers of an iteration, which take equal parts of its time."""
        layers = self.link.layers
        for layer in range(layers):
            ends = begin_ns - (-(end_ns - begin_ns) * (layer + 1) // layers)
            yield self.clock.timeout(ends - self.clock.now)
            for one, first, last in filled:
                one.ready(first, last, layer, layers)


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
    prefills, count = link.peers.senders, link.peers.senders + decodes
    channels = link.channels(clock, count)
    pools = [None] * count if kv is None else kv(clock, decoder.blocks, count, channels)
    swaps = kv is not None and kv.swaps
    first = prefill or decoder
    by_layers = link.layers > 1
    chosen, decoded_by = [-1] * len(requests), [-1] * len(requests)
    engines: list[Engine] = []
    arrivals = Arrivals(
        clock,
        requests,
        lambda number: offer_by(router, number, arrivals, engines[:prefills], chosen),
    )
    asked = arrivals.requests
    transfers = KvTransfers(link, channels, len(requests))
    ways = _PromptWays(
        clock, link, router, limits.block_tokens, arrivals, transfers, chosen, decoded_by, engines
    )
    for i, (pool, stream) in enumerate(
        zip(pools, streams_of(weights, channels, count), strict=True)
    ):
        is_first = i < prefills
        of, over = (first, ways.hand_over) if is_first else (decoder, None)
        layers = is_first and by_layers
        one = Scheduler(asked, limits, of.blocks, pool, swaps, is_first, layers)
        begins = partial(ways.begins, i) if layers else None
        own = Engine(clock, requests, one, of.time_of, over, begins, stream, arrivals.ended)
        engines.append(own)
    check_room(requests, engines[prefills].scheduler, limits)
    check_room(requests, engines[0].scheduler, limits)
    run_engines(clock, arrivals, engines, ahead)
    below = figures_below(kv, engines, limits, clock.end_ns)
    planned = planned_figures(weights, channels, engines)
    served = of_engines(asked, engines, chosen, decoded_by, decoder.blocks, below, planned)
    stall_ns = sum(engine.stall_ns["kv_transfer"] for engine in engines)
    return replace(served, handed=transfers.hand_overs(chosen, decodes, stall_ns))

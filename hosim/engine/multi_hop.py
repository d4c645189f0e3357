"""Cache ops between tiers that no channel joins: chunks that take several channels one after the other (rule 7).

A cache op on a route is issued by queueing all its chunks on the first channel. They take each hop one at a time, whatever the number of
engines. A chunk that has passed a hop joins the queue of the next
one, in order of issue, before the cache ops of that instant are issued; but ahead of cache ops that wait for an earlier one of their
tensor, perhaps for this one. Between two hops it occupies the tier in between: its bytes are reserved there when the hop into it starts and
released when the hop out of it ends. The tensor's bytes at the destination are reserved as a whole when its first chunk starts the last
hop. From the start of its first chunk to the end of its last one the cache op is under way as any transfer is.
"""

from __future__ import annotations

from hosim.costmodel.transfers import chunks_of, route
from hosim.engine.channels import Chunk, IssuedTransfer, Route
from hosim.engine.compiled_plan import Hop
from hosim.engine.device_state import DeviceState
from hosim.engine.ledger import composition_of
from hosim.hardware import Hardware


class Routes:
    """What goes over several channels in one device's memory. ``onward`` are the chunks that have passed a hop at this instant."""

    def __init__(self, memory: DeviceState, hardware: Hardware) -> None:
        self._memory = memory
        self._hardware = hardware
        self._known: dict[tuple[Hop, int], tuple[Hop, ...]] = {}
        self.onward: list[Chunk] = []

    def set_out(self, k: int, t: int, hop: Hop, now: int) -> Route:
        """Issue a cache op on a route: its chunks join the queue of the first channel."""
        size = self._memory.sizes[t]
        sizes = chunks_of(self._hardware, size)
        route = Route(k, t, self._hops(hop, size), len(sizes))
        if self._memory.jitter is not None:
            route.factor = self._memory.jitter(t)
        for part in sizes:
            self._enqueue(route, 0, part, now, now)
        return route

    def go_onward(self, now: int) -> None:
        """The chunks that have passed a hop at this instant join the queues of their next ones."""
        for chunk in sorted(self.onward, key=lambda x: x.sequence):
            self._enqueue(chunk.route, chunk.leg + 1, chunk.size, now, chunk.start_ns)
        self.onward.clear()

    def begin(self, chunk: Chunk, now: int) -> bool:
        """Begin the head of a channel's queue if it can, as for a whole transfer; in between there is a place for it, and no copy."""
        memory, t, route, pin_ns = self._memory, chunk.tensor, chunk.route, 0
        _, source, destination, _ = chunk.hop
        if chunk.leg in route.under_way:
            return False
        if not chunk.leg and (memory.pending[t][0] is not route or not memory.has_valid(t, source)):
            return False
        if chunk.arrives:
            pin_ns = memory.reserve(t, destination, now)
            if pin_ns < 0:
                return False
        else:
            ledger, pool = memory.ledgers[destination], memory.pools[destination]
            if ledger.held + chunk.size > ledger.capacity or (pool is not None and not pool.has_room(chunk.size, memory.position)):
                return False
            if memory.arena is not None and destination == memory.tier and not memory.arena.stage(t, chunk.size):
                return False
            for account in (ledger, pool) if pool is not None else (ledger,):
                account.allocate(chunk.size, self._composition(chunk), now)
        if not chunk.arrives and memory.recorder is not None:
            memory.recorder.stage(t, destination, now, chunk.size)
        memory.transferring[t] = route
        route.under_way.add(chunk.leg)
        chunk.channel.begin(now, memory.overheads.ceiling(chunk) if memory.overheads is not None else None, pin_ns)
        memory.dequeued(chunk.channel)
        return True

    def passed(self, chunk: Chunk) -> bool:
        """A chunk has passed a hop; says whether it was the last one of its route to arrive."""
        memory, source, recorder = self._memory, chunk.hop.source, self._memory.recorder
        memory.unsettled.add(memory.position)
        chunk.route.under_way.discard(chunk.leg)
        if chunk.leg:
            if memory.arena is not None and source == memory.tier:
                memory.arena.unstage(chunk.tensor, chunk.size)
            memory.ledgers[source].release(chunk.size, self._composition(chunk))
            memory.release_shared(source, chunk.size, self._composition(chunk))
            if recorder is not None:
                recorder.staged(chunk.tensor, source, chunk.staged_ns, chunk.end_ns, chunk.size)
        if chunk.arrives:
            chunk.route.left -= 1
            if not chunk.route.left:
                return True
        else:
            self.onward.append(chunk)
        if recorder is not None:
            recorder.transfer(chunk)
        return False

    def _enqueue(self, route: Route, leg: int, size: int, now: int, staged_ns: int) -> None:
        memory = self._memory
        channel = memory.channels[route.hops[leg].channel]
        memory.enqueue(channel)
        chunk = Chunk(next(memory.sequence), route, leg, channel, size, now, staged_ns)
        if memory.jitter is not None:
            chunk.volume = round(chunk.volume * route.factor)
        if leg:
            for place, later in enumerate(channel.queue):
                if self._blocked(later):
                    chunk.sequence = later.sequence - 0.5
                    channel.queue.insert(place, chunk)
                    return
        channel.queue.append(chunk)

    def _blocked(self, transfer: IssuedTransfer) -> bool:
        """Whether a queued transfer waits for an earlier cache op of its tensor."""
        if isinstance(transfer, Chunk):
            return not transfer.leg and self._memory.pending[transfer.tensor][0] is not transfer.route
        return self._memory.pending[transfer.tensor][0] is not transfer

    def _composition(self, chunk: Chunk) -> int:
        return composition_of(self._memory.graph.tensors[chunk.tensor].kind, chunk.size)

    def _hops(self, hop: Hop, size: int) -> tuple[Hop, ...]:
        """The hops that ``size`` bytes take from one tier to another."""
        if (hop, size) not in self._known:
            hardware = self._hardware
            index, tiers = hardware.tier_index, hardware.tiers
            channels = route(hardware, tiers[hop.source].name, tiers[hop.destination].name, size)
            self._known[hop, size] = tuple(Hop(hop.op, index[c.source], index[c.destination], hardware.channels.index(c)) for c in channels)
        return self._known[hop, size]

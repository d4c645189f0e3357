"""The channels that the copies of a plan take, and the parts into which they are split, computed
once for all runs; and the queueing of a copy on them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hosim.analysis.costmodel import machine_of_copies
from hosim.analysis.costmodel.transfers import chunks_of, route
from hosim.cache_plan import DETACH, Plan
from hosim.hardware import Channel, Hardware
from hosim.on_torch.lower.tiers.transfers import Device, Event, Label


def copy_ways(
    plan: Plan, hardware: Hardware
) -> Iterator[tuple[int, tuple[tuple[Channel, ...], tuple[Label, ...]]]]:
    """For each cache op that moves bytes, the channels that it takes, and its parts: chunks where
    there are several.
    """
    machine = machine_of_copies(plan.graph, hardware)
    for k, cache_op in enumerate(plan.cache_ops):
        if cache_op.op != DETACH:
            tensor = plan.graph.tensors[cache_op.tensor]
            hops = route(machine, cache_op.source, str(cache_op.destination), tensor.size_bytes)
            sizes = chunks_of(hardware, tensor.size_bytes) if len(hops) > 1 else [tensor.size_bytes]
            text = (
                f"{cache_op.op} of {tensor.name!r} from {cache_op.source} to {cache_op.destination}"
            )
            yield (
                k,
                (
                    hops,
                    tuple(
                        Label(text, cache_op=k, kind=tensor.kind, size_bytes=size) for size in sizes
                    ),
                ),
            )


def tiers_used(
    plan: Plan, ways: Mapping[int, tuple[tuple[Channel, ...], tuple[Label, ...]]]
) -> list[str]:
    """The tiers that a plan has tensors in at time 0, or takes them through."""
    used = [tier for tiers in plan.initial.values() for tier in tiers]
    used += [
        tier for hops, _ in ways.values() for hop in hops for tier in (hop.source, hop.destination)
    ]
    return list(dict.fromkeys(used))


class Chunks:
    """The transfers of one plan on a machine."""

    def __init__(self, plan: Plan, hardware: Hardware, device: Device) -> None:
        self._plan = plan
        self._tier = hardware.device_tier
        self._device = device

    def queue(
        self,
        hops: tuple[Channel, ...],
        parts: tuple[Label, ...],
        source: Any,
        destination: Any,
        after: tuple[Event, ...],
        joins: tuple[Event, ...],
        arrived: Callable[[], None],
    ) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
        """Queue the copy of a tensor on its channel, or in chunks on those of its route; returns
        its ends, and those of its first hop.

        A copy takes its place on the channel when it is issued, and a chunk when it has passed the
        previous hop. To avoid circular waits, a tensor that has taken a route has each further
        cache op take its place when the previous one is done.
        """
        left = [None] * len(parts)
        ends, read = [], []
        ahead: list[tuple[Event, ...]] = [()] * len(hops)
        start = 0
        for label in parts:
            size = label.size_bytes
            at, waits, place = source, after, joins
            for h, hop in enumerate(hops):
                to = destination if h == len(hops) - 1 else self._staged(hop.destination, label)
                room = None if hop.destination == self._tier else to.take
                work = self._move(
                    hop.name,
                    at,
                    to,
                    start,
                    start + size,
                    left if to is destination else None,
                    arrived,
                )
                end = self._device.channel(hop.name).submit(
                    work, (*waits, *ahead[h]), label, room, place
                )
                ahead[h] = (end,)
                if h:
                    at.release((end,))
                else:
                    read.append(end)
                at, waits, place = to, (end,), (end,)
            ends.append(end)
            start += size
        return tuple(ends), tuple(read)

    def _staged(self, tier: str, label: Label) -> Any:
        """A block on the way of one part of a copy."""
        return self._device.block(
            tier,
            label.size_bytes,
            self._plan.graph.tensors[self._plan.cache_ops[label.cache_op].tensor].name,
        )

    def _move(
        self,
        channel: str,
        source: Any,
        destination: Any,
        start: int,
        stop: int,
        left: list[None] | None,
        arrived: Callable[[], None],
    ) -> Callable[[], None]:
        """The work of one transfer. ``left`` has an entry for each outstanding one: the last one
        marks the tensor as arrived.
        """

        def move() -> None:
            self._device.move(channel, source, destination, start, stop)
            if left is not None:
                left.pop()
                if not left:
                    arrived()

        return move

"""The figures of a cache with tiers below the device: hits and peaks by tier, traffic by channel,
and who waited for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hosim.serving.blocks.links import ChannelQueue
from hosim.serving.blocks.tiered_pool import TieredPool


@dataclass(frozen=True, slots=True)
class KvTierFigures:
    """One tier, in blocks on each device: room, the most that was taken, and the tokens of prompts
    that were found here.

    Several engines have ``stores`` of it, one for those of each host, say, or one for all: room and
    peak are those of one of them.
    """

    blocks: int
    peak_blocks: int
    hit_tokens: int
    stores: int = 1


@dataclass(frozen=True, slots=True)
class KvChannelFigures:
    """One channel of each device, summed over engines, of which ``utilization`` is the mean.

    ``queue_ns`` is the sum of what copies waited to start, ``contention_ns`` of what sharing cost
    them.
    """

    copies: int
    bytes: int
    busy_ns: int
    queue_ns: int
    contention_ns: int
    utilization: float


@dataclass(frozen=True, slots=True)
class SparseFigures:
    """The figures of attention that reads few blocks, for the tier below: the assumption about
    which it reads, and the times sequences were thinned.

    ``fetched_bytes`` came up on each device of all engines for iterations that read them.
    """

    assumption: str
    thinned: int
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class KvFigures:
    """The tiers from the device on, and the channels.

    ``stall_ns`` is the time in which nothing computes, by cause: ``evictions`` (blocks that the
    iteration writes are still copied) and ``loads`` (all that run wait for their blocks), and with
    ``sparse`` ``fetches`` (an iteration waits for blocks that attention chose). ``load_wait_ns`` is
    the sum of what requests waited for their blocks after they were taken from the queue. ``swaps``
    are preemptions by swapping, ``swapped_blocks`` the blocks of these, ``recomputed`` the
    sequences for which no tier had room. ``dropped_blocks`` are contents that left the last tier.
    """

    policy: str
    tiers: Mapping[str, KvTierFigures]
    channels: Mapping[str, KvChannelFigures]
    stall_ns: Mapping[str, int]
    load_wait_ns: int
    loads: int
    swaps: int
    swapped_blocks: int
    recomputed: int
    dropped_blocks: int
    sparse: SparseFigures | None = None

    def summary(self, prompt_tokens: int) -> dict[str, Any]:
        """As it stands in ``hosim.serving/1``, with hits as shares of all tokens of prompts."""
        data = asdict(self)
        if self.sparse is None:
            del data["sparse"]
        for figures in data["tiers"].values():
            figures["hit_share"] = figures["hit_tokens"] / prompt_tokens
        return data


@dataclass(frozen=True, slots=True)
class KvTransferFigures:
    """The traffic over ``link`` from engines that prefill to those that decode, and the number of
    either.

    ``transfers``, ``bytes`` (of each device) and ``busy_ns`` are sums over all pairs of engines.
    ``wait_ns`` is the sum of what requests waited from the end of their prefill until their blocks
    were there, and ``queue_ns`` the part of it in the queue of the other engine. During
    ``stall_ns`` engines that decode computed nothing, as all that ran there waited for blocks.
    """

    link: str
    prefill_instances: int
    decode_instances: int
    transfers: int
    bytes: int
    busy_ns: int
    wait_ns: int
    queue_ns: int
    stall_ns: int


@dataclass(frozen=True, slots=True)
class HandOvers:
    """Return, for each request, the engine that prefilled it, when that was done, and when its
    blocks were on the other engine; and the figures.
    """

    prefill_instances: tuple[int, ...]
    prefilled_ns: tuple[int, ...]
    transferred_ns: tuple[int, ...]
    figures: KvTransferFigures


def channel_figures(
    queues: Sequence[Sequence[ChannelQueue]], end_ns: int
) -> dict[str, KvChannelFigures]:
    """By name the channels of engines after a run that ended at ``end_ns``."""
    channels = {}
    for same in zip(*queues, strict=True):
        busy = sum(channel.busy_ns for channel in same)
        channels[same[0].name] = KvChannelFigures(
            sum(channel.transfers for channel in same),
            sum(channel.bytes for channel in same),
            busy,
            sum(channel.queue_ns for channel in same),
            sum(channel.contention_ns for channel in same),
            busy / (end_ns * len(queues)) if end_ns else 0.0,
        )
    return channels


def kv_figures(
    policy: str,
    pools: Sequence[TieredPool],
    block_tokens: int,
    peak_blocks: int,
    stall_ns: Mapping[str, int],
    waits_ns: Sequence[int],
    swaps: int,
    end_ns: int,
    sparse: SparseFigures | None,
) -> KvFigures:
    """The figures of the engines' pools after a run that ended at ``end_ns``; ``waits_ns`` are
    those of requests for their blocks.
    """
    first = pools[0]
    hits = [sum(found) * block_tokens for found in zip(*(pool.hits for pool in pools), strict=True)]
    tiers = {
        first.copies.machine.device_tier: KvTierFigures(
            first.count, peak_blocks, hits[0], len(pools)
        )
    }
    for place, tier in enumerate(first.tiers):
        stores = {id(pool.tiers[place]): pool.tiers[place].peak for pool in pools}
        tiers[tier.name] = KvTierFigures(
            tier.capacity, max(stores.values()), hits[1 + place], len(stores)
        )
    return KvFigures(
        policy,
        tiers,
        channel_figures([pool.copies.channels for pool in pools], end_ns),
        dict(stall_ns),
        sum(waits_ns),
        len(waits_ns),
        swaps,
        sum(pool.swapped_blocks for pool in pools),
        sum(pool.not_swapped for pool in pools),
        sum(pool.dropped for pool in pools),
        sparse,
    )

"""What became of a cache with tiers below the device: hits and peaks by tier, traffic by channel, and who waited for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hosim.serving.tiered_pool import TieredPool


@dataclass(frozen=True, slots=True)
class KvTierFigures:
    """One tier, in blocks on each device: room, the most that was taken, and the tokens of prompts that were found here."""

    blocks: int
    peak_blocks: int
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class KvChannelFigures:
    """One channel of each device. ``queue_ns`` is the sum of what copies waited to start, ``contention_ns`` of what sharing cost them."""

    copies: int
    bytes: int
    busy_ns: int
    queue_ns: int
    contention_ns: int
    utilization: float


@dataclass(frozen=True, slots=True)
class KvFigures:
    """The tiers from the device on, and the channels.

    ``stall_ns`` is the time in which nothing computes, by cause: ``evictions`` (blocks that the iteration writes are still copied) and
    ``loads`` (all that run wait for their blocks). ``load_wait_ns`` is the sum of what requests waited for their blocks after they were
    taken from the queue. ``swaps`` are preemptions by swapping, ``swapped_blocks`` the blocks of these, ``recomputed`` the sequences for
    which no tier had room. ``dropped_blocks`` are contents that left the last tier.
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

    def summary(self, prompt_tokens: int) -> dict[str, Any]:
        """As it stands in ``hosim.serving/1``, with hits as shares of all tokens of prompts."""
        data = asdict(self)
        for figures in data["tiers"].values():
            figures["hit_share"] = figures["hit_tokens"] / prompt_tokens
        return data


def kv_figures(
    policy: str,
    pool: TieredPool,
    block_tokens: int,
    peak_blocks: int,
    stall_ns: Mapping[str, int],
    waits_ns: list[int],
    swaps: int,
    end_ns: int,
) -> KvFigures:
    """The figures of a pool after a run that ended at ``end_ns``; ``waits_ns`` are those of requests for their blocks."""
    device = KvTierFigures(pool.count, peak_blocks, pool.hits[0] * block_tokens)
    below = {
        tier.name: KvTierFigures(tier.capacity, tier.peak, hits * block_tokens)
        for tier, hits in zip(pool.tiers, pool.hits[1:], strict=True)
    }
    channels = {
        channel.name: KvChannelFigures(
            channel.transfers,
            channel.bytes,
            channel.busy_ns,
            channel.queue_ns,
            channel.contention_ns,
            channel.busy_ns / end_ns if end_ns else 0.0,
        )
        for channel in pool.copies.channels
    }
    tiers = {pool.copies.machine.device_tier: device, **below}
    return KvFigures(
        policy,
        tiers,
        channels,
        dict(stall_ns),
        sum(waits_ns),
        len(waits_ns),
        swaps,
        pool.swapped_blocks,
        pool.not_swapped,
        pool.dropped,
    )

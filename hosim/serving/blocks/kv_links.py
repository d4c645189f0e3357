"""The way of caches from engines that prefill to those that decode: which link of the machine it
is, and what goes over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hosim.base.files import did_you_mean
from hosim.errors import InputError, UnitError
from hosim.hardware import Hardware
from hosim.serving.blocks.block_copies import Awaited, EngineChannels, Peers, when_over
from hosim.serving.blocks.block_pool import BlockPool
from hosim.serving.blocks.kv_figures import HandOvers, KvTransferFigures
from hosim.serving.blocks.kv_setups import engines_per_host
from hosim.serving.blocks.links import SteppedClock
from hosim.units import exact_rate, parse_rate

LINKS = "links"
"""The text that asks for the links between devices that the profile names."""

_MOST_WAYS = 4096


@dataclass(frozen=True)
class KvLink:
    """Engines on ``machine``, which has the devices of one; the first ones send over ``peers``.
    ``name`` says which link it is.

    Caches are sent in ``layers`` parts while their prompts are computed, or as a whole when they
    have been (1).
    """

    name: str
    machine: Hardware
    block_bytes: int
    per_host: int | None
    peers: Peers
    layers: int = 1

    def channels(self, clock: SteppedClock, engines: int) -> EngineChannels:
        """The channels of so many engines."""
        return EngineChannels(clock, self.machine, engines, self.per_host, self.peers)


def _slowest(hardware: Hardware, tier: str) -> int:
    """Return the bandwidth of the slowest channel between the device tier and another one."""
    ends = {hardware.device_tier, tier}
    return min(
        [
            channel.bandwidth_bytes_per_s
            for channel in hardware.channels
            if {channel.source, channel.destination} == ends
        ],
        default=0,
    )


def kv_link(
    text: str | None,
    hardware: Hardware,
    devices: int,
    prefills: int,
    decodes: int,
    block_bytes: int,
) -> KvLink:
    """The link that a text asks for: ``links``, a tier, or a bandwidth of each device such as ``50
    GB/s``; ``None``: what the machine has.

    That are the links of its processor if one host has all engines, and else the first tier that
    all engines share; so it is where links that lead through host memory are slower than the
    channels to that tier. Engines have so many devices, and blocks ``block_bytes`` on each. Raises
    :class:`InputError` if there is no such link.
    """
    _check_ways(prefills, decodes)
    per_host = engines_per_host(hardware, devices)
    one_host = per_host is None or (
        prefills + decodes <= per_host and devices <= (hardware.devices_per_host or devices)
    )
    processor = hardware.compute.processor
    links = 0 if processor is None or not one_host else processor.link_bytes_per_s
    shared = _shared_tiers(hardware, one_host)

    def found(name: str, bandwidth: int | None = None, tier: str = "") -> KvLink:
        return KvLink(
            name,
            replace(hardware, devices=devices),
            block_bytes,
            per_host,
            Peers(prefills, bandwidth, tier),
        )

    hosts = "" if one_host else f" between hosts of {hardware.devices_per_host} devices"
    if text is None and not links and not shared:
        raise InputError(
            f"{hardware.name} has no link{hosts} for caches, and no tier that all engines share: "
            "give what a device sends, as in 50GB/s",
            source="kv_link",
        )
    if text is None:
        is_slow = shared and links < _slowest(hardware, shared[0])
        text = LINKS if links and not is_slow else shared[0]
    if text == LINKS and not links:
        raise InputError(
            f"{hardware.name} has no links{hosts or ' between devices'}: give what a device "
            "sends, as in 50GB/s",
            source="kv_link",
        )
    if text == LINKS:
        return found(LINKS, links)
    if text in shared:
        return found(text, tier=text)
    if text in hardware.tier_index:
        raise InputError(
            f"no tier that all engines share and channels join to {hardware.device_tier}: {text!r}",
            source="kv_link",
        )
    bandwidth = _bandwidth(text, [*([LINKS] if links else []), *shared])
    return found(exact_rate(bandwidth), bandwidth)


def _bandwidth(text: str, known: Sequence[str]) -> int:
    """The bytes per second that a text gives, where it might have named a ``known`` link."""
    try:
        bandwidth = parse_rate(text)
    except UnitError:
        what = (
            f"one of {', '.join(known)}, or what a device sends" if known else "what a device sends"
        )
        raise InputError(
            f"expected {what}, as in 50GB/s, got {text!r}{did_you_mean(text, known)}",
            source="kv_link",
        ) from None
    if not bandwidth:
        raise InputError(f"expected a bandwidth above 0 B/s, got {text!r}", source="kv_link")
    return bandwidth


def unlike_link(
    text: str | None,
    hardware: Hardware,
    devices: int,
    prefill_devices: int,
    prefills: int,
    decodes: int,
    block_bytes: int,
) -> KvLink:
    """The link between engines of ``prefill_devices`` and others of ``devices``: what a device of
    either sends and receives.

    Blocks have ``block_bytes`` on each device that receives. Raises :class:`InputError` unless
    ``text`` is a bandwidth.
    """
    _check_ways(prefills, decodes)
    try:
        bandwidth = 0 if text is None else parse_rate(text)
    except UnitError:
        bandwidth = 0
    if text is None or not bandwidth:
        said = "" if text is None else f", got {text!r}"
        raise InputError(
            f"between unlike engines expected what a device sends, as in 50GB/s{said}",
            source="kv_link",
        )
    peers = Peers(prefills, bandwidth, sends=max(1, bandwidth * prefill_devices // devices))
    return KvLink(
        exact_rate(bandwidth), replace(hardware, devices=devices), block_bytes, None, peers
    )


def _check_ways(prefills: int, decodes: int) -> None:
    if prefills * decodes > _MOST_WAYS:
        raise InputError(
            f"expected at most {_MOST_WAYS:,} pairs of an engine that prefills and one that "
            f"decodes, got {prefills * decodes:,}",
            source="prefill_instances",
        )


def _shared_tiers(hardware: Hardware, one_host: bool) -> list[str]:
    """The tiers that all engines share, and that channels lead to and from."""
    device, joined = hardware.device_tier, hardware.channel_between
    scopes = ("host", "global") if one_host else ("global",)
    return [
        tier.name
        for tier in hardware.tiers
        if tier.name != device
        and tier.scope in scopes
        and (device, tier.name) in joined
        and (tier.name, device) in joined
    ]


class KvTransfers:
    """The transfers of a run: when each request's prompt was computed, when its blocks were asked
    for, and when they were there.
    """

    def __init__(self, link: KvLink, channels: EngineChannels, requests: int) -> None:
        self._link = link
        self.block_bytes = link.block_bytes
        self._channels = channels
        self.prefilled_ns = [-1] * requests
        self.fetched_ns = [-1] * requests
        self.there_ns = [-1] * requests

    def handed(
        self,
        number: int,
        ends: tuple[int, int],
        blocks: Sequence[int],
        pool: BlockPool,
        wake: Callable[[], None],
    ) -> _Handed:
        """A prompt has been computed on the first of two engines, in ``blocks`` of its ``pool``,
        and goes to the second.

        ``wake`` is called when its blocks are there.
        """
        self.prefilled_ns[number] = self._channels.clock.now
        return _Handed(self, number, ends, blocks, pool, wake)

    def asked(self, number: int, copy: Awaited) -> None:
        """A request's blocks are asked for; they are there when ``copy`` is over."""
        self.fetched_ns[number] = self._channels.clock.now
        copy.then(lambda: self.there_ns.__setitem__(number, self._channels.clock.now))

    def send(self, ends: tuple[int, int], size: int, copy: Awaited) -> None:
        """Transfer so many bytes, which ends ``copy``."""
        self._channels.issue(self._channels.ways[ends], size, copy)

    def hand_overs(self, senders: Sequence[int], decodes: int, stall_ns: int) -> HandOvers:
        """Return the transfers and the waits; request i was prefilled by engine ``senders[i]``."""
        ways = self._channels.ways.values()
        moved = KvTransferFigures(
            self._link.name,
            self._link.peers.senders,
            decodes,
            sum(way.transfers for way in ways),
            sum(way.bytes for way in ways),
            sum(way.busy_ns for way in ways),
            sum(self.there_ns) - sum(self.prefilled_ns),
            sum(
                max(0, fetched - prefilled)
                for fetched, prefilled in zip(self.fetched_ns, self.prefilled_ns, strict=True)
            ),
            stall_ns,
        )
        return HandOvers(tuple(senders), tuple(self.prefilled_ns), tuple(self.there_ns), moved)


@dataclass(frozen=True)
class _Handed:
    """A prompt that waits to be fetched."""

    transfers: KvTransfers
    number: int
    ends: tuple[int, int]
    blocks: Sequence[int]
    pool: BlockPool
    wake: Callable[[], None]

    @property
    def is_computed(self) -> bool:
        return True

    def fetch(self, blocks: int, after: Sequence[Awaited]) -> Awaited:
        """Bring the contents of its last blocks; those of the sender are free when they are
        there.
        """
        copy = Awaited()
        self.transfers.asked(self.number, copy)
        when_over(
            after, lambda: self.transfers.send(self.ends, blocks * self.transfers.block_bytes, copy)
        )

        def there() -> None:
            self.pool.release(self.blocks)
            self.wake()

        copy.then(there)
        return copy

"""The cache in the tiers of engines' machines, as a policy's text asks for it; a machine that has
no such tier or channel is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from hosim.base.files import did_you_mean
from hosim.errors import InputError, UnitError
from hosim.hardware import Hardware
from hosim.serving.blocks.block_copies import BlockCopies, EngineChannels
from hosim.serving.blocks.block_pool import BlockTier
from hosim.serving.blocks.kv_policies import LOADING, kv_policy
from hosim.serving.blocks.links import SteppedClock
from hosim.serving.blocks.sparse_reading import SparseReads
from hosim.serving.blocks.tiered_pool import TieredPool
from hosim.units import parse_size


@dataclass(frozen=True)
class KvSetup:
    """The setup that :func:`kv_setup` found: each time it is called it makes empty caches.

    ``machine`` has the devices of one engine; ``tiers`` are those below and how many blocks each
    has room for on one of these devices. ``swaps`` says that preempted sequences are swapped out.
    Each host has ``per_host`` engines; ``None``: one host has all. Blocks come up in ``layers``
    parts. With ``reads`` attention reads few blocks of sequences, in ``attention_layers`` layers.
    Contents of tiers are gone once nobody has used them for ``lives_ns``; ``None``: they stay.
    """

    policy: str
    machine: Hardware
    tiers: tuple[tuple[str, int], ...]
    block_bytes: int
    swaps: bool = False
    per_host: int | None = None
    layers: int = 1
    reads: SparseReads | None = None
    attention_layers: int = 1
    lives_ns: int | None = None

    def __call__(
        self,
        clock: SteppedClock,
        blocks: int,
        engines: int = 1,
        channels: EngineChannels | None = None,
    ) -> list[TieredPool]:
        """For each engine an empty cache with ``blocks`` blocks of its own device, and the tiers
        below, some of which engines share.

        ``channels`` are those of the engines, if there are some already.
        """
        policy, parameters = kv_policy(self.policy)
        channels = channels or EngineChannels(clock, self.machine, engines, self.per_host)
        stores: dict[tuple[str, int], BlockTier] = {}
        ticks = count()
        pools = []
        for engine in range(engines):
            tiers = []
            for name, capacity in self.tiers:
                place = name, channels.places.instance(self.machine.tier_scope(name), engine)
                tier = BlockTier(name, capacity, self.lives_ns, lambda: clock.now)
                tiers.append(stores.setdefault(place, tier))
            copies = BlockCopies(channels, self.block_bytes, engine)
            pools.append(TieredPool(blocks, tiers, copies, policy.rules(parameters), ticks))
            pools[-1].layers, pools[-1].reads, pools[-1].attention_layers = (
                self.layers,
                self.reads,
                self.attention_layers,
            )
        return pools


def kv_setup(
    text: str,
    hardware: Hardware,
    devices: int,
    block_bytes: int,
    swaps: bool = False,
    layers: int = 1,
) -> KvSetup:
    """The cache of an engine of so many devices, whose blocks have ``block_bytes`` on each, of
    ``layers``. Raises :class:`InputError`.

    The devices share the tiers of their host, and those of all, evenly. An engine that fits on one
    host is on one.
    """
    _, parameters = kv_policy(text)
    machine = replace(hardware, devices=devices)
    asked, loading = parameters["tiers"], parameters["loading"]
    if loading not in LOADING:
        raise InputError(
            f"expected {' or '.join(LOADING)}, got {loading!r}", source="kv", where="loading"
        )
    sizes = _asked(asked, machine) if asked is not None else dict.fromkeys(_chain(machine))
    if not sizes:
        raise InputError(
            f"{hardware.name} has no tier below {hardware.device_tier} that channels lead to and "
            "from",
            source="kv",
        )
    _check_channels(machine, tuple(sizes))
    part = machine.fair_share
    tiers = []
    for name, size in sizes.items():
        whole = machine.tiers[machine.tier_index[name]].capacity_bytes
        mine = part.tiers[part.tier_index[name]].capacity_bytes
        if size is not None and size > whole:
            raise InputError(
                f"expected at most the {whole:,} B that {hardware.name} has of {name}, got "
                f"{size:,} B",
                source="kv",
                where="tiers",
            )
        tiers.append((name, (mine if size is None else size // devices) // block_bytes))
    return KvSetup(
        text.strip(),
        machine,
        tuple(tiers),
        block_bytes,
        swaps,
        engines_per_host(hardware, devices),
        layers if loading == "layers" else 1,
        lives_ns=_lives_ns(parameters["ttl"]),
    )


def _lives_ns(seconds: float | None) -> int | None:
    """Nanoseconds without use after which blocks are gone from tiers below."""
    if seconds is None:
        return None
    if not 0 < seconds < 1e9:
        raise InputError(
            f"expected seconds above 0 and below a billion, got {seconds:g}",
            source="kv",
            where="ttl",
        )
    return round(seconds * 1e9)


def engines_per_host(hardware: Hardware, devices: int) -> int | None:
    """Return the number of engines of so many devices that each host has; ``None``: one host has
    all.
    """
    return (
        None if hardware.devices_per_host is None else max(1, hardware.devices_per_host // devices)
    )


def _asked(text: str, machine: Hardware) -> dict[str, int | None]:
    """Names of tiers, and the bytes of all devices of the engine together where they are given."""
    sizes: dict[str, int | None] = {}
    below = [tier.name for tier in machine.tiers if tier.name != machine.device_tier]
    for part in text.split("/"):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if name not in below:
            known = ", ".join(below) or "none"
            raise InputError(
                f"{machine.name} has no tier {name!r} below{did_you_mean(name, below)} (tiers: "
                f"{known})",
                source="kv",
                where="tiers",
            )
        if name in sizes:
            raise InputError(f"{name} is given twice; keep one", source="kv", where="tiers")
        try:
            sizes[name] = parse_size(size) if equals else None
        except UnitError as error:
            raise InputError(error.message, source="kv", where=f"tiers, {name}") from None
    return sizes


def _chain(machine: Hardware) -> list[str]:
    """The first tier that channels join to the device, and those that they join to the one
    before.
    """
    joined = machine.channel_between
    chain: list[str] = []
    above = machine.device_tier
    while True:
        following = (
            tier.name
            for tier in machine.tiers
            if tier.name not in (machine.device_tier, *chain)
            and (above, tier.name) in joined
            and (tier.name, above) in joined
        )
        found = next(following, None)
        if found is None:
            return chain
        chain.append(found)
        above = found


def _check_channels(machine: Hardware, tiers: Sequence[str]) -> None:
    """Raise :class:`InputError` unless each tier can be written from the one above, and read to the
    device or the one above.
    """
    above = machine.device_tier
    for name in tiers:
        for way in [((above, name),), ((name, machine.device_tier), (name, above))]:
            if not any(ends in machine.channel_between for ends in way):
                source, destination = way[0]
                raise InputError(
                    f"{machine.name} has no channel from {source} to {destination}: take other "
                    "tiers, or add the channel to the profile",
                    source="kv",
                    where="tiers",
                )
        above = name

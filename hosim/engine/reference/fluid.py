"""Work whose rate changes while it runs: copies that share bandwidth, and ops that copies slow down
(docs/contract.md, rules 6, 13, 19, 22).
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from fractions import Fraction
from functools import lru_cache
from itertools import count, groupby
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import simpy

from hosim.analysis.costmodel import HELD_BYTES_PER_S, MemoryUse
from hosim.analysis.costmodel.transfers import Link, crossed_fabrics, max_min_rates
from hosim.hardware import Channel, Hardware

Steps = Generator[simpy.Event, Any, Any]
"""The steps of a SimPy process."""


class Nanoseconds(simpy.Environment):
    """SimPy's environment in whole nanoseconds.

    ``stirred`` is set if this instant must be settled after its other events (rule 0). ``going``
    counts the running ops, transfers and waits of the replay itself.
    """

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The current instant in ns, an integer because all delays are."""

    def __init__(self) -> None:
        super().__init__()
        self.stirred = False
        self.going = 0

    def run_settling(self, settle: Callable[[], None]) -> None:
        """Process events until nothing of the replay runs.

        ``settle`` is called after the last event of each stirred instant, until the instant is not
        stirred any more. If settling schedules events at the same instant, they come first.
        """
        while True:
            while self.stirred and self.peek() > self.now:
                settle()
            if not self.stirred and not self.going:
                return
            self.step()


Rate = tuple[int, int]
"""A fraction, numerator first. Such pairs are much faster than ``Fraction``."""

STILL: Rate = 0, 1
"""The rate of work that cannot proceed."""


class Progress:
    """Work of which ``left / parts`` remained at ``since`` (ns); it proceeds at ``rate`` a ns."""

    __slots__ = ("done", "env", "left", "parts", "rate", "rings", "since")

    def __init__(self, env: Nanoseconds, left: int) -> None:
        self.env = env
        self.left = left
        self.parts = 1
        self.rate = STILL
        self.since = 0
        self.rings = 0
        self.done = env.event()

    def go(self, rate: Rate) -> None:
        """Proceed at a new rate. The work is done at the first whole nanosecond at which nothing is
        left (rule 6).
        """
        if rate == self.rate:
            return
        now = self.env.now
        done, of = self.rate
        if done:
            parts = lcm(self.parts, of)
            self.left = self.left * (parts // self.parts) - done * (now - self.since) * (
                parts // of
            )
            self.parts = parts
        self.rate, self.since = rate, now
        self.rings += 1
        done, of = rate
        if done or self.left <= 0:
            ns = -(-self.left * of // (done * self.parts)) if self.left > 0 else 0
            self.env.timeout(ns, self.rings).callbacks.append(self._ring)

    def _ring(self, alarm: simpy.Event) -> None:
        if alarm.value == self.rings:  # else the rate has changed since this alarm was set
            self.done.succeed()


class FlowPath(NamedTuple):
    """The path of a flow: a channel and its fabrics, or the fabrics of collectives if ``channel``
    is ``None``. The flow has at most ``most`` bytes a second.
    """

    channel: Channel | None
    most: Fraction | None


class Speeds(dict[MemoryUse, Rate]):
    """The speeds of ops while copies take ``taken`` bytes a second of the memory that the ops use.

    Each is computed once.
    """

    def __init__(self, taken: Fraction) -> None:
        self.taken = taken

    def __missing__(self, use: MemoryUse) -> Rate:
        factor = use.slowdown(self.taken)
        self[use] = speed = STILL if factor is None else (factor.denominator, factor.numerator)
        return speed


class DeviceRates:
    """The flows of one device: ``counts`` and rates by crossing.

    ``exact`` and ``of`` are the rates in bytes a second, ``at`` is the device's instance of each
    scope (rule 11), and ``speeds`` are those of its ops, by the tier that they use.
    """

    def __init__(self, crossings: Sequence[int], at: Mapping[str, int]) -> None:
        self.at = at
        self.counts = Counter(crossings)
        self.exact: dict[int, Fraction] = {}
        self.of: dict[int, Rate] = {}
        self.speeds: dict[str, Speeds] = {}


Pattern = tuple[tuple[tuple[int, ...], ...], ...]
"""For each host and each of its devices, the numbers of the crossings of its flows."""

KEPT_RATES = 10_000
"""The number of patterns whose rates are cached."""


class Fluid:
    """All flows of each device and the ops that they slow down.

    Flows are in bytes times ns a second, ops in ns. ``others`` is set if flows have changed since
    rates were set. ``crossings`` numbers the paths of flows; ``pattern`` has the crossings of each
    device's flows. ``place_of`` has the rates of each device, ``speeds`` those of ops by the bytes
    a second that copies take. If ``folded``, one device stands for all and has its part of every
    shared bandwidth.
    """

    def __init__(self, env: Nanoseconds, hardware: Hardware, folded: bool) -> None:
        self.env = env
        self.hardware = hardware
        self.folded = folded
        devices = range(1 if folded else hardware.devices)
        self.flows: list[dict[Progress, int]] = [{} for _ in devices]
        self.pattern: list[tuple[int, ...]] = [() for _ in devices]
        self.ops: dict[Progress, tuple[str, int, MemoryUse]] = {}
        self.others = False
        self.crossings: dict[FlowPath, int] = {}
        self.speeds: dict[Fraction, Speeds] = {}
        self.hosts = [
            list(group) for _, group in groupby(devices, key=lambda d: hardware.instance("host", d))
        ]
        self.capacity = {
            ("channel", c.name): self._part(c.bandwidth_bytes_per_s, hardware.channel_scope(c))
            for c in hardware.channels
        }
        self.capacity |= {
            ("fabric", f.name): self._part(f.bandwidth_bytes_per_s, f.scope)
            for f in hardware.fabrics
        }
        named = {c.name: c for c in hardware.channels}
        self.beside = [
            (c, named[other], self._part(b, hardware.channel_scope(c)))
            for c in hardware.channels
            for other, b in c.beside
        ]
        self.held = {
            c.name
            for c, by_ops in zip(hardware.channels, hardware.copied_by_ops, strict=True)
            if by_ops
        }
        self.places_of = lru_cache(KEPT_RATES)(self._places_of)
        self.places = self.places_of(tuple([((),) * len(host) for host in self.hosts]))
        self.place_of = list(self.places)

    def _part(self, bandwidth: int, scope: str) -> Fraction:
        """Return the simulated devices' part of a bandwidth."""
        return Fraction(bandwidth, self.hardware.sharers(scope) if self.folded else 1)

    def flow(self, left: int, crossing: int, device: int) -> Steps:
        """Let ``left`` bytes, times ns a second, flow to the end."""
        if left:
            flow, flows = Progress(self.env, left), self.flows[device]
            flows[flow] = crossing
            self._stir(device)
            yield flow.done
            del flows[flow]
            self._stir(device)

    def _stir(self, device: int) -> None:
        self.pattern[device] = tuple(sorted(self.flows[device].values()))
        self.others = self.env.stirred = True

    def compute(
        self, launch: int, left: int, tier: str, device: int, use: MemoryUse | None
    ) -> Steps:
        """Run an op: ``launch`` ns, then ``left`` ns, which take longer beside copies."""
        if launch:
            yield self.env.timeout(launch)
        if use is not None and left > 0:
            op = Progress(self.env, left)
            self.ops[op] = tier, device, use
            op.go(self._speed(tier, device, use))
            yield op.done
            del self.ops[op]

    def crossing(self, channel: Channel | None, most: Fraction | None) -> int:
        """Return the number of a path; a new path gets the next number."""
        return self.crossings.setdefault(FlowPath(channel, most), len(self.crossings))

    # -- rates
    # ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Set all rates: max-min fair for flows (rule 6), and for ops what these leave (rule 13).

        Exchanging two hosts, or two devices of a host, changes no rate. So devices are sorted by
        their flows, which makes more patterns equal.
        """
        self.others = False
        pattern = self.pattern
        ranked = [sorted(host, key=pattern.__getitem__) for host in self.hosts]
        hosts = sorted([(tuple([pattern[d] for d in host]), host) for host in ranked])
        self.places = self.places_of(tuple([flows for flows, _ in hosts]))
        for place, device in zip(self.places, [d for _, host in hosts for d in host], strict=True):
            self.place_of[device] = place
            for flow, crossing in self.flows[device].items():
                flow.go(place.of[crossing])
        for op, (tier, device, use) in self.ops.items():
            op.go(self._speed(tier, device, use))

    def _places_of(self, pattern: Pattern) -> list[DeviceRates]:
        number, listed = count(), list(self.crossings)
        places = [
            DeviceRates(flows, {"device": next(number), "host": h, "global": 0})
            for h, host in enumerate(pattern)
            for flows in host
        ]
        flowing = [(place, crossing, n) for place in places for crossing, n in place.counts.items()]
        classes = [
            (n, listed[crossing].most, self._links(listed[crossing].channel, place.at))
            for place, crossing, n in flowing
        ]
        active = {link for _, _, links in classes for link in links}
        for (place, crossing, _), rate in zip(
            flowing, max_min_rates(classes, self._carried(active, places)), strict=True
        ):
            place.exact[crossing], place.of[crossing] = rate, rate.as_integer_ratio()
        return places

    def _links(self, channel: Channel | None, at: Mapping[str, int]) -> tuple[Link, ...]:
        """Return a channel and its fabrics.

        For collectives, return each fabric as often as it carries their bytes (rule 19).
        """
        if channel is None:
            return tuple(
                [
                    ("fabric", f.name, at[f.scope])
                    for f in crossed_fabrics(self.hardware)
                    for _ in range(f.collectives)
                ]
            )
        fabrics = [f for f in self.hardware.fabrics if channel.name in f.channels]
        return self._own(channel, at), *[("fabric", f.name, at[f.scope]) for f in fabrics]

    def _own(self, channel: Channel, at: Mapping[str, int]) -> Link:
        return "channel", channel.name, at[self.hardware.channel_scope(channel)]

    def _carried(self, active: Set[Link], places: Sequence[DeviceRates]) -> Mapping[Link, Fraction]:
        """Return the bandwidth of each link in bytes a second.

        It is lower while a channel that disturbs it is busy (rule 14, ``beside``).
        """
        carried = {link: self.capacity[link[:2]] for link in active}
        for channel, other, bandwidth in self.beside:
            for own, disturbing in [
                (self._own(channel, place.at), self._own(other, place.at)) for place in places
            ]:
                if own in active and disturbing in active:
                    carried[own] = min(carried[own], bandwidth)
        return carried

    def _speed(self, tier: str, device: int, use: MemoryUse) -> Rate:
        """Return the speed of an op beside the copies that run now."""
        place = self.place_of[device]
        if tier not in place.speeds:
            taken = self._taken(tier, place)
            place.speeds[tier] = self.speeds.setdefault(taken, Speeds(taken))
        return place.speeds[tier][use]

    def _taken(self, tier: str, place: DeviceRates) -> Fraction:
        """Return the bytes a second that copies take of a tier's memory.

        If devices share the tier, each loses its part of what copies take (rule 20).
        """
        hardware, listed, taken = self.hardware, list(self.crossings), Fraction(0)
        scope, processor = (
            hardware.tier_scope(tier),
            hardware.tiers[hardware.tier_index[tier]].compute,
        )
        # If all devices copy the same, each loses what one takes.
        is_whole = self.folded or (processor is not None and processor.alone)
        parts = 1 if is_whole else hardware.sharers(scope)
        for near in [other for other in self.places if other.at[scope] == place.at[scope]]:
            for crossing, n in near.counts.items():
                channel = listed[crossing].channel
                if channel is not None and tier in (channel.source, channel.destination):
                    taken += near.exact[crossing] * n / parts
                if (
                    channel is not None
                    and tier == hardware.device_tier
                    and channel.name in self.held
                ):
                    taken += HELD_BYTES_PER_S  # the device's own processor copies (rule 22)
        return taken

"""What advances at rates that others change: bytes that flow, and ops that run beside them (docs/contract.md, rules 6, 13, 19, 22)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import simpy

from hosim.costmodel import HELD_BYTES_PER_S, MemoryUse
from hosim.costmodel.transfers import Link, crossed_fabrics, max_min_rates
from hosim.hardware import Channel, Hardware

Steps = Generator[simpy.Event, Any, Any]
"""What a SimPy process does."""


class Nanoseconds(simpy.Environment):
    """SimPy's environment in whole nanoseconds. ``stirred``: this instant is to be settled after all else of it (rule 0).

    ``going`` counts what goes on as a part of the replay: while it is 0, only others may change anything.
    """

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The current instant: whole, as all delays are."""

    def __init__(self) -> None:
        super().__init__()
        self.stirred = False
        self.going = 0

    def run_settling(self, settle: Callable[[], None]) -> None:
        """Process events until nothing of the replay goes on; ``settle`` is called after the last one of each instant that is stirred.

        It is called again until nothing is stirred, unless something that begins has to happen first.
        """
        while True:
            while self.stirred and self.peek() > self.now:
                settle()
            if not self.stirred and not self.going:
                return
            self.step()


Rate = tuple[int, int]
"""A fraction, numerator first: computing with these takes a fraction of the time that ``Fraction`` takes."""

STILL: Rate = 0, 1
"""That of what cannot go on."""


class Progress:
    """Something of which ``left`` is to be done, in ``parts`` of one, at ``rate`` a nanosecond since ``since``."""

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
        """Go on at a rate from now on. It is done at the first whole nanosecond at which nothing is left (rule 6)."""
        if rate == self.rate:
            return
        now = self.env.now
        done, of = self.rate
        if done:
            parts = lcm(self.parts, of)
            self.left = self.left * (parts // self.parts) - done * (now - self.since) * (parts // of)
            self.parts = parts
        self.rate, self.since = rate, now
        self.rings += 1
        done, of = rate
        if done or self.left <= 0:
            ns = -(-self.left * of // (done * self.parts)) if self.left > 0 else 0
            self.env.timeout(ns, self.rings).callbacks.append(self._ring)

    def _ring(self, alarm: simpy.Event) -> None:
        if alarm.value == self.rings:  # else the rate has changed since
            self.done.succeed()


class Crossing(NamedTuple):
    """What flows alike: over the same ``links`` at ``most`` bytes a second, on a ``device``; ``channel`` is ``None`` for a collective's."""

    links: tuple[Link, ...]
    most: Fraction | None
    channel: Channel | None
    device: int


Where = tuple[str, int]
"""The tier in which an op reads and writes, and the position of the device whose op it is."""


class Speeds(dict[MemoryUse, Rate]):
    """How fast ops go while copies take so many bytes a second of the memory that they use, each worked out once."""

    __slots__ = ("taken",)

    def __init__(self, taken: Fraction) -> None:
        self.taken = taken

    def __missing__(self, use: MemoryUse) -> Rate:
        factor = use.slowdown(self.taken)
        self[use] = speed = STILL if factor is None else (factor.denominator, factor.numerator)
        return speed


class Rates:
    """The rates of flows that flow together, by what they cross, and the speeds of ops beside them, by where these are."""

    __slots__ = ("counts", "exact", "of", "speeds")

    def __init__(self, counts: Mapping[int, int], rates: Sequence[Fraction]) -> None:
        self.counts = counts
        self.exact = dict(zip(counts, rates, strict=True))
        self.of = {crossing: rate.as_integer_ratio() for crossing, rate in self.exact.items()}
        self.speeds: dict[Where, Speeds] = {}


KEPT_RATES = 10_000
"""Combinations of flows whose rates are kept."""


class Fluid:
    """All of it: bytes times nanoseconds a second that flow, by what they cross, and nanoseconds of ops that copies slow down.

    ``others``: other bytes flow than when ``rates`` were set. ``crossings`` have places as they come, ``speeds`` are those of ops by what
    copies take of the memory that they use.
    """

    def __init__(self, env: Nanoseconds, hardware: Hardware) -> None:
        self.env = env
        self.hardware = hardware
        self.flows: dict[Progress, int] = {}
        self.ops: dict[Progress, tuple[Where, MemoryUse]] = {}
        self.others = False
        self.rates = Rates({}, ())
        self.rates_of = lru_cache(KEPT_RATES)(self._rates_of)
        self.crossings: dict[Crossing, int] = {}
        self.speeds: dict[Fraction, Speeds] = {}
        capacity = {("channel", c.name): c.bandwidth_bytes_per_s for c in hardware.channels}
        self.capacity = capacity | {("fabric", f.name): f.bandwidth_bytes_per_s for f in hardware.fabrics}
        named = {c.name: c for c in hardware.channels}
        self.beside = [
            (self._own(c, d), self._own(named[other], d), Fraction(bandwidth))
            for c in hardware.channels
            for other, bandwidth in c.beside
            for d in range(hardware.devices)
        ]
        self.held = {c.name for c, by_ops in zip(hardware.channels, hardware.copied_by_ops, strict=True) if by_ops}

    def flow(self, left: int, crossing: int) -> Steps:
        """The steps of a process that lets bytes, times nanoseconds a second, flow until none is left."""
        if left:
            flow = Progress(self.env, left)
            self.flows[flow] = crossing
            self.others = self.env.stirred = True
            yield flow.done
            del self.flows[flow]
            self.others = self.env.stirred = True

    def compute(self, launch: int, left: int, where: Where, use: MemoryUse | None) -> Steps:
        """The steps of a process that runs an op: its launch, then so many nanoseconds, longer where copies slow it down."""
        if launch:
            yield self.env.timeout(launch)
        if use is not None and left > 0:
            op = Progress(self.env, left)
            self.ops[op] = where, use
            op.go(self._speed(where, use))
            yield op.done
            del self.ops[op]

    # -- rates ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Set the rates anew: max-min fair for what flows (rule 6); ops have what that leaves (rule 13)."""
        self.others = False
        self.rates = self.rates_of(tuple(sorted(self.flows.values())))
        of = self.rates.of
        for flow, crossing in self.flows.items():
            flow.go(of[crossing])
        for op, (where, use) in self.ops.items():
            op.go(self._speed(where, use))

    def _rates_of(self, crossings: tuple[int, ...]) -> Rates:
        counts, listed = Counter(crossings), list(self.crossings)
        classes = [(count, listed[place].most, listed[place].links) for place, count in counts.items()]
        return Rates(counts, max_min_rates(classes, self._carried({link for _, _, links in classes for link in links})))

    def _carried(self, active: Set[Link]) -> Mapping[Link, Fraction]:
        """What each link carries: less while bytes flow on a channel that disturbs it (rule 14, ``beside``)."""
        carried = {link: Fraction(self.capacity[link[:2]]) for link in active}
        for own, other, bandwidth in self.beside:
            if own in active and other in active:
                carried[own] = min(carried[own], bandwidth)
        return carried

    def _speed(self, where: Where, use: MemoryUse) -> Rate:
        """How fast an op goes while copies take what they take of the memory that it uses."""
        speeds, rates = self.rates.speeds, self.rates
        if where not in speeds:
            listed = list(self.crossings)
            taken = sum([n * self._taken_by(listed[place], rates.exact[place], *where) for place, n in rates.counts.items()], Fraction(0))
            speeds[where] = self.speeds.setdefault(taken, Speeds(taken))
        return speeds[where][use]

    def _taken_by(self, crossing: Crossing, rate: Fraction, tier: str, device: int) -> Fraction:
        """Bytes a second that a copy takes of a device's memory; of a tier that devices share, of each one's part (rule 20)."""
        hardware, channel = self.hardware, crossing.channel
        if channel is None:
            return Fraction(0)
        if tier == hardware.device_tier and crossing.device == device and channel.name in self.held:
            return Fraction(HELD_BYTES_PER_S)  # the device's own processor copies (rule 22)
        scope = hardware.tier_scope(tier)
        near = hardware.instance(scope, crossing.device) == hardware.instance(scope, device)
        return rate / hardware.sharers(scope) if near and tier in (channel.source, channel.destination) else Fraction(0)

    # -- what flows cross --------------------------------------------------------------------------------------------

    def place_of(self, channel: Channel, device: int, most: Fraction | None) -> int:
        """What transfers cross: their channel, and the fabrics that the channel is in."""
        fabrics = [f for f in self.hardware.fabrics if channel.name in f.channels]
        links = self._own(channel, device), *[("fabric", f.name, self.hardware.instance(f.scope, device)) for f in fabrics]
        return self.crossings.setdefault(Crossing(links, most, channel, device), len(self.crossings))

    def place_of_collectives(self, device: int, most: Fraction) -> int:
        """What collectives cross: each fabric as often as it carries their bytes (rule 19)."""
        crossed = crossed_fabrics(self.hardware)
        links = tuple([("fabric", f.name, self.hardware.instance(f.scope, device)) for f in crossed for _ in range(f.collectives)])
        return self.crossings.setdefault(Crossing(links, most, None, device), len(self.crossings))

    def _own(self, channel: Channel, device: int) -> Link:
        return "channel", channel.name, self.hardware.instance(self.hardware.channel_scope(channel), device)

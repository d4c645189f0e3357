"""What advances at rates that others change: bytes that flow, and ops that run beside them (docs/contract.md, rules 6, 13, 19, 22)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import simpy

from hosim.costmodel import HELD_BYTES_PER_S, MemoryUse
from hosim.costmodel.transfers import Link, crossed_fabrics, max_min_rates
from hosim.hardware import Channel, Hardware

Steps = Generator[simpy.Event, Any, Any]
"""What a SimPy process does."""


class Nanoseconds(simpy.Environment):
    """SimPy's environment with an end to every instant: where it is ``stirred``, ``settle`` is called after all else of it (rule 0).

    Time is in whole nanoseconds. ``going`` counts what goes on as a part of the replay: while it is 0, only others may change anything.
    """

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """The current instant: whole, as all delays are."""

    def __init__(self, settle: Callable[[], None]) -> None:
        super().__init__()
        self.settle = settle
        self.stirred = False
        self.going = 0

    def step(self) -> None:
        """Process the next event, as :meth:`run` does again and again."""
        super().step()
        if self.stirred and self.peek() > self.now:
            self.settle()


Flows = tuple[tuple[int, Fraction | None, tuple[Link, ...]], ...]
"""What flows at one time: each the most that it may take and the links that it crosses, as :func:`max_min_rates` has them."""


STILL = Fraction(0)
"""The rate of what cannot go on."""


class Progress:
    """Something of which ``left`` is to be done, at ``rate`` a nanosecond. ``device`` is the position of the one whose it is.

    ``beside``: it is no part of the plan.
    """

    beside = False

    def __init__(self, env: Nanoseconds, left: int, device: int) -> None:
        self.env = env
        self.left: int | Fraction = left
        self.rate = STILL
        self.since = 0
        self.rings = 0
        self.device = device
        self.done = env.event()

    def go(self, rate: Fraction) -> None:
        """Go on at a rate from now on. It is done at the first whole nanosecond at which nothing is left (rule 6)."""
        if rate == self.rate:
            return
        now = self.env.now
        if self.rate:
            self.left -= self.rate * (now - self.since)
        self.rate, self.since = rate, now
        self.rings += 1
        if self.left <= 0:
            self.env.timeout(0, self.rings).callbacks.append(self._ring)
        elif rate:
            left = -(-self.left.numerator * rate.denominator // (self.left.denominator * rate.numerator))
            self.env.timeout(left, self.rings).callbacks.append(self._ring)

    def _ring(self, alarm: simpy.Event) -> None:
        if alarm.value == self.rings:  # else the rate has changed since
            self.done.succeed()


class Flow(Progress):
    """Bytes times nanoseconds a second that cross ``links`` at ``most`` bytes a second; ``channel`` is ``None`` for a collective's."""

    def __init__(
        self, env: Nanoseconds, left: int, device: int, links: tuple[Link, ...], most: Fraction | None, channel: Channel | None
    ) -> None:
        super().__init__(env, left, device)
        self.links = links
        self.most = most
        self.channel = channel


class RunningOp(Progress):
    """Nanoseconds of an op that copies in ``tier`` slow down, by what it uses of the tier's bandwidth."""

    def __init__(self, env: Nanoseconds, left: int, device: int, tier: str, use: MemoryUse) -> None:
        super().__init__(env, left, device)
        self.tier = tier
        self.use = use


class Fluid:
    """All of it. ``others``: other bytes flow than when rates were set; ``begun`` are the ops that have begun since.

    ``taken`` is what copies take of memories now. ``known`` and ``speeds`` keep the rates of flows and of ops that have been found.
    """

    def __init__(self, env: Nanoseconds, hardware: Hardware) -> None:
        self.env = env
        self.hardware = hardware
        self.flows: dict[Flow, None] = {}
        self.ops: dict[RunningOp, None] = {}
        self.others = False
        self.begun: list[RunningOp] = []
        self.taken: dict[tuple[str, int], Fraction] = {}
        self.speeds: dict[tuple[MemoryUse, Fraction], Fraction] = {}
        self.known: dict[Flows, Sequence[Fraction]] = {}
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

    def flow(self, flow: Flow) -> Steps:
        """The steps of a process that lets bytes flow until none is left."""
        if flow.left:
            self.flows[flow] = None
            self.others = self.env.stirred = True
            yield flow.done
            del self.flows[flow]
            self.others = self.env.stirred = True

    def compute(self, op: RunningOp) -> Steps:
        """The steps of a process that runs an op, launch aside, until all of its work is done."""
        self.ops[op] = None
        self.begun.append(op)
        self.env.stirred = True
        yield op.done
        del self.ops[op]

    @property
    def unsettled(self) -> bool:
        """Whether rates are to be set at this instant."""
        return self.others or bool(self.begun)

    # -- rates ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Set the rates anew: max-min fair for what flows (rule 6); ops have what that leaves (rule 13)."""
        changed, self.begun = self.begun, []
        if self.others:
            self.others = False
            self.taken.clear()
            crossed = tuple([(1, flow.most, flow.links) for flow in self.flows])
            if crossed not in self.known:
                self.known[crossed] = max_min_rates(crossed, self._carried())
            for flow, rate in zip(self.flows, self.known[crossed], strict=True):
                flow.go(rate)
            changed = list(self.ops)
        for op in changed:
            op.go(self._speed(op))

    def links(self, channel: Channel, device: int) -> tuple[Link, ...]:
        """What a transfer crosses: its channel, and the fabrics that the channel is in."""
        fabrics = [f for f in self.hardware.fabrics if channel.name in f.channels]
        return (self._own(channel, device), *(("fabric", f.name, self.hardware.instance(f.scope, device)) for f in fabrics))

    def links_of_collectives(self, device: int) -> tuple[Link, ...]:
        """What a collective crosses, as often as its bytes do (rule 19)."""
        crossed = crossed_fabrics(self.hardware)
        return tuple([("fabric", f.name, self.hardware.instance(f.scope, device)) for f in crossed for _ in range(f.collectives)])

    def _own(self, channel: Channel, device: int) -> Link:
        return "channel", channel.name, self.hardware.instance(self.hardware.channel_scope(channel), device)

    def _carried(self) -> Mapping[Link, Fraction]:
        """What each link carries: less while bytes flow on a channel that disturbs it (rule 14, ``beside``)."""
        active = {link for flow in self.flows for link in flow.links}
        carried = {link: Fraction(self.capacity[link[:2]]) for link in active}
        for own, other, bandwidth in self.beside:
            if own in active and other in active:
                carried[own] = min(carried[own], bandwidth)
        return carried

    def _speed(self, op: RunningOp) -> Fraction:
        """How fast an op goes while copies take what they take of the memory that it uses."""
        where = op.tier, op.device
        if where not in self.taken:
            self.taken[where] = sum([self._taken_by(flow, *where) for flow in self.flows if flow.channel is not None], STILL)
        key = op.use, self.taken[where]
        if key not in self.speeds:
            factor = op.use.slowdown(self.taken[where])
            self.speeds[key] = STILL if factor is None else 1 / factor
        return self.speeds[key]

    def _taken_by(self, flow: Flow, tier: str, device: int) -> Fraction:
        """Bytes a second that a copy takes of a device's memory; of a tier that devices share, of each one's part (rule 20)."""
        hardware, channel = self.hardware, flow.channel
        assert channel is not None
        if tier == hardware.device_tier and flow.device == device and channel.name in self.held:
            return Fraction(HELD_BYTES_PER_S)  # the device's own processor copies (rule 22)
        scope = hardware.tier_scope(tier)
        near = hardware.instance(scope, flow.device) == hardware.instance(scope, device)
        return flow.rate / hardware.sharers(scope) if near and tier in (channel.source, channel.destination) else Fraction(0)

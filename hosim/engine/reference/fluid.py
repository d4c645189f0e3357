"""What advances at rates that others change: bytes that flow, and ops that run beside them (docs/contract.md, rules 6, 13, 19, 22)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import simpy

from hosim.costmodel import HELD_BYTES_PER_S, MemoryUse
from hosim.costmodel.transfers import Link, crossed_fabrics, max_min_rates
from hosim.hardware import Channel, Hardware

Steps = Generator[simpy.Event, Any, None]
"""What a SimPy process does."""


class Nanoseconds(simpy.Environment):
    """SimPy's environment, whose time is in whole nanoseconds."""

    @property
    def now(self) -> int:
        """The current instant."""
        return int(super().now)


class Progress:
    """Something of which ``left`` is to be done, at ``rate`` a nanosecond. ``device`` is the position of the one whose it is.

    ``beside``: it is no part of the plan.
    """

    beside = False

    def __init__(self, env: Nanoseconds, left: int, device: int) -> None:
        self.left = Fraction(left)
        self.rate = Fraction(0)
        self.device = device
        self.done = env.event()


class Flow(Progress):
    """Bytes times nanoseconds a second that cross ``links`` at ``most`` bytes a second; ``channel`` is ``None`` for a collective's."""

    def __init__(
        self, env: Nanoseconds, left: int, device: int, links: Sequence[Link], most: Fraction | None, channel: Channel | None
    ) -> None:
        super().__init__(env, left, device)
        self.links = links
        self.most = most
        self.channel = channel


class RunningOp(Progress):
    """Nanoseconds of an op that reads and writes in ``tier``; without a ``use`` nothing slows it down."""

    def __init__(self, env: Nanoseconds, left: int, device: int, tier: str, use: MemoryUse | None) -> None:
        super().__init__(env, left, device)
        self.tier = tier
        self.use = use


class Fluid:
    """All of it on one clock. ``changed`` is called when something begins or ends: then rates are to be set."""

    def __init__(self, env: Nanoseconds, hardware: Hardware, changed: Callable[[], None]) -> None:
        self.env = env
        self.hardware = hardware
        self.changed = changed
        self.active: list[Progress] = []
        self.others = False  # others are active than when rates were set
        self.since = 0
        self.alarms = 0
        capacity = {("channel", c.name): c.bandwidth_bytes_per_s for c in hardware.channels}
        self.capacity = capacity | {("fabric", f.name): f.bandwidth_bytes_per_s for f in hardware.fabrics}
        devices = range(hardware.devices)
        named = {c.name: c for c in hardware.channels}
        self.beside = [
            (self._own(c, d), self._own(named[other], d), Fraction(bandwidth))
            for c in hardware.channels
            for other, bandwidth in c.beside
            for d in devices
        ]
        self.held = {c.name for c, by_ops in zip(hardware.channels, hardware.copied_by_ops, strict=True) if by_ops}

    def run(self, progress: Progress) -> Steps:
        """The steps of a process that does it: until nothing is left."""
        self.advance()
        self.active.append(progress)
        self.others = True
        self.changed()
        yield progress.done

    def advance(self) -> None:
        """What has been done by now."""
        elapsed, self.since = self.env.now - self.since, self.env.now
        for one in self.active if elapsed else ():
            one.left -= one.rate * elapsed

    def settle(self) -> None:
        """Set all rates, and ring when the first is done: at the first whole nanosecond (rule 6)."""
        if not self.others:
            return
        self.others = False
        self.advance()
        self._set_rates()
        self.alarms += 1
        ends = [ceil(one.left / one.rate) if one.left > 0 else 0 for one in self.active if one.rate or one.left <= 0]
        if ends:
            self.env.process(self._ring(self.alarms, min(ends)))

    def _ring(self, number: int, delay: int) -> Steps:
        yield self.env.timeout(delay)
        if number != self.alarms:
            return
        self.advance()
        self.others = True
        done = [one for one in self.active if one.left <= 0]
        self.active = [one for one in self.active if one.left > 0]
        for one in done:
            one.done.succeed()
        self.changed()

    # -- rates ---------------------------------------------------------------------------------------------------

    def links(self, channel: Channel, device: int) -> tuple[Link, ...]:
        """What a transfer crosses: its channel, and the fabrics that the channel is in."""
        fabrics = [f for f in self.hardware.fabrics if channel.name in f.channels]
        return (self._own(channel, device), *(("fabric", f.name, self.hardware.instance(f.scope, device)) for f in fabrics))

    def links_of_collectives(self, device: int) -> list[Link]:
        """What a collective crosses, as often as its bytes do (rule 19)."""
        crossed = crossed_fabrics(self.hardware)
        return [("fabric", f.name, self.hardware.instance(f.scope, device)) for f in crossed for _ in range(f.collectives)]

    def _own(self, channel: Channel, device: int) -> Link:
        return "channel", channel.name, self.hardware.instance(self.hardware.channel_scope(channel), device)

    def _set_rates(self) -> None:
        """Max-min fair for what flows (rule 6); ops have what that leaves (rule 13)."""
        flows = [one for one in self.active if isinstance(one, Flow) and one.left > 0]
        for flow, rate in zip(flows, max_min_rates([(1, f.most, f.links) for f in flows], self._carried(flows)), strict=True):
            flow.rate = rate
        copies = [flow for flow in flows if flow.channel is not None]
        for one in self.active:
            if isinstance(one, RunningOp):
                factor = Fraction(1) if one.use is None else one.use.slowdown(self._taken(one, copies))
                one.rate = Fraction(0) if factor is None else 1 / factor

    def _carried(self, flows: Sequence[Flow]) -> Mapping[Link, Fraction]:
        """What each link carries: less while bytes flow on a channel that disturbs it (rule 14, ``beside``)."""
        active = {link for flow in flows for link in flow.links}
        carried = {link: Fraction(self.capacity[link[:2]]) for link in active}
        for own, other, bandwidth in self.beside:
            if own in active and other in active:
                carried[own] = min(carried[own], bandwidth)
        return carried

    def _taken(self, work: RunningOp, copies: Sequence[Flow]) -> Fraction:
        """Bytes a second that copies take of the memory that an op uses; of a tier that devices share, of each one's part (rule 20)."""
        hardware, taken = self.hardware, Fraction(0)
        scope = hardware.tier_scope(work.tier)
        for flow in copies:
            channel = flow.channel
            assert channel is not None
            if work.tier == hardware.device_tier and flow.device == work.device and channel.name in self.held:
                taken += HELD_BYTES_PER_S  # the device's own processor copies (rule 22)
            elif work.tier in (channel.source, channel.destination):
                near = hardware.instance(scope, flow.device) == hardware.instance(scope, work.device)
                taken += flow.rate / hardware.sharers(scope) if near else 0
        return taken

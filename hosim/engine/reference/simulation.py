"""docs/contract.md as plain SimPy: processes, timeouts and resources, and one settling step after all else of an instant (rule 0).

Start here to read how a replay works. Nothing is taken for speed: everything is looked at again in each round of each instant.
"""

from __future__ import annotations

from hosim.cache_plan import AT_START, Plan
from hosim.costmodel import copies_compete, with_memories
from hosim.costmodel.transfers import NS_PER_S
from hosim.engine.reference.fluid import Flow, Fluid, Nanoseconds, Steps
from hosim.engine.reference.simulated_device import Shared, SimulatedDevice
from hosim.engine.reference.storage import Account
from hosim.hardware import Hardware
from hosim.jitter import Jitter


class Simulation:
    """A plan on all devices of a machine. A process of your own runs beside it on ``env`` (see :meth:`background`).

    ``compete``: whether copies share the memories' bandwidth (rule 13), by default as the rule says. ``error`` says who had no room.

    >>> from hosim.graph import GraphBuilder
    >>> from hosim.cache_plan import CacheOp
    >>> from hosim.shipped import find_hardware
    >>> from hosim.io import load_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter", home="ddr"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    >>> plan = Plan(b.build(), cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, after=0)))
    >>> simulation = Simulation(plan, load_hardware(find_hardware("toy")))
    >>> simulation.run()
    >>> simulation.devices[0].makespan_ns
    90
    """

    def __init__(
        self,
        plan: Plan,
        hardware: Hardware,
        budget_bytes: int | None = None,
        *,
        compete: bool | None = None,
        jitter: Jitter | None = None,
    ) -> None:
        self.env = Nanoseconds()
        self.plan = plan
        self.competes = plan.graph.derived(copies_compete) if compete is None else compete
        self.hardware = with_memories(hardware) if self.competes else hardware
        self.fluid = Fluid(self.env, self.hardware, self.wake)
        self.awake = False
        self.pauses = 0
        self.over = self.env.event()
        self.error: tuple[int, str, str] | None = None
        self.rooms: dict[tuple[str, int], Account] = {}
        self.budget = min(hardware.device.capacity_bytes, hardware.device.capacity_bytes if budget_bytes is None else budget_bytes)
        shared = Shared(self.env, self.hardware, self.fluid, self.competes, jitter, self.pause, self.wake, self.room)
        self.devices = [SimulatedDevice(shared, plan, d) for d in range(hardware.devices)]

    # -- the order within an instant (rule 0) --------------------------------------------------------------------

    def wake(self) -> None:
        """Something has ended: settle this instant after all that ends at it."""
        if not self.awake:
            self.awake = True
            self.env.process(self._instant())

    def _instant(self) -> Steps:
        yield self.env.timeout(0)
        while True:
            while self.env.peek() == self.env.now:
                yield self.env.timeout(0)
            if not self._round():
                break
        self.awake = False
        goes_on = self.pauses or not all([one.beside for one in self.fluid.active])
        if not goes_on and not self.over.triggered:
            self.over.succeed()

    def _round(self) -> bool:
        """Ends, issues, starts of ops, starts of transfers, rates; whether anything has happened."""
        ended = [device.end() for device in self.devices]
        for device, ops in zip(self.devices, ended, strict=True):
            device.issue_after(ops or ())
        started = [device.start_ops() for device in self.devices]
        moved = self._start_transfers()
        self.fluid.settle()
        asked = [device.make_room() for device in self.devices]
        return any([ops is not None for ops in ended]) or any(started) or moved or any(asked)

    def _start_transfers(self) -> bool:
        """In order of issue, whosever they are; one that cannot start holds back those behind it on its channel only (rule 4)."""
        lines = [(device.transfers, line) for device in self.devices for line in device.transfers.lines.values() if line.queue]
        begun = False
        while lines:
            transfers, line = first = min(lines, key=lambda pair: pair[1].queue[0].order)
            if transfers.begin(line):
                begun = True
                if line.queue:
                    continue
            lines.remove(first)
        return begun

    def pause(self, ns: int) -> Steps:
        """Wait; the replay is not over meanwhile."""
        if ns:
            self.pauses += 1
            yield self.env.timeout(ns)
            self.pauses -= 1

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end, or until nothing can proceed. Raises :class:`hosim.errors.PlanError` where the plan breaks a rule."""
        for (tier, _), room in self.rooms.items():
            if room.held > room.capacity:
                self.error = (0, "initial", tier)
                return
        for device in self.devices:
            device.issue_after((AT_START,))
        self.wake()
        self.env.run(until=self.over)
        for device in self.devices:
            device.check()

    def background(self, channel: str, size_bytes: int, device: int = 0) -> Steps:
        """The steps of a process that copies so many bytes over a channel, beside the plan's transfers: a noisy neighbour."""
        spec = next(c for c in self.hardware.channels if c.name == channel)
        yield self.env.timeout(spec.latency_ns)
        flow = Flow(self.env, size_bytes * NS_PER_S, device, self.fluid.links(spec, device), None, spec)
        flow.beside = True
        yield from self.fluid.run(flow)

    def room(self, tier: str, device: int) -> Account:
        """The instance of a tier that a device has (rule 11)."""
        key = tier, self.hardware.instance(self.hardware.tier_scope(tier), device)
        if key not in self.rooms:
            whole = self.hardware.tiers[self.hardware.tier_index[tier]].capacity_bytes
            self.rooms[key] = Account(self.budget if tier == self.hardware.device_tier else whole)
        return self.rooms[key]

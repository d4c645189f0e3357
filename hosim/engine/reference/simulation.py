"""docs/contract.md as plain SimPy: processes and timeouts, and a settling step that comes after all
other events of an instant (rule 0).

Start here to read how a replay works. It is written for clarity, not for speed.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from hosim.analysis import StageExchange
from hosim.analysis.costmodel import copies_compete, with_memories
from hosim.analysis.costmodel.transfers import NS_PER_S
from hosim.cache_plan import Plan, RuntimePolicy
from hosim.engine import oom_reports, result_figures
from hosim.engine.arenas import make_arena
from hosim.engine.ledger import Ledger
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.reference.fluid import Fluid, Nanoseconds, Steps
from hosim.engine.reference.simulated_device import Shared, SimulatedDevice
from hosim.engine.reference.storage import Storage, TierRoom
from hosim.engine.reference.streams import PlannedOps
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.measured_on import check_measured_on
from hosim.processors import tiers_elsewhere
from hosim.result import LEDGER, REFERENCE, Result


class Simulation:
    """The simulation of a plan on all devices of a machine, or of one plan per stage (rule 21).

    ``compete`` makes copies share memory bandwidth (rule 13); by default the rule decides.
    ``record`` keeps the timeline. ``placing`` is the allocator and the bytes that it may reserve,
    ``None`` for the budget (rule 17). ``tied`` has the exchanges of each stage. ``fold`` simulates
    one device for all, because all do the same. ``policy`` is the runtime policy of the first
    device, by default a new one. You may run SimPy processes of your own on ``env``.

    >>> from hosim.graph import GraphBuilder
    >>> from hosim.cache_plan import CacheOp
    >>> from hosim.shipped import find_hardware
    >>> from hosim.io import load_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = (
    ...     b.tensor("w", 40, "parameter", home="ddr"),
    ...     b.op("f", "matmul", inputs=["w"], duration_ns=50),
    ... )
    >>> plan = Plan(
    ...     b.build(),
    ...     cache_ops=(
    ...         CacheOp("prefetch", 0, "ddr", "hbm"),
    ...         CacheOp("detach", 0, "hbm", None, after=0),
    ...     ),
    ... )
    >>> Simulation(plan, load_hardware(find_hardware("toy"))).run().makespan_ns
    90
    """

    def __init__(
        self,
        plan: Plan | Sequence[Plan],
        hardware: Hardware,
        budget_bytes: int | Sequence[int | None] | None = None,
        *,
        record: bool = False,
        placing: tuple[str, int | None] = (LEDGER, None),
        jitter: Jitter | None = None,
        compete: bool | None = None,
        tied: Sequence[Mapping[int, StageExchange]] | None = None,
        fold: bool = False,
        policy: RuntimePolicy | None = None,
    ) -> None:
        self.env = Nanoseconds()
        self.hardware, self.compete, self.jitter, self.tied = hardware, compete, jitter, tied
        self.plans = [plan] * (1 if fold else hardware.devices) if isinstance(plan, Plan) else plan
        self.folded = fold and hardware.devices > 1
        for each in self.plans[:1] if tied is None else self.plans:
            check_measured_on(each.workload, hardware)
            tiers_elsewhere(each.graph, hardware)
        competes = (
            any([each.graph.derived(copies_compete) for each in self.plans])
            if compete is None
            else compete
        )
        self.machine = with_memories(hardware) if competes else hardware
        self.fluid = Fluid(self.env, self.machine, self.folded)
        self.touched: set[int] = set()
        whole = hardware.device.capacity_bytes
        given = (
            [budget_bytes] * len(self.plans)
            if budget_bytes is None or isinstance(budget_bytes, int)
            else budget_bytes
        )
        self.budgets = [whole if budget is None else budget for budget in given]
        self.pools: dict[tuple[str, int], Ledger] = {}
        self.shared = Shared(
            self.env, hardware, self.machine, self.fluid, jitter, self.wake, self.wake_all, policy
        )
        programs = {
            key: PlannedOps(each, hardware, competes)
            for key, each in {id(each): each for each in self.plans}.items()
        }
        self.devices = [
            self._device(programs[id(each)], d, record, placing)
            for d, each in enumerate(self.plans)
        ]

    def _device(
        self, program: PlannedOps, position: int, record: bool, placing: tuple[str, int | None]
    ) -> SimulatedDevice:
        """Make a device and its tiers.

        Each tier has the device's own ledger, and a second one if devices share it (rule 11).
        """
        hardware, graph, budget = (
            self.hardware,
            program.graph,
            min(self.hardware.device.capacity_bytes, self.budgets[position]),
        )
        allocator, reserve = placing
        places = {name: k for k, name in enumerate(graph.streams)}
        arena = make_arena(
            allocator,
            graph,
            [places[op.stream] for op in graph.ops.each()],
            budget if reserve is None else min(hardware.device.capacity_bytes, reserve),
        )
        recorder = TimelineRecorder(graph, hardware) if record else None
        rooms = {}
        for at, tier in enumerate(hardware.tiers):
            own = tier.name == hardware.device_tier
            scope, ledgers = (
                hardware.tier_scope(tier.name),
                [Ledger(budget if own else tier.capacity_bytes)],
            )
            if hardware.sharers(scope) > 1:
                key = tier.name, hardware.instance(scope, position)
                part = tier.capacity_bytes // (hardware.sharers(scope) if self.folded else 1)
                ledgers.append(self.pools.setdefault(key, Ledger(part)))
            rooms[tier.name] = TierRoom(
                self.env,
                graph,
                hardware,
                at,
                ledgers,
                arena if own else None,
                recorder,
                self.wake_all,
                self.folded,
            )
        return SimulatedDevice(
            self.shared,
            program,
            position,
            Storage(rooms, hardware.device_tier),
            arena,
            recorder,
            None if self.tied is None else self.tied[position],
        )

    # -- the order within an instant (rule 0)
    # --------------------------------------------------------------------

    def wake(self, device: int) -> None:
        """Settle the device at this instant, once everything that ends now has ended."""
        self.touched.add(device)
        self.env.stirred = True

    def wake_all(self) -> None:
        """Settle all devices at this instant, because memory that they may wait for is free."""
        self.touched.update(range(len(self.plans)))
        self.env.stirred = True

    def _settle(self) -> None:
        """Run one settling step: a round if a device was touched, else set the rates."""
        if self.touched:
            self._round()
        else:
            self.fluid.settle()
        self.env.stirred = bool(self.touched) or self.fluid.others

    def _round(self) -> None:
        """Run a round on the touched devices: end, issue, start ops, start transfers.

        Then runtime policies make room if nothing runs.
        """
        looked_at = self._touched()
        for device in looked_at:
            device.end()
        for device in looked_at:
            if device.due:
                device.issue()
        if len(looked_at) < len(self.touched):  # ended work freed memory for other devices
            looked_at = self._touched()
        self.touched.clear()
        for device in looked_at:
            device.start_ops()
        if self.touched:  # started ops freed memory for transfers of other devices
            looked_at = [
                device
                for device in self.devices
                if device in looked_at or device.position in self.touched
            ]
        self._start_transfers(looked_at)
        for device in looked_at:
            if device.policy is not None and device.make_room():
                self.touched.add(device.position)

    def _touched(self) -> list[SimulatedDevice]:
        return [self.devices[d] for d in sorted(self.touched)]

    def _start_transfers(self, devices: Sequence[SimulatedDevice]) -> None:
        """Start the transfers of all devices in their order of issue.

        A transfer that cannot start holds back only the later ones in its queue (rule 4).
        """
        ready = [
            (device, queue)
            for device in devices
            for queue in device.transfers.queues
            if queue.is_ready
        ]
        heads = [(queue.pieces[0].order, n) for n, (_, queue) in enumerate(ready)]
        heapify(heads)
        while heads:
            _, n = heappop(heads)
            device, queue = ready[n]
            begun = device.transfers.begin(queue)
            if begun and device.waits_for_room:
                self.touched.add(device.position)  # its ops are looked at again
            if begun and queue.pieces:
                heappush(heads, (queue.pieces[0].order, n))

    # -- running
    # ----------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run until everything has ended or nothing can proceed, and return the result.

        Raises :class:`hosim.errors.PlanError` if the plan breaks a rule, and
        :class:`UncoveredError` if a folded run meets a case in which devices differ.
        """
        found = self._initial_error()
        if found is None:
            self.wake_all()
            self.env.run_settling(self._settle)
            return self._result([device.report() for device in self.devices])
        whose, error = found
        return self._result(
            [
                error if self.tied is None or d == whose else oom_reports.FOR_OTHERS
                for d in range(len(self.devices))
            ]
        )

    def background(self, channel: str, size_bytes: int, device: int = 0) -> Steps:
        """Return the steps of a process that copies ``size_bytes`` over a channel beside the plan's
        transfers, as a noisy neighbour does.
        """
        spec = next(c for c in self.machine.channels if c.name == channel)
        yield self.env.timeout(spec.latency_ns)
        yield from self.fluid.flow(size_bytes * NS_PER_S, self.fluid.crossing(spec, None), device)

    def _initial_error(self) -> tuple[int, str] | None:
        """Return the first device that does not fit at time 0, and its out-of-memory report.

        It is ``None`` if everything fits.
        """
        for device in self.devices:
            for room in device.storage.everywhere:
                if not room.fits(0):
                    return device.position, oom_reports.initial(room.full())
        placed = [device.place_residents() for device in self.devices]
        return (
            None
            if all(placed)
            else (0, oom_reports.unplaced(self.devices[0].storage.device.full()))
        )

    def _result(self, errors: Sequence[str | None]) -> Result:
        """Return the result (docs/formats.md) of one device, or of several with one result for each
        (rule 11).
        """
        results, hardware = [], self.hardware
        meets = any([device.meets or device.exchanges for device in self.devices])
        for device, error, budget in zip(self.devices, errors, self.budgets, strict=True):
            modelled = (
                result_figures.tells_slowing(device.graph, device.program.sent, self.compete),
                meets,
            )
            results.append(
                result_figures.of_device(
                    device.outcome(error),
                    device.plan,
                    hardware,
                    budget,
                    self.jitter,
                    modelled,
                    REFERENCE,
                )
            )
        if hardware.devices == 1:
            return results[0]
        instances = [
            [pool for (name, _), pool in self.pools.items() if name == tier.name]
            or [device.storage.rooms[tier.name].ledgers[0] for device in self.devices]
            for tier in hardware.tiers
        ]
        return result_figures.together(
            results, instances, hardware, self.folded, "device" if self.tied is None else "stage"
        )

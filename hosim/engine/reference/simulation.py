"""docs/contract.md as plain SimPy: processes and timeouts, and one settling step after all else of
an instant (rule 0).

Start here to read how a replay works. Nothing is taken for speed.
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
    """A plan on all devices of a machine, or the plans of stages (rule 21). A process of your own
    runs beside it on ``env``.

    ``compete``: whether copies share the bandwidth of memories (rule 13), by default as the rule
    says. ``record`` keeps the timeline, ``placing`` is the allocator and the bytes that it may
    reserve if not the budget's (rule 17), ``tied`` are the exchanges of stages. ``fold``: one
    device stands for all, which do the same. ``policy`` is the runtime policy of the first device,
    by default a fresh one.

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
        """A device with its tiers, each with its ledger and that of all devices that share the tier
        with it (rule 11).
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
        """Something has ended at this device: settle this instant after all that ends at it."""
        self.touched.add(device)
        self.env.stirred = True

    def wake_all(self) -> None:
        """There is room again that any device may wait for."""
        self.touched.update(range(len(self.plans)))
        self.env.stirred = True

    def _settle(self) -> None:
        """A step of settling an instant: a round, and when nothing is touched any more, rates."""
        if self.touched:
            self._round()
        else:
            self.fluid.settle()
        self.env.stirred = bool(self.touched) or self.fluid.others

    def _round(self) -> None:
        """Ends, issues, starts of ops, starts of transfers; and if nothing is under way then,
        policies make room.
        """
        looked_at = self._touched()
        for device in looked_at:
            device.end()
        for device in looked_at:
            if device.due:
                device.issue()
        if len(looked_at) < len(self.touched):  # there is room again for others
            looked_at = self._touched()
        self.touched.clear()
        for device in looked_at:
            device.start_ops()
        if self.touched:  # there is room again for the transfers of others
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
        """In order of issue, whosever they are; one that cannot start holds back those behind it on
        its channel only (rule 4).
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
        """Run to the end, or until nothing can proceed: the result.

        Raises :class:`hosim.errors.PlanError` where the plan breaks a rule, and
        :class:`UncoveredError` where one device cannot stand for all.
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
        """The steps of a process that copies so many bytes over a channel, beside the plan's
        transfers: a noisy neighbour.
        """
        spec = next(c for c in self.machine.channels if c.name == channel)
        yield self.env.timeout(spec.latency_ns)
        yield from self.fluid.flow(size_bytes * NS_PER_S, self.fluid.crossing(spec, None), device)

    def _initial_error(self) -> tuple[int, str] | None:
        """The out-of-memory report of what is more than a tier holds at time 0, and whose it is: of
        equal plans it is everyone's.
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
        """The figures of a result (docs/formats.md): one device's, or those of several with each of
        them (rule 11).
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

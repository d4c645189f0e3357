"""What a simulated step consists of, whatever the plan: its streams and what they wait for, its tiers, its channels."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from random import Random

from hosim.analysis import HappensBefore
from hosim.costmodel import MemoryUse, copies_compete, copy_uses, machine_of_copies
from hosim.engine import compile_graph
from hosim.planner.hyperoffload.problem import Problem
from hosim.planner.hyperoffload.simulated_moves import SimulatedMoves
from hosim.planner.hyperoffload.simulator_state import NEVER, ORDER, RunState
from hosim.planner.hyperoffload.transfer_rates import Rate, TransferRates, flow_ns, volume


class StepModel:
    """The step of ``problem`` within ``budget_bytes``: what no plan changes."""

    def __init__(self, problem: Problem, budget_bytes: int, tiers: Sequence[str]) -> None:
        graph, hardware = problem.graph, problem.hardware
        self.problem = problem
        base = graph.derived(compile_graph)
        order = graph.derived(HappensBefore)
        self.count = len(graph.ops)
        self.sizes = list(base.sizes)
        self.queues = [list(queue) for queue in order.queues]
        self.stream_of, self.place = order.stream_of, order.place
        self.durations = problem.durations
        self.start_bytes = [launch[0] for launch in base.launch]
        self.end_bytes = [finish[0] for finish in base.finish]
        self.waits = {i: launch[2] for i, launch in enumerate(base.launch) if launch[2]}
        self.perhaps = {i: finish[2] for i, finish in enumerate(base.finish) if finish[2]}
        self.last_places = {t: self._last_places(t) for ts in self.perhaps.values() for t in ts}
        self.writes = [op.writes for op in graph.ops]
        devices = hardware.devices
        self.alike = devices == 1 or devices % hardware.sharers("host") == 0
        self.capacities, self.parts = [], []
        for name in tiers:
            tier = hardware.tiers[hardware.tier_index[name]]
            self.capacities.append(tier.capacity_bytes)
            self.parts.append(tier.capacity_bytes // hardware.sharers(hardware.tier_scope(name)))
        self.capacities[0] = min(self.capacities[0], budget_bytes)
        self.parts[0] = self.capacities[0]
        machine = machine_of_copies(graph, hardware)
        self.rates = TransferRates(graph, machine)
        self.upward = [c.destination == hardware.device_tier for c in machine.channels]
        self.engines = [c.engines for c in machine.channels]
        self.latencies = [c.latency_ns for c in machine.channels]
        competes = graph.derived(copies_compete)
        self.uses: Mapping[int, MemoryUse] = copy_uses(graph, hardware, problem.durations, competes)
        self.tiers = list(tiers)
        self.pins = [hardware.tiers[hardware.tier_index[name]].pin_ns > 0 for name in tiers]
        self.pooled = [hardware.tiers[hardware.tier_index[name]].pin_pool for name in tiers]
        self.pinning = any(self.pins)
        draw = Random(0)
        self.weights = [draw.getrandbits(62) for _ in graph.tensors]
        self.slowdowns = defaultdict[Rate, dict[int, tuple[int, int]]](dict)
        """By what copies take of the device tier's bandwidth, and by op, the factor by which it takes longer, as a fraction."""
        self.flow_kinds: dict[tuple[int, int], tuple[int, bool, int, Rate]] = {}

    def _last_places(self, t: int) -> tuple[tuple[int, int], ...]:
        """By stream how many ops have ended when the last user of a tensor there has."""
        last: dict[int, int] = {}
        for i in self.problem.graph.users[t]:
            last[self.stream_of[i]] = self.place[i] + 1
        return tuple(last.items())

    def begin(self, moving: Mapping[int, SimulatedMoves]) -> RunState:
        """The state at time 0, before anything is issued; ``failed`` if it does not fit."""
        graph, tiers = self.problem.graph, len(self.capacities)
        held, pinned = [0] * tiers, [0] * tiers
        wide = tiers > 4
        states: bytearray | list[int] = [0] * len(self.sizes) if wide else bytearray(len(self.sizes))
        mark = 0
        for t in graph.initial:
            size = self.sizes[t]
            moves = moving.get(t)
            state = moves.state if moves is not None else 0
            if state & 3 == 0:
                held[0] += size
            for k in range(1, tiers):
                if state >> 2 * k & 3:
                    held[k] += size
                    if self.pins[k] and self.rates.pinning_ns(t, self.tiers[k]):
                        pinned[k] += size
            states[t] = state
            mark += state * self.weights[t]
        streams = len(self.queues)
        state_ = RunState(
            0, 0, [0] * streams, [-1] * streams, [NEVER] * streams, [None] * streams, [0] * streams, [ORDER] * streams, held, states, mark,
            {}, [deque() for _ in self.upward], 0, [], 0, pinned, list(pinned), list(held), [False] * tiers,
        )  # fmt: skip
        state_.failed = any(h > min(c, p) for h, c, p in zip(held, self.capacities, self.parts, strict=True))
        return state_

    def flow_kind(self, channel: int, t: int) -> tuple[int, bool, int, Rate]:
        """Of a tensor's transfer: its class, whether its rate never changes, then how long its bytes flow and how fast."""
        key = channel, t
        if key not in self.flow_kinds:
            kind = self.rates.class_of(channel, t)
            alone = self.rates.alone[channel]
            rate: Rate = self.rates.of((kind,))[0][0] if alone else 0
            self.flow_kinds[key] = kind, alone, flow_ns(volume(self.sizes[t]), rate) if alone else 0, rate
        return self.flow_kinds[key]

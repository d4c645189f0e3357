"""A replay by the compiled loop: the table of a plan, and what the loop has counted.

It covers one device, or one that stands for all; static plans, runtime policies, ops on other processors, collectives, jitter. What raises
:class:`UncoveredError` here the reference replays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hosim.cache_plan import PREFETCH, Plan, RuntimePolicy
from hosim.costmodel import copies_compete, op_durations
from hosim.costmodel.transfers import (
    NS_PER_S,
    channel_bandwidth,
    is_pageable,
    meeting_ranks,
)
from hosim.engine import result_figures
from hosim.engine.decisions import PLACES_OF_A_TENSOR, Decisions
from hosim.engine.flow_table import FOR_SOME, TOO_LARGE, UncoveredError
from hosim.engine.hops import ROUTES, SEVERAL, Hop, initial_tiers, resolve_hop
from hosim.engine.jittered_times import jittered, transfer_factors
from hosim.engine.ledger import LEDGER_KINDS, Ledger, composition_of
from hosim.engine.loop_cells import ASYMMETRIC, ENDED, INSPECTS, NEVER, VALID
from hosim.engine.program_base import base_of, jittered_base
from hosim.engine.program_table import CHANNEL_FIGURES, ProgramTable, TableMove
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.result import LOOP, STALL_CAUSES, EventTimes, Result, StreamFigures, Transfer
from hosim.units import LARGEST


@dataclass(slots=True)
class _ChannelFigures:
    """What the loop counts of a channel."""

    transfers: int
    bytes: int
    busy_ns: int
    queue_ns: int
    contention_ns: int


def check_loop(hardware: Hardware, folded: bool, recorded: bool) -> None:
    """Raise :class:`UncoveredError` where the loop does not cover what is asked for; ``folded``: one device may stand for all."""
    if recorded:
        raise UncoveredError("timelines and allocators")
    if hardware.devices > 1 and not folded:
        raise UncoveredError("devices that do not do the same")


def looped(
    plan: Plan, hardware: Hardware, budget_bytes: int, jitter: Jitter | None, compete: bool | None, policy: RuntimePolicy | None
) -> Result | None:
    """The result of a plan; ``None`` where it does not end well: the reference says why. Of several devices one stands for all.

    ``policy`` is the one that decides during the replay, if there is one.

    Raises :class:`UncoveredError` for what the loop does not cover.
    """
    replay = _LoopReplay(plan, hardware, budget_bytes, jitter, compete, policy)
    if not replay.ends_well():
        return None
    graph, several = plan.graph, hardware.devices > 1
    modelled = result_figures.tells_slowing(graph, replay.base.sent, compete), several and bool(meeting_ranks(graph))
    did = replay.outcome()
    result = result_figures.of_device(did, plan, hardware, budget_bytes, jitter, modelled, LOOP)
    return result_figures.together([result], [[ledger] for ledger in did.ledgers], hardware, True) if several else result


def looped_times(plan: Plan, hardware: Hardware, budget_bytes: int) -> EventTimes | None:
    """When ops and transfers begin and end; ``None`` and :class:`UncoveredError` are as in :func:`looped`."""
    replay = _LoopReplay(plan, hardware, budget_bytes, None, None, None)
    return replay.times() if replay.ends_well() else None


class _LoopReplay:
    """One replay: a plan in a table of its own."""

    def __init__(
        self,
        plan: Plan,
        hardware: Hardware,
        budget_bytes: int,
        jitter: Jitter | None,
        compete: bool | None,
        policy: RuntimePolicy | None,
    ) -> None:
        graph = plan.graph
        competes = graph.derived(copies_compete) if compete is None else compete
        if jitter is None:
            base = base_of(graph, hardware, competes)
        else:
            base = jittered_base(graph, hardware, competes, jittered(plan, graph.derived_on(hardware, op_durations), jitter, 0, {}))
        self.plan, self.hardware, self.base = plan, hardware, base
        self._factor = None if jitter is None else transfer_factors(jitter, 0, plan.workload)
        self._best: dict[tuple[int, int, str], int] = {}
        columns = _columns(plan, hardware)
        if self._factor is not None and policy is not None and plan.cache_ops:
            raise UncoveredError("jitter of a plan's copies beside a policy's")  # which copy is the next one is known as they are issued
        room = [0] * len(graph.tensors)
        for t in columns["tensor"]:
            room[t] += 1
        decisions = 0 if policy is None else PLACES_OF_A_TENSOR * len(graph.tensors) + 1
        self.table = ProgramTable(base, budget_bytes, room, True, decisions)
        self._put(columns)
        self._starts = initial_tiers(plan, hardware)
        self.table.reset(self._starts)
        self.decisions = None if policy is None else Decisions(policy, self.table, hardware, self._decided)

    def _put(self, columns: Mapping[str, Sequence[int]]) -> None:
        """Put the plan into the table."""
        table, tensors = self.table, columns["tensor"]
        best = [self._best_rate(c, t) for c, t in zip(columns["channel"], tensors, strict=True)]
        table.fill({**columns, "best": best})
        if self._factor is not None:  # volumes in order of issue, whichever move is issued first
            for t in sorted(set(tensors)):
                base = table.cells["next_volume"][t] = table.base[t]
                copies = sum([table.cells["copies"][k] for k in range(base, table.base[t + 1])])
                for k in range(base, base + copies):
                    table.flow(k, self._volume(t))

    def _decided(self, k: int, move: TableMove) -> None:
        """Put what a runtime policy has decided on into a place."""
        self.table.place(k, move)
        self.table.cells["move_best"][k] = self._best_rate(move.channel, move.tensor)
        if self._factor is not None and move.channel >= 0:
            self.table.flow(k, self._volume(move.tensor))

    def _volume(self, t: int) -> int:
        """What flows of a tensor's next copy (rule 15)."""
        assert self._factor is not None
        return round(self.plan.graph.tensors[t].size_bytes * NS_PER_S * self._factor(t))

    def _best_rate(self, channel: int, t: int) -> int:
        """The rate at which a tensor's bytes flow on a channel if they share nothing, as the loop has it; 1 for a detach."""
        if channel < 0:
            return 1
        tensor, machine = self.plan.graph.tensors[t], self.base.machine
        kind = channel, tensor.size_bytes, tensor.kind
        if kind not in self._best:
            c = machine.channels[channel]
            ceiling = c.ceiling(tensor.size_bytes, is_pageable(machine, c, tensor.kind))
            whole = channel_bandwidth(machine, c.name)
            self._best[kind] = (whole if ceiling is None else min(whole, int(ceiling))) * self.base.flows.scale
            if self._best[kind] > LARGEST:
                raise UncoveredError(TOO_LARGE)
        return self._best[kind]

    def ends_well(self) -> bool:
        """Whether all has ended, and what survives is where it was."""
        table = self.table
        if not table.fits:
            return False
        table.loop.begin()
        while (status := table.run(NEVER, NEVER)) >= INSPECTS:
            assert self.decisions is not None
            self.decisions.answer(status, table.loop.wanted)
        if status == ASYMMETRIC:
            raise UncoveredError(FOR_SOME)
        now, transfers = table.cells["scalars"][0], table.cells["scalars"][2]
        if max(now, *self.base.sizes, 1) * (transfers + 1) > LARGEST:
            raise UncoveredError(TOO_LARGE)  # sums of waits and of bytes
        return status == ENDED and self._persists()

    def _persists(self) -> bool:
        """Whether what survives the step is valid again where it was at time 0 (rule 2)."""
        tensors, here = self.plan.graph.tensors, self.table.cells["here"]
        return all([here[r * len(tensors) + t] == VALID for t, tiers in self._starts.items() if tensors[t].survives for r in tiers])

    def times(self) -> EventTimes:
        """When each op and transfer began and ended; transfers in the order of their ends, then of issue."""
        cells, machine = self.table.cells, self.base.machine
        end, start = list(cells["op_over"][: cells["ops"]]), [0] * cells["ops"]
        for s in range(cells["streams"]):
            free = 0
            for i in cells["queue"][cells["queue_from"][s] : cells["queue_from"][s + 1]]:
                start[i], free = free + cells["op_idle"][i], end[i]
        begun, over, sequence = cells["move_begun"], cells["move_over"], cells["sequence"]
        ran = [k for k in range(self.table.base[-1]) if cells["copies"][k] and cells["ended"][k]]
        transfers = []
        for k in sorted(ran, key=lambda k: (over[k], sequence[k])):
            t, channel = cells["move_tensor"][k], machine.channels[cells["move_channel"][k]].name
            place, size, issue = cells["move_order"][k], self.base.sizes[t], cells["issued_at"][k]
            transfers.append(Transfer(place, t, channel, size, issue, begun[k], over[k], cells["move_shared"][k]))
        return EventTimes(tuple(start), tuple(end), tuple(transfers))

    def outcome(self) -> result_figures.Outcome:
        """What the loop has counted."""
        cells, graph = self.table.cells, self.plan.graph
        makespan = max([cells["scalars"][3], *cells["free_since"]])
        streams = {}
        for s, name in enumerate(graph.streams):
            queue = cells["queue"][cells["queue_from"][s] : cells["queue_from"][s + 1]]
            busy = sum([self.base.durations[i] for i in queue]) + cells["slowed"][s]
            stalls = dict(zip(STALL_CAUSES, cells["stalls"][len(STALL_CAUSES) * s :], strict=False))
            streams[name] = StreamFigures(busy, stalls, makespan - cells["free_since"][s])
        channels: list[tuple[result_figures.ChannelCounts, int]] = []
        for c in range(cells["channels"]):
            exposed, transfers, busy, queued, contention, _, moved = cells["channel_figures"][
                CHANNEL_FIGURES * c : CHANNEL_FIGURES * (c + 1)
            ]
            channels.append((_ChannelFigures(transfers, moved, busy, queued, contention), exposed))
        ledgers = []
        for r, tier in enumerate(self.hardware.tiers):
            ledger = Ledger(tier.capacity_bytes)
            ledger.peak, ledger.peak_at = cells["peak"][r], cells["peak_at"][r]
            by_kind = cells["peak_by_kind"][r * cells["kinds"] : (r + 1) * cells["kinds"]]
            ledger.peak_composition = sum([composition_of(kind, size) for kind, size in zip(LEDGER_KINDS, by_kind, strict=True)])
            ledgers.append(ledger)
        slowed = sum(cells["slowed"][: cells["streams"]])
        made = {} if self.decisions is None else self.decisions.made
        return result_figures.Outcome(None, makespan, streams, slowed, 0, ledgers, channels, made, None, None)


def _columns(plan: Plan, hardware: Hardware) -> dict[str, Sequence[int]]:
    """The cache ops, tensor by tensor in order of issue, as columns. Raises :class:`UncoveredError` for a route of several channels."""
    known: dict[tuple[str, str, str | None], Hop] = {}
    hops, keys, cache_ops = [], [], plan.cache_ops
    for k, c in enumerate(cache_ops):
        kind = c.op, c.source, c.destination
        if kind not in known:
            known[kind] = resolve_hop(*kind, hardware, f"cache_ops[{k}]")
        hops.append(known[kind])
        keys.append(c.tensor * (len(plan.graph.ops) + 1) + c.after)
    if any([hop.channel == SEVERAL for hop in known.values()]):
        raise UncoveredError(ROUTES)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    device = hardware.tier_index[hardware.device_tier]
    arrives = {hop: hop.destination if hop.destination != device or hop.op == PREFETCH else -1 for hop in known.values()}
    return {
        "tensor": [cache_ops[k].tensor for k in order],
        "source": [hops[k].source for k in order],
        "target": [hops[k].destination for k in order],
        "channel": [hops[k].channel for k in order],
        "after": [cache_ops[k].after for k in order],
        "order": order,
        "arrives": [arrives[hops[k]] for k in order],
    }

"""A replay by the compiled loop: which plans it covers, the table of a plan, and what the loop has counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hosim.cache_plan import DETACH, PREFETCH, Plan
from hosim.costmodel import MemoryUse, copies_compete, copy_uses, op_durations, with_memories
from hosim.costmodel.transfers import NS_PER_S, channel_bandwidth, is_pageable, sent_bytes
from hosim.engine.compiled_plan import SEVERAL, Hop, resolve_hop
from hosim.engine.flow_table import UncoveredError
from hosim.engine.jittered_times import jittered, transfer_factors
from hosim.engine.ledger import LEDGER_KINDS, Ledger, composition_of
from hosim.engine.loop_cells import ENDED, NEVER, VALID
from hosim.engine.program_table import CHANNEL_FIGURES, ProgramTable, TableMove
from hosim.engine.result_figures import ChannelCounts, Outcome
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.result import STALL_CAUSES, StreamFigures


@dataclass(slots=True)
class _ChannelFigures:
    """What the loop counts of a channel."""

    transfers: int
    bytes: int
    busy_ns: int
    queue_ns: int
    contention_ns: int


def not_covered(plan: Plan, hardware: Hardware, jitter: Jitter | None) -> str | None:
    """Why the loop does not replay a plan, as far as that can be said without trying; ``None``: it may."""
    graph = plan.graph
    several = len(graph.streams) > 1
    reasons = {
        "several devices": hardware.devices > 1,
        "runtime policies": plan.runtime is not None,
        "ops on other processors": bool(graph.elsewhere),
        "collectives that cross fabrics": bool(graph.derived_on(hardware, sent_bytes)),
        "jitter of transfers on several streams": several and jitter is not None and bool(jitter.transfer_sigma),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def looped(plan: Plan, hardware: Hardware, budget_bytes: int, jitter: Jitter | None, compete: bool | None) -> Outcome | None:
    """What the loop counts of a plan; ``None`` where it does not end well: whoever else replays it says why.

    Raises :class:`UncoveredError` for what the loop does not cover.
    """
    graph = plan.graph
    competes = graph.derived(copies_compete) if compete is None else compete
    alone = op_durations(graph, hardware)
    uses = copy_uses(graph, hardware, alone, competes)
    durations = alone if jitter is None else jittered(plan, alone, jitter, 0, {})
    machine = with_memories(hardware) if competes else hardware
    table = table_of(plan, hardware, machine, durations, uses, budget_bytes, jitter)
    if not table.fits:
        return None
    table.loop.begin()
    if table.run(NEVER, NEVER) != ENDED or not _persists(table, plan, hardware):
        return None
    return _outcome(table, graph, hardware, durations)


def _persists(table: ProgramTable, plan: Plan, hardware: Hardware) -> bool:
    """Whether what survives the step is valid again where it was at time 0 (rule 2)."""
    tensors, here = plan.graph.tensors, table.cells["here"]
    return all(here[r * len(tensors) + t] == VALID for t, tiers in _initial(plan, hardware).items() if tensors[t].survives for r in tiers)


def _outcome(table: ProgramTable, graph: Graph, hardware: Hardware, durations: Sequence[int]) -> Outcome:
    cells = table.cells
    makespan = max([cells["scalars"][3], *cells["free_since"]])
    streams = {}
    for s, name in enumerate(graph.streams):
        queue = cells["queue"][cells["queue_from"][s] : cells["queue_from"][s + 1]]
        busy = sum([durations[i] for i in queue]) + cells["slowed"][s]
        stalls = dict.fromkeys(STALL_CAUSES, 0) | dict(zip(("dependency", "transfer", "capacity"), cells["stalls"][3 * s :], strict=False))
        streams[name] = StreamFigures(busy, stalls, makespan - cells["free_since"][s])
    channels: list[tuple[ChannelCounts, int]] = []
    for c in range(cells["channels"]):
        exposed, transfers, busy, queued, contention, _, moved = cells["channel_figures"][CHANNEL_FIGURES * c : CHANNEL_FIGURES * (c + 1)]
        channels.append((_ChannelFigures(transfers, moved, busy, queued, contention), exposed))
    ledgers = []
    for r, tier in enumerate(hardware.tiers):
        ledger = Ledger(tier.capacity_bytes)
        ledger.peak, ledger.peak_at = cells["peak"][r], cells["peak_at"][r]
        by_kind = cells["peak_by_kind"][r * cells["kinds"] : (r + 1) * cells["kinds"]]
        ledger.peak_composition = sum([composition_of(kind, size) for kind, size in zip(LEDGER_KINDS, by_kind, strict=True)])
        ledgers.append(ledger)
    slowed = sum(cells["slowed"][: cells["streams"]])
    return Outcome(None, makespan, streams, slowed, 0, ledgers, channels, {"prefetch": 0, "store": 0, "detach": 0}, None, None)


def table_of(
    plan: Plan,
    hardware: Hardware,
    machine: Hardware,
    durations: Sequence[int],
    uses: Mapping[int, MemoryUse],
    budget_bytes: int,
    jitter: Jitter | None = None,
) -> ProgramTable:
    """The table of a plan, at time 0. Raises :class:`UncoveredError` for what the loop does not cover."""
    graph = plan.graph
    moves = _moves(plan, hardware)
    by_tensor: dict[int, list[TableMove]] = {}
    for move in moves:
        by_tensor.setdefault(move.tensor, []).append(move)
    room = [len(by_tensor.get(t, ())) for t in range(len(graph.tensors))]
    table = ProgramTable(graph, machine, durations, uses, budget_bytes, room, detailed=True)
    device = hardware.tier_index[hardware.device_tier]
    factor = None if jitter is None else transfer_factors(jitter, 0, plan.workload)
    known: dict[tuple[int, int, str], int] = {}
    for t, mine in by_tensor.items():
        tensor = graph.tensors[t]
        mine.sort(key=lambda move: (move.after, move.order))
        base = table.base[t]
        for k, move in enumerate(mine, base):
            table.put(k, move)
            if move.channel >= 0:
                where = move.channel, tensor.size_bytes, tensor.kind
                if where not in known:
                    known[where] = _bandwidth(machine, *where)
                volume = tensor.size_bytes * NS_PER_S
                volume = volume if factor is None else round(volume * factor(t))
                table.flow(k, volume, -(-volume // known[where]))
        arrives = [move.target == device and plan.cache_ops[move.order].op == PREFETCH for move in mine]
        users = graph.compact_users[t]
        uses = table.cells["user"][table.cells["user_from"][t] : table.cells["user_from"][t + 1]]
        for number, first, last in needs(users, [t in graph.ops[i].writes for i in users], mine, arrives, base):
            table.cells["need_from"][uses[number]], table.cells["need_to"][uses[number]] = first, last
    table.reset(_initial(plan, hardware))
    return table


def _bandwidth(machine: Hardware, channel: int, size_bytes: int, kind: str) -> int:
    """Bytes per second of a transfer that is alone on the machine."""
    c = machine.channels[channel]
    ceiling = c.ceiling(size_bytes, is_pageable(machine, c, kind))
    whole = channel_bandwidth(machine, c.name)
    return whole if ceiling is None else min(whole, int(ceiling))


def _initial(plan: Plan, hardware: Hardware) -> dict[int, list[int]]:
    """The tiers in which tensors are at time 0, by position."""
    index, graph = hardware.tier_index, plan.graph
    initial = {t: [index[graph.tensors[t].home or hardware.device_tier]] for t in graph.initial}
    return initial | {t: [index[tier] for tier in tiers] for t, tiers in plan.initial.items()}


def needs(
    users: Sequence[int], writes: Sequence[bool], moves: Sequence[TableMove], arrives: Sequence[bool], base: int
) -> list[tuple[int, int, int]]:
    """What each use of a tensor waits for (rule 1): the number of the use, the first of its moves that counts and the one after the last.

    ``moves`` are the tensor's in order; the first of them has the place ``base``.
    """
    found = []
    written = passed = 0
    last = -1  # the last prefetch that stands before the use
    for number, (i, writing) in enumerate(zip(users, writes, strict=True)):
        while passed < len(moves) and moves[passed].after < i:
            if arrives[passed]:
                last = passed
            passed += 1
        if writing:
            found.append((number, base + written, base + passed))
            written = passed
        elif last >= 0:
            found.append((number, base + last, base + last + 1))
    return found


def _moves(plan: Plan, hardware: Hardware) -> list[TableMove]:
    hops: dict[tuple[str, str, str | None], Hop] = {}
    moves = []
    for k, c in enumerate(plan.cache_ops):
        kind = c.op, c.source, c.destination
        if kind not in hops:
            hops[kind] = resolve_hop(*kind, hardware, f"cache_ops[{k}]")
        hop = hops[kind]
        if hop.channel == SEVERAL:
            raise UncoveredError
        target, channel = (-1, -1) if c.op == DETACH else (hop.destination, hop.channel)
        moves.append(TableMove(c.tensor, hop.source, target, channel, c.after, k))
    return moves

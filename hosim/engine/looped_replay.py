"""A replay by the compiled loop: which plans it covers, and the table of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosim.cache_plan import DETACH, PREFETCH, Plan
from hosim.costmodel.memory_traffic import MemoryUse
from hosim.engine.compiled_plan import SEVERAL, Hop, resolve_hop
from hosim.engine.flow_table import UncoveredError
from hosim.engine.program_table import Move, ProgramTable
from hosim.hardware import Hardware


def table_of(
    plan: Plan,
    hardware: Hardware,
    machine: Hardware,
    durations: Sequence[int],
    uses: Mapping[int, MemoryUse],
    budget_bytes: int,
) -> ProgramTable:
    """The table of a plan, at time 0. Raises :class:`UncoveredError` for what the loop does not cover."""
    graph = plan.graph
    moves = _moves(plan, hardware)
    by_tensor: dict[int, list[Move]] = {}
    for move in moves:
        by_tensor.setdefault(move.tensor, []).append(move)
    room = [len(by_tensor.get(t, ())) for t in range(len(graph.tensors))]
    table = ProgramTable(graph, machine, durations, uses, budget_bytes, room, detailed=True)
    device = hardware.tier_index[hardware.device_tier]
    use_of = {(i, t): u for i, t, u in _uses(table)}
    for t, mine in by_tensor.items():
        mine.sort(key=lambda move: (move.after, move.order))
        base = table.base[t]
        for k, move in enumerate(mine, base):
            table.put(k, move)
        arrives = [move.target == device and plan.cache_ops[move.order].op == PREFETCH for move in mine]
        for u, first, last in needs(graph.users[t], [t in graph.ops[i].writes for i in graph.users[t]], mine, arrives, base):
            i = graph.users[t][u]
            table.cells["need_from"][use_of[i, t]], table.cells["need_to"][use_of[i, t]] = first, last
    index = hardware.tier_index
    initial = {t: [index[graph.tensors[t].home or hardware.device_tier]] for t in graph.initial}
    initial |= {t: [index[tier] for tier in tiers] for t, tiers in plan.initial.items()}
    table.reset(initial)
    return table


def needs(
    users: Sequence[int], writes: Sequence[bool], moves: Sequence[Move], arrives: Sequence[bool], base: int
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


def _uses(table: ProgramTable) -> list[tuple[int, int, int]]:
    cells = table.cells
    return [(cells["use_op"][u], cells["use_tensor"][u], u) for u in range(cells["use_from"][cells["ops"]])]


def _moves(plan: Plan, hardware: Hardware) -> list[Move]:
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
        moves.append(Move(c.tensor, hop.source, target, channel, c.after, k))
    return moves

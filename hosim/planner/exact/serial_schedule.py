"""A schedule that always exists: one thing at a time, every tensor that may leave leaves. Where the
exact search begins.
"""

from __future__ import annotations

from hosim.cache_plan import AT_START
from hosim.planner.exact.decision_space import Movable, Space
from hosim.planner.exact.exact_schedule import Schedule, StoreAt, TakenAbsence


def serial(space: Space) -> Schedule | None:
    """Before each op its tensors come up, after it they go down again; None if this machine cannot
    move some tensor both ways.

    Feasible within any budget that holds each op's own tensors beside what can never leave.
    """
    joined = [tier for tier in space.lower if tier.up is not None and tier.down is not None]
    if not joined:
        return None
    count = len(space.graph.ops)
    device = space.hardware.device_tier
    now = 0
    starts: list[int] = []
    aways: list[TakenAbsence] = []
    stores: list[StoreAt] = []
    initial: dict[int, tuple[str, ...]] = {}
    using: list[list[Movable]] = [[] for _ in range(count)]
    away: dict[int, tuple[TakenAbsence, str]] = {}
    for movable in space.movables:
        t = movable.tensor
        for u in space.graph.users[t]:
            using[u].append(movable)
        tier = next((w.name for w in space.lower if w.name == movable.home), joined[0].name)
        begins = next((a for a in movable.absences if a.after == AT_START), None)
        if movable.free_start:
            initial[t] = (device,) if begins is None else (tier,)
        if begins is not None:
            if movable.home == device and not movable.free_start:
                return None
            away[t] = (TakenAbsence(begins, None if begins.dead else tier, 0, None), tier)
    tiers = {tier.name: tier for tier in space.lower}
    for i in range(count):
        for movable in using[i]:
            t = movable.tensor
            if t in away:
                gone, tier = away.pop(t)
                back = None
                if gone.absence.returns:
                    up = tiers[tier].up
                    if up is None:
                        return None
                    back, now = now, now + space.transfer_ns(up, movable.size_bytes)
                aways.append(TakenAbsence(gone.absence, gone.tier, gone.release_ns, back))
        starts.append(now)
        now += space.durations[i]
        for movable in using[i]:
            t = movable.tensor
            tier = next((w.name for w in space.lower if w.name == movable.home), joined[0].name)
            a = next((a for a in movable.absences if a.after == i), None)
            written = t in space.graph.ops[i].writes
            below_at_start = movable.home not in (None, device) or (
                movable.free_start and device not in initial[t]
            )
            last = movable.persistent and i == movable.writers[-1] and below_at_start
            version = a.version if a is not None else len(movable.writers) - 1
            stored = any(s.tensor == t and s.version == version for s in stores)
            fresh = movable.writers[version] != AT_START or not below_at_start
            if ((a is not None and not a.dead) or (last and written)) and fresh and not stored:
                down = tiers[tier].down
                if down is None:
                    return None
                length = space.transfer_ns(down, movable.size_bytes)
                stores.append(StoreAt(t, version, tier, now, now + length))
                now += length
            if a is not None:
                away[t] = (TakenAbsence(a, None if a.dead else tier, now, None), tier)
    aways += [gone for gone, _ in away.values()]
    return Schedule(now, tuple(starts), tuple(aways), tuple(stores), initial)

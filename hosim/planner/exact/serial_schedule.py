"""A schedule that always exists: one thing at a time, every tensor that may leave leaves. Where the exact search begins."""

from __future__ import annotations

from hosim.planner.exact.decision_space import START, Course, Space
from hosim.planner.exact.exact_schedule import Away, Schedule, StoreAt


def serial(space: Space) -> Schedule | None:
    """Before each op its tensors come up, after it they go down again; None if some tensor cannot go both ways on this machine.

    Feasible within any budget that holds each op's own tensors beside what can never leave.
    """
    ways = [tier for tier in space.lower if tier.up is not None and tier.down is not None]
    if not ways:
        return None
    count = len(space.graph.ops)
    device = space.hardware.device_tier
    now = 0
    starts: list[int] = []
    aways: list[Away] = []
    stores: list[StoreAt] = []
    initial: dict[int, tuple[str, ...]] = {}
    using: list[list[Course]] = [[] for _ in range(count)]
    away: dict[int, tuple[Away, str]] = {}
    for course in space.courses:
        t = course.tensor
        for u in space.graph.users[t]:
            using[u].append(course)
        tier = next((w.name for w in space.lower if w.name == course.home), ways[0].name)
        begins = next((a for a in course.absences if a.after == START), None)
        if course.free_start:
            initial[t] = (device,) if begins is None else (tier,)
        if begins is not None:
            if course.home == device and not course.free_start:
                return None
            away[t] = (Away(begins, None if begins.dead else tier, 0, None), tier)
    tiers = {tier.name: tier for tier in space.lower}
    for i in range(count):
        for course in using[i]:
            t = course.tensor
            if t in away:
                gone, tier = away.pop(t)
                back = None
                if gone.absence.returns:
                    up = tiers[tier].up
                    if up is None:
                        return None
                    back, now = now, now + space.transfer_ns(up, course.size_bytes)
                aways.append(Away(gone.absence, gone.tier, gone.release_ns, back))
        starts.append(now)
        now += space.durations[i]
        for course in using[i]:
            t = course.tensor
            tier = next((w.name for w in space.lower if w.name == course.home), ways[0].name)
            a = next((a for a in course.absences if a.after == i), None)
            written = t in space.graph.ops[i].writes
            below_at_start = course.home not in (None, device) or (course.free_start and device not in initial[t])
            last = course.persistent and i == course.writers[-1] and below_at_start
            version = a.version if a is not None else len(course.writers) - 1
            stored = any(s.tensor == t and s.version == version for s in stores)
            fresh = course.writers[version] != START or not below_at_start
            if ((a is not None and not a.dead) or (last and written)) and fresh and not stored:
                down = tiers[tier].down
                if down is None:
                    return None
                length = space.transfer_ns(down, course.size_bytes)
                stores.append(StoreAt(t, version, tier, now, now + length))
                now += length
            if a is not None:
                away[t] = (Away(a, None if a.dead else tier, now, None), tier)
    for gone, tier in away.values():
        a = gone.absence
        back = None
        if a.before == count and device in initial.get(a.tensor, ()):
            up = tiers[tier].up
            if up is None:
                return None
            back, now = now, now + space.transfer_ns(up, space.graph.tensors[a.tensor].size_bytes)
        aways.append(Away(a, gone.tier, gone.release_ns, back))
    return Schedule(now, tuple(starts), tuple(aways), tuple(stores), initial)

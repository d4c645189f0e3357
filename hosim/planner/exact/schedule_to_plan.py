"""From a schedule of the exact model to a plan of cache ops that the engine replays.

A schedule says when each transfer starts, a plan after which op it is issued: the last one that has ended by then. Transfers issued at
one place are issued in the order of their starts, so each channel's first-in first-out queue keeps the schedule's order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.planner.exact.decision_space import Space
from hosim.planner.exact.exact_schedule import Schedule


@dataclass(frozen=True, slots=True)
class Placed:
    """A cache op with the time for which the schedule has it, and its rank among those of that time."""

    at_ns: int
    rank: int
    cache_op: CacheOp

    def moved(self, after: int) -> Placed:
        """The same, issued after another op."""
        c = self.cache_op
        return Placed(self.at_ns, self.rank, CacheOp(c.op, c.tensor, c.source, c.destination, after))


def placed(space: Space, schedule: Schedule) -> list[Placed]:
    """The cache ops of a schedule, in order of issue."""
    device = space.hardware.device_tier
    ends = [start + duration for start, duration in zip(schedule.op_start_ns, space.durations, strict=True)]
    tight = set(space.lower_tight)

    def position(at: int) -> int:
        return bisect_right(ends, at) - 1

    found: list[Placed] = []
    for s in schedule.stores:
        writer = next(c for c in space.movables if c.tensor == s.tensor).writers[s.version]
        found.append(Placed(s.start_ns, 1, CacheOp(STORE, s.tensor, device, s.tier, max(position(s.start_ns), writer))))
    for gone in schedule.aways:
        a = gone.absence
        if a.after == AT_START and device not in schedule.initial.get(a.tensor, (device,) if _at_home(space, a.tensor) else ()):
            pass  # it was never there
        else:
            begun = [s.start_ns for s in schedule.stores if s.tensor == a.tensor and s.start_ns < gone.release_ns]
            left = ends[a.after] if a.after >= 0 else 0
            at, rank = max([(left, 0), *((start, 2) for start in begun)])
            found.append(Placed(at, rank, CacheOp(DETACH, a.tensor, device, None, max(a.after, position(at)))))
        if gone.back_ns is not None and gone.tier is not None:
            after = max(a.after, position(gone.back_ns))
            found.append(Placed(gone.back_ns, 1, CacheOp(PREFETCH, a.tensor, gone.tier, device, after)))
            if gone.tier in tight and _last_from(space, schedule, a.tensor, a.after, gone.tier):
                found.append(Placed(gone.back_ns, 2, CacheOp(DETACH, a.tensor, gone.tier, None, after)))
    return sorted(found, key=lambda p: (p.cache_op.after, p.at_ns, p.rank, p.cache_op.tensor))


def plan_of(space: Space, schedule: Schedule, order: list[Placed], policy: str) -> Plan:
    """The plan with these cache ops."""
    roomy = next((tier.name for tier in space.lower if tier.name not in space.lower_tight), "")
    initial: dict[int, tuple[str, ...]] = dict.fromkeys(space.idle, (roomy,))
    initial.update({t: where for t, where in schedule.initial.items() if where != (space.hardware.device_tier,)})
    return Plan(space.graph, policy, tuple(p.cache_op for p in order), dict(sorted(initial.items())))


def _at_home(space: Space, t: int) -> bool:
    return (space.graph.tensors[t].home or space.hardware.device_tier) == space.hardware.device_tier


def _last_from(space: Space, schedule: Schedule, t: int, after: int, tier: str) -> bool:
    """Whether no later absence needs the copy in the tier, nor the end of the step."""
    movable = next(c for c in space.movables if c.tensor == t)
    version = next(a.version for a in movable.absences if a.after == after)
    later = any(
        g.tier == tier and g.absence.after > after and g.absence.version == version for g in schedule.aways if g.absence.tensor == t
    )
    final = movable.persistent and version == len(movable.writers) - 1
    return not later and not (final and tier in _initial(space, schedule.initial, t))


def _initial(space: Space, chosen: Mapping[int, tuple[str, ...]], t: int) -> tuple[str, ...]:
    return chosen.get(t, (space.graph.tensors[t].home or space.hardware.device_tier,))

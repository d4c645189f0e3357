"""A replayed plan as a schedule of the exact model: where the search for a better one begins."""

from __future__ import annotations

from itertools import pairwise

from hosim.cache_plan import AT_START, STORE, Plan
from hosim.planner.exact.decision_space import Movable, Space
from hosim.planner.exact.exact_schedule import Schedule, StoreAt, TakenAbsence
from hosim.result import Result, Timeline


def observed(space: Space, plan: Plan, result: Result) -> Schedule:
    """Return the schedule of the replay, in the model's terms; ``result`` must be feasible and have
    its timeline.

    Transfers that the model's space has no name for (a copy that nobody needs) are left out.
    """
    timeline = result.timeline
    if timeline is None or result.makespan_ns is None:
        raise ValueError("expected a feasible result with its timeline: replay with record=True")
    device = space.hardware.device_tier
    residency = plan.residency(device)
    aways: list[TakenAbsence] = []
    stores: list[StoreAt] = []
    initial: dict[int, tuple[str, ...]] = {}
    for movable in space.movables:
        t = movable.tensor
        if movable.free_start:
            initial[t] = tuple(residency[t])
        held = sorted(
            (r.start_ns, r.end_ns)
            for r in timeline.residencies
            if r.tensor == t and r.tier == device
        )
        moves = [(x, plan.cache_ops[x.cache_op]) for x in timeline.transfers if x.tensor == t]
        for x, cache_op in moves:
            if cache_op.op == STORE and cache_op.destination is not None:
                version = max(
                    (v for v, w in enumerate(movable.writers) if _end(timeline, w) <= x.start_ns),
                    default=0,
                )
                if all(
                    (s.tensor, s.version, s.tier) != (t, version, cache_op.destination)
                    for s in stores
                ):
                    stores.append(StoreAt(t, version, cache_op.destination, x.start_ns, x.end_ns))
        for a in movable.absences:
            left = max([_end(timeline, u) for u in space.uses_before(a)], default=0)
            right = min(
                [timeline.op_start_ns[u] for u in space.uses_after(a)], default=result.makespan_ns
            )
            if left > right:  # on another stream a later use has overtaken an earlier one
                continue
            out = _outside(held, left, right)
            if a.dead:
                aways.append(TakenAbsence(a, None, left, None))
            elif out is not None:
                release, back = out
                fetch = next(
                    (c.source for x, c in moves if x.start_ns == back and c.destination == device),
                    None,
                )
                tier = fetch or _copy(space, movable, a.version, stores, residency.get(t, ()))
                if tier is not None:
                    aways.append(
                        TakenAbsence(a, tier, release, back if fetch is not None else None)
                    )
    return Schedule(result.makespan_ns, timeline.op_start_ns, tuple(aways), tuple(stores), initial)


def _end(timeline: Timeline, i: int) -> int:
    return timeline.op_end_ns[i] if i != AT_START else 0


def _outside(held: list[tuple[int, int]], left: int, right: int) -> tuple[int, int] | None:
    """The longest time within ``[left, right]`` in which the device tier does not hold the tensor;
    None if it always does.
    """
    bounds = [left, *(x for interval in held for x in interval if left <= x <= right), right]
    out = [
        (a, b) for a, b in pairwise(bounds) if b > a and not any(s <= a and b <= e for s, e in held)
    ]
    return max(out, key=lambda o: o[1] - o[0], default=None)


def _copy(
    space: Space, movable: Movable, version: int, stores: list[StoreAt], starts: tuple[str, ...]
) -> str | None:
    """A tier below that holds the version."""
    for s in stores:
        if s.tensor == movable.tensor and s.version == version:
            return s.tier
    if version == 0 and movable.starts:
        below = [tier.name for tier in space.lower if tier.name in starts]
        if below:
            return below[0]
        unwritten = len(movable.writers) == 1 and movable.free_start
        return space.lower[0].name if unwritten else None
    return None

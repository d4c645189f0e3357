"""Capacities of the lower tiers in the exact model, for tiers that could not hold every tensor at
once.

A copy below holds its bytes from time 0 or from the start of its store, and until its last transfer
back has ended; until the end of the step if it is what remains, or what rule 2 of docs/contract.md
wants there.
"""

from __future__ import annotations

from typing import Any

from hosim.planner.exact.constraint_model import Model
from hosim.planner.exact.decision_space import Movable


def add_lower_capacities(model: Model) -> None:
    """Add one cumulative constraint per tight lower tier."""
    space = model.space
    moving = {movable.tensor for movable in space.movables}
    for tier in space.lower:
        if tier.name not in space.lower_tight:
            continue
        tensors = enumerate(space.graph.tensors)
        held = sum(
            model.units(x.size_bytes)
            for t, x in tensors
            if x.home == tier.name and t not in moving and t in space.graph.initial
        )
        intervals: list[Any] = []
        sizes: list[int] = []
        for movable in space.movables:
            for interval in _copies(model, movable, tier.name):
                intervals.append(interval)
                sizes.append(model.units(movable.size_bytes))
        model.cp.add_cumulative(intervals, sizes, -(-tier.capacity_bytes // model.unit) - held)


def _copies(model: Model, movable: Movable, tier: str) -> list[Any]:
    cp, t = model.cp, movable.tensor
    found = []
    initial = model.init_lower[t, tier]
    last = len(movable.writers) - 1
    if movable.starts and initial is not False:
        end = cp.new_int_var(0, model.horizon, "")
        for a in movable.absences:
            if a.version == 0 and (t, a.after) in model.aways:
                _until_back(model, t, a.after, tier, end, initial)
        if movable.persistent and not last:
            _enforced(model, end >= model.makespan, [initial])
        size = cp.new_int_var(0, model.horizon, "")
        found.append(
            cp.new_interval_var(0, size, end, "")
            if initial is True
            else cp.new_optional_interval_var(0, size, end, initial, "")
        )
    for (tensor, version, where), (start, present) in model.stores.items():
        if (tensor, where) != (t, tier):
            continue
        end, size = cp.new_int_var(0, model.horizon, ""), cp.new_int_var(0, model.horizon, "")
        cp.add(end >= start + model.store_ns[t, tier]).only_enforce_if(present)
        for a in movable.absences:
            if a.version == version and (t, a.after) in model.aways:
                _until_back(model, t, a.after, tier, end, present)
        if movable.persistent and version == last and initial is not False:
            _enforced(model, end >= model.makespan, [present, initial])
        found.append(cp.new_optional_interval_var(start, size, end, present, ""))
    return found


def _until_back(model: Model, t: int, after: int, tier: str, end: Any, there: Any) -> None:
    """A copy that an absence relies on stays until the transfer back has ended, or for good."""
    var = model.aways[t, after]
    fetched = var.fetch.get(tier)
    if fetched is not None:
        _enforced(model, end >= var.back + model.fetch_ns[t, tier], [fetched, there])
    if var.absence.before == model.count:
        gone = [var.keep[tier], there] + ([~fetched] if fetched is not None else [])
        _enforced(model, end >= model.makespan, gone)


def _enforced(model: Model, constraint: Any, literals: list[Any]) -> None:
    """The constraint wherever all literals hold; those that always do are ``True``."""
    kept = [literal for literal in literals if literal is not True]
    added = model.cp.add(constraint)
    if kept:
        added.only_enforce_if(kept)

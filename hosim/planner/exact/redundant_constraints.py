"""Redundant constraints of the exact model: they exclude no plan, and carry most of its proof.

Where memory would run out at an op if everything were there (a *tight* op), enough bytes are absent
when it starts and, as nothing leaves while it runs, enough when it ends. Literals say which:
``at_start[i]`` implies that the contents have left by the op's start and that their transfer back
starts later, ``at_end[i]`` that it does not start before the op's end. They turn the schedule's
times into sums that a linear relaxation understands:

- the bytes of the tensors absent at a tight op are at least what does not fit;
- between the end of an op and the start of a later one there is time for the transfer back of every
  tensor that is absent at the first one's end and used by the second one's start, and for those of
  all absences in between;
- between the end of an op and the start of a later one there is time for the store of every version
  that the first one, or an op between them, wrote and that is absent, or gone and back, by then.
"""

from collections.abc import Iterable
from typing import Any

from hosim.cache_plan import AT_START
from hosim.planner.exact.constraint_model import AbsenceVars, Literals, Model
from hosim.planner.exact.decision_space import Movable, OptionalAbsence, Space


def add_redundant_constraints(model: Model) -> None:
    """Add all redundant constraints; fills in the model's ``at_start`` and ``at_end``."""
    surplus = _surplus(model)
    at_start, at_end = model.at_start, model.at_end
    for movable in model.space.movables:
        for a in movable.absences:
            key = movable.tensor, a.after
            var = model.aways.get(key)
            tight = [i for i in range(model.count) if surplus[i] > 0 and model.space.inside(a, i)]
            if var is None:
                at_start[key] = at_end[key] = dict.fromkeys(tight, True)
                continue
            at_start[key] = {i: _absent(model, var, i, True) for i in tight}
            at_end[key] = {i: _absent(model, var, i, False) for i in tight}
    for i, missing in enumerate(surplus):
        if missing <= 0:
            continue
        for literals in (at_start, at_end):
            here = [
                (movable, literals[movable.tensor, a.after])
                for movable in model.space.movables
                for a in movable.absences
            ]
            model.cp.add(
                sum(
                    [
                        model.units(movable.size_bytes) * found[i]
                        for movable, found in here
                        if i in found
                    ]
                )
                >= missing
            )
    _time_up(model, at_end)
    _time_down(model, at_start)


def _surplus(model: Model) -> list[int]:
    """By op, the units by which it would exceed the capacity if every tensor were there whenever it
    could be.
    """
    space = model.space
    surplus = [model.units(op.workspace_bytes) - model.capacity for op in space.graph.ops]
    if not space.order.single:
        for t in {*(t for t, _, _ in space.fixed), *(c.tensor for c in space.movables)}:
            size = model.units(space.graph.tensors[t].size_bytes)
            for i in range(model.count):
                surplus[i] += size * space.surely_held(t, i)
        return surplus
    spans = [(t, first, last) for t, first, last in space.fixed]
    spans += [
        (c.tensor, -1 if c.starts else c.first, model.count if c.survives else c.last)
        for c in space.movables
    ]
    for t, first, last in spans:
        size = model.units(space.graph.tensors[t].size_bytes)
        for i in range(max(first, 0), min(last, model.count - 1) + 1):
            surplus[i] += size
    return surplus


def _absent(model: Model, var: AbsenceVars, i: int, at_start: bool) -> Any:
    cp, a = model.cp, var.absence
    literal = cp.new_bool_var(f"absent_{a.tensor}_{a.after}_{i}_{at_start:d}")
    lasts = model.space.durations[i] > 0
    cp.add_implication(literal, var.away)
    if at_start:
        cp.add(var.back >= model.begin(i) + lasts).only_enforce_if(literal)
    else:
        cp.add(var.back >= model.end(i)).only_enforce_if(literal)
    if var.stored:
        cp.add(
            var.release <= (model.begin(i) if at_start else model.end(i) - lasts)
        ).only_enforce_if(literal)
    return literal


def _over_by(space: Space, a: OptionalAbsence, j: int) -> bool:
    """Return whether an absence is over when op ``j`` (the end of the step) starts: an op that
    waits for the transfer back is j or before it.
    """
    if space.order.single or a.before == len(space.graph.ops):
        return a.before <= j
    return any(space.order.ended_by(u, j) for u in space.uses_after(a))


def _since(space: Space, a: OptionalAbsence, i: int) -> bool:
    """Return whether an absence begins after op ``i`` has ended."""
    if space.order.single or AT_START in (i, a.after):
        return a.after >= i
    return any(space.order.ended_by(i, u) for u in space.uses_before(a))


def _time_up(model: Model, at_end: Literals) -> None:
    lanes = sum(tier.up is not None for tier in model.space.lower)
    fetches = [
        (
            var,
            min(model.fetch_ns[var.absence.tensor, tier] for tier in var.fetch),
            sum(var.fetch.values()),
        )
        for var in model.aways.values()
        if var.fetch
    ]
    space = model.space
    for j in range(model.count + 1):
        for i in range(-1, j):
            if not space.order.precedes(i, j):
                continue
            terms = []
            for var, length, fetched in fetches:
                a = var.absence
                if not _over_by(space, a, j):
                    continue
                if _since(space, a, i):
                    terms.append(length * fetched)
                elif i in at_end[a.tensor, a.after] and (
                    a.before < model.count or model.init_device.get(a.tensor) is True
                ):
                    terms.append(length * at_end[a.tensor, a.after][i])
            if terms:
                model.cp.add(lanes * (model.begin(j) - model.end(i)) >= sum(terms))


def _time_down(model: Model, at_start: Literals) -> None:
    lanes = sum(tier.down is not None for tier in model.space.lower)
    for i in range(model.count):
        for j in range(i + 1, model.count + 1):
            if not model.space.order.precedes(i, j):
                continue
            terms = list(_stored_between(model, at_start, i, j))
            if terms:
                model.cp.add(lanes * (model.begin(j) - model.end(i)) >= sum(terms))


def _stored_between(model: Model, at_start: Literals, i: int, j: int) -> Iterable[Any]:
    """Store time of what ops from i on wrote and must have stored by the start of op j."""
    for movable in model.space.movables:
        for version, writer in enumerate(movable.writers):
            if writer >= 0 and model.space.order.ended_by(i, writer):
                literal = _stored_by(model, movable, version, j, at_start)
                if literal is not None:
                    yield model.shortest_store_ns(movable.tensor) * literal


def _stored_by(model: Model, movable: Movable, version: int, j: int, at_start: Literals) -> Any:
    """A literal that implies that the version has been stored by the start of op ``j`` (the end of
    the step); None if there is none.
    """
    stores = [
        present
        for (t, v, _), (_, present) in model.stores.items()
        if (t, v) == (movable.tensor, version)
    ]
    if not stores:
        return None
    rewriter = movable.rewriters[version]
    if j == model.count or (rewriter < model.count and model.space.order.ended_by(rewriter, j)):
        return sum(stores)
    if version == 0 and movable.free_start:
        return None
    latest = None
    for a in movable.absences:
        if a.version != version or a.dead:
            continue
        if _over_by(model.space, a, j):
            latest = model.aways[movable.tensor, a.after].away
        elif j in at_start[movable.tensor, a.after]:
            latest = at_start[movable.tensor, a.after][j]
    return latest

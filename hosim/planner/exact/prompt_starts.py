"""On several streams: nothing waits without a reason, as constraints of the exact model.

The model of :mod:`hosim.planner.exact.constraint_model` may delay anything; on several streams a
schedule gains by that, where an op of one stream leaves its memory to another. The engine starts an
op as soon as it is ready and fits, and a transfer as soon as it has been issued, its channel is
idle and it fits (docs/contract.md, rules 1, 3 and 4). So in every replay

- an op starts when something ends that it waits for, or memory was short for it until then;
- a transfer starts when an op of the places where it may be issued ends, when its channel or its
  tensor becomes free, or memory was short.

On one stream, :mod:`hosim.planner.exact.lazy_constraints` has rules like these, which are added
where a schedule breaks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hosim.cache_plan import AT_START
from hosim.planner.exact.constraint_model import Model
from hosim.planner.exact.decision_space import Space
from hosim.planner.exact.exact_schedule import Schedule
from hosim.planner.exact.lazy_constraints import back_until, held_bytes, need


def hurries(model: Model) -> bool:
    """Return whether these constraints hold: on several streams, where the model has all sizes
    exactly and says of each tensor where it is.
    """
    return not model.space.order.single and not model.space.idle and model.exact


def add_prompt_starts(model: Model) -> None:
    """Add those that are always in the model."""
    if not hurries(model):
        return
    space = model.space
    for i in range(model.count):
        reasons = list(_ready(model, i))
        reasons.append(_short(model, model.start[i], need(space, i)))
        model.cp.add_bool_or(reasons)
    for (t, after), var in model.aways.items():
        for tier, fetched in var.fetch.items():
            reasons = list(_issued(model, var.back, after, var.absence.before))
            if var.stored:
                reasons.append(_equal(model, var.back, var.release))
            for key, gone in model.aways.items():
                if key != (t, after) and tier in gone.fetch:
                    reasons.append(
                        _equal(
                            model,
                            var.back,
                            gone.back + model.fetch_ns[key[0], tier],
                            gone.fetch[tier],
                        )
                    )
            reasons.append(_short(model, var.back, space.graph.tensors[t].size_bytes))
            model.cp.add_bool_or([~fetched, *reasons])
    for (t, version, tier), (start, present) in model.stores.items():
        if tier in space.lower_tight:
            continue
        movable = space.movable[t]
        reasons = list(_issued(model, start, movable.writers[version], movable.rewriters[version]))
        for (other, _, where), (begin, stored) in model.stores.items():
            if begin is not start and (where == tier or other == t):
                reasons.append(_equal(model, start, begin + model.store_ns[other, where], stored))
        for (other, _), var in model.aways.items():
            if other == t:
                reasons += [
                    _equal(model, start, var.back + model.fetch_ns[t, w], literal)
                    for w, literal in var.fetch.items()
                ]
        model.cp.add_bool_or([~present, *reasons])


def _ready(model: Model, i: int) -> Iterator[Any]:
    """Literals one of which holds if op ``i`` starts as the last thing ends that it waits for."""
    space, start = model.space, model.start[i]
    yield _equal(model, start, 0)
    for p in space.order.last(space.order.direct[i]):
        yield _equal(model, start, model.end(p))
    for (t, _), var in model.aways.items():
        if i in space.uses_after(var.absence):
            for tier, fetched in var.fetch.items():
                yield _equal(model, start, var.back + model.fetch_ns[t, tier], fetched)
    for (t, version, tier), (begin, present) in model.stores.items():
        if t in space.graph.ops[i].writes and _written_before(space, t, version, i):
            yield _equal(model, start, begin + model.store_ns[t, tier], present)


def _issued(model: Model, at: Any, first: int, until: int) -> Iterator[Any]:
    """Literals one of which holds if an op listed from ``first`` on and before ``until`` ends at an
    instant.
    """
    for i in range(first, until):
        yield _equal(model, at, model.end(i) if i != AT_START else 0)


def _equal(model: Model, a: Any, b: Any, also: Any = None) -> Any:
    """A literal that implies ``a == b`` (and ``also``)."""
    literal = model.cp.new_bool_var("")
    model.cp.add(a == b).only_enforce_if(literal)
    if also is not None:
        model.cp.add_implication(literal, also)
    return literal


def _short(model: Model, at: Any, wanted_bytes: int, *, then_for: int | None = None) -> Any:
    """A literal that implies that ``wanted_bytes`` were not free just before an instant, or are not
    free at it for op ``then_for``.
    """
    cp = model.cp
    terms = []
    then = then_for is not None
    for begin, end, size, owner in model.spans:
        there = cp.new_bool_var("")
        with_it = then_for is not None and _goes_first(model.space, owner, then_for)
        cp.add(begin + (not with_it) <= at).only_enforce_if(there)
        cp.add(end >= at + then).only_enforce_if(there)
        terms.append(size * there)
    literal = cp.new_bool_var("")
    cp.add(
        sum(terms) >= model.capacity + 1 - model.held - model.units(wanted_bytes)
    ).only_enforce_if(literal)
    return literal


def _goes_first(space: Space, owner: int | None, i: int) -> bool:
    """Return whether what op ``owner`` allocates at an instant could go before op ``i`` of that
    instant (rule 0): transfers go after all ops.
    """
    if owner is None:
        return False
    streams = space.graph.streams
    first = streams.index(space.graph.ops[owner].stream) < streams.index(space.graph.ops[i].stream)
    return first or not all(space.durations)


# -- added where a schedule breaks them
# --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delay:
    """Op ``op`` waits although it is ready and fits when something ends: op ``ended``, or what an
    absence (tensor, ``after``) does.
    """

    op: int
    ended: int
    absence: tuple[int, int] | None = None
    returned: bool = False


def delays(space: Space, schedule: Schedule) -> list[Delay]:
    """Return the first such instant of each op in a schedule."""
    ends = space.ends_ns(schedule.op_start_ns)
    events: list[tuple[int, int, tuple[int, int] | None, bool]] = [(0, AT_START, None, False)]
    events += [(end, i, None, False) for i, end in enumerate(ends)]
    for away in schedule.aways:
        if not away.absence.dead:
            key = away.absence.tensor, away.absence.after
            events.append((away.release_ns, AT_START, key, False))
            if away.back_ns is not None:
                events.append((back_until(space, away), AT_START, key, True))
    held = list(held_bytes(space, schedule))
    found = []
    for i, start in enumerate(schedule.op_start_ns):
        ready = _ready_ns(space, schedule, ends, i)
        wanted = need(space, i)
        for at, ended, absence, returned in sorted(events, key=lambda event: event[0]):
            taken = sum(
                size
                for b, e, size, owner in held
                if (b < at or (b == at and _goes_first(space, owner, i))) and at < e
            )
            if ready <= at < start and taken + wanted <= space.capacity_bytes:
                found.append(Delay(i, ended, absence, returned))
                break
    return found


def forbid_delay(model: Model, delay: Delay) -> None:
    """Add the rule for one op and one end: the op has started by then, waits for something else, or
    does not fit.
    """
    space, i = model.space, delay.op
    choices = []
    at = model.end(delay.ended) if delay.ended != AT_START else 0
    if delay.absence is not None:
        var = model.aways[delay.absence]
        at = var.release
        choices.append(~var.away)
        if delay.returned:
            until = model.cp.new_int_var(0, 2 * model.horizon, "")
            for tier, fetched in var.fetch.items():
                model.cp.add(
                    until == var.back + model.fetch_ns[delay.absence[0], tier]
                ).only_enforce_if(fetched)
            at = until
            choices.append(_none_of(model, list(var.fetch.values())))
    choices.append(model.at_least(at, model.start[i]))
    choices += [
        model.at_least(model.end(p), at + 1) for p in space.order.last(space.order.direct[i])
    ]
    for (t, _), var in model.aways.items():
        if i in space.uses_after(var.absence):
            choices += [
                model.at_least(var.back + model.fetch_ns[t, w], at + 1, fetched)
                for w, fetched in var.fetch.items()
            ]
    for (t, version, tier), (begin, present) in model.stores.items():
        if t in space.graph.ops[i].writes and _written_before(space, t, version, i):
            choices.append(model.at_least(begin + model.store_ns[t, tier], at + 1, present))
    choices.append(_short(model, at, need(space, i), then_for=i))
    model.cp.add_bool_or(choices)


def _none_of(model: Model, literals: Sequence[Any]) -> Any:
    none = model.cp.new_bool_var("")
    for literal in literals:
        model.cp.add_implication(none, ~literal)
    return none


def _ready_ns(space: Space, schedule: Schedule, ends: Sequence[int], i: int) -> int:
    """Return the instant when all has ended that op ``i`` waits for, but memory."""
    known = [0, *(ends[p] for p in space.order.direct[i])]
    known += [
        back_until(space, away) for away in schedule.aways if i in space.uses_after(away.absence)
    ]
    writes = space.graph.ops[i].writes
    known += [
        s.end_ns
        for s in schedule.stores
        if s.tensor in writes and _written_before(space, s.tensor, s.version, i)
    ]
    return max(known)


def _written_before(space: Space, t: int, version: int, i: int) -> bool:
    """Return whether a version of a tensor is of an op listed before ``i``."""
    movable = space.movable[t]
    return movable.writers[version] < i

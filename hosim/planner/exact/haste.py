"""Constraints of the exact model for what the engine does not wait for.

The model of :mod:`hosim.planner.exact.constraint_model` may delay anything. The engine starts an op
as soon as all it reads is there and its memory is free, before any transfer of that instant (rule
4), and an issued transfer as soon as its channel and its memory are. On one stream a solution that
a replay cannot follow breaks one of these, which are added when a schedule breaks them:

*op first*
    a transfer back does not take memory while an op waits that is ready and fits
*at once*
    a transfer back that starts while an op runs was issued before the op, at the latest; had its
    channel been idle and had it fitted just before the op started, it would have started then

Each is a constraint on one op and one transfer back. They hold for every replay of a plan that
copies nothing to where it already is, so the optimum of the model with any number of them is still
a lower bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hosim.cache_plan import AT_START
from hosim.planner.exact.constraint_model import AbsenceVars, Model
from hosim.planner.exact.decision_space import Movable, Space
from hosim.planner.exact.exact_schedule import Schedule, TakenAbsence


@dataclass(frozen=True, slots=True)
class Conflict:
    """An op and a transfer back (tensor, ``after`` of its absence) that break a rule; ``op_first``
    says which.
    """

    op: int
    tensor: int
    after: int
    op_first: bool


# -- what a schedule breaks
# --------------------------------------------------------------------------------------------


def conflicts(space: Space, schedule: Schedule) -> list[Conflict]:
    """Every pair of an op and a transfer back in which the schedule does what no replay would; on
    one stream only.
    """
    if not space.order.single:
        return []
    held = list(held_bytes(space, schedule))
    found: list[Conflict] = []
    ends = space.ends_ns(schedule.op_start_ns)
    for away in schedule.aways:
        if away.back_ns is None:
            continue
        a = away.absence
        for i in range(max(a.after + 1, 0), min(a.before, len(ends))):
            free_at = ends[i - 1] if i else 0
            start = schedule.op_start_ns[i]
            if free_at <= away.back_ns < start:
                if _ready(space, schedule, i, away.back_ns) and _fits(
                    space, held, away.back_ns, 0, need(space, i)
                ):
                    found.append(Conflict(i, a.tensor, a.after, True))
            elif (
                free_at < start < away.back_ns < ends[i]
                and away.release_ns < start
                and not _channel_busy(space, schedule, away, start)
                and _fits(space, held, start, 1, space.graph.tensors[a.tensor].size_bytes)
            ):
                found.append(Conflict(i, a.tensor, a.after, False))
    return found


def need(space: Space, i: int) -> int:
    """Bytes that op ``i`` allocates when it starts: its workspace, and what it is the first to
    write or writes anew.
    """
    total = space.graph.ops[i].workspace_bytes
    total += sum(space.graph.tensors[t].size_bytes for t, first, _ in space.fixed if first == i)
    for movable in space.movables:
        if (not movable.starts and movable.first == i) or any(
            a.dead and a.before == i for a in movable.absences
        ):
            total += movable.size_bytes
    return total


HeldBytes = tuple[int, int, int, int | None]
"""Start, end, bytes, and the op that allocates them if one does."""


def held_bytes(space: Space, schedule: Schedule) -> Iterator[HeldBytes]:
    """Everything that the device tier holds, and when."""
    starts, graph, never = schedule.op_start_ns, space.graph, schedule.makespan_ns + 1
    ends = space.ends_ns(schedule.op_start_ns)
    for i, op in enumerate(graph.ops):
        yield starts[i], ends[i], op.workspace_bytes, i
    for t, first, last in space.fixed:
        until = never if last == len(graph.ops) else max(ends[u] for u in graph.users[t])
        yield (
            (starts[first] if first != AT_START else -1),
            until,
            graph.tensors[t].size_bytes,
            first if first != AT_START else None,
        )
    taken = {(away.absence.tensor, away.absence.after): away for away in schedule.aways}
    for movable in space.movables:
        begin, owner = (-1, None) if movable.starts else (starts[movable.first], movable.first)
        for a in movable.absences:
            away = taken.get((movable.tensor, a.after))
            if away is not None:
                there = away.release_ns > 0 or a.after != AT_START
                yield begin, away.release_ns if there else -1, movable.size_bytes, owner
                begin = (
                    starts[a.before] if a.dead else never if away.back_ns is None else away.back_ns
                )
                owner = a.before if a.dead else None
        yield (
            begin,
            never if movable.survives else max(ends[u] for u in graph.users[movable.tensor]),
            movable.size_bytes,
            owner,
        )


def _fits(space: Space, held: list[HeldBytes], at: int, before: int, wanted: int) -> bool:
    """Return whether ``wanted`` bytes are free at an instant once it has released, or (``before``
    1) just before it.
    """
    return (
        sum(size for start, end, size, _ in held if start < at < end + before) + wanted
        <= space.capacity_bytes
    )


def _ready(space: Space, schedule: Schedule, i: int, at: int) -> bool:
    """Return whether all that op ``i`` waits for, but memory, has ended by an instant."""
    if any(back_until(space, away) > at for away in schedule.aways if away.absence.before == i):
        return False
    writes = space.graph.ops[i].writes
    return not any(s.tensor in writes and s.start_ns < at < s.end_ns for s in schedule.stores)


def _channel_busy(space: Space, schedule: Schedule, away: TakenAbsence, at: int) -> bool:
    """Return whether another transfer on the same channel starts before this one and has not ended
    just before ``at``.
    """
    others = [
        other
        for other in schedule.aways
        if other is not away and other.tier == away.tier and other.back_ns is not None
    ]
    return any(
        (other.back_ns or 0) < (away.back_ns or 0) and back_until(space, other) >= at
        for other in others
    )


def back_until(space: Space, away: TakenAbsence) -> int:
    """The end of a transfer back; 0 where there is none."""
    channel = next((tier.up for tier in space.lower if tier.name == away.tier), None)
    if away.back_ns is None or channel is None:
        return 0
    return away.back_ns + space.transfer_ns(
        channel, space.graph.tensors[away.absence.tensor].size_bytes
    )


# -- the constraints
# --------------------------------------------------------------------------------------------------


def forbid(model: Model, conflict: Conflict) -> None:
    """Add the rule for one op and one transfer back."""
    var = model.aways[conflict.tensor, conflict.after]
    i = conflict.op
    fetched = sum(var.fetch.values())
    gone = model.cp.new_bool_var("")
    model.cp.add(fetched == 1).only_enforce_if(gone)
    model.cp.add(fetched == 0).only_enforce_if(~gone)
    if conflict.op_first:
        choices = [
            ~gone,
            model.at_least(var.back, model.begin(i)),
            model.at_least(model.end(i - 1), var.back + 1),
        ]
        choices += _not_ready(model, i, var.back)
        choices.append(_short(model, i, var.back, 0, need(model.space, i), skip=var))
    else:
        choices = [
            ~gone,
            model.at_least(model.begin(i), var.back),
            model.at_least(var.back, model.end(i)),
        ]
        choices += [model.at_least(model.end(i - 1), model.begin(i))]
        if var.stored:
            choices.append(model.at_least(var.release, model.begin(i)))
        choices += _busy(model, var, model.begin(i))
        size = model.space.graph.tensors[conflict.tensor].size_bytes
        choices.append(_short(model, i, model.begin(i), 1, size, skip=var))
    model.cp.add_bool_or(choices)


def _not_ready(model: Model, i: int, at: Any) -> Iterator[Any]:
    """Literals one of which holds if op ``i`` still waits for a transfer at an instant."""
    for other in model.aways.values():
        if other.absence.before == i:
            for tier, fetched in other.fetch.items():
                literal = model.at_least(
                    other.back + model.fetch_ns[other.absence.tensor, tier], at + 1
                )
                model.cp.add_implication(literal, fetched)
                yield literal
    for (t, _, tier), (start, present) in model.stores.items():
        if t in model.space.graph.ops[i].writes:
            literal = model.at_least(start + model.store_ns[t, tier], at + 1)
            model.cp.add(start + 1 <= at).only_enforce_if(literal)
            model.cp.add_implication(literal, present)
            yield literal


def _busy(model: Model, var: AbsenceVars, at: Any) -> Iterator[Any]:
    """Literals one of which holds if another transfer occupies the channel just before an instant
    and starts before this one.
    """
    for other in model.aways.values():
        if other is var:
            continue
        for tier, fetched in other.fetch.items():
            if tier in var.fetch:
                literal = model.at_least(
                    other.back + model.fetch_ns[other.absence.tensor, tier], at
                )
                model.cp.add(other.back + 1 <= var.back).only_enforce_if(literal)
                model.cp.add_implication(literal, fetched)
                model.cp.add_implication(literal, var.fetch[tier])
                yield literal


def _short(model: Model, i: int, at: Any, before: int, wanted: int, *, skip: AbsenceVars) -> Any:
    """A literal that implies that ``wanted`` bytes are not free at a time between ops ``i - 1`` and
    ``i`` (``before``: just before it).
    """
    cp = model.cp
    terms: list[Any] = [
        model.units(model.space.graph.tensors[t].size_bytes)
        for t, first, last in model.space.fixed
        if first < i <= last
    ]
    for movable in model.space.movables:
        size = model.units(movable.size_bytes)
        a = _covering(model, movable, i)
        var = model.aways.get((movable.tensor, a.after)) if a is not None else None
        if a is None:
            begins = AT_START if movable.starts else movable.first
            if begins < i <= (model.count if movable.survives else movable.last):
                terms.append(size)
            continue
        if var is None or var is skip:
            continue
        if a.before == i and not before:
            terms.append(size)
            continue
        there = cp.new_bool_var("")
        choices = [~there, ~var.away, model.at_least(at, var.back + 1)]
        if var.stored:
            choices.append(model.at_least(var.release, at + 1 - before))
        cp.add_bool_or(choices)
        terms.append(size * there)
    literal = cp.new_bool_var("")
    cp.add(sum(terms) >= model.capacity + 1 - model.units(wanted)).only_enforce_if(literal)
    return literal


def _covering(model: Model, movable: Movable, i: int) -> Any:
    """The absence of a movable that may be under way between op ``i - 1`` and op ``i``."""
    return next((a for a in movable.absences if a.after < i <= a.before), None)


# -- on several streams
# --------------------------------------------------------------------------------------------------
# On several streams: nothing waits without a reason, as constraints of the exact model.
#
# The model of :mod:`hosim.planner.exact.constraint_model` may delay anything; on several streams a
# schedule gains by that, where an op of one stream leaves its memory to another. The engine starts an
# op as soon as it is ready and fits, and a transfer as soon as it has been issued, its channel is
# idle and it fits (docs/contract.md, rules 1, 3 and 4). So in every replay
#
# - an op starts when something ends that it waits for, or memory was short for it until then;
# - a transfer starts when an op of the places where it may be issued ends, when its channel or its
#   tensor becomes free, or memory was short.
#
# On one stream the rules above take their place, and are added where a schedule breaks them.


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
        reasons = list(_starts_when_ready(model, i))
        reasons.append(_short_on_streams(model, model.start[i], need(space, i)))
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
            reasons.append(_short_on_streams(model, var.back, space.graph.tensors[t].size_bytes))
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


def _starts_when_ready(model: Model, i: int) -> Iterator[Any]:
    """Literals one of which holds if op ``i`` starts as the last thing ends that it waits for."""
    space, start = model.space, model.start[i]
    yield _equal(model, start, 0)
    for p in space.order.last(space.order.direct[i]):
        yield _equal(model, start, model.end(p))
    for end, present in _awaited(model, i):
        yield _equal(model, start, end, present)


def _awaited(model: Model, i: int) -> Iterator[tuple[Any, Any]]:
    """The end of each transfer that op ``i`` waits for, and the literal that it takes place."""
    space = model.space
    for (t, _), var in model.aways.items():
        if i in space.uses_after(var.absence):
            for tier, fetched in var.fetch.items():
                yield var.back + model.fetch_ns[t, tier], fetched
    for (t, version, tier), (begin, present) in model.stores.items():
        if t in space.graph.ops[i].writes and space.movable[t].writers[version] < i:
            yield begin + model.store_ns[t, tier], present


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


def _short_on_streams(
    model: Model, at: Any, wanted_bytes: int, *, then_for: int | None = None
) -> Any:
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
            stays_away = model.cp.new_bool_var("")
            for fetched in var.fetch.values():
                model.cp.add_implication(stays_away, ~fetched)
            choices.append(stays_away)
    choices.append(model.at_least(at, model.start[i]))
    choices += [
        model.at_least(model.end(p), at + 1) for p in space.order.last(space.order.direct[i])
    ]
    choices += [model.at_least(end, at + 1, present) for end, present in _awaited(model, i)]
    choices.append(_short_on_streams(model, at, need(space, i), then_for=i))
    model.cp.add_bool_or(choices)


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
        if s.tensor in writes and space.movable[s.tensor].writers[s.version] < i
    ]
    return max(known)

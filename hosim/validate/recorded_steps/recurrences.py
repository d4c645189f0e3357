"""Patterns that a recording repeats but does not state: ops that wait for another stream, or that
are repeatedly late by the same time.

An op may start later than its launch, its stream and its recorded waits explain: it waits inside a
CUDA graph, or its schema is an older one that does not list waits. Ops are alike if they are at the
same place of a period of their stream, or if they and their neighbours have the same names, on
their stream or in the order of issue, first at the same place of a CUDA graph and then anywhere.
For at least :data:`FEWEST` ops that are late and alike:

- if the same op of another stream ended just before nearly each of them, they wait for it;
- or if an op ended just before one of them, and each of its repetitions was followed by an op of
  the late op's name, the late op waits for it;
- else, if all are late by nearly the same time after the previous op or after their launch, that
  time is a constant.

Nothing is inferred from a single repetition. An edge that the recording contradicts is omitted.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median_low

import numpy as np

from hosim.base.groups import grouped
from hosim.io.importers.recordings import CLOCK_STEP_NS, StreamId, stream_of
from hosim.validate.recorded_steps.latencies import FEWEST, PLAUSIBLE, fit_latencies
from hosim.validate.recorded_steps.one_step import EndsOfOps, one_step
from hosim.validate.recorded_steps.repetitions import numbered
from hosim.validate.recorded_steps.step_structure import Known, RecurringDelay, Structure, structure

_LATE_NS = (5_000, 100_000)
"""Delays below a ten-thousandth of the span, within these bounds, are ignored."""

_JUST_NS = 20_000
"""The longest time before an op's start at which an op that it waited for may have ended."""

_MOST = 0.8
"""The share of late ops before which the same op must have ended."""

_REPEATED = 0.9
"""The share of a stream's ops that must have the names of the ops one period earlier."""

_SAME = 0.5
"""The largest difference of times that count as the same, as a share of their median."""

_ROUNDS = (
    (False, True, 2),
    (False, True, 2),
    (True, True, 2),
    (True, True, 2),
    (False, False, 2),
    (True, False, 2),
    (False, True, 1),
    (False, False, 1),
    (False, True, 0),
)
"""The ways in which ops are alike: by their neighbours in the order of issue or on their stream; by
their place in a CUDA graph or not (layers repeat within one); and by the number of neighbours on
either side. The first ones are repeated, because an edge moves other ops.
"""

Awaited = tuple[StreamId, str]
"""The stream and the name of an op that others wait for."""


def recurring_structure(built: Structure) -> Structure:
    """Return a structure with the patterns that its recording repeats, and with the given start of
    the first op of a device that was busy when it began.
    """
    late = one_step(built).ops
    first = _first_of_busy_devices(built, late)
    if first:
        built = structure(
            built.trace, latencies=built.latencies, known=replace(built.known, first=first)
        )
        late = one_step(built).ops
    kinds: list[Callable[[Structure], Iterable[Sequence[int]]]] = [_by_period]
    kinds += [
        partial(_alike, issued=issued, placed=placed, beside=beside)
        for issued, placed, beside in _ROUNDS
    ]
    for groups in kinds:
        more = _more(built, late, groups(built))
        if more is not None:
            built = structure(
                built.trace,
                latencies=fit_latencies(built.trace, more.order, more.waits),
                known=more,
            )
            late = one_step(built).ops
    return built


def _first_of_busy_devices(built: Structure, late: Sequence[int]) -> frozenset[int]:
    """The first op of each device, if it starts later than its launch explains: earlier ops are not
    in the recording.
    """
    first: dict[int, int] = {}
    for i, op in enumerate(built.trace.ops):
        first.setdefault(op.device, i)
    return frozenset(
        i
        for i in first.values()
        if late[i] > PLAUSIBLE["launch"][1] and built.trace.ops[i].call is not None
    )


def _more(
    built: Structure, late_ns: Sequence[int], groups: Iterable[Sequence[int]]
) -> Known | None:
    """Return what is known, with the recurrences of ops that are late in this structure; None if
    there are none.
    """
    least = min(max(built.trace.span_ns // 10_000, _LATE_NS[0]), _LATE_NS[1])
    late = {i: by for i, by in enumerate(late_ns) if by >= least}
    if not late:
        return None
    before = built.known
    edges: dict[int, tuple[int, ...]] = {}
    delays = dict(before.delays)
    recurring = list(before.recurring)
    found = _Awaited(built)
    for group in groups:
        if not any(i in late for i in group):
            continue
        members = [i for i in group if i in late or i in built.waits.of_ops]
        awaited = found.of(group, members) if len(members) >= FEWEST else {}
        if awaited:
            edges |= awaited
        elif all(i in late or i in delays for i in group) and len(group) >= FEWEST:
            new = [i for i in group if i not in delays]
            times = sorted(delays.get(i, 0) + late.get(i, 0) for i in group)
            middle = (
                median_low(delays[i] for i in group if i in delays)
                if len(new) < len(group)
                else median_low(times)
            )
            if new and times[-1] - times[0] <= _SAME * middle:
                delays |= dict.fromkeys(new, middle)
                op = built.trace.ops[group[0]]
                recurring.append(
                    RecurringDelay(op.name, op.stream, middle, len(times), times[0], times[-1])
                )
    for i in sorted(late.keys() - edges.keys() - delays.keys()):
        edges |= found.followed(i)
    edges = {
        i: ones for i, ones in edges.items() if not set(ones) <= set(built.waits.of_ops.get(i, ()))
    }
    if not edges and len(delays) == len(before.delays):
        return None
    of_ops = dict(built.waits.of_ops)
    for i, ones in edges.items():
        of_ops[i] = tuple(dict.fromkeys((*of_ops.get(i, ()), *ones)))
    waits = replace(built.waits, of_ops=of_ops, inferred=built.waits.inferred + len(edges))
    return Known(built.order, waits, delays, tuple(recurring), before.first)


Place = tuple[int, int]
"""The position of an op among those of its CUDA graph on its stream, and how many these are; none
outside of a graph.
"""

_NOWHERE = (-1, 0)

Likeness = tuple[StreamId, Place, tuple[str, ...]]
"""A stream, a place in a CUDA graph, and the names of an op and of those around it."""


def _by_period(built: Structure) -> Iterable[list[int]]:
    """Group the ops of streams whose names repeat after a period, by their position in it and their
    name.
    """
    groups: defaultdict[tuple[StreamId, int, str], list[int]] = defaultdict(list)
    for stream, queue in built.order.streams.items():
        names = [built.trace.ops[i].name for i in queue]
        period = _shortest_period(names)
        if period:
            for k, i in enumerate(queue):
                groups[stream, k % period, names[k]].append(i)
    return groups.values()


def _shortest_period(names: Sequence[str]) -> int:
    """Return the number of ops after which nearly all names repeat; 0 if they do not."""
    sequence = numbered(names)
    some = (
        np.linspace(0, len(names) // 2 - 1, 64).astype(int) if len(names) > 1 else np.zeros(0, int)
    )
    for shift in range(1, len(names) // 2 + 1):
        if (
            np.mean(sequence[some] == sequence[some + shift]) < _REPEATED - 0.2
        ):  # most shifts are rejected here
            continue
        if np.mean(sequence[shift:] == sequence[:-shift]) >= _REPEATED:
            return shift
    return 0


def _alike(built: Structure, issued: bool, placed: bool, beside: int) -> Iterable[list[int]]:
    """Group the ops with the same name and neighbours on their stream, or in the order in which the
    host ``issued`` them.
    """
    ops = built.trace.ops
    places = _places(built) if placed else {}
    groups: defaultdict[Likeness, list[int]] = defaultdict(list)
    none = [""] * beside
    for queue in (built.order.order,) if issued else built.order.streams.values():
        names = [*none, *(ops[i].name for i in queue), *none]
        for k, i in enumerate(queue):
            groups[
                stream_of(ops[i]), places.get(i, _NOWHERE), tuple(names[k : k + 2 * beside + 1])
            ].append(i)
    return groups.values()


def _places(built: Structure) -> Mapping[int, Place]:
    """Return the place of each op in a CUDA graph. An op that was launched before the recording has
    the place of its repetition.
    """
    ops = built.trace.ops
    places: dict[int, Place] = {}
    for queue in built.order.streams.values():
        launched = grouped((ops[i].call, i) for i in queue if ops[i].call is not None)
        for together in launched.values():
            if len(together) > 1:
                places |= {i: (n, len(together)) for n, i in enumerate(together)}
        before = [k for k, i in enumerate(queue) if ops[i].call is None]
        if before and len(before) < len(queue):
            names = [ops[i].name for i in queue]
            period = _period(names, before)
            places |= {
                queue[k]: places[queue[k + period]]
                for k in before
                if k + period < len(queue)
                and names[k] == names[k + period]
                and queue[k + period] in places
            }
    return places


def _period(names: Sequence[str], before: Sequence[int]) -> int:
    """Return the number of ops after which most of these ops are repeated on their stream."""
    sequence = numbered(names)
    chosen = np.array(before)
    best, most = len(names), 0
    for shift in range(int(chosen[-1] - chosen[0]) + 1, len(names) - int(chosen[0])):
        inside = chosen[chosen + shift < len(names)]
        same = int(np.sum(sequence[inside] == sequence[inside + shift]))
        if same > most:
            best, most = shift, same
    return best


class _Awaited:
    """Finds the ops of other streams that ops wait for."""

    def __init__(self, built: Structure) -> None:
        self._ops, self._order = built.trace.ops, built.order
        self._ends = EndsOfOps(self._ops)
        self._rank = {i: n for n, i in enumerate(built.order.order)}
        self._repeated = [group for group in _by_period(built) if len(group) >= FEWEST]
        self._repetitions = {i: n for n, group in enumerate(self._repeated) for i in group}
        self._began = grouped(((stream_of(op), op.name), op.start_ns) for op in self._ops)
        self._named = grouped(
            ((stream_of(self._ops[i]), self._ops[i].name), i) for i in built.order.order
        )

    def of(self, group: Sequence[int], members: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return the wait of each op of the group; empty if the late ``members`` do not agree."""
        counted: Counter[Awaited] = Counter()
        for i in members:
            counted.update(
                {(stream_of(self._ops[k]), self._ops[k].name) for k in self._just_ended(i)}
            )
        for awaited, count in sorted(counted.items(), key=lambda one: (-one[1], one[0])):
            if count < max(FEWEST, _MOST * len(members)):
                break
            pairs = {i: self._last(awaited, i) for i in group}
            hits = sum(self._is_just_ended(pairs[i], i) for i in members)
            if hits >= max(FEWEST, _MOST * len(members)):
                return {
                    i: (k,)
                    for i, k in pairs.items()
                    if k is not None
                    and self._ops[k].end_ns <= self._ops[i].start_ns + CLOCK_STEP_NS
                }
        return {}

    def followed(self, i: int) -> dict[int, tuple[int, ...]]:
        """Return the op that one op waits for: the last of those that ended just before it and
        whose repetitions were followed at once by an op of its name.
        """
        op = self._ops[i]
        began = self._began[stream_of(op), op.name]
        for k in sorted(self._just_ended(i), key=lambda k: -self._ops[k].end_ns):
            group = self._repeated[self._repetitions[k]] if k in self._repetitions else []
            ends = [self._ops[r].end_ns for r in group]
            hits = sum(
                bisect_left(began, end - CLOCK_STEP_NS) < bisect_right(began, end + _JUST_NS)
                for end in ends
            )
            if hits >= max(FEWEST, _MOST * len(group)):
                return {i: (k,)}
        return {}

    def _just_ended(self, i: int) -> list[int]:
        """The ops of other streams that ended shortly before an op started and were issued before
        it.
        """
        return [
            k
            for k in self._ends.around_start(i, _JUST_NS, CLOCK_STEP_NS)
            if self._rank[k] < self._rank[i]
        ]

    def _is_just_ended(self, k: int | None, i: int) -> bool:
        return (
            k is not None
            and -_JUST_NS <= self._ops[k].end_ns - self._ops[i].start_ns <= CLOCK_STEP_NS
        )

    def _last(self, awaited: Awaited, i: int) -> int | None:
        """The last op of that stream and name that was issued before this one."""
        listed = self._named[awaited]
        at = bisect_left(listed, self._rank[i], key=self._rank.__getitem__)
        return listed[at - 1] if at else None

"""Absences to cache ops: a policy or planner says when a tensor is away from the device tier, and
this makes it happen legally.

A tensor leaves by a store (if no copy below holds its present contents) and a detach, and comes
back by a prefetch. An op that overwrites it makes the copies below stale; one that does so without
reading it needs none, so contents that nobody will read are dropped unsaved. What starts below
comes up before its first reader, and what the step writes of it goes back (docs/contract.md, rule
2).

Who plans names the places wanted; insertion moves each to the nearest place that is safe on several
streams (:mod:`hosim.analysis.happens_before`), and an absence that has none is left out: the tensor
stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hosim.analysis import HappensBefore
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan, plain_cache_op
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule.tiers_below import Route, copies_along, known_routes


class Absence(NamedTuple):
    """``tensor`` away from the device tier between its uses by the ops ``after`` and ``before``.

    ``after`` is :data:`AT_START` before the first use, ``before`` the number of ops after the last
    one. ``store``, ``release`` and ``prefetch`` are the ops at whose ends the store, the detach and
    the prefetch are wanted; ``tier`` is where the store goes, unless the tensor has a place of its
    own below. What ends the step away stays away, unless it was in the device tier at time 0 and
    must be again: then it comes back at ``prefetch``. Where the end of ``store`` may come after the
    detach, the store is issued at the end of ``last_store`` instead or, if that is None, the detach
    comes later. Where several tiers have a copy, it comes back from ``source`` if that is among
    them.
    """

    tensor: int
    after: int
    before: int
    store: int
    release: int
    prefetch: int
    tier: str
    last_store: int | None = None
    source: str | None = None


class WriteBack(NamedTuple):
    """``tier`` is to hold a valid copy again after the ops listed before ``before``: by a store
    after the last write, if one is needed.

    The store is wanted at the end of the op ``store``, or as soon as can be.
    """

    before: int
    tier: str
    store: int = AT_START


PlacedCacheOp = tuple[int, int, CacheOp]
"""A cache op behind the two uses that its gap lies between."""

TensorMove = tuple[int, int, str, tuple[str, ...], str | None, int]
"""What a tensor does, behind the two uses that its gap lies between: a prefetch, a store or a
detach, where it may come from, where it goes, and after which op.
"""


def insert(
    graph: Graph,
    hardware: Hardware,
    policy: str,
    absences: Iterable[Absence],
    initial: Mapping[int, tuple[str, ...]] | None = None,
) -> Plan:
    """The plan in which the tensors are away as ``absences`` say, in ``initial`` (default: at home)
    at time 0.

    Absences of one tensor must not overlap. Raises :class:`hosim.errors.InfeasibleError` where no
    channels lead from a tensor's home to the device tier.
    """
    by_tensor: dict[int, list[Absence]] = {}
    for absence in absences:
        by_tensor.setdefault(absence.tensor, []).append(absence)
    plan = Plan(graph, policy, (), dict(initial or {}))
    residency = plan.residency(hardware.device_tier)
    placed: list[PlacedCacheOp] = []
    routes = known_routes(hardware)
    for t in (*residency, *(t for t in by_tensor if t not in residency)):
        start = residency.get(t, ())
        if start == (hardware.device_tier,) and t not in by_tensor:
            continue
        mine = by_tensor.get(t, [])
        if len(mine) > 1:
            mine.sort(key=lambda a: a.after)
        steps = _steps(graph, hardware, t, start, mine)
        moves = tensor_moves(graph, hardware.device_tier, t, start, steps)
        placed += _cache_ops(t, moves, hardware.device_tier, routes)
    placed.sort(
        key=lambda entry: (entry[2].after, entry[1])
    )  # what is needed first is issued first; a tensor's own keep their order
    return Plan(graph, policy, tuple([cache_op for _, _, cache_op in placed]), plan.initial)


def _steps(
    graph: Graph, hardware: Hardware, t: int, start: Sequence[str], absences: Sequence[Absence]
) -> Iterator[Absence | WriteBack]:
    """The absences of one tensor, what starts below being away before its first use, and at the end
    of the step what rule 2 asks for.

    A store goes to the tensor's own place below if a channel leads there, or if it is to stay; else
    where the policy says.
    """
    device, end, users = hardware.device_tier, len(graph.ops), graph.users[t]
    own = [tier for tier in start if tier != device]
    joined = [tier for tier in own if (device, tier) in hardware.channel_between]
    if own and device not in start and users and not (absences and absences[0].after == AT_START):
        yield Absence(t, AT_START, users[0], AT_START, AT_START, AT_START, own[0])
    for absence in absences:
        tiers = joined or (own if absence.before == end else ())
        yield absence._replace(tier=tiers[0]) if tiers and tiers[0] != absence.tier else absence
    if graph.survives[t]:
        yield from (WriteBack(end, tier) for tier in own)


def _cache_ops(
    tensor: int, moves: Iterable[TensorMove], device: str, route: Route
) -> list[PlacedCacheOp]:
    """The cache ops of a tensor's moves: one for each hop of a route, and detaches of the copies in
    between.
    """
    return [
        (gap_after, before, cache_op)
        for gap_after, before, op, sources, destination, after in moves
        for cache_op in (
            [plain_cache_op(op, tensor, device, None, after)]
            if destination is None
            else copies_along(route(sources, destination), op, tensor, device, after)
        )
    ]


def tensor_moves(
    graph: Graph,
    device: str,
    tensor: int,
    start: Sequence[str],
    steps: Iterable[Absence | WriteBack],
    awaited: bool = False,
) -> list[TensorMove]:
    """The moves of one tensor that has valid copies in the tiers ``start`` at time 0, by what
    happens to it then, in order.

    On several streams a tensor leaves where its cache op before has surely been issued; with
    ``awaited`` also where the op has ended that waits for that cache op, and with it all users
    before.
    """
    order = graph.derived(HappensBefore)
    if order.single and len(start) == 1 and device not in start and not graph.writers[tensor]:
        return _read_moves(graph, device, tensor, start[0], steps, awaited)
    course = _Course(graph, device, tensor, start)
    for step in steps:
        course.walk(step.before)
        if isinstance(step, WriteBack):
            course.write_back(step)
            continue
        if awaited:
            course.last = AT_START
        back = course.leave(step)
        if awaited and back:
            course.awaits = step.before
    return course.placed


def _read_moves(
    graph: Graph,
    device: str,
    tensor: int,
    source: str,
    steps: Iterable[Absence | WriteBack],
    awaited: bool,
) -> list[TensorMove]:
    """The same for a tensor that one stream reads and none writes, which starts in a tier below:
    its copy there stays valid, so that nothing is stored. Most moves are of this kind.
    """
    users, end, survives = graph.users[tensor], len(graph.ops), graph.survives[tensor]
    first, last, here = users[0] if users else end, AT_START, False
    placed: list[TensorMove] = []
    for step in steps:
        if isinstance(step, WriteBack):
            continue
        _, gap_after, before, _, release, prefetch, *_ = step
        if before == end and not survives:
            continue  # it dies there by itself
        if awaited:
            last = AT_START
        if here:
            used = users[bisect_left(users, before) - 1] if before > first else AT_START
            release = max(release, used, last)
            if release >= before:
                continue
            placed.append((gap_after, before, DETACH, (device,), None, release))
            last, here = release, False
        if before < end:
            last = max(last, min(prefetch, before - 1))
            placed.append((gap_after, before, PREFETCH, (source,), device, last))
            here = True
    return placed


class _Course:
    """The moves of one tensor through the step so far, and where they leave valid copies."""

    __slots__ = (
        "awaits", "below", "device", "end", "graph", "here", "last", "order", "placed", "returns",
        "saved", "tensor", "users", "writes", "written",
    )  # fmt: skip

    def __init__(self, graph: Graph, device: str, tensor: int, start: Sequence[str]) -> None:
        self.graph, self.order, self.end = graph, graph.derived(HappensBefore), len(graph.ops)
        self.device = device
        self.tensor, self.users, self.writes = tensor, graph.users[tensor], graph.writers[tensor]
        self.written = 0  # writes walked past
        self.returns = device in start  # at the end of the step
        self.here, self.below = device in start, {tier for tier in start if tier != device}
        self.last = self.awaits = self.saved = AT_START
        self.placed: list[TensorMove] = []

    def walk(self, before: int) -> None:
        """Past the users listed before ``before``: what they write is valid in the device tier
        alone.
        """
        written = bisect_left(self.writes, before) if self.writes else 0
        if written > self.written:
            self.written, self.here, self.below = written, True, set()

    def leave(self, absence: Absence) -> bool:
        """A store if one is needed, a detach, and a prefetch if it returns; nothing where no place
        for them is safe.

        Says whether an op waits for the prefetch.
        """
        before, gap = absence.before, (absence.after, absence.before)
        read = before < self.end and self._is_read(before)
        needed = read or (before == self.end and self.graph.survives[self.tensor])
        if before == self.end and not needed:
            return False  # it dies there by itself
        if self.here and not self._released(absence, needed):
            return False
        if read or (before == self.end and self.returns):
            after = self.order.last_before(self.last, min(absence.prefetch, before - 1))
            sources = {absence.source} if absence.source in self.below else self.below
            self._copy(PREFETCH, sources, self.device, after, gap)
            self.here = True
        return read

    def _released(self, absence: Absence, needed: bool) -> bool:
        """A store if one is needed and a detach, and whether there are safe places for them."""
        before, order = absence.before, self.order
        follows = [*self._last_users(before), self.last, self.saved]
        release: int | None = order.first_after(follows, absence.release)
        store = None
        if needed and not self.below:
            store = order.first_after(
                [*self.writes[max(self.written - 1, 0) : self.written], self.last], absence.store
            )
            if store is None or release is None:
                return False
            if absence.last_store is not None and not order.ended_by(store, release):
                store = absence.last_store
            release = order.first_after([*follows, store], absence.release)
        if release is None or release >= before:
            return False
        if not (needed or order.ended_by(release, before)):
            return False  # what overwrites it might come first
        gap = absence.after, before
        if store is not None:
            self._copy(STORE, [self.device], absence.tier, store, gap)
            self.below = {absence.tier}
        self.placed.append((*gap, DETACH, (self.device,), None, release))
        self.last, self.here = release, False
        return True

    def _is_read(self, i: int) -> bool:
        """Return whether op ``i`` needs the contents."""
        return self.graph.compact_users.reads(self.tensor, i)

    def write_back(self, step: WriteBack) -> None:
        """A store after the last write, if the tier has no valid copy."""
        if step.tier in self.below or not (self.here or self.below):
            return
        # the op that a cache op was placed for ends after it was issued, also where it is on
        # another stream
        use = self.placed[-1][1] if self.placed else self.end
        waited = use < self.end and bool(self.writes) and self.order.ended_by(use, self.writes[-1])
        follows = [*self.writes[-1:], *([] if waited else [self.last])]
        after = self.order.first_after(follows, step.store)
        if after is None:
            after = self.order.first_after(follows, AT_START)
        if after is not None:
            self._copy(
                STORE,
                [*self.below, *([self.device] if self.here else [])],
                step.tier,
                after,
                (AT_START, self.end),
            )
            self.below.add(step.tier)
            self.saved = after

    def _last_users(self, before: int) -> Sequence[int]:
        """Users listed before ``before`` that together are the last ones: after each of them, on
        its stream, none.
        """
        until = bisect_left(self.users, before)
        if self.order.single:
            return self.users[max(until - 1, 0) : until]
        since = (
            self.writes[self.written - 1] if self.written else 0
        )  # a writer waits for every user before it
        return self.users[bisect_left(self.users, max(since, self.awaits)) : until]

    def _copy(
        self, op: str, sources: Iterable[str], destination: str, after: int, gap: tuple[int, int]
    ) -> None:
        self.placed.append((*gap, op, tuple(sources), destination, after))
        self.last = after

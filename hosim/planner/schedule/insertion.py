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
    must be again: then it comes back at ``prefetch``.
    """

    tensor: int
    after: int
    before: int
    store: int
    release: int
    prefetch: int
    tier: str


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
    placed: list[tuple[int, CacheOp]] = []
    route = known_routes(hardware)
    for t in (*residency, *(t for t in by_tensor if t not in residency)):
        start = residency.get(t, ())
        if start == (hardware.device_tier,) and t not in by_tensor:
            continue
        mine = by_tensor.get(t, [])
        if len(mine) > 1:
            mine.sort(key=lambda a: a.after)
        course = _Course(graph, hardware.device_tier, t, start, route)
        own = [tier for tier in start if tier != hardware.device_tier]
        for absence in _absences(graph, hardware, t, start, own, mine):
            course.walk(absence.before)
            course.leave(absence)
        course.walk(len(graph.ops))
        for tier in own if graph.survives[t] else ():
            course.write_back(tier)
        placed += course.placed
    # what is needed first is issued first; a tensor's own keep their order
    placed.sort(key=lambda entry: (entry[1].after, entry[0]))
    return Plan(graph, policy, tuple([cache_op for _, cache_op in placed]), plan.initial)


def _absences(
    graph: Graph,
    hardware: Hardware,
    t: int,
    start: Sequence[str],
    own: Sequence[str],
    absences: Sequence[Absence],
) -> Iterator[Absence]:
    """The absences of one tensor, what starts below being away before its first use.

    A store goes to the tensor's own place below if a channel leads there, or if it is to stay; else
    where the policy says.
    """
    device, end, users = hardware.device_tier, len(graph.ops), graph.users[t]
    joined = [tier for tier in own if (device, tier) in hardware.channel_between]
    if own and device not in start and users and not (absences and absences[0].after == AT_START):
        yield Absence(t, AT_START, users[0], AT_START, AT_START, AT_START, own[0])
    for absence in absences:
        tiers = joined or (own if absence.before == end else ())
        yield absence._replace(tier=tiers[0]) if tiers and tiers[0] != absence.tier else absence


class _Course:
    """The cache ops of one tensor through the step so far, each behind the use that its gap ends
    with, and where they leave valid copies.
    """

    def __init__(
        self, graph: Graph, device: str, tensor: int, start: Sequence[str], route: Route
    ) -> None:
        self.graph, self.order, self.end = graph, graph.derived(HappensBefore), len(graph.ops)
        self.device, self.route = device, route
        self.tensor, self.users, self.writes = tensor, graph.users[tensor], graph.writers[tensor]
        self.written = 0  # writes walked past
        self.returns = device in start  # at the end of the step
        self.here, self.below = device in start, {tier for tier in start if tier != device}
        self.last = AT_START
        self.placed: list[tuple[int, CacheOp]] = []

    def walk(self, before: int) -> None:
        """Past the users listed before ``before``: what they write is valid in the device tier
        alone.
        """
        written = bisect_left(self.writes, before) if self.writes else 0
        if written > self.written:
            self.written, self.here, self.below = written, True, set()

    def leave(self, absence: Absence) -> None:
        """A store if one is needed, a detach, and a prefetch if it returns; nothing where no place
        for them is safe.
        """
        before = absence.before
        read = before < self.end and self.graph.compact_users.reads(self.tensor, before)
        needed = read or (before == self.end and self.graph.survives[self.tensor])
        if before == self.end and not needed:
            return  # it dies there by itself
        if self.here and not self._released(absence, needed):
            return
        if read or (before == self.end and self.returns):
            after = self.order.last_before(self.last, min(absence.prefetch, before - 1))
            self._copy(PREFETCH, self.below, self.device, after, before)
            self.here = True

    def _released(self, absence: Absence, needed: bool) -> bool:
        """A store if one is needed and a detach, and whether there are safe places for them."""
        before, order = absence.before, self.order
        follows, store = [*self._last_users(before), self.last], None
        if needed and not self.below:
            wrote = self.writes[max(self.written - 1, 0) : self.written]
            store = order.first_after([*wrote, self.last], absence.store)
            if store is None:
                return False
            follows.append(store)
        release = order.first_after(follows, absence.release)
        if release is None or release >= before:
            return False
        if not (needed or order.ended_by(release, before)):
            return False  # what overwrites it might come first
        if store is not None:
            self._copy(STORE, [self.device], absence.tier, store, before)
            self.below = {absence.tier}
        detach = plain_cache_op(DETACH, self.tensor, self.device, None, release)
        self.placed.append((before, detach))
        self.last, self.here = release, False
        return True

    def write_back(self, tier: str) -> None:
        """A store after the last write, if the tier has no valid copy."""
        if tier in self.below or not (self.here or self.below):
            return
        # the op that a cache op was placed for ends after it was issued, also where it is on
        # another stream
        use = self.placed[-1][0] if self.placed else self.end
        waited = use < self.end and bool(self.writes) and self.order.ended_by(use, self.writes[-1])
        follows = [*self.writes[-1:], *([] if waited else [self.last])]
        after = self.order.first_after(follows, AT_START)
        if after is not None:
            sources = [*self.below, *([self.device] if self.here else [])]
            self._copy(STORE, sources, tier, after, self.end)
            self.below.add(tier)

    def _last_users(self, before: int) -> Sequence[int]:
        """Users listed before ``before`` that together are the last ones: after each of them, on
        its stream, none.
        """
        until = bisect_left(self.users, before)
        if self.order.single:
            return self.users[max(until - 1, 0) : until]
        since = self.writes[self.written - 1] if self.written else 0  # it waits for those before it
        return self.users[bisect_left(self.users, since) : until]

    def _copy(
        self, op: str, sources: Iterable[str], destination: str, after: int, before: int
    ) -> None:
        hops = self.route(sources, destination)
        copies = copies_along(hops, op, self.tensor, self.device, after)
        self.placed += [(before, cache_op) for cache_op in copies]
        self.last = after

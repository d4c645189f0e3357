"""Absences to cache ops: a policy says when a tensor is away from the device tier, and this makes it happen legally.

A tensor leaves by a store (if no copy below holds its present contents) and a detach, and comes back by a prefetch. An op that
overwrites it makes the copies below stale; one that does so without reading it needs none, so contents that nobody will read are dropped
unsaved. What starts below comes up before its first reader, and what the step writes of it goes back (docs/contract.md, rule 2).

A policy names the places it wants; insertion moves each to the nearest place that is safe on several streams
(:mod:`hosim.analysis.happens_before`), and an absence that has none is left out: the tensor stays.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from hosim.analysis.happens_before import HappensBefore
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.schedule.lower_tiers import route


@dataclass(frozen=True, slots=True)
class Absence:
    """``tensor`` away from the device tier between its uses by the ops ``after`` and ``before``.

    ``after`` is :data:`AT_START` before the first use, ``before`` the number of ops after the last one. ``store``, ``release`` and
    ``prefetch`` are the ops at whose ends the store, the detach and the prefetch are wanted; ``tier`` is where the store goes, unless
    the tensor has a place of its own below. What ends the step away stays away, unless it was in the device tier at time 0 and must be
    again: then it comes back at ``prefetch``.
    """

    tensor: int
    after: int
    before: int
    store: int
    release: int
    prefetch: int
    tier: str


def insert(
    graph: Graph, hardware: Hardware, policy: str, absences: Iterable[Absence], initial: Mapping[int, tuple[str, ...]] | None = None
) -> Plan:
    """The plan in which the tensors are away as ``absences`` say, in ``initial`` (default: at home) at time 0.

    Absences of one tensor must not overlap. Raises :class:`hosim.errors.InfeasibleError` where no channels lead from a tensor's home to
    the device tier.
    """
    by_tensor: dict[int, list[Absence]] = {}
    for absence in absences:
        by_tensor.setdefault(absence.tensor, []).append(absence)
    plan = Plan(graph, policy, (), dict(initial or {}))
    device = hardware.device_tier
    order = graph.derived(HappensBefore)
    placed: list[tuple[int, int, CacheOp]] = []
    for t, where in plan.residency(device).items():
        if device not in where or t in by_tensor:
            placed += _TensorCacheOps(graph, hardware, order, t, where).run(sorted(by_tensor.pop(t, ()), key=lambda a: a.after))
    for t, listed in by_tensor.items():
        placed += _TensorCacheOps(graph, hardware, order, t, ()).run(sorted(listed, key=lambda a: a.after))
    placed.sort(key=lambda entry: entry[:2])  # what is needed first is issued first; a tensor's own keep their order
    return Plan(graph, policy, tuple([cache_op for _, _, cache_op in placed]), plan.initial)


class _TensorCacheOps:
    """The cache ops of one tensor through the step, and where they leave valid copies."""

    def __init__(self, graph: Graph, hardware: Hardware, order: HappensBefore, tensor: int, start: tuple[str, ...]) -> None:
        self.graph = graph
        self.hardware = hardware
        self.order = order
        self.tensor = tensor
        self.device = hardware.device_tier
        self.users = graph.users[tensor]
        self.writes = [u for u in self.users if tensor in graph.ops[u].outputs or tensor in graph.ops[u].mutates]
        self.start = start
        self.below = {tier for tier in start if tier != self.device}
        self.here = self.device in start
        self.last = AT_START
        self.seen = 0  # users walked past
        self.placed: list[tuple[int, int, CacheOp]] = []

    def run(self, absences: list[Absence]) -> list[tuple[int, int, CacheOp]]:
        """Cache ops as (after, next use, cache op)."""
        end = len(self.graph.ops)
        if not self.here and self.start and not (absences and absences[0].after == AT_START):
            self._come(self.users[0] if self.users else end, AT_START)
        for absence in absences:
            self._leave(absence)
        self._walk(end)
        if self.graph.survives[self.tensor]:
            self._return(end)
        return self.placed

    # -- absences ----------------------------------------------------------------------------------------------

    def _leave(self, absence: Absence) -> None:
        before, end = absence.before, len(self.graph.ops)
        self._walk(before)
        if before == end:
            read, needed = False, self.graph.survives[self.tensor]
        else:
            read = needed = self._reads(before)
        if not self.here:  # it starts below
            self._come(before, absence.prefetch)
            return
        if before == end and not needed:
            return  # it dies there by itself
        earlier = self._recent(before)
        store = None
        if needed and not self.below:
            writes = bisect_left(self.writes, before)
            store = self.order.first_after([*self.writes[writes - 1 : writes], self.last], absence.store)
            if store is None:
                return
            earlier.append(store)
        release = self.order.first_after([*earlier, self.last], absence.release)
        if release is None or release >= before:
            return
        if before < end and not read and not self.order.ended_by(release, before):
            return  # the op that overwrites it might come first
        if store is not None:
            hops = route(self.hardware, [self.device], self._destination(absence))
            for source, destination in pairwise(hops):
                self._put(STORE, source, destination, store, before)
            for passed in hops[1:-1]:
                self._put(DETACH, passed, None, store, before)
            self.below = {hops[-1]}
        self._put(DETACH, self.device, None, release, before)
        self.here = False
        if read or (before == end and self.device in self.start):
            self._come(before, absence.prefetch)

    def _destination(self, absence: Absence) -> str:
        """Where a store goes: to the tensor's own place if a channel leads there, or if it is to stay; else where the policy says."""
        own = [tier for tier in self.start if tier != self.device]
        joined = [tier for tier in own if (self.device, tier) in self.hardware.channel_between]
        return next(iter(joined or (own if absence.before == len(self.graph.ops) else ())), absence.tier)

    def _come(self, before: int, wanted: int) -> None:
        """A prefetch for the op ``before``, if that op reads the tensor or there is none and it must be back."""
        end = len(self.graph.ops)
        if before < end and not self._reads(before):
            return
        if before == end and self.device not in self.start:
            return
        after = self.order.last_before(self.last, min(wanted, before - 1))
        hops = route(self.hardware, self.below, self.device)
        for source, destination in pairwise(hops):
            self._put(PREFETCH, source, destination, after, before)
        for tier in hops[1:-1]:
            self._put(DETACH, tier, None, after, before)
        self.here = True

    def _return(self, end: int) -> None:
        """Rule 2: what was in a lower tier at time 0 is there again at the end, by a store after the last write if it is not."""
        for tier in self.start:
            if tier == self.device or tier in self.below or not (self.here or self.below):
                continue
            # the op that a cache op was placed for ends after it was issued, also where it is on another stream
            use = self.placed[-1][1] if self.placed else end
            waited = use < end and bool(self.writes) and self.order.ended_by(use, self.writes[-1])
            after = self.order.first_after([*self.writes[-1:], *([] if waited else [self.last])], AT_START)
            if after is None:
                return
            hops = route(self.hardware, [*self.below, *([self.device] if self.here else [])], tier)
            for source, destination in pairwise(hops):
                self._put(PREFETCH if destination == self.device else STORE, source, destination, after, end)
            for passed in hops[1:-1]:
                self._put(DETACH, passed, None, after, end)
            self.below.add(tier)

    # -- the walk ----------------------------------------------------------------------------------------------

    def _walk(self, before: int) -> None:
        """Past the users listed before ``before``: what they write is valid in the device tier alone."""
        until = bisect_left(self.users, before)
        if bisect_left(self.writes, before) > bisect_left(self.writes, self.users[self.seen] if self.seen < until else before):
            self.below = set()
            self.here = True
        self.seen = max(self.seen, until)

    def _recent(self, before: int) -> list[int]:
        """Users listed before ``before`` that together are the last ones: after each of them, on its stream, none."""
        earlier = self.users[: bisect_left(self.users, before)]
        if self.order.single:
            return list(earlier[-1:])
        writes = bisect_left(self.writes, before)
        since = bisect_right(earlier, self.writes[writes - 1]) - 1 if writes else 0
        return list(earlier[max(since, 0) :])  # a writer waits for every user before it

    def _reads(self, op: int) -> bool:
        return self.tensor in self.graph.ops[op].reads

    def _put(self, op: str, source: str, destination: str | None, after: int, before: int) -> None:
        self.placed.append((after, before, CacheOp(op, self.tensor, source, destination, after)))
        self.last = after

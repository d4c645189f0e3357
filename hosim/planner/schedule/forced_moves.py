"""The moves that ops on other processors force (docs/contract.md, rule 20): an op's inputs are
resident where its processor reads.

A tensor that some op uses on the processor of a tier below is copied there once it has been
written, and to the device tier once that processor has written it; where it starts in another tier
it comes some ops before its use. It leaves the device tier when no op of the device reads it before
it is written anew, and at the end lies where it lay at the start (rule 2). What only ops of the
device use is left to the policies (:mod:`hosim.planner.schedule.around_processors`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from hosim.analysis import HappensBefore
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule.tiers_below import Route, copies_along, known_routes
from hosim.processors import tier_of

AHEAD = 4
"""Ops of its stream by which a copy comes before its use, if it has been written long before."""


_ForcedOp = tuple[int, CacheOp]
"""A cache op behind the op that it is for."""


def forced_tensors(graph: Graph) -> tuple[int, ...]:
    """The tensors that ops on other processors than the device's use, ascending."""
    return tuple(sorted({t for i in graph.elsewhere for t in graph.ops[i].uses}))


def starts_elsewhere(graph: Graph, hardware: Hardware) -> dict[int, tuple[str, ...]]:
    """Return the tiers in which tensors that only other processors use start, if the workload
    leaves it free: those of their processor.
    """
    found = {}
    for t in graph.initial:
        tiers = {tier_of(graph.ops[i], hardware) for i in graph.users[t]}
        if (
            len(tiers) == 1
            and hardware.device_tier not in tiers
            and graph.tensors[t].home in (None, hardware.device_tier)
        ):
            found[t] = tuple(tiers)
    return found


def forced_moves(
    graph: Graph,
    hardware: Hardware,
    initial: Mapping[int, tuple[str, ...]] | None = None,
    ahead: int = AHEAD,
    stays: int | None = None,
) -> tuple[CacheOp, ...]:
    """The cache ops of the tensors that ops on other processors use, which are in ``initial``
    (default: at home) at time 0.

    What lives below comes ``ahead`` ops before its use, and stays on the device for a use that
    follows within ``stays`` ops of its stream (default: as many).
    Raises :class:`hosim.errors.InfeasibleError` where no channels lead from where a tensor is to
    where an op reads it.

    >>> from hosim.graph import GraphBuilder
    >>> from hosim.shipped import find_hardware
    >>> from hosim.io import load_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("g", 40), b.op("f", "matmul", outputs=["g"], duration_ns=50)
    >>> _ = b.op("u", "optimizer", inputs=["g"], duration_ns=9, stream="ddr", processor="ddr")
    >>> [
    ...     (c.op, c.source, c.after)
    ...     for c in forced_moves(b.build(), load_hardware(find_hardware("toy")))
    ... ]
    [('store', 'hbm', 0), ('detach', 'hbm', 0)]
    """
    residency = Plan(graph, initial=dict(initial or {})).residency(hardware.device_tier)
    routes = known_routes(hardware)
    placed: list[_ForcedOp] = []
    for t in forced_tensors(graph):
        placed += _Itinerary(
            graph,
            hardware,
            routes,
            t,
            residency.get(t, ()),
            ahead,
            ahead if stays is None else stays,
        ).placed()
    placed.sort(key=lambda entry: (entry[1].after, entry[0]))
    return tuple([cache_op for _, cache_op in placed])


class _Itinerary:
    """The way of one tensor through its tiers, along the ops that use it."""

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        routes: Route,
        tensor: int,
        start: Sequence[str],
        ahead: int,
        stays: int,
    ) -> None:
        self.graph, self.order, self.end = graph, graph.derived(HappensBefore), len(graph.ops)
        self.device, self.routes, self.ahead, self.stays = (
            hardware.device_tier,
            routes,
            ahead,
            stays,
        )
        self.tensor, self.start, self.users = tensor, start, graph.users[tensor]
        self.tier = {i: tier_of(graph.ops[i], hardware) for i in self.users}
        self.valid = set(start)
        self.last = (
            AT_START  # by its end the last write is done, and every cache op so far is issued
        )
        self.since: list[int] = []  # users since the last write, that one among them

    def placed(self) -> Iterator[_ForcedOp]:
        """Its cache ops, each of them issued after the one before."""
        for k, i in enumerate(self.users):
            op, tier = self.graph.ops[i], self.tier[i]
            if tier not in self.valid and self.tensor in op.reads:
                yield from self._come(i, tier)
            if self.tensor in op.writes:
                self.last, self.since, self.valid = i, [], {tier}
            self.since.append(i)
            yield from self._leave(k)
        if self.graph.survives[self.tensor]:
            yield from self._return()

    def _come(self, i: int, tier: str) -> Iterator[_ForcedOp]:
        """A copy into ``tier`` for op ``i``: at once where the device has written it, else some ops
        ahead.
        """
        after = self.last
        if tier == self.device or self.device not in self.valid:
            queue, place = self.order.queues[self.order.stream_of[i]], self.order.place[i]
            wanted = queue[place - self.ahead - 1] if place > self.ahead else AT_START
            after = wanted if self.order.ended_by(self.last, wanted) else self.last
        yield from self._copy(i, tier, after, STORE if self.device in self.valid else PREFETCH)
        if tier != self.device and self.device in self.valid and not self._awaited(i):
            yield from self._drop(self.device, i)

    def _awaited(self, i: int) -> bool:
        """Whether, from op ``i`` on, an op of the device reads what is there now."""
        for j in self.users[bisect_left(self.users, i) :]:
            if self.tier[j] == self.device and self.tensor in self.graph.ops[j].reads:
                return True
            if self.tensor in self.graph.ops[j].writes:
                return False
        return self.device in self.start and self.graph.survives[self.tensor]

    def _leave(self, k: int) -> Iterator[_ForcedOp]:
        """Yield the op with which a tensor from a lower tier leaves the device tier after the
        ``k``-th user, unless one that soon follows on its stream reads it.
        """
        i = self.users[k]
        if (
            self.device in self.start
            or self.device not in self.valid
            or len(self.valid) == 1
            or self.tier[i] != self.device
        ):
            return
        for j in self.users[k + 1 :]:
            if self.tier[j] == self.device:
                place, stream = self.order.place, self.order.stream_of
                if stream[j] != stream[i] or place[j] - place[i] <= self.stays:
                    return
                break
        if k + 1 < len(self.users) or self.graph.survives[self.tensor]:
            yield from self._drop(self.device, i + 1)

    def _return(self) -> Iterator[_ForcedOp]:
        """Copies where the step began, and none elsewhere."""
        for tier in self.start:
            if tier not in self.valid:
                yield from self._copy(self.end, tier, self.last, STORE)
        for tier in sorted(self.valid - set(self.start)) if self.start else ():
            yield from self._drop(tier, self.end)

    def _copy(self, use: int, tier: str, after: int, op: str) -> Iterator[_ForcedOp]:
        hops = self.routes(sorted(self.valid), tier)
        for cache_op in copies_along(hops, op, self.tensor, self.device, after):
            yield use, cache_op
        self.last = after
        self.valid.add(tier)

    def _drop(self, tier: str, use: int) -> Iterator[_ForcedOp]:
        """A detach once the users of this copy have surely ended, if that is before the first user
        from ``use`` on.
        """
        k = bisect_left(self.users, use)
        before = self.users[k] if k < len(self.users) else self.end
        release = self.order.first_after(
            [*[i for i in self.since if self.tier[i] == tier], self.last], self.last
        )
        if (
            release is not None
            and release < before
            and (before == self.end or self.order.ended_by(release, before))
        ):
            yield use, CacheOp(DETACH, self.tensor, tier, None, release)
            self.last = release
            self.valid.discard(tier)

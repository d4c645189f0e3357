"""Paging: what ``on_demand``, ``lookahead`` and ``belady`` share. Ops fault, residents are evicted,
and the policy picks the victims.

Just before an op is launched, what it reads and is not in the device tier is prefetched (a fault),
and room is made for that, for its outputs and its workspace: a victim with a valid copy below is
detached, any other stored first, and detached when the store has ended and room is still lacking;
one that will be overwritten unread is dropped. Nothing else is evicted, and what ops use that have
been launched and may not have ended is not either.

The end of the step (docs/contract.md, rule 2), where no runtime is called any more, is settled
ahead: what starts below and is written is stored back after its last write, by a cache op of the
plan; what starts in the device tier and is away is prefetched behind the last op's needs when the
last op is launched, so that it comes as room becomes free.

The policy keeps its own account of where each tensor will be once every cache op issued so far has
taken effect: the engine's view shows only what is there now.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hosim.analysis import HappensBefore
from hosim.analysis.costmodel import machine_of_copies
from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, MemoryView, Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule.tiers_below import (
    Placement,
    copies_along,
    known_routes,
    nearest_tiers,
    route,
    space_below,
    starts,
)

_ATTEMPTS = 64
"""The number of times that an op may ask for room before it is told that there is none."""


Beside = Callable[[int], Iterable[int]]
"""The tensors that come up with one that an op misses, as far as there is room."""


class Victims(Protocol):
    """Residents in the order in which they are to be evicted."""

    def touch(self, tensor: int, next_use: int) -> None:
        """It is resident, is used now or fetched, and is used next by the op at ``next_use``."""

    def discard(self, tensor: int) -> None:
        """It is resident no more."""

    def pick(self, refuse: Callable[[int], bool]) -> int | None:
        """The first one that is not refused, which is discarded; ``None`` if all are."""


@dataclass(frozen=True)
class PagingTable:
    """The data on graph and machine that paging needs, computed once a plan: start tiers, tiers to
    evict to, and static last writes.
    """

    graph: Graph
    hardware: Hardware
    start: dict[int, tuple[str, ...]]
    last_write: dict[int, int]
    """Of tensors that start below and survive the step: the op after which the plan stores them
    back.
    """
    placement: Placement | None = None
    beside: Beside | None = None


def paging_plan(
    graph: Graph,
    hardware: Hardware,
    budget: int,
    policy: str,
    victims: Callable[[], Victims],
    k: int = 0,
    placement: Placement | None = None,
    initial: Mapping[int, tuple[str, ...]] | None = None,
    beside: Beside | None = None,
) -> Plan:
    """A plan whose runtime policy pages, evicting as ``victims`` says to where ``placement`` says,
    and looking ``k`` ops ahead.

    ``initial`` has what does not start at home (default: as
    :func:`hosim.planner.schedule.tiers_below.lower_tiers.starts` says); ``beside`` what comes up with each
    tensor that an op misses, where there is room.
    """
    initial = starts(graph, hardware, budget, placement) if initial is None else dict(initial)
    start = Plan(graph, initial=initial).residency(hardware.device_tier)
    cache_ops, last_write = _returns(graph, hardware, start)
    table = PagingTable(graph, hardware, start, last_write, placement, beside)
    return Plan(graph, policy, tuple(cache_ops), initial, lambda: Paging(table, victims(), k))


def _returns(
    graph: Graph, hardware: Hardware, start: dict[int, tuple[str, ...]]
) -> tuple[list[CacheOp], dict[int, int]]:
    """Cache ops that bring back what starts below and is written, after its last write; and free
    what the last op of a stream used last.
    """
    device, order = hardware.device_tier, graph.derived(HappensBefore)
    final = {op.stream: i for i, op in enumerate(graph.ops)}
    cache_ops: list[CacheOp] = []
    last_write: dict[int, int] = {}
    for t, where in start.items():
        users = graph.users[t]
        if device in where or not graph.survives[t] or not users:
            continue
        write = max(graph.writers[t], default=None)
        if write is not None:
            last_write[t] = write
            for tier in where:
                hops = route(hardware, [device], tier)
                cache_ops += copies_along(hops, STORE, t, device, write)
        if users[-1] == final[graph.ops[users[-1]].stream] and all(
            order.ended_by(u, users[-1]) for u in users
        ):
            cache_ops.append(CacheOp(DETACH, t, device, None, users[-1]))
    cache_ops.sort(key=lambda cache_op: cache_op.after)
    return cache_ops, last_write


class _OpColumns(NamedTuple):
    """The fields that are read of every op, by position: objects would be made for each."""

    uses: list[tuple[int, ...]]
    reads: list[tuple[int, ...]]
    writes: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    workspace_bytes: list[int]
    streams: list[str]


def _columns(graph: Graph) -> _OpColumns:
    ops = graph.ops
    return _OpColumns(
        [op.uses for op in ops],
        [op.reads for op in ops],
        [op.writes for op in ops],
        [op.outputs for op in ops],
        ops.column(lambda op: op.workspace_bytes),
        ops.column(lambda op: op.stream),
    )


class Paging:
    """The :class:`hosim.cache_plan.RuntimePolicy`. ``here`` and ``below`` are what will hold once
    all that is issued has taken effect.
    """

    def __init__(self, table: PagingTable, victims: Victims, k: int) -> None:
        graph, hardware = table.graph, table.hardware
        self.graph = graph
        self.table = table
        self.ops = graph.derived(_columns)
        self.uses, self.reads = self.ops.uses, self.ops.reads
        self.users = graph.users
        self.routes = known_routes(hardware)
        self.victims = victims
        self.k = k
        self.device = hardware.device_tier
        self.sizes = [tensor.size_bytes for tensor in graph.tensors]
        self.tiers = [tier.name for tier in nearest_tiers(machine_of_copies(graph, hardware))]
        self.space = space_below(graph, hardware, table.start, table.placement)
        self.room = {tier.name: tier.capacity_bytes for tier in hardware.tiers}
        self.here = bytearray(len(graph.tensors))
        self.below: dict[int, tuple[str, ...]] = {}
        self.guest: dict[int, str] = {}  # in a tier below that is not its own
        self.begun = bytearray(len(graph.ops))
        self.next_user = [0] * len(graph.tensors)
        self.users_left = [len(users) for users in graph.users]
        self.running: dict[str, int] = {}
        self.left = len(graph.ops)
        self.leaving: set[int] = set()
        self.returning: set[int] = (
            set()
        )  # fetched while they were leaving: the same bytes, until they are gone
        self.stored: set[int] = (
            set()
        )  # victims that are detached once their stores have ended and room is wanted
        self.coming: set[int] = set()
        self.asked: tuple[int, int] = (-1, 0)
        self.withheld: list[
            CacheOp
            # decided for an op that had no room even so: the account has them, so they come before
            # the next
        ] = []
        for t, where in table.start.items():
            for tier in where:
                self.room[tier] -= self.sizes[t]
            self.below[t] = tuple(tier for tier in where if tier != self.device)
            if self.device in where:
                self.here[t] = 1
                self.victims.touch(t, self._next_use(t))

    # -- what the engine asks
    # ----------------------------------------------------------------------------------

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        """Faults of ``op``, evictions for it, and prefetches for the next ``k`` ops while there is
        room.
        """
        here = self.here
        self._launch(op)
        uses = self.uses[op]
        missing = [t for t in self.reads[op] if not here[t]]
        needed = sum([self.sizes[t] for t in missing]) + self.ops.workspace_bytes[op]
        needed += sum(
            [self.sizes[t] for t in self.ops.outputs[op] if not here[t] and not view.is_resident(t)]
        )
        decisions = self._withheld()
        self.stored.difference_update(uses)  # needed again: they stay, with a clean copy below
        self._evict(needed - self._free(view), view, decisions)
        for t in missing:
            self._fetch(t, decisions)
        for t in uses:
            here[t] = 1
            self.victims.touch(t, self._next_use(t))
        for t in self.ops.writes[op]:
            self._stale(t)
        if self.table.beside is not None and missing:
            self._fetch_beside(
                [other for t in missing for other in self.table.beside(t)], view, needed, decisions
            )
        if self.k:
            self._look_ahead(op, view, needed, decisions)
        if not self.left:
            self._close(op, view, needed, decisions)
        return decisions

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        """Evictions that free ``wanted_bytes``, and if possible what other prefetches wait for;
        none if so much cannot be freed.
        """
        self.asked = (op, self.asked[1] + 1 if self.asked[0] == op else 1)
        if self.asked[1] > _ATTEMPTS:
            return ()
        mine = set(self.uses[op])
        self._free(view)
        others = sum(self.sizes[t] for t in self.coming if t not in mine)
        decisions = self._withheld()
        going = {
            d.tensor
            for d in decisions
            if d.tensor in self.stored or (d.op == DETACH and d.source == self.device)
        }
        lacking = wanted_bytes + others - view.free_bytes - sum([self.sizes[t] for t in going])
        lacking = self._detach_stored(lacking, view, decisions)
        if self._evict(lacking, view, decisions) > others:
            self.withheld = decisions
            return ()
        if not self.left:
            for t in [d.tensor for d in decisions if d.op == DETACH]:
                if self._must_return(t):
                    self._fetch(t, decisions)
        return decisions

    # -- the account
    # -------------------------------------------------------------------------------------------

    def _withheld(self) -> list[CacheOp]:
        """Return the cache ops to issue before anything else is decided."""
        withheld, self.withheld = self.withheld, []
        return withheld

    def _launch(self, op: int) -> None:
        """``op`` is launched, so the one before it on its stream has ended."""
        stream, users_of = self.ops.streams[op], self.users
        ended = self.running.get(stream)
        self.running[stream] = op
        self.begun[op] = 1
        self.left -= 1
        if ended is not None:
            for t in self.uses[ended]:
                self.users_left[t] -= 1
                if self.table.last_write.get(t) == ended:
                    self.below[t] = tuple(
                        tier for tier in self.table.start[t] if tier != self.device
                    )
                if not self.users_left[t] and not self.graph.survives[t]:
                    self.here[t] = 0
                    self._stale(t)
                    self.victims.discard(t)
                    self.coming.discard(t)
                    self.returning.discard(t)
                    self.stored.discard(t)
        for t in self.uses[op]:
            users, n = users_of[t], self.next_user[t]
            while n < len(users) and self.begun[users[n]]:
                n += 1
            self.next_user[t] = n

    def _next_use(self, t: int) -> int:
        """The next op to be launched that uses the tensor; of a persistent one perhaps of the next
        step; else after all.
        """
        users, n = self.users[t], self.next_user[t]
        if n < len(users):
            return users[n]
        end = len(self.graph.ops)
        return end + users[0] if users and self.graph.tensors[t].persistent else 2 * end

    def _stale(self, t: int) -> None:
        """The copies below are gone: dropped by a write, or with the tensor."""
        self.below[t] = ()
        tier = self.guest.pop(t, None)
        if tier is not None:
            self.room[tier] += self.sizes[t]

    def _free(self, view: MemoryView) -> int:
        """Bytes that will be free once all that is issued has taken effect, if no op ends."""
        self.leaving = {t for t in self.leaving if view.is_resident(t)}
        self.coming = {t for t in self.coming | self.returning if not view.is_resident(t)}
        self.returning -= self.coming
        out = sum([self.sizes[t] for t in (*self.leaving, *self.stored)])
        return view.free_bytes + out - sum([self.sizes[t] for t in self.coming])

    # -- moves
    # ----------------------------------------------------------------------------------------------

    def _fetch(self, t: int, decisions: list[CacheOp]) -> None:
        decisions += copies_along(self.routes(self.below[t], self.device), PREFETCH, t, self.device)
        self.here[t] = 1
        if t in self.leaving:
            self.leaving.discard(t)
            self.returning.add(t)
        else:
            self.coming.add(t)
        self.victims.touch(t, self._next_use(t))

    def _detach_stored(self, lacking: int, view: MemoryView, decisions: list[CacheOp]) -> int:
        """Detach victims whose stores have ended until ``lacking`` bytes more are free; returns
        what is still lacking.
        """
        withheld = {
            d.tensor for d in decisions
        }  # an op launched while they are stored may read them
        for t in sorted(t for t in self.stored if t not in withheld and not view.is_busy(t)):
            if lacking <= 0:
                break
            decisions.append(CacheOp(DETACH, t, self.device, None))
            self.stored.discard(t)
            self.here[t] = 0
            lacking -= self.sizes[t]
        return lacking

    def _evict(
        self, lacking: int, view: MemoryView, decisions: list[CacheOp], spared: Iterable[int] = ()
    ) -> int:
        """Evict until ``lacking`` bytes more are or will be free; returns what is still lacking (0
        or less if nothing is).
        """
        if lacking <= 0:
            return lacking
        pinned = {t for op in self.running.values() for t in self.uses[op]}.union(spared)

        def refuse(t: int) -> bool:
            return t in pinned or not view.is_resident(t) or view.is_busy(t)

        stuck: list[int] = []
        while lacking > 0:
            victim = self.victims.pick(refuse)
            if victim is None:
                break
            if self._evict_one(victim, decisions):
                lacking -= self.sizes[victim]
            else:
                stuck.append(victim)
        for t in stuck:
            self.victims.touch(t, self._next_use(t))
        return lacking

    def _evict_one(self, t: int, decisions: list[CacheOp]) -> bool:
        """Out of the device tier; says whether it can go."""
        users, n = self.graph.users[t], self.next_user[t]
        comes_again = n < len(users)
        needed = t in self.reads[users[n]] if comes_again else self.graph.survives[t]
        if not needed and not comes_again:
            return False  # it dies with an op that runs
        if needed and not self.below.get(t):
            tier = self._store(t, decisions)
            if tier is None:
                return False
            if (
                comes_again
            ):  # an op launched meanwhile may read it: it is detached when the store has ended
                self.stored.add(t)
                return True
        decisions.append(CacheOp(DETACH, t, self.device, None))
        self.here[t] = 0
        self.leaving.add(t)
        self.returning.discard(t)
        return True

    def _store(self, t: int, decisions: list[CacheOp]) -> str | None:
        """A copy in its own tier below or in the first one with room; says where, ``None`` if there
        is no room.
        """
        own = [
            tier
            for tier in self.table.start.get(t, ())
            if tier != self.device and tier in self.tiers
        ]
        tier = next(
            (
                tier
                for tier in own or self.space.order(t)
                if own or self.room[tier] >= self.sizes[t]
            ),
            None,
        )
        if tier is not None:
            if not own:
                self.guest[t] = tier
                self.space.use(t, tier)
                self.room[tier] -= self.sizes[t]
            decisions.append(CacheOp(STORE, t, self.device, tier))
            self.below[t] = (tier,)
        return tier

    def _look_ahead(self, op: int, view: MemoryView, needed: int, decisions: list[CacheOp]) -> None:
        """What the next ``k`` listed ops read and lies below, nearest first, while there is room
        beside what ``op`` needs.
        """
        free = self._left(view, needed, decisions)
        for j in range(op + 1, min(op + 1 + self.k, len(self.graph.ops))):
            if self.begun[j]:
                continue
            for t in self.reads[j]:
                if self._may_come(t):
                    if self.sizes[t] > free:
                        return
                    free -= self.sizes[t]
                    self._fetch(t, decisions)

    def _fetch_beside(
        self, others: Iterable[int], view: MemoryView, needed: int, decisions: list[CacheOp]
    ) -> None:
        """What comes up with those that are missing, while there is room beside what the op
        needs.
        """
        free = self._left(view, needed, decisions)
        for t in dict.fromkeys(others):
            if self._may_come(t) and self.sizes[t] <= free:
                free -= self.sizes[t]
                self._fetch(t, decisions)

    def _left(self, view: MemoryView, needed: int, decisions: list[CacheOp]) -> int:
        """Bytes that are free beside the ``needed`` ones of an op, some of which the decisions
        bring already.
        """
        arriving = sum(
            self.sizes[d.tensor]
            for d in decisions
            if d.op == PREFETCH and d.destination == self.device
        )
        return self._free(view) - (needed - arriving)

    def _may_come(self, t: int) -> bool:
        """Return whether it lies below, and nothing may overwrite it before it is read: its next
        user must be one that reads it.
        """
        if self.here[t] or not self.below.get(t) or self.next_user[t] >= len(self.graph.users[t]):
            return False
        return t in self.reads[self._next_use(t)]

    def _must_return(self, t: int) -> bool:
        return self.graph.survives[t] and self.device in self.table.start.get(t, ())

    def _close(self, op: int, view: MemoryView, needed: int, decisions: list[CacheOp]) -> None:
        """The last op is launched: what must be in the device tier at the end is fetched behind it,
        and what need not be makes room.
        """
        back = [t for t in self.table.start if not self.here[t] and self._must_return(t)]
        if not back:
            return
        wanted = sum(self.sizes[t] for t in back) + needed - self._free(view)
        self._evict(wanted, view, decisions, [t for t in self.table.start if self._must_return(t)])
        for t in back:
            self._fetch(t, decisions)

"""The slack of each copy of a replayed plan, that is, how late it may be at no cost: one walk
backwards over when its ops and transfers began and ended.

What began waited for what had ended before. From these waits, each with its own time as it was,
follows the latest instant at which each op and transfer may begin so that the step ends no later
(the backward pass of the critical path method, Kelley and Walker 1959).

What waits for what (docs/contract.md):

- an op: the op before on its stream, its producers, the transfers that it waits for (rule 1), and
  room for what it makes (rule 4);
- a transfer: its issue, the cache op of its tensor before it, the op that writes what it copies
  (rule 3), the transfer whose engine it takes and the start of the one ahead of it, the chunk ahead
  of it and its own hop before (rule 7), and room for what it brings;
- a detach: its issue, and the cache op of its tensor before it.

Room is given back by detaches, by the last users of what dies, by ops that write another copy, and
by ends of ops and of hops. Room is handed out in the order of the replay: what takes bytes of a
tier waits for the first of what gives bytes back that are enough.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from operator import itemgetter

from hosim.analysis.slack.awaited_copies import awaited_copies
from hosim.base.collector import no_collection
from hosim.base.groups import grouped
from hosim.cache_plan import AT_START, DETACH, Plan
from hosim.hardware import Hardware
from hosim.processors import tier_of
from hosim.result import EventTimes, Timeline, Transfer


@dataclass(frozen=True, slots=True)
class Latitude:
    """The instants at which a copy could have begun.

    ``ready_ns``: since when what it copies was there, and the cache op of its tensor before it was
    over. ``slack_ns``: how much later the whole of it may begin and end at no cost.
    """

    ready_ns: int
    slack_ns: int


def latitudes(
    plan: Plan, hardware: Hardware, budget_bytes: int, times: EventTimes | Timeline
) -> dict[int, Latitude]:
    """The latitude of each copy of a plan in a replay of it, by its place in ``plan.cache_ops``; in
    nanoseconds.

    The slack of a copy is the most that it, and of a route each of its chunks, may be later so that
    nothing ends later than the last of all did, if all else goes on as soon as it can in the
    replay's order: the same on each stream, channel and engine, and in which room of each tier is
    given back and taken; and if each op and transfer takes as long as it took, also where bandwidth
    is shared. It is exact as long as that holds: a copy that is later by more costs what it is
    beyond its slack. Where a later copy would change who shares bandwidth, or let another one
    ahead, its slack is that of this order and these rates, no more. Copies that never began are
    left out.

    ``times`` are those of a replay that fits, of one device or of one that stands for all, within
    ``budget_bytes`` of the device tier, of a plan that no runtime policy decides on.

    >>> from hosim.cache_plan import CacheOp
    >>> from hosim.engine import replay, times_of
    >>> from hosim.graph import GraphBuilder
    >>> from hosim.io import load_hardware
    >>> from hosim.shipped import find_hardware
    >>> b = GraphBuilder("toy")
    >>> _ = b.tensor("w", 40, "parameter", home="ddr"), b.op("f", "matmul", duration_ns=50)
    >>> _ = b.op("g", "matmul", inputs=["w"], duration_ns=50)
    >>> plan = Plan(
    ...     b.build(),
    ...     cache_ops=(
    ...         CacheOp("prefetch", 0, "ddr", "hbm"),
    ...         CacheOp("detach", 0, "hbm", None, after=1),
    ...     ),
    ... )
    >>> toy = load_hardware(find_hardware("toy"))
    >>> latitudes(
    ...     plan, toy, 100, times_of(plan, toy, 100)
    ... )  # 40 ns until it is there, and g begins at 50
    {0: Latitude(ready_ns=0, slack_ns=10)}
    """
    with no_collection():  # the walk leaves no cycles
        waits = _SlackWalk(plan, hardware, times)
        waits.on_streams()
        waits.on_channels()
        waits.of_tensors()
        waits.for_room(budget_bytes)
        late = waits.latest()
        return {
            k: Latitude(waits.ready[k], min([late[r] - waits.begin[r] for r in moved]))
            for k, moved in sorted(waits.records.items())
        }


_ENDS, _OPS, _TRANSFERS, _AT_ONCE = 0, 1, 2, 3
"""The order within an instant (rule 0): what ends, ops and transfers that begin, and what ends that
has begun then.
"""


@dataclass(slots=True)
class _Room:
    """The bytes taken of a tier (instant, event, bytes), and those given back (instant, bytes, and
    which events have then ended, or begun).

    ``held`` is there at time 0.
    """

    held: int
    taken: list[tuple[int, int, int]]
    given: list[tuple[int, int, Sequence[int], Sequence[int]]]


class _SlackWalk:
    """The waits between the events of a replay. An event is an op, a transfer or something that
    gives room back; ``begin`` says when each begins.

    ``after`` are the events that have ended when one begins, ``beside`` those that have begun.
    ``records`` are the transfers of each cache op, in the order of their ends.
    """

    def __init__(self, plan: Plan, hardware: Hardware, times: EventTimes | Timeline) -> None:
        self.plan, self.graph, self.hardware, self.times = plan, plan.graph, hardware, times
        ops, self.transfers = len(self.graph.ops), times.transfers
        self.begin = [*times.op_start_ns, *[x.start_ns for x in self.transfers]]
        self.end = [*times.op_end_ns, *[x.end_ns for x in self.transfers]]
        self.after: list[list[int]] = [[] for _ in self.begin]
        self.beside: dict[int, list[int]] = {}
        self.makespan = max(self.end, default=0)
        self.records = grouped((x.cache_op, ops + r) for r, x in enumerate(self.transfers))
        self.ready: dict[int, int] = {}
        self.where = [tier_of(op, hardware) for op in self.graph.ops]
        self.starts = plan.residency(hardware.device_tier)
        self.rooms = {tier.name: _Room(0, [], []) for tier in hardware.tiers}
        for t, tiers in self.starts.items():
            for tier in tiers:
                self.rooms[tier].held += self.graph.tensors[t].size_bytes

    def event(self, at: int, after: Iterable[int] = (), beside: Sequence[int] = ()) -> int:
        """An event that takes no time."""
        self.begin.append(at)
        self.end.append(at)
        self.after.append(list(after))
        if beside:
            self.beside[len(self.begin) - 1] = list(beside)
        return len(self.begin) - 1

    # -- streams and channels
    # ----------------------------------------------------------------------------------

    def on_streams(self) -> None:
        """Ops wait for the one before on their stream, and for their producers."""
        before: dict[str, int] = {}
        for i, op in enumerate(self.graph.ops.each()):
            self.after[i] += self.graph.producers[i]
            if op.stream in before:
                self.after[i].append(before[op.stream])
            before[op.stream] = i

    def on_channels(self) -> None:
        """Transfers wait for an engine of their channel, behind those ahead of them."""
        ops, queue_of = len(self.graph.ops), self.hardware.queue_of
        on = {channel.name: channel.engines for channel in self.hardware.channels}
        queues = grouped(
            (queue_of[self.transfers[r].channel], ops + r)
            for _, _, _, r in sorted(
                [(x.start_ns, x.issue_ns, x.cache_op, r) for r, x in enumerate(self.transfers)]
            )
        )
        for channel, queue in queues.items():
            engines: list[tuple[int, int]] = []
            for r in queue:
                if len(engines) == on[channel]:
                    self.after[r].append(heappop(engines)[1])
                heappush(engines, (self.end[r], r))
            if on[channel] > 1:
                for ahead, r in pairwise(queue):
                    self.beside.setdefault(r, []).append(ahead)
        for records in self.records.values():
            if len(records) > 1:
                self._chunks(records)

    def _chunks(self, records: Sequence[int]) -> None:
        """Chunks of a cache op pass each hop one by one, and a hop after the one before; in between
        they take room until they are over.
        """
        hops = grouped(
            (self._moved(r).channel, r) for r in sorted(records, key=self.begin.__getitem__)
        )
        for chunks in hops.values():
            for ahead, r in pairwise(chunks):
                self.after[r].append(ahead)
        destination = {channel.name: channel.destination for channel in self.hardware.channels}
        for hop, following in pairwise(hops):  # in the order of their first chunks
            for r, onward in zip(hops[hop], hops[following], strict=True):
                self.after[onward].append(r)
                room, size = self.rooms[destination[hop]], self._moved(r).bytes
                room.taken.append((self.begin[r], r, size))
                room.given.append((self.end[onward], size, [onward], ()))

    def _moved(self, r: int) -> Transfer:
        return self.transfers[r - len(self.graph.ops)]

    # -- tensors
    # ----------------------------------------------------------------------------------------------

    def of_tensors(self) -> None:
        """Cache ops of a tensor wait for one another and for ops that write it, ops for cache ops;
        and what all of them hold.
        """
        copies = grouped(
            (self.plan.cache_ops[k].tensor, k)
            for k in sorted(
                range(len(self.plan.cache_ops)), key=lambda k: (self.plan.cache_ops[k].after, k)
            )
        )
        writers, survives = self.graph.writers, self.graph.survives
        starts, end = self.starts, self.end
        for t, users in enumerate(self.graph.users):
            written = writers[t]  # by turns, as each waits for those before
            ends = None if survives[t] or not users else max([end[i] for i in users])
            last, moves = self._cache_ops(t, copies[t], written, ends) if t in copies else ([], [])
            held = {*starts.get(t, ())}
            if moves or self.graph.elsewhere:
                self._held(
                    t,
                    held,
                    sorted([*moves, *[(self.begin[i], _OPS, i, self.where[i]) for i in written]]),
                )
            elif written and not held:
                held = {self.where[written[0]]}
                self._take(t, self.where[written[0]], written[0])
            if ends is not None and held:
                before = [*users, *last]
                for tier in held:
                    self._give(t, tier, max([ends, *[end[x] for x in last]]), before)

    def _cache_ops(
        self, t: int, copies: Sequence[int], writers: Sequence[int], ends: int | None
    ) -> tuple[list[int], list[tuple[int, int, int, str]]]:
        """The last of a tensor's cache ops, if there is one, and what they do: instant, place
        within it (rule 0), event, tier.

        ``ends``: the instant from which on the tensor is released, and its cache ops do nothing.
        """
        cache_ops, moves = self.plan.cache_ops, []
        before: list[int] = []  # the last one that has been issued
        written = [self.end[i] for i in writers]
        for issue, _, k in sorted([(*self._issue(cache_ops[k].after), k) for k in copies]):
            c = cache_ops[k]
            issued = [] if c.after == AT_START else [c.after]
            if ends is not None and issue >= ends and k not in self.records:
                continue
            if c.op == DETACH:
                release = self.event(
                    max([issue, *[self.end[x] for x in before]]), [*issued, *before]
                )
                at_once = (
                    bool(issued) and self.begin[c.after] == self.begin[release]
                )  # an op that takes no time began before it
                moves.append(
                    (self.begin[release], _AT_ONCE if at_once else _ENDS, release, c.source)
                )
                before = [release]
                continue
            records = self.records[k]
            first, last = min(records, key=self.begin.__getitem__), records[-1]
            passed = bisect_right(written, self.begin[first])
            source = [*before, *writers[max(0, passed - 1) : passed]]
            self.ready[k] = max([self.end[x] for x in source], default=0)
            self.after[first] += [*issued, *source]
            for i in writers[
                passed : passed + 1
            ]:  # the next one to write it; those after wait for that one
                self.after[i].append(last)
            arrives = min(
                [r for r in records if self._moved(r).channel == self._moved(last).channel],
                key=self.begin.__getitem__,
            )
            moves.append((self.begin[arrives], _TRANSFERS, arrives, c.destination or ""))
            before = [last]
        for i, arriving, others in awaited_copies(self.plan, t, copies, self.where):
            self.after[i] += [
                self.records[k][-1]
                for k in (*others, *(() if arriving is None else (arriving,)))
                if k in self.records
            ]
        return before, moves

    def _issue(self, after: int) -> tuple[int, int]:
        """Return the instants at which cache ops are issued after an op, and the order within each:
        ops that take no time end one after the other.
        """
        if after == AT_START:
            return 0, AT_START
        return self.end[after], after if self.begin[after] == self.end[after] else AT_START

    # -- room
    # ----------------------------------------------------------------------------------------------

    def _held(self, t: int, held: set[str], moves: Sequence[tuple[int, int, int, str]]) -> None:
        """Where a tensor takes room and gives it back, from the tiers that hold it at time 0 to
        those that do when all is done.
        """
        for at, place, x, tier in moves:
            if place in (_ENDS, _AT_ONCE):
                if tier in held:
                    self._give(t, tier, at, [x])
                    held.discard(tier)
                continue
            if tier not in held:
                self._take(t, tier, x)
            stale = held - {tier} if place == _OPS else set()
            for other in sorted(stale):
                self._give(t, other, at, (), [x])
            held.difference_update(stale)
            held.add(tier)

    def _take(self, t: int, tier: str, x: int) -> None:
        if self.graph.tensors[t].size_bytes:
            self.rooms[tier].taken.append((self.begin[x], x, self.graph.tensors[t].size_bytes))

    def _give(
        self, t: int, tier: str, at: int, ended: Sequence[int], begun: Sequence[int] = ()
    ) -> None:
        if self.graph.tensors[t].size_bytes:
            self.rooms[tier].given.append((at, self.graph.tensors[t].size_bytes, ended, begun))

    def for_room(self, budget_bytes: int) -> None:
        """An op or a transfer that takes room waits until enough is given back. Each of several
        devices has its part.
        """
        for i, op in enumerate(self.graph.ops.each()):
            if op.workspace_bytes:
                room = self.rooms[self.where[i]]
                room.taken.append((self.begin[i], i, op.workspace_bytes))
                room.given.append((self.end[i], op.workspace_bytes, [i], ()))
        for tier in self.hardware.tiers:
            room = self.rooms[tier.name]
            whole = (
                min(budget_bytes, tier.capacity_bytes)
                if tier.name == self.hardware.device_tier
                else tier.capacity_bytes
            )
            free = whole // self.hardware.sharers(self.hardware.tier_scope(tier.name)) - room.held
            self._wait_for_room(sorted(room.taken), sorted(room.given, key=itemgetter(0)), free)

    def _wait_for_room(
        self,
        taken: Sequence[tuple[int, int, int]],
        given: Sequence[tuple[int, int, Sequence[int], Sequence[int]]],
        free: int,
    ) -> None:
        """``gates`` has an event for each of what gives room back: it and those before it have done
        so, and all others of its instant.
        """
        at, back = [x[0] for x in given], list(accumulate([x[1] for x in given]))
        gates: list[int] = []
        for (now, x, _), wanted in zip(
            taken, accumulate([size for _, _, size in taken]), strict=True
        ):
            if wanted <= free:
                continue
            enough = bisect_left(back, wanted - free)
            enough = bisect_right(at, min(now, at[enough]) if enough < len(at) else now)
            while len(gates) < enough:
                instant, _, ended, begun = given[len(gates)]
                gates.append(self.event(instant, [*ended, *gates[-1:]], begun))
            if enough:
                self.after[x].append(gates[enough - 1])

    # -- backwards
    # ---------------------------------------------------------------------------------------------

    def latest(self) -> list[int]:
        """The latest instant at which each event may begin so that nothing ends after the last of
        all did.

        From the last event to the first one, again where what takes no time stood in another order
        within its instant.
        """
        begin, end, after = self.begin, self.end, self.after
        late = [self.makespan - b + a for a, b in zip(begin, end, strict=True)]
        order = sorted(range(len(begin)), key=list(zip(begin, end, strict=True)).__getitem__)
        again = True
        while again:
            again, passed = False, bytearray(len(begin))
            for x in reversed(order):
                passed[x] = 1
                at = late[x]
                for y in after[x]:
                    if late[y] > at - end[y] + begin[y]:
                        late[y] = at - end[y] + begin[y]
                        again |= bool(passed[y])
                for y in self.beside.get(x, ()):
                    if late[y] > at:
                        late[y] = at
                        again |= bool(passed[y])
        return late

"""A lower bound on the makespan of any plan, wherever its tensors start: what no order of transfers
can beat.

The longest chain of ops is one. Where memory is short,
:mod:`hosim.analysis.lower_bounds.traffic_program` adds what has to move: at each of some ops,
the *pressure points*, what does not fit lies elsewhere, and its bytes cross the channels before,
after, or both. The derivation is in docs/lower-bound.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, product
from math import prod

from hosim.analysis.costmodel import machine_of_copies, memory_uses, op_durations
from hosim.analysis.costmodel.transfers import sent_bytes
from hosim.analysis.happens_before import HappensBefore
from hosim.analysis.liveness import homes_below, needed_bytes
from hosim.analysis.lower_bounds.any_processor import fits_on, least_durations, loosened
from hosim.analysis.lower_bounds.bound_search import BoundSearch
from hosim.analysis.lower_bounds.free_order_bound import free_order_bound_ns
from hosim.analysis.lower_bounds.linear_program import whole_ns
from hosim.analysis.lower_bounds.passages import Passages
from hosim.analysis.lower_bounds.processor_bound import processor_bound_ns
from hosim.analysis.lower_bounds.traffic_program import Group, Times, TrafficProgram
from hosim.analysis.pressure_points import Points, excess_of, points_of, tightest
from hosim.analysis.tensor_lives import Life, lives
from hosim.data.stream_order import earliest_starts, stream_predecessors
from hosim.edits import on_processors
from hosim.graph import Graph, Tensor
from hosim.hardware import Hardware
from hosim.processors import others_of

# -- op orders
# --------------------------------------------------------------------------------------------------
# Ops of different streams that cannot run at once, as memory does not hold what both use: one has
# ended before the other starts.

Timed = tuple[Graph, Sequence[int]]
"""A graph, and nanoseconds by op position."""


def least_of_orders(
    graph: Graph,
    durations: Sequence[int],
    capacity: int,
    bound: Callable[[Graph, Sequence[int]], int],
    enough: int | None,
    most: int,
) -> int:
    """The least ``bound`` of the graphs in which ops that cannot run at once follow one another, in
    whichever order.

    Every replay of the graph is one of them, so that it is a bound if each is. Of a pair that
    neither order decides both stay together; the bound is computed for at most ``most`` graphs and
    the search ends at ``enough``, if it gets there.
    """
    found: list[tuple[int, int, Timed]] = [(bound(graph, durations), 0, (graph, durations))]
    for number in range(1, most, 2):
        least, _, one = found[0]
        both = None if enough is not None and least >= enough else _either_way(*one, capacity)
        if both is None:
            break
        heappop(found)
        for k, each in enumerate(both):
            heappush(found, (max(least, bound(*each)), number + k, each))
    return found[0][0]


def _either_way(
    graph: Graph, durations: Sequence[int], capacity: int
) -> tuple[Timed, Timed] | None:
    """The graph with two ops that cannot run at once in the one order and in the other; ``None`` if
    all such ops have one.

    Of several pairs it takes that which would overlap most.
    """
    pairs = [
        (min(durations[i], durations[j]), -i, -j)
        for i, j in _unordered(graph)
        if _together(graph, i, j) > capacity
    ]
    if not pairs:
        return None
    _, i, j = max(pairs)
    return _followed(graph, durations, -i, -j), _followed(graph, durations, -j, -i)


def _unordered(graph: Graph) -> Iterator[tuple[int, int]]:
    """Pairs of ops of which neither has surely ended when the other starts."""
    order = graph.derived(HappensBefore)
    for j in range(len(graph.ops)):
        ended = order.known_at_start(j)
        yield from ((i, j) for i in range(j) if order.place[i] >= ended[order.stream_of[i]])


def _together(graph: Graph, i: int, j: int) -> int:
    """The bytes that two ops hold while both run."""
    both = graph.ops[i], graph.ops[j]
    return sum([op.workspace_bytes for op in both]) + sum(
        [graph.tensors[t].size_bytes for t in {t for op in both for t in op.uses}]
    )


def _followed(graph: Graph, durations: Sequence[int], first: int, then: int) -> Timed:
    """The graph in which op ``then`` depends on op ``first`` as well, its ops listed as before as
    far as that allows.
    """
    before = [
        {p for p in (*graph.producers[i], last) if p >= 0}
        for i, last in enumerate(stream_predecessors(graph))
    ]
    before[then].add(first)
    after: list[list[int]] = [[] for _ in before]
    for i, waited in enumerate(before):
        for p in waited:
            after[p].append(i)
    left = [len(waited) for waited in before]
    ready = [i for i, count in enumerate(left) if not count]
    place: dict[int, int] = {}
    while ready:
        i = heappop(ready)
        place[i] = len(place)
        for j in after[i]:
            left[j] -= 1
            if not left[j]:
                heappush(ready, j)
    deps = [(*graph.ops[i].deps, first) if i == then else graph.ops[i].deps for i in place]
    ops = [
        replace(graph.ops[i], deps=tuple(sorted({place[d] for d in each})))
        for i, each in zip(place, deps, strict=True)
    ]
    return Graph(graph.name, graph.tensors, tuple(ops), graph.meta), [durations[i] for i in place]


# -- bandwidth of ops ------------------------------------------------------------------------------


def free_bytes(graph: Graph, hardware: Hardware, durations: Sequence[int]) -> list[float]:
    """By op, the bytes that copies can move at the device tier while the op takes no longer than
    alone.

    Every byte beyond costs at least the time in which the memory moves it: while copies flow at r
    bytes per second, an op that uses s of the bandwidth B advances by r / s less than its speed at
    least, and s is at most B.
    """
    bandwidth, device = hardware.device.bandwidth_bytes_per_s, hardware.device_tier
    most = min(
        bandwidth,
        sum(
            c.bandwidth_bytes_per_s
            for c in hardware.channels
            if device in (c.source, c.destination)
        ),
    )
    uses = memory_uses(graph, hardware, durations)
    crossing = graph.derived_on(hardware, sent_bytes)  # copies slow these on fabrics alone
    left_of = {
        key: max(0.0, float(use.reached - use.used))
        for key, use in {id(use): use for use in uses.values()}.items()
    }  # most ops use as much as others
    found = []
    for i, duration in enumerate(durations):
        if i not in uses or i in crossing:
            found.append(most * duration / 1e9)
            continue
        launch, left = uses[i].launch_ns, left_of[id(uses[i])]
        found.append((min(most, left) * (duration - launch) + most * launch) / 1e9)
    return found


# -- the bounds ------------------------------------------------------------------------------------


Residency = Mapping[int, Sequence[str]]
"""Tiers of the valid copies at time 0, by tensor position."""

_EVERY_OP, _POINTS, _QUICK = 48, 12, 2
"""On graphs of up to so many ops every op is a point, on larger ones there are so many; and for a
quick bound.
"""

_APART, _GAPS = 160, 1000
"""Up to so many tensors each is its own group; otherwise those of one life are taken together, and
groups count, large ones first, until their gaps have so many points inside.
"""

_CHOICES = 256
"""Up to so many choices of processors, on graphs where every op is a point, each has a bound of its
own.
"""

_ORDERS = 16
"""On several streams, where every op is a point, graphs looked at in which ops that cannot run at
once have an order.
"""

_STREAMS = 64
"""Up to so many streams memory is looked at where ops may run on several processors: each of these
has one of its own.
"""


def lower_bound_ns(
    graph: Graph,
    durations: Sequence[int],
    hardware: Hardware,
    initial_residency: Residency | None = None,
    budget_bytes: int | None = None,
    *,
    repeats: bool = True,
    compete: bool | None = None,
) -> int:
    """Nanoseconds below which no feasible replay of ``graph`` on ``hardware`` ends, under any plan.

    ``durations`` are nanoseconds by op position, ``budget_bytes`` is the budget of the device tier,
    if it has one. Tensors that ``initial_residency`` lists start there, all others wherever the
    plan likes. ``repeats`` false is for plans that do not restore what rule 2 wants restored.
    ``compete`` says whether copies take memory bandwidth from ops, as in
    :func:`hosim.engine.replay`.
    """
    asked = _Bounded(hardware, initial_residency or {}, budget_bytes, True, compete)
    moved = _bound(graph, durations, asked)
    return moved if repeats else min(moved, _bound(graph, durations, replace(asked, repeats=False)))


@dataclass(frozen=True, slots=True)
class _Bounded:
    """The plans that a bound is for, as :func:`lower_bound_ns` says."""

    hardware: Hardware
    starts: Residency
    budget_bytes: int | None
    repeats: bool = True
    compete: bool | None = None

    @property
    def capacity(self) -> int:
        """Bytes of the device tier that may be used."""
        whole = self.hardware.device.capacity_bytes
        return whole if self.budget_bytes is None else min(self.budget_bytes, whole)


class LowerBounds:
    """The lower bounds of one graph on one machine; each is computed once."""

    def __init__(self, graph: Graph, hardware: Hardware) -> None:
        self._graph = graph
        self._hardware = hardware
        self._known: dict[tuple[object, ...], int] = {}

    def bound_ns(
        self,
        budget_bytes: int | None,
        makespan_ns: int,
        *,
        repeats: bool,
        homes_kept: bool,
        compete: bool | None,
    ) -> int:
        """Like :func:`lower_bound_ns`; if ``homes_kept``, on plans that start what the workload
        puts below there.

        ``makespan_ns`` is that of such a plan: the search for a bound ends when it is reached.
        """
        key = _bound, budget_bytes, repeats, homes_kept, compete
        if key not in self._known:
            starts, durations = self.given(homes_kept)
            asked = _Bounded(self._hardware, starts, budget_bytes, repeats, compete)
            self._known[key] = _bound(self._graph, durations, asked, makespan_ns)
        return self._known[key]

    def quick_ns(self, budget_bytes: int) -> int:
        """Less than :meth:`bound_ns`, as a rule by little, in a tenth of the time: two points of
        memory, and no search.
        """
        if (budget_bytes,) not in self._known:
            starts, durations = self.given(homes_kept=True)
            self._known[budget_bytes,] = _bound(
                self._graph, durations, _Bounded(self._hardware, starts, budget_bytes), quick=True
            )
        return self._known[budget_bytes,]

    def any_order_ns(
        self, budget_bytes: int | None, *, repeats: bool, homes_kept: bool, compete: bool | None
    ) -> int:
        """As :meth:`bound_ns`, on plans that may edit the graph:
        :func:`hosim.analysis.lower_bounds.free_order_bound_ns`.
        """
        key = free_order_bound_ns, budget_bytes, repeats, homes_kept, compete
        if key not in self._known:
            starts, durations = self.given(homes_kept)
            self._known[key] = free_order_bound_ns(
                self._graph,
                durations,
                self._hardware,
                budget_bytes,
                starts,
                repeats=repeats,
                compete=compete,
            )
        return self._known[key]

    def given(self, homes_kept: bool) -> tuple[Residency, Sequence[int]]:
        """Return the tiers in which tensors start whatever the plan, and the duration of each
        op.
        """
        starts = homes_below(self._graph, self._hardware) if homes_kept else {}
        return starts, op_durations(self._graph, self._hardware)


def _bound(
    graph: Graph,
    durations: Sequence[int],
    asked: _Bounded,
    enough: int | None = None,
    *,
    ordered: bool = False,
    quick: bool = False,
) -> int:
    """The bound; ``enough`` is a makespan that some plan has, if one is known, so that nothing
    above it need be tried.

    ``ordered``: which ops of different streams run at once is not asked. ``quick``: as
    :meth:`LowerBounds.quick_ns`.
    """
    hardware, starts, capacity = asked.hardware, asked.starts, asked.capacity
    if not (
        ordered
        or quick
        or len(graph.streams) <= 1
        or len(graph.ops) > _EVERY_OP
        or graph.movable
        or graph.elsewhere
    ):
        bound = partial(_bound, asked=asked, enough=enough, ordered=True)
        return least_of_orders(graph, durations, capacity, bound, enough, _ORDERS)
    by_shares, chosen = 0, bool(graph.movable)
    if chosen or graph.elsewhere:
        by_shares = processor_bound_ns(
            graph, durations, hardware, starts, capacity, repeats=asked.repeats
        )
        if 1 < _choices(graph, hardware) <= _CHOICES and len(graph.ops) <= _EVERY_OP:
            return _of_choices(graph, asked, by_shares)
        loose = sorted({*graph.movable, *graph.elsewhere})
        durations = least_durations(graph, durations, hardware)
        graph = loosened(graph, durations, loose)
    earliest, tail = earliest_starts(graph, durations), tails(graph, durations)
    longest = max([by_shares, *[e + t for e, t in zip(earliest, tail, strict=True)]])
    if chosen and len(graph.streams) > _STREAMS:
        return longest  # what follows is about few streams
    excess = excess_of(graph, capacity)
    cold = any(hardware.device_tier not in tiers for tiers in starts.values())
    if (
        not graph.ops
        or longest == enough
        or (max(excess) <= 0 and not cold and _initial_bytes(graph) <= capacity)
    ):
        return longest  # everything fits, all the time
    machine = machine_of_copies(graph, hardware, asked.compete)
    passages = Passages(machine)
    if not passages.into:
        return longest  # nothing comes in: if a plan exists at all, nothing has to
    every = len(graph.ops) <= _EVERY_OP and not quick
    points = points_of(
        graph, range(len(graph.ops)) if every else tightest(excess, _QUICK if quick else _POINTS)
    )
    groups = _groups(
        graph, lives(graph, points, starts, asked.repeats), passages, 0 if quick else _APART
    )
    needed = graph.derived(needed_bytes)
    free = free_bytes(graph, hardware, durations) if machine is not hardware else None
    times = _times(graph, durations, earliest, tail, points, free)
    program = TrafficProgram(
        points, groups, [needed[i] for i in points.ops], capacity, passages, times
    )
    return max(longest, whole_ns(BoundSearch(program).bound_ns(enough, branched=not quick)))


def _choices(graph: Graph, hardware: Hardware) -> int:
    """Return the number of choices of processors."""
    return prod([1 + len(others_of(graph.ops[i], hardware)) for i in graph.movable])


def _of_choices(graph: Graph, asked: _Bounded, least: int) -> int:
    """The least bound of all choices of processors, which is at least ``least``: of each by itself,
    those first that may be the least.
    """
    hardware, capacity = asked.hardware, asked.capacity
    names = [graph.ops[i].name for i in graph.movable]
    allowed = [(graph.ops[i].processor, *others_of(graph.ops[i], hardware)) for i in graph.movable]
    fixed = []
    for choice in product(*allowed):
        if not all(
            [
                fits_on(graph, i, each, hardware, capacity)
                for i, each in zip(graph.movable, choice, strict=True)
            ]
        ):
            continue  # there is no such plan
        one = on_processors(graph, list(zip(names, choice, strict=True)))
        durations = op_durations(one, hardware)
        by_shares = (
            processor_bound_ns(
                one, durations, hardware, asked.starts, capacity, repeats=asked.repeats
            )
            if one.elsewhere
            else 0
        )
        fixed.append((by_shares, one, durations))
    found: int | None = None
    for by_shares, one, durations in sorted(fixed, key=lambda each: each[0]):
        if found is not None and by_shares >= found:
            break
        bound = _bound(one, durations, asked)
        found = bound if found is None else min(found, bound)
    return max(least, found or 0)


def _initial_bytes(graph: Graph) -> int:
    return sum(graph.tensors[t].size_bytes for t in graph.initial if graph.users[t])


def _groups(
    graph: Graph, found: Mapping[Life, Sequence[int]], passages: Passages, most: int
) -> list[Group]:
    apart = sum(map(len, found.values())) <= most
    groups = []
    for life, tensors in found.items():
        for members in [[t] for t in tensors] if apart else [tensors]:
            size = sum(graph.tensors[t].size_bytes for t in members)
            together = [graph.tensors[t] for t in members]
            time = {c: _least_time(passages, c, together) for c in (*passages.into, *passages.out)}
            groups.append(Group(life, float(size), len(members) == 1, time))
    groups.sort(key=lambda group: -group.size)
    inside = accumulate(sum(gap.inside.bit_count() for gap in group.life.gaps) for group in groups)
    return (
        groups
        if apart
        else [group for group, points in zip(groups, inside, strict=True) if points <= _GAPS]
    )


def _least_time(passages: Passages, channel: str, tensors: Sequence[Tensor]) -> float:
    """Nanoseconds of which any share of the tensors' bytes takes at least its share, whichever of
    the tensors a plan moves.

    The latencies of all of them would be too much: a plan may move the large ones alone.
    """
    if len(tensors) == 1:
        return passages.time(channel, tensors[0])
    per_byte = min(
        (
            passages.time(channel, tensor) / tensor.size_bytes
            for tensor in tensors
            if tensor.size_bytes
        ),
        default=0.0,
    )
    return per_byte * sum(tensor.size_bytes for tensor in tensors)


def _times(
    graph: Graph,
    durations: Sequence[int],
    earliest: Sequence[int],
    tail: Sequence[int],
    points: Points,
    free: Sequence[float] | None,
) -> Times:
    passed = dict.fromkeys(graph.streams, 0)
    spare = dict.fromkeys(graph.streams, 0.0)
    by_stream, spare_before = {}, {}
    for i, op in enumerate(graph.ops.each()):
        by_stream[i], spare_before[i] = passed[op.stream], spare[op.stream]
        passed[op.stream] += durations[i]
        if free is not None:
            spare[op.stream] += free[i]
    between = []
    last: dict[str, int] = {}
    for k, i in enumerate(points.ops):
        stream = graph.ops[i].stream
        if stream in last:
            between.append((last[stream], k, by_stream[i] - by_stream[points.ops[last[stream]]]))
        last[stream] = k
        known = points.before[i]
        covered = 0
        for p in range(k - 1, -1, -1):
            if known >> p & 1 and not covered >> p & 1:
                between.append((p, k, durations[points.ops[p]]))
                covered |= points.before[points.ops[p]]
    return Times(
        duration=[durations[i] for i in points.ops],
        earliest=[earliest[i] for i in points.ops],
        tail=[tail[i] for i in points.ops],
        between=between,
        longest=max((e + t for e, t in zip(earliest, tail, strict=True)), default=0),
        stream=[graph.ops[i].stream for i in points.ops],
        passed=[by_stream[i] for i in points.ops],
        in_all=passed,
        spare=None if free is None else [(spare_before[i], free[i]) for i in points.ops],
        spare_in_all=spare,
    )


# -- the longest chain of ops: what no memory, however large and fast, can shorten
# --------------------------------------------------------------------------------------------------
# An op follows its producers (:attr:`Graph.producers`) and the op before it on its stream.
# Positions are already a topological order, so one forward sweep does it.


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """A longest chain of ops, in order, and its length; of several equally long ones, that through
    the earliest listed ops.
    """

    length_ns: int
    ops: tuple[int, ...]


def tails(graph: Graph, durations: Sequence[int]) -> list[int]:
    """Nanoseconds from each op's start to the end of the longest chain that begins with it."""
    if len(graph.streams) <= 1:
        return [*accumulate(reversed(durations))][::-1]
    tail = [0] * len(graph.ops)
    before, producers = stream_predecessors(graph), graph.producers
    for i in range(len(graph.ops) - 1, -1, -1):
        length = tail[i] = tail[i] + durations[i]
        if before[i] >= 0 and tail[before[i]] < length:
            tail[before[i]] = length
        for p in producers[i]:
            if tail[p] < length:
                tail[p] = length
    return tail


def critical_path(graph: Graph, durations: Sequence[int]) -> CriticalPath:
    """The longest path over producers and stream order, with ``durations`` in nanoseconds by op
    position.
    """
    if not graph.ops:
        return CriticalPath(0, ())
    starts = earliest_starts(graph, durations)
    ends = [start + duration for start, duration in zip(starts, durations, strict=True)]
    before = stream_predecessors(graph)
    i = ends.index(max(ends))
    path = [i]
    while True:
        i = min(
            (p for p in (*graph.producers[i], before[i]) if p >= 0 and ends[p] == starts[i]),
            default=-1,
        )
        if i < 0:
            return CriticalPath(max(ends), tuple(reversed(path)))
        path.append(i)

"""Hypothesis strategies that draw valid graphs, hardware and plans at toy scale (bytes and
nanoseconds are small integers).

``from strategies import cases`` in any test; the functions to use:

- :func:`graphs`: workloads of 1 to 3 streams with every kind of tensor, mutation, ``deps``,
  workspace, homes on several tiers, in-place rewriting of outputs, and names that are permuted so
  that ties cannot pass by luck.
- :func:`hardware`: machines with ``hbm``, ``ddr`` and perhaps ``nvme``, with a way from each tier
  to each other one.
- :func:`several`: one of them with several devices, which share tiers and fabrics.
- :func:`plans`: plans of a graph on a hardware that are **legal by construction**
  (docs/contract.md): every op finds what it reads in the device tier, no cache op drops a last copy
  or copies a stale one, and at the end of the step every tensor that survives is where it was at
  time 0. With several streams they are free of races: a cache op is ordered, by producers, ``deps``
  and stream order, against every op that uses its tensor and against the other cache ops of that
  tensor.
- :func:`processor_plans`: plans of graphs with ops on other processors.
- :func:`wild_plans`: any plan that a file can hold: it names real tensors, ops and tiers, and
  breaks every other rule.
- :func:`edits`: another legal order of a graph's ops, with some of them run again.
- :func:`cases`: a graph, a hardware and a legal plan that belong together; ``roomy`` decides
  whether everything fits.

Legal is not feasible: a legal plan may run out of memory. In a ``roomy`` case it cannot: each tier
holds the whole graph at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

from hypothesis import strategies as st

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.edits import Edits, Recompute, edited
from hosim.errors import GraphError
from hosim.graph import KINDS, PERSISTENT_KINDS, Graph, Op, Tensor
from hosim.hardware import SCOPES, Channel, Compute, Fabric, Hardware, Tier

DEVICE = "hbm"
OP_KINDS = ("matmul", "norm", "attention", "copy")
_PERSISTENT = tuple(kind for kind in KINDS if kind in PERSISTENT_KINDS)
_PRODUCED = ("activation", "activation", "activation", "gradient", "output")


_SIZES = st.integers(1, 40)


@cache
def _some(count: int, at_most: int) -> st.SearchStrategy[list[int]]:
    """Up to ``at_most`` different positions below ``count``."""
    return st.lists(st.integers(0, count - 1), max_size=at_most, unique=True)


# --------------------------------------------------------------------------------------------------
# graphs


@st.composite
def graphs(
    draw,
    max_ops: int = 8,
    max_streams: int = 1,
    max_held: int = 4,
    homes: Sequence[str] = (DEVICE, "ddr"),
    measured: bool = True,
) -> Graph:
    """A workload of 1 to ``max_ops`` ops. ``homes`` are the tiers that tensors held at time 0 may
    start in.

    With ``measured``, every op has a duration; otherwise some leave it to the cost model.
    """
    streams = [f"s{i}" if i else "compute" for i in range(draw(st.integers(1, max_streams)))]
    tensors: list[Tensor] = []
    for _ in range(draw(st.integers(1, max_held))):
        kind = draw(st.sampled_from((*_PERSISTENT, "activation")))
        # a tensor of a step's own kind that is there from the start needs a home; a persistent one
        # may leave it to the default
        home = draw(st.sampled_from(homes if kind == "activation" else (None, *homes)))
        size = draw(_SIZES)
        tensors.append(
            Tensor("", size, kind, home, of="" if size % 3 else "whole")
        )  # no draw: the kept instances stay as they are
    held = len(tensors)
    ops: list[Op] = []
    for i in range(draw(st.integers(1, max_ops))):
        # one draw for all small choices of an op: the number of draws is what an example costs
        choices = draw(st.integers(0, 4 * 4 * 4 * 3 * 8 * len(streams) * len(_PRODUCED) ** 2 - 1))
        choices, kind = divmod(choices, len(OP_KINDS))
        choices, workspace = divmod(choices, 4)
        choices, may_mutate = divmod(choices, 4)
        choices, made = divmod(choices, 3)
        choices, may_rewrite = divmod(choices, 8)
        choices, stream = divmod(choices, len(streams))
        inputs = tuple(draw(_some(len(tensors), 3)))
        mutates = (draw(st.integers(0, len(tensors) - 1)),) if may_mutate == 3 else ()
        outputs = []
        for size in draw(st.lists(_SIZES, min_size=made, max_size=made)):
            outputs.append(len(tensors))
            choices, produced = divmod(choices, len(_PRODUCED))
            tensors.append(Tensor("", size, _PRODUCED[produced]))
        if (
            len(tensors) > held and may_rewrite >= 6
        ):  # write over an earlier result, in place if it is still there
            again = draw(st.integers(held, len(tensors) - 1))
            if again not in (*inputs, *mutates, *outputs):
                outputs.append(again)
        deps = tuple(draw(_some(i, 2))) if i else ()
        duration = draw(st.integers(0, 60)) if measured or draw(st.booleans()) else None
        ops.append(
            Op(
                "",
                OP_KINDS[kind],
                inputs,
                tuple(outputs),
                mutates,
                deps,
                streams[stream],
                duration,
                flops=0 if measured else draw(st.integers(0, 10**6)),
                bytes_accessed=0 if measured else draw(st.integers(0, 10**4)),
                workspace_bytes=(0, 0, 7, 20)[workspace],
            )
        )
    tensor_names = draw(st.permutations([f"t{i}" for i in range(len(tensors))]))
    op_names = draw(st.permutations([f"f{i}" for i in range(len(ops))]))
    return Graph(
        "drawn",
        tuple(
            replace(tensor, name=name) for tensor, name in zip(tensors, tensor_names, strict=True)
        ),
        tuple(replace(op, name=name) for op, name in zip(ops, op_names, strict=True)),
    )


# --------------------------------------------------------------------------------------------------
# hardware

_RATES = st.sampled_from((10**9, 2 * 10**9, 3 * 10**9, 1_500_000_000, 700_000_000, 10**10))
_LATENCIES = st.sampled_from((0, 0, 1, 5, 12))


@st.composite
def hardware(
    draw, fabrics: bool = False, max_engines: int = 2, max_tiers: int = 3, uneven: bool = False
) -> Hardware:
    """A machine of 2 or 3 tiers, small enough that graphs of :func:`graphs` may or may not fit.

    The third tier hangs on ``ddr`` or on ``hbm``. With ``fabrics``, some channels share one. With
    ``uneven``, some may be slower for small transfers, for pageable memory or beside another, two
    may have one queue, host memory may take time to pin, and chunks may be small.
    """
    tiers = [
        Tier(DEVICE, draw(st.integers(60, 400)), 10**12, "device"),
        Tier("ddr", draw(st.integers(200, 2000)), 10**11, "host"),
    ]
    pairs = [("h2d", "ddr", DEVICE), ("d2h", DEVICE, "ddr")]
    if max_tiers > 2 and draw(st.booleans()):
        tiers.append(Tier("nvme", 10_000, 10**10, "host"))
        upper = draw(st.sampled_from((DEVICE, "ddr")))
        pairs += [("nvme_read", "nvme", upper), ("nvme_write", upper, "nvme")]
    channels = tuple(
        Channel(name, start, end, draw(_RATES), draw(_LATENCIES), draw(st.integers(1, max_engines)))
        for name, start, end in pairs
    )
    shared: tuple[Fabric, ...] = ()
    if fabrics and draw(st.booleans()):
        members = draw(
            st.lists(st.sampled_from([c.name for c in channels]), min_size=1, unique=True)
        )
        shared = (Fabric("pcie", draw(_RATES), tuple(members)),)
    if uneven:
        channels = tuple(draw(_uneven(channels)))
        if draw(st.booleans()):
            one = [replace(c, queue="copies", engines=channels[0].engines) for c in channels[:2]]
            channels = (*one, *channels[2:])
        kinds = tuple(draw(st.lists(st.sampled_from(KINDS), max_size=3, unique=True)))
        pin = draw(st.sampled_from((0, 0, 3, 10)))
        tiers[1] = replace(
            tiers[1], pageable=kinds, pin_ns=pin, pin_pool=draw(st.booleans()) if pin else False
        )
    compute = Compute(
        {"bf16": 10**12, "fp32": 10**11},
        draw(st.sampled_from((1.0, 0.5))),
        draw(st.sampled_from((0, 3))),
    )
    chunk = draw(st.sampled_from((7, 20, 2**26))) if uneven else 2**26
    inspect = draw(st.sampled_from((0, 2)))
    return Hardware(
        "drawn",
        tuple(tiers),
        channels,
        compute,
        fabrics=shared,
        inspect_ns=inspect,
        chunk_bytes=chunk,
    )


def ways(hardware: Hardware) -> list[tuple[str, str]]:
    """The pairs of tiers that a channel joins, or several one after the other."""
    reached = set(hardware.channel_between)
    for _ in hardware.tiers:
        reached |= {(a, d) for a, b in reached for c, d in reached if b == c and a != d}
    return sorted(reached)


@st.composite
def _uneven(draw, channels: tuple[Channel, ...]) -> list[Channel]:
    """These channels, one of them with a curve and a rate of pageable memory, one disturbed by
    another.
    """
    listed = list(channels)
    k, disturbed = draw(st.integers(0, len(listed) - 1)), draw(st.integers(0, len(listed) - 1))
    own = listed[k].bandwidth_bytes_per_s
    curve: tuple[tuple[int, int], ...] = ()
    for size in draw(st.lists(st.integers(1, 60), max_size=3, unique=True).map(sorted)):
        above = (
            own if not curve else min(own, curve[-1][1] * size // curve[-1][0])
        )  # no less time than what is smaller
        curve = (*curve, (size, draw(st.integers(max(1, above // 4), above))))
    listed[k] = replace(
        listed[k], curve=curve, pageable_bytes_per_s=draw(st.sampled_from((None, own // 3, own)))
    )
    if draw(st.booleans()):
        other = draw(st.sampled_from([c.name for c in listed if c.name != listed[disturbed].name]))
        rate = listed[disturbed].bandwidth_bytes_per_s
        listed[disturbed] = replace(
            listed[disturbed],
            beside=((other, draw(st.sampled_from((rate, rate // 2, rate // 3)))),),
        )
    return listed


@st.composite
def several(draw, machine: Hardware, max_devices: int = 4) -> Hardware:
    """``machine`` with 2 to ``max_devices`` devices on hosts of some size, who share tiers below
    and fabrics at every scope.

    Half of the time shared tiers hold as much a device as they did; otherwise there may not be
    enough for all.
    """
    devices = draw(st.integers(2, max_devices))
    ample = draw(st.booleans())
    tiers = tuple(
        replace(
            tier,
            scope=draw(st.sampled_from(SCOPES)),
            capacity_bytes=tier.capacity_bytes * (devices if ample else 1),
        )
        if tier.name != machine.device_tier
        else tier
        for tier in machine.tiers
    )
    fabrics = tuple(
        replace(fabric, scope=draw(st.sampled_from(SCOPES))) for fabric in machine.fabrics
    )
    per_host = draw(st.sampled_from((None, 1, 2, 3)))
    return replace(
        machine, devices=devices, devices_per_host=per_host, tiers=tiers, fabrics=fabrics
    )


# --------------------------------------------------------------------------------------------------
# plans


def happens_before(graph: Graph) -> list[int]:
    """For each op, a bit set of the ops that have ended when it starts, whatever the durations:
    producers and stream order.
    """
    before: list[int] = []
    last: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        sooner = set(graph.producers[i])
        if op.stream in last:
            sooner.add(last[op.stream])
        last[op.stream] = i
        ended = 0
        for j in sooner:
            ended |= before[j] | 1 << j
        before.append(ended)
    return before


@dataclass
class _Course:
    """The cache ops drawn so far for one tensor, and the tiers in which they leave valid copies."""

    graph: Graph
    hardware: Hardware
    before: list[int]
    tensor: int
    tiers: set[str]
    last: int = AT_START
    cache_ops: list[CacheOp] = field(default_factory=list)

    def ordered(self, a: int, b: int) -> bool:
        """Whether op ``a`` is ``b`` or has always ended before ``b`` starts (:data:`AT_START`
        before all).
        """
        return a in (AT_START, b) or (b != AT_START and bool(self.before[b] >> a & 1))

    def places(self, low: int, high: int) -> list[int]:
        """Positions from ``low`` up to ``high`` (exclusive) after which a cache op races with no
        user and no cache op before it.
        """
        users = self.graph.users[self.tensor]
        return [
            a
            for a in range(low, high)
            if self.ordered(self.last, a)
            and all(self.ordered(u, a) if u <= a else self.ordered(a, u) for u in users)
        ]

    def moves(self) -> list[tuple[str, str, str | None]]:
        """The cache ops that are legal now."""
        copies = [
            (self._direction(start, end), start, end)
            for start, end in ways(self.hardware)
            if start in self.tiers and end not in self.tiers
        ]
        return copies + (
            [(DETACH, tier, None) for tier in sorted(self.tiers)] if len(self.tiers) > 1 else []
        )

    def _direction(self, start: str, end: str) -> str:
        rank = self.hardware.tier_index
        return PREFETCH if rank[end] < rank[start] else STORE

    def add(self, move: tuple[str, str, str | None], after: int) -> None:
        op, start, end = move
        self.cache_ops.append(CacheOp(op, self.tensor, start, end, after))
        self.last = after
        if end is None:
            self.tiers.discard(start)
        else:
            self.tiers.add(end)

    def bring(self, tier: str, after: int) -> None:
        """Copies along the shortest route until ``tier`` has a valid copy."""
        routes = [(start,) for start in sorted(self.tiers)]
        while tier not in self.tiers:
            route = routes.pop(0)
            if route[-1] == tier:
                for start, end in pairwise(route):
                    if end not in self.tiers:
                        self.add((self._direction(start, end), start, end), after)
                return
            routes += [
                (*route, end)
                for start, end in sorted(self.hardware.channel_between)
                if start == route[-1] and end not in route
            ]


@st.composite
def plans(draw, graph: Graph, hardware: Hardware) -> Plan:
    """A legal plan of ``graph`` on ``hardware``, free of races; see the top of this file for what
    that means.
    """
    before = happens_before(graph)
    initial: dict[int, tuple[str, ...]] = {}
    courses: list[list[CacheOp]] = []
    names = [tier.name for tier in hardware.tiers]
    for t, tensor in enumerate(graph.tensors):
        written = sum(t in op.outputs for op in graph.ops)
        starts: tuple[str, ...] = ()
        if t in graph.initial:
            starts = (tensor.home or hardware.device_tier,)
            if draw(st.integers(0, 2)) == 0:
                starts = tuple(
                    draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
                )
                initial[t] = starts
        if (
            written + bool(starts) > 1
        ):  # written over: what that does to copies elsewhere is no business of a legal plan
            if starts:
                initial[t] = (hardware.device_tier,)
            continue
        course = _Course(graph, hardware, before, t, set(starts))
        if draw(_course_of(course, starts)):
            courses.append(course.cache_ops)
        # no place left where the copies could be restored without a race: it stays where it is used
        elif starts:
            initial[t] = (hardware.device_tier,)
    return Plan(graph, "drawn", tuple(_merged(draw, courses)), initial)


@st.composite
def processor_plans(draw, graph: Graph, hardware: Hardware) -> Plan:
    """A plan that brings to every op what it reads, into the tier of its processor; most of them
    are legal.
    """
    before = happens_before(graph)
    courses: list[list[CacheOp]] = []
    for t, tensor in enumerate(graph.tensors):
        starts = (tensor.home or hardware.device_tier,) if t in graph.initial else ()
        course = _Course(graph, hardware, before, t, set(starts))
        draw(_course_of(course, starts))
        courses.append(course.cache_ops)
    return Plan(graph, "drawn", tuple(_merged(draw, courses)))


@st.composite
def _course_of(draw, course: _Course, starts: tuple[str, ...]) -> bool:
    """Draws the cache ops of one tensor into ``course``; whether it could leave the tensor as the
    rules want it.
    """
    graph = course.graph
    users, survives = graph.users[course.tensor], graph.survives[course.tensor]
    low = AT_START
    for user in users:
        op = graph.ops[user]
        device = op.processor or course.hardware.device_tier
        reads = course.tensor in op.reads
        if course.tiers:  # not before it is produced
            _wander(draw, course, course.places(low, user))
            if reads and device not in course.tiers:
                # where the last cache op stands is always a place: it left the tensor elsewhere
                # after the last use
                course.bring(
                    device,
                    draw(
                        st.sampled_from([*course.places(max(low, course.last), user), course.last])
                    ),
                )
        if course.tensor in op.writes:
            course.tiers = {device}
        low = user
    if not survives:
        return True
    places = course.places(low, len(graph.ops))
    if course.tiers:
        _wander(draw, course, places)
    missing = [tier for tier in starts if tier not in course.tiers]
    if missing and not places:
        return False
    for tier in missing:
        course.bring(
            tier, draw(st.sampled_from([a for a in places if course.ordered(course.last, a)]))
        )
    return True


def _wander(draw, course: _Course, places: list[int]) -> None:
    """Adds up to three legal moves at places that do not go back."""
    for _ in range(draw(st.sampled_from((0, 0, 1, 2, 2, 3)))):
        places = [a for a in places if course.ordered(course.last, a)]
        moves = course.moves()
        if not places or not moves:
            return
        course.add(draw(st.sampled_from(moves)), draw(st.sampled_from(places)))


def _merged(draw, courses: list[list[CacheOp]]) -> list[CacheOp]:
    """One list of all cache ops, in which those of one tensor keep their order."""
    order = [i for i, course in enumerate(courses) for _ in course]
    taken = [iter(course) for course in courses]
    return [next(taken[i]) for i in draw(st.permutations(order))]


@st.composite
def wild_plans(draw, graph: Graph, hardware: Hardware, max_cache_ops: int = 8) -> Plan:
    """Any plan that names what there is: real tensors, ops, tiers and channels, in any order, legal
    or not.
    """
    tiers = st.sampled_from([tier.name for tier in hardware.tiers])
    tensors = st.sampled_from(range(len(graph.tensors)))
    pairs = ways(hardware)
    cache_ops = []
    for _ in range(draw(st.integers(0, max_cache_ops))):
        op = draw(st.sampled_from((PREFETCH, STORE, DETACH)))
        start, end = draw(st.sampled_from(pairs))
        after = draw(st.integers(AT_START, len(graph.ops) - 1))
        cache_ops.append(CacheOp(op, draw(tensors), start, None if op == DETACH else end, after))
    places = st.lists(tiers, max_size=2, unique=True).map(tuple)
    initial = draw(st.dictionaries(tensors, places, max_size=3))
    return Plan(graph, draw(st.sampled_from(("manual", "wild"))), tuple(cache_ops), initial)


# --------------------------------------------------------------------------------------------------
# cases


def sized(machine: Hardware, graph: Graph, device_bytes: int | None = None) -> Hardware:
    """``machine`` with tiers that hold all of ``graph`` at once, workspaces included; the device
    tier of ``device_bytes`` if given.

    And all of it once more on its way through.
    """
    everything = (
        2 * sum(tensor.size_bytes for tensor in graph.tensors)
        + sum(op.workspace_bytes for op in graph.ops)
        + 1
    )
    return replace(
        machine,
        tiers=tuple(
            replace(
                tier,
                capacity_bytes=device_bytes
                if device_bytes and tier.name == machine.device_tier
                else everything,
            )
            for tier in machine.tiers
        ),
    )


@st.composite
def cases(
    draw,
    max_ops: int = 8,
    max_streams: int = 1,
    fabrics: bool = False,
    roomy: bool | None = True,
    measured: bool = True,
    uneven: bool = False,
) -> tuple[Graph, Hardware, Plan]:
    """A graph, a hardware and a legal plan. ``roomy``: every tier holds everything, or else the
    device tier is tight (``None``: either).
    """
    machine = draw(hardware(fabrics=fabrics, uneven=uneven))
    graph = draw(
        graphs(max_ops, max_streams, homes=[tier.name for tier in machine.tiers], measured=measured)
    )
    tight = not (draw(st.booleans()) if roomy is None else roomy)
    total = sum(tensor.size_bytes for tensor in graph.tensors)
    machine = sized(machine, graph, draw(st.integers(max(1, total // 3), total)) if tight else None)
    return graph, machine, draw(plans(graph, machine))


# --------------------------------------------------------------------------------------------------
# edits


@st.composite
def edits(draw, graph: Graph) -> Edits:
    """A legal order of the ops, and some of them run again: of entries drawn at random, those that
    are legal together.
    """
    order: list[int] = []
    while len(order) < len(graph.ops):
        done = set(order)
        ready = [
            i
            for i in range(len(graph.ops))
            if i not in done and done.issuperset(graph.producers[i])
        ]
        order.append(draw(st.sampled_from(ready)))
    names = () if draw(st.booleans()) else tuple(graph.ops[i].name for i in order)
    again: list[Recompute] = []
    positions = st.sampled_from(order)
    for k, (op, before) in enumerate(draw(st.lists(st.tuples(positions, positions), max_size=4))):
        entry = Recompute(
            graph.ops[op].name, graph.ops[before].name, f"{graph.ops[op].name}~{k + 2}"
        )
        try:
            edited(graph, names, (*again, entry))
        except GraphError:
            continue
        again.append(entry)
    return Edits(graph, names, tuple(again))

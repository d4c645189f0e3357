"""The needs of each tensor between a few points of a graph, with tensors of the same life taken
together.

A life lists the tensor's *gaps*, between two uses of which the first always ends before the second
starts, with the pressure points inside each of them (:mod:`hosim.analysis.pressure_points`): there
the tensor lies in the device tier or somewhere else. Uses that another stream may overtake are left
out, so that a gap may contain uses: it asks for less than the tensor does, never for more. What is
about to be overwritten unread has no gap.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hosim.analysis.happens_before import HappensBefore
from hosim.analysis.pressure_points import Points
from hosim.cache_plan import AT_START
from hosim.graph import Graph


@dataclass(frozen=True, slots=True)
class LifeGap:
    """A time between two uses; the first three fields are sets of points.

    ``inside`` are those that lie in the gap. ``by_begin`` had ended when it begins, or are what it
    begins with, and ``by_end`` do not start before it ends, or are what it ends with. ``reads``: it
    ends with an op that reads the contents (else with the step, which they survive). ``version``
    counts the writes until then; that of time 0 is 0. ``ends_at`` is the point with which it ends,
    if it is one (else -1; the number of points for the end of the step).
    """

    inside: int
    by_begin: int
    by_end: int
    reads: bool
    version: int
    ends_at: int


@dataclass(frozen=True, slots=True)
class LifeVersion:
    """Contents of a tensor: points that have ended when they come to be, and points that do not
    start before they are overwritten.

    ``begins_at`` is the point that writes them, if it is one (else -1).
    """

    by_begin: int
    by_end: int
    begins_at: int


@dataclass(frozen=True, slots=True)
class Life:
    """The properties that a group of tensors has in common.

    ``starts``: they hold contents at time 0. ``first_read``: their first use reads these.
    ``restored``: they have to be valid at the end where they were at time 0 (docs/contract.md, rule
    2). ``tiers`` are those in which they have to start (empty: the plan chooses). The first gap of
    those that start and are read first begins at time 0, the last one of those that survive ends
    with the step; both are always listed, others only with points inside. ``versions`` has those of
    the gaps and the last one.
    """

    starts: bool
    first_read: bool
    restored: bool
    tiers: tuple[str, ...]
    gaps: tuple[LifeGap, ...]
    versions: tuple[tuple[int, LifeVersion], ...]
    last_version: int


def lives(
    graph: Graph, points: Points, tiers: Mapping[int, Sequence[str]], repeats: bool
) -> dict[Life, list[int]]:
    """The tensors that could matter, by life. ``tiers`` has those that may not start elsewhere;
    ``repeats``: rule 2 holds.
    """
    order = graph.derived(HappensBefore)
    initial = set(graph.initial)
    uses_at: defaultdict[int, int] = defaultdict(int)
    for k, i in enumerate(points.ops):
        for t in graph.ops[i].uses:
            uses_at[t] |= 1 << k
    found: defaultdict[Life, list[int]] = defaultdict(list)
    sizes = graph.tensors.column(lambda tensor: tensor.size_bytes)
    for t, users in enumerate(graph.users):
        if users and sizes[t] and (t in initial or _spans(graph, points, order, t, users)):
            life = _life(
                graph,
                points,
                order,
                t,
                t in initial,
                uses_at.get(t, 0),
                tuple(tiers.get(t, ())),
                repeats,
            )
            if life is not None:
                found[life].append(t)
    return found


def _spans(
    graph: Graph, points: Points, order: HappensBefore, t: int, users: Sequence[int]
) -> bool:
    """Return whether some point may lie between two uses of a tensor."""
    beyond = points.after[users[0]]
    return not order.single or bool(
        beyond if graph.survives[t] else beyond & points.before[users[-1]]
    )


def _life(
    graph: Graph,
    points: Points,
    order: HappensBefore,
    t: int,
    starts: bool,
    uses: int,
    tiers: tuple[str, ...],
    repeats: bool,
) -> Life | None:
    ops, survives, writers = graph.ops, graph.survives[t], graph.writers[t]
    every = (1 << len(points.ops)) - 1
    chain = graph.users[t] if order.single else tuple(_one_after_the_other(order, graph.users[t]))
    gaps = []
    version = 0
    before = AT_START
    for u in (*chain, None):
        if before != AT_START and t in ops[before].writes:
            version += 1
        if (u is None and survives) or (
            u is not None and t in ops[u].reads and (before != AT_START or starts)
        ):
            inside = (
                (points.after[before] if before != AT_START else every)
                & (points.before[u] if u is not None else every)
                & ~uses
            )
            if inside or (starts and (before == AT_START or u is None)):
                by_begin = _up_to(points.before, points, before)
                by_end = _up_to(points.after, points, u)
                ends_at = len(points.ops) if u is None else points.number.get(u, -1)
                gaps.append(LifeGap(inside, by_begin, by_end, u is not None, version, ends_at))
        if u is not None:
            before = u
    if not gaps:
        return None
    wanted = {gap.version for gap in gaps} | {len(writers)}
    versions = []
    for v in sorted(wanted):
        writer, rewriter = (
            writers[v - 1] if v else AT_START,
            writers[v] if v < len(writers) else None,
        )
        span = LifeVersion(
            _up_to(points.before, points, writer),
            _up_to(points.after, points, rewriter),
            points.number.get(writer, -1),
        )
        versions.append((v, span))
    first_read = starts and t in ops[chain[0]].reads
    return Life(
        starts,
        first_read,
        starts and survives and repeats,
        tiers,
        tuple(gaps),
        tuple(versions),
        len(writers),
    )


def _one_after_the_other(order: HappensBefore, users: Sequence[int]) -> Iterator[int]:
    """Some of the users, each of which has ended when the next one starts. Those that write are
    among them: they wait for all before.
    """
    last = AT_START
    for u in users:
        if order.ended_by(last, u):
            yield u
            last = u


def _up_to(side: Sequence[int], points: Points, op: int | None) -> int:
    """The points on one side of an op, itself included if it is one; none for the start
    (:data:`AT_START`) and the end (``None``).
    """
    return 0 if op is None or op == AT_START else side[op] | points.at(op)

"""The needs of each tensor between a few points of a graph, with tensors of the same life taken
together.

A life lists the tensor's *gaps*, between two uses of which the first always ends before the second
starts, with the pressure points inside each of them (:mod:`hosim.analysis.pressure_points`): there
the tensor lies in the device tier or somewhere else. Uses that another stream may overtake are left
out, so that a gap may contain uses: it asks for less than the tensor does, never for more. What is
about to be overwritten unread has no gap.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hosim.analysis.happens_before import HappensBefore
from hosim.analysis.pressure_points import Points
from hosim.cache_plan import AT_START
from hosim.data.graph_parts import Op
from hosim.graph import Graph


class LifeGap(NamedTuple):
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


class LifeVersion(NamedTuple):
    """Contents of a tensor: points that have ended when they come to be, and points that do not
    start before they are overwritten.

    ``begins_at`` is the point that writes them, if it is one (else -1).
    """

    by_begin: int
    by_end: int
    begins_at: int


class Life(NamedTuple):
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
    begin, flags, survives = graph.compact_users.begin, graph.compact_users.flags, graph.survives
    known: dict[tuple[object, ...], Life | None] = {}
    for t, users in enumerate(graph.users):
        if users and sizes[t] and (t in initial or _spans(graph, points, order, t, users)):
            starts, where = t in initial, tuple(tiers.get(t, ()))
            does = flags[begin[t] : begin[t + 1]].tobytes()
            key = users, does, starts, survives[t], where  # all that a life depends on
            if key not in known:
                known[key] = _life(
                    graph, points, order, t, starts, uses_at.get(t, 0), where, repeats
                )
            life = known[key]
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
    for since, u in zip((AT_START, *chain), (*chain, None), strict=True):
        until = every if u is None else points.before[u]
        inside = (points.after[since] if since != AT_START else every) & until & ~uses
        if not inside and not (starts and (since == AT_START or u is None)):
            continue
        if survives if u is None else (_reads(ops[u], t) and (starts or since != AT_START)):
            by_begin = 0 if since == AT_START else points.by_begin[since]
            by_end = 0 if u is None else points.by_end[u]
            ends_at = len(points.ops) if u is None else points.number.get(u, -1)
            version = bisect_right(writers, since)
            gaps.append(LifeGap(inside, by_begin, by_end, u is not None, version, ends_at))
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
            0 if writer == AT_START else points.by_begin[writer],
            0 if rewriter is None else points.by_end[rewriter],
            points.number.get(writer, -1),
        )
        versions.append((v, span))
    first_read = starts and _reads(ops[chain[0]], t)
    return Life(
        starts,
        first_read,
        starts and survives and repeats,
        tiers,
        tuple(gaps),
        tuple(versions),
        len(writers),
    )


def _reads(op: Op, t: int) -> bool:
    return t in op.inputs or t in op.mutates


def _one_after_the_other(order: HappensBefore, users: Sequence[int]) -> Iterator[int]:
    """Some of the users, each of which has ended when the next one starts. Those that write are
    among them: they wait for all before.
    """
    last = AT_START
    for u in users:
        if order.ended_by(last, u):
            yield u
            last = u

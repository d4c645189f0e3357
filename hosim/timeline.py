"""Questions to a recorded replay: what a wait is blamed on, what a tier holds, when a channel is
busy, what queues on it.

Pure functions over :class:`hosim.result.Timeline`. Whoever shows, compares or judges a replay asks
here, so that all say the same. Times are in nanoseconds and sizes in bytes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hosim.base.groups import grouped
from hosim.graph import Graph
from hosim.result import WORKSPACE, Stall, Timeline, Transfer

Interval = tuple[int, int]
"""``[start, end)``."""


# -- stalls
# --------------------------------------------------------------------------------------------------


def blamed(timeline: Timeline, stall: Stall) -> Transfer | None:
    """The transfer that a stall is blamed on (docs/contract.md, rule 8); ``None`` if it is blamed
    on none.
    """
    return None if stall.transfer is None else timeline.transfers[stall.transfer]


def stalls_by_transfer(timeline: Timeline) -> dict[int, list[Stall]]:
    """The stalls of all streams that are blamed on each transfer, by the transfer's place in the
    timeline.
    """
    return grouped(
        (stall.transfer, stall) for stall in timeline.stalls if stall.transfer is not None
    )


# -- times
# --------------------------------------------------------------------------------------------------


class Spans:
    """A set of instants: the union of intervals that may overlap.

    >>> spans = Spans([(5, 7), (0, 3), (2, 4), (4, 5), (9, 9)])
    >>> spans.intervals, spans.total_ns, spans.within(6, 20)
    ([(0, 7)], 7, 1)
    """

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self.intervals: list[Interval] = []
        for start, end in sorted(i for i in intervals if i[1] > i[0]):
            if self.intervals and start <= self.intervals[-1][1]:
                first, last = self.intervals[-1]
                self.intervals[-1] = first, max(last, end)
            else:
                self.intervals.append((start, end))
        self._starts = [start for start, _ in self.intervals]
        self._sums = [0, *accumulate(end - start for start, end in self.intervals)]

    @property
    def total_ns(self) -> int:
        """Return the total duration."""
        return self._sums[-1]

    def before(self, at: float) -> float:
        """Nanoseconds of the set before an instant, which need not be a whole number."""
        k = bisect_right(self._starts, at)
        return self._sums[k] - max(0, self.intervals[k - 1][1] - at) if k else 0

    def within(self, start: int, end: int) -> int:
        """Nanoseconds of the set in ``[start, end)``."""
        return int(self.before(end) - self.before(start)) if end > start else 0

    def shares(self, end: int, parts: int) -> list[float]:
        """Return the part of each of ``parts`` equal parts of ``[0, end)`` that the set covers.

        >>> Spans([(0, 5), (7, 8)]).shares(10, 2)
        [1.0, 0.2]
        """
        if end <= 0:
            return [0.0] * parts
        covered = [self.before(k * end / parts) for k in range(parts + 1)]
        return [min(1.0, (b - a) * parts / end) for a, b in pairwise(covered)]


def busy(timeline: Timeline) -> dict[str, Spans]:
    """Return the time spans in which each channel that moved something carried at least one
    transfer.
    """
    carried = grouped((x.channel, (x.start_ns, x.end_ns)) for x in timeline.transfers)
    return {channel: Spans(intervals) for channel, intervals in carried.items()}


def residence(timeline: Timeline, tier: str) -> dict[int, Spans]:
    """Return the time spans in which each tensor that ``tier`` ever holds is held there, transfers
    under way included.
    """
    held = grouped(
        (r.tensor, (r.start_ns, r.end_ns))
        for r in timeline.residencies
        if r.tier == tier and r.tensor >= 0
    )
    return {t: Spans(intervals) for t, intervals in held.items()}


def last_ns(timeline: Timeline) -> int:
    """Return the end of everything recorded."""
    ends = (
        *timeline.op_end_ns,
        *(x.end_ns for x in timeline.transfers),
        *(r.end_ns for r in timeline.residencies),
    )
    return max(ends, default=0)


# -- amounts over time
# -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Steps:
    """An amount over time: ``values[k]`` from ``at_ns[k]`` until ``at_ns[k + 1]``, and 0 before the
    first of these instants.
    """

    at_ns: tuple[int, ...]
    values: tuple[int, ...]

    def at(self, now_ns: int) -> int:
        """The amount at an instant."""
        k = bisect_right(self.at_ns, now_ns)
        return self.values[k - 1] if k else 0

    def largest(self, start_ns: int, end_ns: int) -> int:
        """The largest amount during ``[start_ns, end_ns)``, and at ``start_ns`` in any case."""
        inside = self.values[bisect_right(self.at_ns, start_ns) : bisect_left(self.at_ns, end_ns)]
        return max(self.at(start_ns), *inside) if inside else self.at(start_ns)

    def at_most_since(self, limit: int, until_ns: int) -> int:
        """The first instant from which on the amount is ``limit`` or less until ``until_ns``;
        ``until_ns`` if it is more just before.

        >>> [steps([(0, 5, 10), (2, 9, 1)]).at_most_since(limit, 8) for limit in (11, 10, 1, 0)]
        [0, 5, 5, 8]
        """
        k = bisect_left(self.at_ns, until_ns)
        while k and self.values[k - 1] <= limit:
            k -= 1
        if not k:
            return 0
        return min(self.at_ns[k], until_ns) if k < len(self.at_ns) else until_ns


def steps(parts: Iterable[tuple[int, int, int]]) -> Steps:
    """The sum over time of amounts, each given as (start, end, amount); those that last for no time
    are left out.

    >>> steps([(0, 5, 10), (2, 9, 1), (3, 3, 7)])
    Steps(at_ns=(0, 2, 5, 9), values=(10, 11, 1, 0))
    """
    change: dict[int, int] = {}
    for start, end, amount in parts:
        if end > start:
            change[start] = change.get(start, 0) + amount
            change[end] = change.get(end, 0) - amount
    at = sorted(change)
    return Steps(tuple(at), tuple(accumulate(change[instant] for instant in at)))


def occupancy(timeline: Timeline, tier: str) -> Steps:
    """Bytes that a tier holds over time; at each instant what ends there is gone and what begins
    there is held.
    """
    return steps((r.start_ns, r.end_ns, r.bytes) for r in timeline.residencies if r.tier == tier)


def occupancy_by_kind(graph: Graph, timeline: Timeline, tier: str) -> dict[str, Steps]:
    """Like :func:`occupancy`, for each kind of tensor (and the workspaces of ops) that is ever
    held.
    """
    held = grouped(
        (graph.tensors[r.tensor].kind if r.tensor >= 0 else WORKSPACE, r)
        for r in timeline.residencies
        if r.tier == tier and r.bytes and r.end_ns > r.start_ns
    )
    return {kind: steps((r.start_ns, r.end_ns, r.bytes) for r in own) for kind, own in held.items()}


# -- queues
# --------------------------------------------------------------------------------------------------


def queued_bytes(timeline: Timeline, channel: str) -> Steps:
    """Bytes of the transfers of a channel that have been issued and have not started."""
    return steps(
        (x.issue_ns, x.start_ns, x.bytes) for x in timeline.transfers if x.channel == channel
    )


class Traffic:
    """The transfers of every queue, to find those that hold its engines at a given time;
    ``queue_of`` is that of each channel.
    """

    def __init__(self, timeline: Timeline, queue_of: Mapping[str, str]) -> None:
        self._queue_of = queue_of
        self._on = grouped((queue_of[x.channel], x) for x in timeline.transfers)
        for transfers in self._on.values():
            transfers.sort(key=lambda x: (x.start_ns, x.end_ns))
        self._starts = {
            channel: [x.start_ns for x in transfers] for channel, transfers in self._on.items()
        }
        self._longest = {
            channel: max(x.end_ns - x.start_ns for x in transfers)
            for channel, transfers in self._on.items()
        }

    def beside(self, x: Transfer, start_ns: int, end_ns: int) -> list[Transfer]:
        """The other transfers of the queue of ``x`` that hold an engine at some time in
        ``[start_ns, end_ns)``, by start.
        """
        if end_ns <= start_ns:
            return []
        queue = self._queue_of[x.channel]
        on, starts = self._on[queue], self._starts[queue]
        first = bisect_left(starts, start_ns - self._longest[queue])
        return [
            y for y in on[first : bisect_left(starts, end_ns)] if y is not x and y.end_ns > start_ns
        ]


def occupied_ns(transfers: Sequence[Transfer], start_ns: int, end_ns: int, engines: int) -> int:
    """Nanoseconds of ``[start_ns, end_ns)`` for which ``transfers`` hold all of a channel's
    engines.
    """
    running = steps((max(x.start_ns, start_ns), min(x.end_ns, end_ns), 1) for x in transfers)
    return sum(
        until - at
        for at, until, count in zip(running.at_ns, running.at_ns[1:], running.values, strict=False)
        if count >= engines
    )

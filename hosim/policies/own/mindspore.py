"""The strategies of MindSpore 2.10: ``distance`` moves whatever lies idle for many ops, and
``memory_peak`` gaps that cover the peak, the best score first.

Source: the knobs documented in ``mindspore/graph/_parse/compile_config.py`` of the 2.10 wheel, and
its public headers. In both, tensors start where they are at home, unless those at home in the
device tier do not fit there at the step's start or end: then all of them start below.

``distance`` (``DistanceBaseHyperOffloadStrategy``: "definition-use gap analysis";
``OffloadInfoFilterByNumber``; ``HyperOffloadOperations::MoveAhead``) skips what ops write in place.
Documented: the four distances and numbers. Our reading: of more than ``select_num`` candidates the
widest are kept, then the largest, then the earliest; weights count as well
(``auto_offload="all"``); the prefetch is issued ``prefetch_distance`` ops before the op that needs
it, the release ``release_distance`` ops after the last use, and the store right after that use. It
knows no budget: what it moves is the same for every one. What starts below is prefetched
``prefetch_distance`` ops before its first use and released after its last.

``memory_peak`` (``MemoryPeakBasedHyperOffloadStrategy``, ``CalculateAdaptiveReleaseDistance``,
``CalculateAdaptivePrefetchDistance``). Documented: while the modelled peak exceeds
``max_device_memory`` less ``peak_modeled_headroom_bytes``, gaps that cover it are scored by size
(w1), how early they begin before it (w2), how late they end after it (w3), less a penalty for
clustering with others (w4); adaptive distances follow from size, bandwidth and kernel time; views
and what ops write in place are skipped.

Our reading, since the formula is not documented: each of the first three terms is a share of the
largest among the gaps that cover the peak; the penalty is the transfers of gaps taken so far that
begin within ``prefetch_distance`` ops of this one's, per op so near. The best is taken (ties: the
earlier one) and its bytes are subtracted from release to prefetch, until that peak fits; then the
peak is looked for again. It stops where no gap covers the peak. An adaptive release waits for as
many ops as the copy down takes, an adaptive prefetch leads by as many as the copy up takes; an op
of unknown time counts as ``default_kernel_time_us``. ``max_device_memory`` is to be set "according
to the real available memory capacity": here that is the budget. The published headroom of 4 GiB is
a tenth of the published 40 GiB: so it is a tenth here, too.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from hosim.analysis import Gap
from hosim.analysis.costmodel import op_durations
from hosim.cache_plan import AT_START, Plan
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.planner.schedule import (
    Absence,
    Levels,
    below_at_ends,
    between_uses,
    held_bytes,
    insert,
    take_away,
)
from hosim.planner.schedule.tiers_below import (
    FASTEST,
    TierSpace,
    read_placement,
    space_below,
    starts,
)


def distance(
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    *,
    select_distance: int,
    select_num: int,
    prefetch_distance: int,
    release_distance: int,
    placement: str = FASTEST,
) -> Plan:
    """The plan. O(uses + candidates log candidates)."""
    initial, residency, space = _started(graph, hardware, budget_bytes, placement)
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    found = [
        gap
        for gap in between_uses(graph, not_in_place(graph))
        if gap.before - gap.after >= select_distance
    ]
    found.sort(key=lambda gap: (gap.after - gap.before, -sizes[gap.tensor], gap.after, gap.before))
    absences = []
    for gap in (*below_at_ends(graph, residency, hardware.device_tier), *found[:select_num]):
        tier = space.place(gap.tensor, gap.after)
        if tier is not None:
            absences.append(at_distance(gap, tier, prefetch_distance, release_distance))
    return insert(graph, hardware, "distance", absences, initial)


def _started(
    graph: Graph, hardware: Hardware, budget_bytes: int, placement: str
) -> tuple[dict[int, tuple[str, ...]], Mapping[int, tuple[str, ...]], TierSpace]:
    """The tiers of what does not start at home, those of every tensor, and the room below."""
    rule = read_placement(placement, hardware)
    initial = starts(graph, hardware, budget_bytes, rule)
    residency = Plan(graph, initial=initial).residency(hardware.device_tier)
    return initial, residency, space_below(graph, hardware, residency, rule)


def not_in_place(graph: Graph) -> Iterable[int]:
    """Tensors that no op mutates."""
    mutated = {t for op in graph.ops for t in op.mutates}
    return (t for t in range(len(graph.tensors)) if t not in mutated)


def at_distance(gap: Gap, tier: str, prefetch_distance: int, release_distance: int) -> Absence:
    """The absence that begins and ends so many ops from the uses, within the idle time."""
    release = min(gap.after + release_distance, gap.before - 1)
    prefetch = max(gap.before - 1 - prefetch_distance, release)
    return Absence(gap.tensor, gap.after, gap.before, gap.after, release, prefetch, tier)


@dataclass(frozen=True, slots=True)
class PeakStrategy:
    """The settings of the strategy, under MindSpore's names (the policy says what each means)."""

    max_device_memory: int | None
    peak_modeled_headroom_bytes: int | None
    score_weight_size: float
    score_weight_cover_start: float
    score_weight_cover_end: float
    score_weight_neighbor_impact: float
    prefetch_distance: int
    release_distance: int
    enable_adaptive_prefetch_distance: bool
    enable_adaptive_release_distance: bool
    h2d_bandwidth_gbps: float
    d2h_bandwidth_gbps: float
    default_kernel_time_us: float
    placement: str = FASTEST

    @property
    def weights(self) -> tuple[float, float, float, float]:
        """The weights of the four terms of a score, in their order."""
        return (
            self.score_weight_size,
            self.score_weight_cover_start,
            self.score_weight_cover_end,
            self.score_weight_neighbor_impact,
        )


def memory_peak(graph: Graph, hardware: Hardware, budget_bytes: int, **settings: Any) -> Plan:
    """The plan; ``settings`` are those of :class:`PeakStrategy`. Each gap taken costs O(ops +
    candidates) array steps.
    """
    asked = PeakStrategy(**settings)
    most = budget_bytes if asked.max_device_memory is None else asked.max_device_memory
    headroom = asked.peak_modeled_headroom_bytes
    headroom = most // 10 if headroom is None else headroom
    initial, residency, space = _started(graph, hardware, budget_bytes, asked.placement)
    clock = _KernelClock(graph, hardware, asked.default_kernel_time_us)
    sizes = [tensor.size_bytes for tensor in graph.tensors]

    def absence(gap: Gap, tier: str) -> Absence:
        lead, wait = asked.prefetch_distance, asked.release_distance
        if asked.enable_adaptive_prefetch_distance and asked.h2d_bandwidth_gbps:
            lead = clock.ops_before(gap.before, sizes[gap.tensor] / asked.h2d_bandwidth_gbps)
        if asked.enable_adaptive_release_distance and asked.d2h_bandwidth_gbps:
            wait = clock.ops_after(gap.after, sizes[gap.tensor] / asked.d2h_bandwidth_gbps)
        return at_distance(gap, tier, lead, wait)

    held = held_bytes(graph, hardware.device_tier)
    absences = [
        absence(gap, residency[gap.tensor][0])
        for gap in below_at_ends(graph, residency, hardware.device_tier)
    ]
    for forced in absences:
        take_away(held, graph, forced)
    found = [gap for gap in between_uses(graph, not_in_place(graph)) if sizes[gap.tensor]]
    scores = _Scores(
        [absence(gap, "") for gap in found],
        sizes,
        len(graph.ops),
        asked.prefetch_distance,
        asked.weights,
    )
    for best in scores.taken(held, most - headroom) if most else ():
        tier = space.place(found[best].tensor, found[best].after)
        if tier is not None:
            absences.append(absence(found[best], tier))
            take_away(held, graph, absences[-1])
            scores.take(best)
    return insert(graph, hardware, "memory_peak", absences, initial)


_Candidates = np.ndarray[tuple[int], np.dtype[np.int64]]
_Scored = np.ndarray[tuple[int], np.dtype[np.float64]]


class _KernelClock:
    """Time by op position in the plan's order, for distances that follow from it."""

    def __init__(self, graph: Graph, hardware: Hardware, default_kernel_time_us: float) -> None:
        unknown = round(default_kernel_time_us * 1000)
        known = (
            d if op.duration_ns is not None or op.flops or op.bytes_accessed else unknown
            for d, op in zip(op_durations(graph, hardware), graph.ops, strict=True)
        )
        self._starts = [0, *accumulate(known)]

    def ops_after(self, op: int, ns: float) -> int:
        """Return the number of ops after ``op`` that begin within ``ns`` of its end."""
        return max(0, bisect_left(self._starts, self._starts[op + 1] + ns) - (op + 1))

    def ops_before(self, op: int, ns: float) -> int:
        """Return the fewest ops before ``op`` that are to have begun at least ``ns`` before it
        does.
        """
        return max(0, op - max(0, bisect_left(self._starts, self._starts[op] - ns + 1) - 1))


class _Scores:
    """Candidates as arrays: where each is away, its bytes, and whether it is still free to take."""

    def __init__(
        self,
        candidates: list[Absence],
        sizes: list[int],
        ops: int,
        near: int,
        weights: tuple[float, float, float, float],
    ) -> None:
        self._release = np.array([a.release for a in candidates], dtype=np.int64)
        self._prefetch = np.array([a.prefetch for a in candidates], dtype=np.int64)
        self._size = np.array([sizes[a.tensor] for a in candidates], dtype=np.float64)
        self._open = self._prefetch > self._release
        self._crowd = np.zeros(ops + 1, dtype=np.int64)
        self._near = near
        self._weights = weights

    def taken(self, held: Levels, most: int) -> Iterator[int]:
        """Candidates that cover the peak of what is ``held``, the best first and the first one of
        equals, while that exceeds ``most`` bytes and some cover it; whoever takes one changes what
        is held.
        """
        while held.max(initial=most) > most:
            peak = int(held.argmax())
            (covering,) = np.nonzero(self._open & (self._release < peak) & (self._prefetch >= peak))
            plain = self._plain(covering, peak)
            while held[peak] > most:
                if not len(covering):
                    return  # "the peak could not be reduced"
                best = int((self._penalty(covering) - plain).argmin())
                self._open[covering[best]] = False
                yield int(covering[best])
                covering, plain = np.delete(covering, best), np.delete(plain, best)

    def _plain(self, covering: _Candidates, peak: int) -> _Scored:
        """The scores of candidates that cover the peak, without the penalty."""
        plain = np.zeros(len(covering))
        terms = (
            self._size[covering],
            peak - self._release[covering],
            self._prefetch[covering] - peak,
        )
        for weight, term in zip(self._weights, terms, strict=False):
            plain += weight * term / term.max(initial=1)
        return plain

    def _penalty(self, candidates: _Candidates) -> _Scored:
        """w4 times the transfers of gaps taken so far that begin near those of each candidate, per
        op that counts as near.
        """
        begun = (
            self._crowd[self._release[candidates] + 1] + self._crowd[self._prefetch[candidates] + 1]
        )
        penalty: _Scored = self._weights[3] * begun / (2 * (2 * self._near + 1))
        return penalty

    def take(self, candidate: int) -> None:
        """It is taken: those near it are penalized from now on."""
        for place in (int(self._release[candidate]) + 1, int(self._prefetch[candidate]) + 1):
            self._crowd[max(0, place - self._near) : place + self._near + 1] += 1


# -- longest gap
# --------------------------------------------------------------------------------------------------
# ``longest_gap``: activations in the longest gaps first until the peak fits, hyper-parallel's
# greedy planner.
#
# Source: github mindspore-ai/hyper-parallel (Apache-2.0), its activation residency planner. The rule
# as published: candidates are the gaps between adjacent accesses of an activation with at least one
# op inside; sorted by (length in ops, bytes, earlier release), the largest first; one is taken only
# if it covers an op that is over budget; its bytes are then subtracted over its inside; it stops when
# the peak fits. The copy down starts after the latest write at or before the release, the copy up
# just before the op that needs it, with no lead.
#
# Our reading: the budget is the whole device tier's, so the account of ops over budget holds
# parameters and workspaces too. Everything else stays where it is at home, unless what is at home in
# the device tier does not fit there at the step's start or end: then all of that starts below and
# comes up just before its first use.


def longest_gap(
    graph: Graph, hardware: Hardware, budget_bytes: int, *, placement: str = FASTEST
) -> Plan:
    """The plan. O(candidates log candidates) steps, each along its gap."""
    initial, residency, space = _started(graph, hardware, budget_bytes, placement)
    held = held_bytes(graph, hardware.device_tier)
    absences = []
    for gap in below_at_ends(graph, residency, hardware.device_tier):
        absence = _absence(gap, residency[gap.tensor][0])
        take_away(held, graph, absence)
        absences.append(absence)
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    found = list(
        between_uses(
            graph,
            (
                t
                for t, tensor in enumerate(graph.tensors)
                if tensor.kind == "activation" and tensor.size_bytes
            ),
        )
    )
    found.sort(key=lambda gap: (gap.after - gap.before, -sizes[gap.tensor], gap.after))
    peak = held.max(initial=budget_bytes)
    for gap in found:
        if peak <= budget_bytes:
            break
        if held[gap.after + 1 : gap.before].max() <= budget_bytes:
            continue
        tier = space.place(gap.tensor, gap.after)
        if tier is None:
            continue
        absence = _absence(gap, tier)
        take_away(held, graph, absence)
        peak = held.max()
        absences.append(absence)
    return insert(graph, hardware, "longest_gap", absences, initial)


def _absence(gap: Gap, tier: str) -> Absence:
    """Stored after the latest write, released at the last use, back just before the next one."""
    store = gap.after if gap.written == AT_START else gap.written
    return Absence(
        gap.tensor, gap.after, gap.before, store, gap.after, max(gap.before - 1, AT_START), tier
    )

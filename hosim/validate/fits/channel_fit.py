"""Channels fitted to measured copies: ``latency + bytes / bandwidth`` by direction and kind of host
memory, with a curve by size if needed.

Each direction and kind of host memory is fitted separately, as if alone on its channel: the cost of
simultaneous directions is not fitted. The fit uses all copies to and from the host of a trace, and
every repeat of a bandwidth sweep. A line through most copies ignores those that took long, but a
plan pays for them, too. So the whole fit is stretched until its copies take the recorded total
time.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from hosim.base.groups import grouped
from hosim.io.importers.recordings import DeviceOp
from hosim.validate.fits.robust import (
    ErrorSpread,
    Figure,
    clock_tick,
    fit_line,
    fit_share,
    inverse,
    spread,
)

_SIZES = 4
"""The least number of sizes for a curve, ..."""
_RANGE = 100
"""... and the least ratio of the largest size to the smallest."""
_ALIKE = 1.1
"""Sizes up to this many times the smallest of their group are one point of the curve."""
_LARGE = 64 * 1024
"""The least bytes of a copy that shows the bandwidth."""


@dataclass(frozen=True, slots=True)
class MeasuredCopy:
    """One measured copy. ``memory`` is that of the host side: ``pinned``, ``pageable`` or as
    recorded.
    """

    direction: str
    memory: str
    size_bytes: int
    time_ns: int

    @property
    def way(self) -> tuple[str, str]:
        """The key of the group that it is fitted in."""
        return self.direction, self.memory


@dataclass(frozen=True, slots=True)
class ChannelFit:
    """A fitted direction and kind of host memory, in nanoseconds and bytes per second.

    ``latency`` is ``None`` if all copies had one size. ``curve`` has (bytes, ns beyond the latency)
    of the measured sizes, ascending; it is empty if there are too few. ``residuals`` are those of
    the fit on its own samples. ``total`` is the time of all copies by the fit, with an interval;
    ``recorded_ns`` is their recorded time.
    """

    direction: str
    memory: str
    bandwidth: Figure
    latency: Figure | None
    base_ns: float
    byte_ns: float
    curve: tuple[tuple[int, float], ...]
    residuals: ErrorSpread
    sizes: tuple[int, int]
    sources: tuple[str, ...]
    recorded_ns: int
    total: Figure

    @property
    def tells_bandwidth(self) -> bool:
        """Return whether some copies were large enough to show the bandwidth."""
        return self.sizes[1] >= _LARGE

    def predict(self, size_bytes: int) -> float:
        """Return the nanoseconds of a copy of this size."""
        if not self.curve:
            return self.base_ns + size_bytes * self.byte_ns
        at = bisect_left(self.curve, (size_bytes, -1.0))
        below, earlier = self.curve[at - 1] if at else (0, 0.0)
        if at == len(self.curve):
            return self.base_ns + earlier + (size_bytes - below) * self.byte_ns
        above, later = self.curve[at]
        if not at:
            return self.base_ns + later * size_bytes / above
        return self.base_ns + earlier + (later - earlier) * (size_bytes - below) / (above - below)

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as in the JSON report."""
        return {
            "direction": self.direction,
            "memory": self.memory,
            "bandwidth_bytes_per_s": self.bandwidth.to_dict(),
            "latency_ns": self.latency.to_dict() if self.latency else None,
            "curve": [
                {"bytes": size, "ns": round(self.base_ns + time)} for size, time in self.curve
            ],
            "smallest_bytes": self.sizes[0],
            "largest_bytes": self.sizes[1],
            "residuals": self.residuals.to_dict(),
            "recorded_ns": self.recorded_ns,
            "total_ns": self.total.to_dict(),
            "sources": list(self.sources),
        }


def copies_of(ops: Iterable[DeviceOp]) -> tuple[MeasuredCopy, ...]:
    """Return the copies to and from the host among these ops that a program requested."""
    return tuple(
        MeasuredCopy(
            op.direction,
            (op.source if op.direction == "h2d" else op.target) or "unknown",
            op.size_bytes,
            op.duration_ns,
        )
        for op in ops
        if op.kind == "copy"
        and not op.migration
        and op.direction in ("h2d", "d2h")
        and op.size_bytes
    )


def fit_ways(
    copies: Sequence[MeasuredCopy], sources: Sequence[str] = ()
) -> Mapping[tuple[str, str], ChannelFit]:
    """Return the fit of every measured direction and kind of host memory."""
    groups = grouped((copy.way, copy) for copy in copies)
    return {way: _fit(way, groups[way], tuple(sources)) for way in sorted(groups)}


def _fit(
    way: tuple[str, str], copies: Sequence[MeasuredCopy], sources: tuple[str, ...]
) -> ChannelFit:
    sizes, times = [c.size_bytes for c in copies], [c.time_ns for c in copies]
    latency, time = fit_line(sizes, times)
    base, byte = latency.value, time.value
    curve: tuple[tuple[int, float], ...] = ()
    points = _points(sizes, times)
    if len(points) >= _SIZES and points[-1][0] >= _RANGE * points[0][0]:
        base, byte, curve = _bent(points, base, byte)
    known = None if len(set(sizes)) == 1 else latency
    ends, taken = (min(sizes), max(sizes)), sum(times)
    fitted = ChannelFit(
        *way,
        inverse(time, 1e9),
        known,
        base,
        byte,
        curve,
        spread((), ()),
        ends,
        sources,
        taken,
        Figure(0, 0, 0, 0),
    )
    fitted = _stretched(fitted, time, fit_share([fitted.predict(size) for size in sizes], times))
    return replace(
        fitted, residuals=spread(times, [fitted.predict(size) for size in sizes], clock_tick(times))
    )


def _stretched(fitted: ChannelFit, time: Figure, share: Figure) -> ChannelFit:
    """Return the fit with all of its times multiplied by a factor, whose uncertainty is added to
    theirs; ``time`` is that of a byte.
    """
    by = share.value
    return replace(
        fitted,
        bandwidth=inverse(_product(time, share), 1e9),
        latency=None if fitted.latency is None else _product(fitted.latency, share),
        base_ns=fitted.base_ns * by,
        byte_ns=fitted.byte_ns * by,
        curve=tuple((size, time_ns * by) for size, time_ns in fitted.curve),
        total=Figure(
            fitted.recorded_ns,
            fitted.recorded_ns * share.low / by,
            fitted.recorded_ns * share.high / by,
            share.samples,
        ),
    )


def _product(a: Figure, b: Figure) -> Figure:
    return Figure(a.value * b.value, a.low * b.low, a.high * b.high, a.samples)


def _points(sizes: Sequence[int], times: Sequence[int]) -> list[tuple[int, float, int]]:
    """Return the median size and time, and the number of samples, of each group of
    similar sizes.
    """
    groups: list[list[tuple[int, int]]] = []
    for size, time in sorted(zip(sizes, times, strict=True)):
        if not groups or size > _ALIKE * groups[-1][0][0]:
            groups.append([])
        groups[-1].append((size, time))
    return [
        (round(median(s for s, _ in group)), median(t for _, t in group), len(group))
        for group in groups
    ]


def _bent(
    points: Sequence[tuple[int, float, int]], latency: float, byte: float
) -> tuple[float, float, tuple[tuple[int, float], ...]]:
    """Return the latency, the time of a byte, and the curve: medians by size, made monotone (pool
    adjacent violators).

    No point is faster than the channel, whose bandwidth is that of the fit, or of the largest
    copies if they are faster.
    """
    rising: list[list[float]] = []  # time, weight, number of points
    for _, time, count in points:
        rising.append([time, count, 1])
        while len(rising) > 1 and rising[-2][0] > rising[-1][0]:
            time_b, count_b, n_b = rising.pop()
            time_a, count_a, n_a = rising.pop()
            rising.append(
                [
                    (time_a * count_a + time_b * count_b) / (count_a + count_b),
                    count_a + count_b,
                    n_a + n_b,
                ]
            )
    times = [time for time, _, n in rising for _ in range(int(n))]
    base = min(latency, times[0])
    largest, longest = points[-1][0], times[-1] - base
    fastest = min(byte, longest / largest) if largest >= _LARGE and longest > 0 else byte
    curve = [
        (size, max(time - base, size * fastest))
        for (size, _, _), time in zip(points, times, strict=True)
    ]
    return base, fastest, tuple(curve)

"""Robust fits with intervals: a line through times, and a ratio of sums. scipy is imported when
needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from statistics import median
from typing import Any

import numpy as np

CONFIDENCE = 0.95
_DRAWS = 200
_ROUNDS = 60
_OUTLIER = 0.02
"""The relative error (plus a step of the clock) above which a sample's loss is linear instead of
quadratic.
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A fitted figure with its bootstrap interval (:data:`CONFIDENCE`) and its number
    of samples.
    """

    value: float
    low: float
    high: float
    samples: int

    def to_dict(self) -> dict[str, float | int]:
        """Return the figure as in the JSON report."""
        return {"value": self.value, "low": self.low, "high": self.high, "samples": self.samples}


@dataclass(frozen=True, slots=True)
class ErrorSpread:
    """Absolute errors relative to the measured values: their median and 95th percentile; ``None``
    without samples.

    ``resolved_median`` is that of the ``resolved`` samples: those of at least :data:`RESOLVED`
    steps of their clock, for which one step is at most a twentieth. ``zeros`` counts the samples
    that were measured as zero, which are omitted. ``total`` is signed: all predicted time over all
    measured time, less 1.
    """

    samples: int
    median: float | None
    p95: float | None
    resolved: int
    resolved_median: float | None
    total: float | None
    zeros: int

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the errors as in the JSON report."""
        return {name: getattr(self, name) for name in self.__slots__}


RESOLVED = 20


def spread(measured: Sequence[float], predicted: Sequence[float], tick: int = 1) -> ErrorSpread:
    """Return the errors of predictions of times, measured by a clock with steps of ``tick``."""
    pairs = [(abs(p - m) / m, m) for m, p in zip(measured, predicted, strict=True) if m > 0]
    errors, seen = (
        sorted(error for error, _ in pairs),
        [error for error, m in pairs if m >= RESOLVED * tick],
    )
    total = sum(predicted) / sum(measured) - 1 if pairs else None
    return ErrorSpread(
        len(errors),
        median(errors) if errors else None,
        errors[min(len(errors) - 1, len(errors) * 95 // 100)] if errors else None,
        len(seen),
        median(seen) if seen else None,
        total,
        len(measured) - len(errors),
    )


def fit_line(sizes: Sequence[float], times_ns: Sequence[int]) -> tuple[Figure, Figure]:
    """Return the latency (ns) and the time of a byte (ns), neither below 0, for which ``latency +
    size * byte`` is closest to the times, relative to these.

    The loss is soft L1: outliers have little weight, and so have differences below the clock's
    resolution. Samples of one size have latency 0.
    """
    from scipy.optimize import least_squares

    size, time = np.asarray(sizes, float), np.asarray(times_ns, float)
    rows = (
        np.stack([np.ones_like(size), size], axis=1)
        / (_OUTLIER * time + clock_tick(times_ns))[:, None]
    )
    wanted = rows[:, 0] * time
    if len(set(sizes)) == 1:
        rows[:, 0] = 0
    scale = np.array(
        [
            max(1.0, float(time[size == size.min()].mean())),
            max(1e-6, float(time[size == size.max()].mean()) / size.max()),
        ]
    )
    scaled = rows * scale
    found = least_squares(
        lambda x: scaled @ x - wanted,
        np.ones(2),
        jac=lambda x: scaled,
        bounds=(0, np.inf),
        loss="soft_l1",
        xtol=1e-12,
        ftol=1e-12,
    )
    best = found.x * scale * ([0, 1] if not rows[:, 0].any() else [1, 1])
    drawn = _refitted(rows, wanted, best, draws(len(size)))
    return figure(best[0], drawn[:, 0], len(size)), figure(best[1], drawn[:, 1], len(size))


def fit_slope(sizes: Sequence[float], times_ns: Sequence[int], fixed_ns: float) -> Figure:
    """Return the time of a unit (ns) for which ``fixed + size * unit`` is closest to the times,
    relative to these; each is weighted by its length.

    The loss is soft L1, as in :func:`fit_line`. Sizes are above 0.
    """
    from scipy.optimize import minimize_scalar

    size, time = np.asarray(sizes, float), np.asarray(times_ns, float)
    weight = 1 / (_OUTLIER * time + clock_tick(times_ns))
    column, wanted = size * weight, (time - fixed_ns) * weight
    ratios = np.maximum(time - fixed_ns, 0) / size
    best = ratios.max()
    if ratios.min() < best:
        found = minimize_scalar(
            lambda unit: float(time @ np.sqrt(1 + (column * unit * best - wanted) ** 2)),
            bounds=(ratios.min() / best, 1),
            method="bounded",
        )
        best *= float(found.x)
    rows = np.stack([np.zeros_like(column), column], axis=1)
    drawn = _refitted(rows, wanted, np.array([0.0, best]), draws(len(size)) * time)
    return figure(best, drawn[:, 1], len(size))


def fit_share(predicted: Sequence[float], times_ns: Sequence[int]) -> Figure:
    """Return all measured time over all predicted time; 1 if either is zero."""
    found, time = np.asarray(predicted, float), np.asarray(times_ns, float)
    if not found.sum() > 0 or not time.sum() > 0:
        return Figure(1, 1, 1, len(time))
    weights = draws(len(time))
    weights = weights[weights @ found > 0]
    return figure(float(time.sum() / found.sum()), (weights @ time) / (weights @ found), len(time))


def _refitted(rows: Any, wanted: Any, start: Any, weights: Any) -> Any:
    """Do the same fit for each row of sample weights, by iteratively reweighted least squares. The
    loss is convex, so the result is scipy's.
    """
    found = np.tile(start, (len(weights), 1))
    a, b = rows[:, 0], rows[:, 1]
    products = (a * a, a * b, b * b, a * wanted, b * wanted)
    for _ in range(_ROUNDS):
        weight = weights / np.sqrt(1 + (found[:, :1] * a + found[:, 1:] * b - wanted) ** 2)
        # einsum instead of ``@``, whose threads wait for one another much longer than they compute
        aa, ab, bb, at, bt = (np.einsum("dn,n->d", weight, product) for product in products)
        determinant = aa * bb - ab * ab
        solvable = determinant > 1e-12 * aa * bb
        latency = np.divide(at * bb - bt * ab, determinant, out=np.zeros_like(at), where=solvable)
        byte = np.divide(
            bt * aa - at * ab, determinant, out=bt / np.maximum(bb, 1e-300), where=latency > 0
        )
        found = np.stack([np.maximum(latency, 0), np.maximum(byte, 0)], axis=1)
    return found


def draws(count: int) -> Any:
    """Return the number of times that each of ``count`` samples is drawn, in each of a fixed number
    of bootstrap draws. Equal counts give equal draws.
    """
    return np.stack(
        [
            np.bincount(row, minlength=count)
            for row in np.random.default_rng(0).integers(0, count, (_DRAWS, count))
        ]
    ).astype(float)


def median_figure(values: Sequence[int]) -> Figure:
    """Return the median of measured values; for more than a few thousand, the interval is that of
    an evenly spread subset.
    """
    ordered = np.sort(np.asarray(values, float))
    some = ordered[:: max(1, len(ordered) // 2000)]
    drawn = np.random.default_rng(0).choice(some, (_DRAWS, len(some)))
    return figure(float(np.median(ordered)), np.median(drawn, axis=1), len(values))


def figure(value: float, drawn: Any, samples: int) -> Figure:
    """Return a figure with the interval of its bootstrap draws."""
    tail = 50 * (1 - CONFIDENCE)
    low, high = (float(edge) for edge in np.percentile(drawn, [tail, 100 - tail]))
    return Figure(float(value), min(low, float(value)), max(high, float(value)), samples)


def inverse(measured: Figure, of: float) -> Figure:
    """``of`` divided by a figure, at most 1e9 times as much."""
    value, low, high = (of / max(x, 1e-9) for x in (measured.value, measured.high, measured.low))
    return Figure(value, low, high, measured.samples)


def clock_tick(times_ns: Sequence[int]) -> int:
    """Return the step, in nanoseconds, of the clock behind these times; at most a microsecond."""
    return min(1000, gcd(*times_ns) or 1) if times_ns else 1

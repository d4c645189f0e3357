"""The metrics of a case: their names, units, and tolerances.

``peak.TIER`` (bytes), ``makespan``, ``stall.CAUSE`` (nanoseconds of the result's stream) and
``moved.CHANNEL`` (bytes). Served requests also have ``ttft``, ``tpot`` and ``latency`` by statistic
(``ttft.p95``, nanoseconds), ``throughput.output`` (tokens per hour), ``goodput.requests`` (requests
per hour), ``found.TIER`` (tokens of prompts), ``wait.kv_transfer`` and ``wait.decode_queue``
(nanoseconds that all requests waited on their way to a decode engine), and counts such as
``count.preemptions``. Smaller is better, except for :data:`LARGER`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from hosim.errors import InputError
from hosim.result import STALL_CAUSES, Result
from hosim.units import human_percent, human_size, human_time, parse_size, parse_time

PEAK, MAKESPAN, STALL, MOVED = "peak", "makespan", "stall", "moved"

TTFT, TPOT, LATENCY, THROUGHPUT, GOODPUT, FOUND, WAIT, COUNT = (
    "ttft",
    "tpot",
    "latency",
    "throughput",
    "goodput",
    "found",
    "wait",
    "count",
)

FAMILIES = (
    PEAK,
    TTFT,
    TPOT,
    LATENCY,
    THROUGHPUT,
    GOODPUT,
    FOUND,
    MAKESPAN,
    WAIT,
    STALL,
    MOVED,
    COUNT,
)
"""Every family, in the order of reports."""

STATISTICS = ("mean", "p50", "p95", "p99")
"""The judged statistics of each latency."""

_PARTS = {
    **dict.fromkeys((TTFT, TPOT, LATENCY), STATISTICS),
    THROUGHPUT: ("output",),
    GOODPUT: ("requests",),
}
"""The names after the dot in a family's metrics, if they are not names of the machine."""

LARGER = (THROUGHPUT, GOODPUT, FOUND)
"""Metrics for which larger is better."""

HOUR = 3600
"""The seconds of an hour; rates are whole numbers per hour."""

SUMS = (PEAK, FOUND, MAKESPAN, WAIT, STALL, MOVED, COUNT)
"""Metrics that are 0 in a record that does not list them."""

_BYTES, _SHARES = (PEAK, MOVED), (*LARGER, COUNT)

_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed difference between a metric and its baseline: a number of its unit, or a share of
    the baseline; ``None``: any amount.
    """

    absolute: int | None = None
    share: Fraction | None = None

    def allows(self, before: int, now: int) -> bool:
        """Return whether the difference is within the tolerance."""
        if self.share is not None:
            return abs(now - before) <= before * self.share
        return self.absolute is None or abs(now - before) <= self.absolute


OFF = Tolerance()
"""The tolerance of a metric that is shown but never fails."""

DEFAULTS: Mapping[str, Tolerance] = {
    **dict.fromkeys((MAKESPAN, TTFT, TPOT, LATENCY, *LARGER), Tolerance(share=Fraction(1, 100))),
    PEAK: Tolerance(absolute=0),
    **dict.fromkeys((WAIT, STALL, MOVED, COUNT), OFF),
}
"""The default tolerances: 0 for peaks and 1 % for times and rates; waits, stalls, moved bytes and
counts are not judged.
"""


def metrics_of(result: Result) -> dict[str, int]:
    """Return the metrics of a feasible result."""
    assert result.makespan_ns is not None
    return {
        **{f"{PEAK}.{tier}": held for tier, held in result.peak_bytes.items()},
        MAKESPAN: result.makespan_ns,
        **{f"{STALL}.{cause}": result.stall_ns.get(cause, 0) for cause in STALL_CAUSES},
        **{f"{MOVED}.{name}": channel.bytes for name, channel in result.channels.items()},
    }


def family(metric: str) -> str:
    """Return the family of a metric: ``peak`` for ``peak.hbm``."""
    return metric.partition(".")[0]


def human(metric: str, value: int) -> str:
    """Return the text of a value with its unit.

    >>> human("peak.hbm", 2048), human("makespan", 1500)
    ('2.00 KiB', '1.50 us')
    >>> (
    ...     human("throughput.output", 1_800_000),
    ...     human("found.ddr", 1024),
    ...     human("count.preemptions", 3),
    ... )
    ('500 tokens/s', '1,024 tokens', '3')
    """
    kind, _, of = metric.partition(".")
    if kind in _BYTES:
        return human_size(value)
    if kind in (THROUGHPUT, GOODPUT):
        rate = value / HOUR
        return (
            f"{rate:{',.0f' if abs(rate) >= 100 else '.3g'}} {'tokens' if of == 'output' else of}/s"
        )
    if kind in (FOUND, COUNT):
        return f"{value:,}" + (" tokens" if kind == FOUND else "")
    return human_time(value)


def worsens(metric: str, by: int) -> bool:
    """Return whether a change of a metric makes it worse.

    >>> worsens("makespan", 3), worsens("throughput.output", 3)
    (True, False)
    """
    return by < 0 if family(metric) in LARGER else by > 0


def parse_tolerances(
    given: Mapping[str, str | Mapping[str, str]], source: str
) -> dict[str, Tolerance]:
    """Read tolerances by metric or family, such as ``64 MiB``, ``10 us``, ``1%`` or ``off``. Raises
    :class:`InputError`.
    """
    flat: dict[str, str] = {}
    for name, value in given.items():
        flat |= (
            {name: value}
            if isinstance(value, str)
            else {f"{name}.{part}": text for part, text in value.items()}
        )
    return {name: _parse(name, text, source) for name, text in flat.items()}


def tolerance_of(metric: str, given: Mapping[str, Tolerance]) -> Tolerance:
    """Return the tolerance of a metric: its own if there is one, else its family's, else the
    default.
    """
    return given.get(metric) or given.get(family(metric)) or DEFAULTS.get(family(metric), OFF)


def _parse(name: str, text: str, source: str) -> Tolerance:
    where = f"tolerance.{name}"
    if family(name) not in FAMILIES:
        raise InputError(
            f"unknown metric; expected one of {', '.join(FAMILIES)}, or one such as peak.hbm",
            source=source,
            where=where,
        )
    part = name.partition(".")[2]
    if part and part not in _PARTS.get(family(name), (part,)):
        named = ", ".join(f"{family(name)}.{one}" for one in _PARTS[family(name)])
        raise InputError(
            f"unknown metric; expected {family(name)} or one of {named}", source=source, where=where
        )
    if text.strip() == "off":
        return OFF
    share = _SHARE.fullmatch(text)
    if share:
        return Tolerance(share=Fraction(share[1]) / 100)
    if family(name) in _SHARES:
        raise InputError(
            f"expected a share of the baseline, such as '1%', or 'off', got {text!r}",
            source=source,
            where=where,
        )
    try:
        return Tolerance(absolute=parse_size(text) if family(name) in _BYTES else parse_time(text))
    except InputError as error:
        raise InputError(
            f"{error.message} (or a share of the baseline, such as '1%', or 'off')",
            source=source,
            where=where,
        ) from None


# -- verdicts
# --------------------------------------------------------------------------------------------------

REGRESSION, IMPROVEMENT, DRIFT, NEW, MISSING, SAME = (
    "regression",
    "improvement",
    "drift",
    "new",
    "missing",
    "same",
)


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """One metric: its value in the baseline and now (``None`` if there is none), and the
    verdict.
    """

    name: str
    before: int | None
    now: int | None
    verdict: str

    @property
    def change(self) -> int:
        """The present value minus that of the baseline; a missing value counts as 0."""
        return (self.now or 0) - (self.before or 0)

    def line(self) -> str:
        """The verdict as text: ``peak.hbm 38.2 GiB, was 37.9 GiB (+312 MiB, +0.8 %)``."""
        if self.before is None or self.now is None:
            value = self.before if self.now is None else self.now
            return f"{self.name}: {self.verdict} ({human(self.name, value or 0)})"
        share = f", {human_percent(self.change / self.before, signed=True)}" if self.before else ""
        sign = "+" if self.change > 0 else ""
        by = f"{sign}{human(self.name, self.change)}{share}"
        return (
            f"{self.name}: {human(self.name, self.now)}, was {human(self.name, self.before)} ({by})"
        )


def judge_metrics(
    before: Mapping[str, int], now: Mapping[str, int], tolerances: Mapping[str, Tolerance]
) -> tuple[MetricVerdict, ...]:
    """A verdict for every metric of either record, by name.

    A *regression* is worse by more than the tolerance, an *improvement* better by more, *drift* a
    change within it. Bytes, times of waiting and counts that one of the two does not have are 0
    there: a tier that was empty held nothing. Another metric that only one of the two has, such as
    a latency, is *new* or *missing*; it is drift if its tolerance is off.
    """
    verdicts = []
    for name in sorted({*before, *now}):
        absent = 0 if family(name) in SUMS else None
        old, new, tolerance = (
            before.get(name, absent),
            now.get(name, absent),
            tolerance_of(name, tolerances),
        )
        if old is None or new is None:
            known = old if new is None else new
            if not known:
                verdict = SAME
            elif tolerance == OFF:
                verdict = DRIFT
            else:
                verdict = NEW if old is None else MISSING
        elif old == new:
            verdict = SAME
        elif tolerance.allows(old, new):
            verdict = DRIFT
        else:
            verdict = REGRESSION if worsens(name, new - old) else IMPROVEMENT
        verdicts.append(MetricVerdict(name, old, new, verdict))
    return tuple(verdicts)

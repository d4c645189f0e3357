"""Verdicts of single metrics: a value in the baseline and the value now."""

from collections.abc import Mapping
from dataclasses import dataclass

from hosim.gate.judged_metrics.metrics import (
    OFF,
    SUMS,
    Tolerance,
    family,
    human,
    tolerance_of,
    worsens,
)
from hosim.units import human_percent

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
        """The value now less that of the baseline; where there is none, it counts as 0."""
        return (self.now or 0) - (self.before or 0)

    def line(self) -> str:
        """The verdict in words: ``peak.hbm 38.2 GiB, was 37.9 GiB (+312 MiB, +0.8 %)``."""
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
            verdict = (
                SAME
                if not known
                else DRIFT
                if tolerance == OFF
                else NEW
                if old is None
                else MISSING
            )
        elif old == new:
            verdict = SAME
        elif tolerance.allows(old, new):
            verdict = DRIFT
        else:
            verdict = REGRESSION if worsens(name, new - old) else IMPROVEMENT
        verdicts.append(MetricVerdict(name, old, new, verdict))
    return tuple(verdicts)

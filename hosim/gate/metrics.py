"""The metrics of a case (smaller is better): their names, units, and tolerances.

``peak.TIER`` (bytes), ``makespan``, ``stall.CAUSE`` (nanoseconds of the result's stream) and ``moved.CHANNEL`` (bytes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from hosim.errors import InputError
from hosim.result import STALL_CAUSES, Result
from hosim.units import human_size, human_time, parse_size, parse_time

PEAK, MAKESPAN, STALL, MOVED = "peak", "makespan", "stall", "moved"

FAMILIES = (PEAK, MAKESPAN, STALL, MOVED)

_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much a metric may differ from its baseline: a number of its unit, or a share of the baseline; ``None``: any amount."""

    absolute: int | None = None
    share: Fraction | None = None

    def allows(self, before: int, now: int) -> bool:
        """Whether the difference is within the tolerance."""
        if self.share is not None:
            return abs(now - before) <= before * self.share
        return self.absolute is None or abs(now - before) <= self.absolute


OFF = Tolerance()
"""The tolerance of a metric that is shown but never fails."""

DEFAULTS: Mapping[str, Tolerance] = {PEAK: Tolerance(absolute=0), MAKESPAN: Tolerance(share=Fraction(1, 100)), STALL: OFF, MOVED: OFF}
"""The default tolerances: none for a peak. Stalls and moved bytes are not judged by themselves."""


def metrics_of(result: Result) -> dict[str, int]:
    """The metrics of a feasible result."""
    assert result.makespan_ns is not None
    return {
        **{f"{PEAK}.{tier}": held for tier, held in result.peak_bytes.items()},
        MAKESPAN: result.makespan_ns,
        **{f"{STALL}.{cause}": result.stall_ns.get(cause, 0) for cause in STALL_CAUSES},
        **{f"{MOVED}.{name}": channel.bytes for name, channel in result.channels.items()},
    }


def family(metric: str) -> str:
    """``peak`` of ``peak.hbm``."""
    return metric.partition(".")[0]


def human(metric: str, value: int) -> str:
    """A value with its unit, for people.

    >>> human("peak.hbm", 2048), human("makespan", 1500)
    ('2.00 KiB', '1.50 us')
    """
    return human_size(value) if family(metric) in (PEAK, MOVED) else human_time(value)


def parse_tolerances(given: Mapping[str, str | Mapping[str, str]], source: str) -> dict[str, Tolerance]:
    """Tolerances by metric or family, as files have them: ``64 MiB``, ``10 us``, ``1%`` or ``off``. Raises :class:`InputError`."""
    flat: dict[str, str] = {}
    for name, value in given.items():
        flat |= {name: value} if isinstance(value, str) else {f"{name}.{part}": text for part, text in value.items()}
    return {name: _parse(name, text, source) for name, text in flat.items()}


def tolerance_of(metric: str, given: Mapping[str, Tolerance]) -> Tolerance:
    """The tolerance of a metric: its own if there is one, else its family's, else the default."""
    return given.get(metric) or given.get(family(metric)) or DEFAULTS.get(family(metric), OFF)


def _parse(name: str, text: str, source: str) -> Tolerance:
    where = f"tolerance.{name}"
    if family(name) not in FAMILIES:
        raise InputError(f"unknown metric; expected one of {', '.join(FAMILIES)}, or one such as peak.hbm", source=source, where=where)
    if text.strip() == "off":
        return OFF
    share = _SHARE.fullmatch(text)
    if share:
        return Tolerance(share=Fraction(share[1]) / 100)
    try:
        return Tolerance(absolute=parse_size(text) if family(name) in (PEAK, MOVED) else parse_time(text))
    except InputError as error:
        raise InputError(f"{error.message} (or a share of the baseline, such as '1%', or 'off')", source=source, where=where) from None

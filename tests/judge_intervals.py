"""How often what people reported lies within hosim's 90 % intervals: ``make intervals``.

Each source (the rows of one repository on one machine, of one kind) is left out in turn: of the fit
of its runtime, and of what whole steps are off by where nobody names the software. By kind: how
many rows lie within, how wide the intervals are as a share of their centres, and the width of the
narrowest common interval about hosim's answers that holds 85 % of the same rows.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import mean, median

import numpy as np
from judge_runtimes import Answers, ends, fitted, is_time, said, speeds
from practitioner_rows import Answer, Row, answer, rows

from hosim.costmodel.spreads import INFERENCE, TRAINING, StepSpread
from hosim.io.runtimes import runtime_named


@dataclass(frozen=True)
class Judged:
    """A row, what hosim says of it without its source, and the interval."""

    kind: str
    row: Row
    ours: float
    low: float
    high: float

    @property
    def true(self) -> float:
        return self.row.true_s

    @property
    def inside(self) -> bool:
        return self.low <= self.true <= self.high

    @property
    def width(self) -> float:
        """As a share of the centre."""
        return 2 * (self.high - self.low) / (self.high + self.low)


INFLATED = 1.15
"""Spreads of few rows are too small for the next one: so much larger, sources that are left out lie
within as often as is said (conformal prediction; Vovk, Gammerman and Shafer 2005).
"""


def phase(row: Row) -> str:
    return "training" if "phase=train" in row.workload else "inference"


def source(row: Row) -> tuple[str, str, str]:
    return row.source, row.hardware, row.kind[0]


def beyond(found: Sequence[tuple[Row, Answer]]) -> StepSpread:
    """What whole steps are off by beyond their kernels: about the mean, so that nine of ten lie
    within the interval of these rows' own draws and this.
    """
    off = [log(row.true_s / (each.device_s + each.after_s)) for row, each in found]
    centre = mean(off)
    for spread in np.arange(0.0, 1.5, 0.01):
        within = []
        for row, each in found:
            low, high = ends(each, each.device_s + each.after_s, centre, float(spread))
            within.append(low <= row.true_s <= high)
        if mean(within) >= 0.9:
            return StepSpread(round(centre, 2), round(INFLATED * float(spread), 2))
    return StepSpread(round(centre, 2), 1.5)


def unnamed(answers: Answers, apart: bool = True) -> list[Judged]:
    """Times by kernels alone, as if nobody had named the software; ``apart``: without their
    source.
    """
    found = []
    times = [one for one in answers.values() if is_time(one[0]) and not one[1].after_s]
    for row, each in times:
        seen = [
            one
            for one in times
            if phase(one[0]) == phase(row) and not (apart and source(one[0]) == source(row))
        ]
        of = beyond(seen)
        ours = each.device_s
        found.append(
            Judged(f"{phase(row)}, no runtime", row, ours, *ends(each, ours, of.mean, of.spread))
        )
    return found


def named(answers: Answers) -> list[Judged]:
    """Figures under their runtime, fitted without their source."""
    found = []
    for row, each in answers.values():
        if not row.runtime:
            continue
        seen = [one for one in answers.values() if one[0].runtime and source(one[0]) != source(row)]
        mine = [
            one for one in seen if one[0].runtime == row.runtime and phase(one[0]) == phase(row)
        ]
        others = speeds([one for one in seen if phase(one[0]) == phase(row)])
        shipped = runtime_named(row.runtime)
        runtime = fitted(shipped, seen, median(others) if others else 1.0)
        ours = said(row, each, runtime)
        if not is_time(row):
            unit = "allocated" if "tune" in row.id or "vit" in row.id else "reserved"
            found.append(Judged("memory", row, ours, *each.gib(runtime, unit)[1:]))
            continue
        unknown = TRAINING if phase(row) == "training" else INFERENCE
        spread = shipped.speed.spread if speeds(mine) else unknown.spread
        found.append(
            Judged(f"{phase(row)}, runtime named", row, ours, *ends(each, ours, 0.0, spread))
        )
    return found


def narrowest(listed: Sequence[Judged]) -> float:
    """The width of the narrowest common interval about the answers that holds 85 % of the rows, as
    a share of its centre.
    """
    off = sorted(one.true / one.ours for one in listed)
    count = -(-85 * len(off) // 100)
    return min(
        2 * (off[k + count - 1] - off[k]) / (off[k + count - 1] + off[k])
        for k in range(len(off) - count + 1)
    )


def median_width(listed: Sequence[Judged]) -> float:
    """Of intervals, as shares of their centres."""
    return median(one.width for one in listed)


def by_kind(judged: Sequence[Judged]) -> Mapping[str, list[Judged]]:
    kinds: defaultdict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        kinds[one.kind].append(one)
    return dict(sorted(kinds.items()))


def answered(with_runtime: bool) -> dict[str, tuple[Row, Answer]]:
    kept: dict[tuple[str, ...], Answer | None] = {}
    found = {}
    for row in rows():
        key = (row.workload, row.hardware, row.policy, row.runtime)
        if key not in kept:
            kept[key] = answer(row, with_runtime)
            print(row.id, file=sys.stderr, flush=True)
        if (each := kept[key]) is not None:
            found[row.id] = row, each
    return found


def main() -> None:
    """Print the table, and what is to be kept in :mod:`hosim.costmodel.spreads.step_spreads`."""
    alone = answered(False)
    judged = [*named(answered(True)), *unnamed(alone)]
    print(f"{'kind':28} rows  inside  median width  narrowest that holds 85 %")
    for kind, listed in by_kind(judged).items():
        inside = sum(one.inside for one in listed)
        widths = median_width(listed)
        print(f"{kind:28} {len(listed):4}  {inside:6}  {widths:12.0%}  {narrowest(listed):.0%}")
    for one in judged:
        if not one.inside:
            print(
                f"outside: {one.kind:28} {one.row.id:34} {one.true:9.4g} {one.low:9.4g} "
                f"{one.high:9.4g}"
            )
    for name in ("training", "inference"):
        seen = [
            one
            for one in alone.values()
            if is_time(one[0]) and phase(one[0]) == name and not one[1].after_s
        ]
        print(f"{name}: {beyond(seen)}")


if __name__ == "__main__":
    main()

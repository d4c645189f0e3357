"""How often what people reported lies within hosim's 90 % intervals: ``make intervals``.

Each source (the rows of one repository on one machine, of one kind) is left out in turn: of the fit
of its runtime, and of what whole steps are off by. How far a step may be off is what steps of the
other sources were off by, each with its own source left out as well (cross-conformal prediction;
Vovk, Gammerman and Shafer 2005). Training under named runtimes has a spread of its own; for
inference there are too few sources under named runtimes to say nine of ten, and its spread is that
of software that nobody names. By kind: how many rows lie within, how wide the intervals are as a
share of their centres, and the width of the narrowest common interval about hosim's answers that
holds 85 % of the same rows. The spreads and means are written where hosim reads them.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log
from pathlib import Path
from statistics import mean, median

import numpy as np
from judge_runtimes import Answers, ends, fitted, is_time, speeds
from judge_runtimes import said as figure
from practitioner_rows import Answer, Row, answer, rows

from hosim.analysis.costmodel.spreads import StepSpread
from hosim.data.runtime import Runtime
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


ROOT = Path(__file__).parents[1]

LEVEL = 0.9
"""How many of ten are to lie within."""

ENOUGH_SOURCES = round(LEVEL / (1 - LEVEL))
"""With fewer sources not even the largest error seen bounds nine of ten errors of a further one."""

PHASES = ("training", "inference")

Found = Sequence[tuple[Row, Answer]]

Said = Callable[[Row, Answer, Found], tuple[float, float]]
"""What is said of a row by those that are seen: seconds, and the mean logarithm of the true ones
over them.
"""


def phase(row: Row) -> str:
    return PHASES["phase=train" not in row.workload]


def source(row: Row) -> tuple[str, str, str]:
    return row.source, row.hardware, row.kind[0]


def conformal(scores: Sequence[float]) -> float:
    """The score that one more is within, nine times in ten, if it is of their kind."""
    return sorted(scores)[min(len(scores), ceil((len(scores) + 1) * LEVEL)) - 1]


@dataclass(frozen=True)
class LeftOut:
    """Times that are said of rows, without some sources. With ``unnamed`` each phase has a spread of
    its own, or the one of these others where its sources are too few.
    """

    found: Found
    said: Said
    unnamed: LeftOut | None = None
    known: dict[tuple[str, frozenset[tuple[str, str, str]]], float] = field(default_factory=dict)

    def answer(self, row: Row, each: Answer, *out: tuple[str, str, str]) -> tuple[float, float]:
        return self.said(row, each, [one for one in self.found if source(one[0]) not in out])

    def score(self, row: Row, each: Answer, *out: tuple[str, str, str]) -> float:
        """The least spread whose interval has the true time, without the row's source and others."""
        apart = frozenset({source(row), *out})
        if (row.id, apart) not in self.known:
            ours, centre = self.answer(row, each, *apart)
            within = (
                spread
                for spread in np.arange(0.0, 1.5, 0.01).tolist()
                if (reach := ends(each, ours, centre, spread))[0] <= row.true_s <= reach[1]
            )
            self.known[row.id, apart] = next(within, 1.5)
        return self.known[row.id, apart]

    def spread(self, of: str, *out: tuple[str, str, str]) -> float:
        """How far a step of another source may be off in a phase."""
        times = [one for one in self.found if is_time(one[0]) and source(one[0]) not in out]
        if self.unnamed is not None:
            times = [one for one in times if phase(one[0]) == of]
            if len({source(row) for row, _ in times}) < ENOUGH_SOURCES:
                return self.unnamed.spread(of, *out)
        return conformal([self.score(row, each, *out) for row, each in times])

    def judged(self, kind: str) -> Iterator[Judged]:
        for row, each in self.found:
            if is_time(row):
                ours, centre = self.answer(row, each, source(row))
                reach = ends(each, ours, centre, self.spread(phase(row), source(row)))
                yield Judged(f"{phase(row)}, {kind}", row, ours, *reach)


def unnamed(answers: Answers) -> LeftOut:
    """Times by kernels alone, as if nobody had named the software."""
    times = [one for one in answers.values() if is_time(one[0]) and not one[1].after_s]

    def said(row: Row, each: Answer, seen: Found) -> tuple[float, float]:
        return each.device_s, centre_of(phase(row), seen)

    return LeftOut(times, said)


def centre_of(of: str, seen: Found) -> float:
    """The mean logarithm of measured over predicted time, of a phase."""
    return mean([log(row.true_s / each.device_s) for row, each in seen if phase(row) == of])


def named(answers: Answers, without: LeftOut) -> LeftOut:
    """Times under runtimes that are fitted to what is seen, beside those without a runtime."""

    def said(row: Row, each: Answer, seen: Found) -> tuple[float, float]:
        return figure(row, each, runtime_of(row, seen)), 0.0

    return LeftOut([one for one in answers.values() if one[0].runtime], said, without)


def runtime_of(row: Row, seen: Found) -> Runtime:
    """The runtime of a row, fitted to what is seen."""
    others = speeds([one for one in seen if phase(one[0]) == phase(row)])
    return fitted(runtime_named(row.runtime), list(seen), median(others) if others else 1.0)


def memory(answers: Answers) -> Iterator[Judged]:
    """Peaks under runtimes that are fitted without their source."""
    found = [one for one in answers.values() if one[0].runtime]
    for row, each in found:
        if not is_time(row):
            seen = [one for one in found if source(one[0]) != source(row)]
            unit = "allocated" if "tune" in row.id or "vit" in row.id else "reserved"
            runtime = runtime_of(row, seen)
            ours = figure(row, each, runtime)
            yield Judged("memory", row, ours, *each.gib(runtime, unit)[1:])


def judge(with_runtime: Answers, without: Answers) -> list[Judged]:
    """All rows, each without its source."""
    alone = unnamed(without)
    return [
        *named(with_runtime, alone).judged("runtime named"),
        *alone.judged("no runtime"),
        *memory(with_runtime),
    ]


def found_spreads(
    with_runtime: Answers, without: Answers
) -> tuple[dict[str, StepSpread], dict[str, float]]:
    """What all rows say, by phase: of steps by software that nobody names, and the spread under a
    named runtime.
    """
    alone = unnamed(without)
    under = named(with_runtime, alone)
    return {
        of: StepSpread(round(centre_of(of, alone.found), 2), round(alone.spread(of), 2))
        for of in PHASES
    }, {of: round(under.spread(of), 2) for of in PHASES}


def is_of_rows(runtime: Runtime) -> bool:
    """Whether the spread of a runtime's speed is the one found here: it has a spread, and its speed
    is of these rows or assumed.
    """
    assumed = runtime.speed.source.startswith("[assumption]")
    by_rows = runtime.name in {row.runtime for row in rows()}
    return runtime.speed.spread > 0 and (assumed or by_rows)


def write(alone: Mapping[str, StepSpread], under: Mapping[str, float]) -> None:
    """Write the spreads to :mod:`hosim.analysis.costmodel.spreads.drawn_times` and the runtimes' files."""
    drawn = ROOT / "hosim" / "analysis" / "costmodel" / "spreads" / "drawn_times.py"
    text = drawn.read_text()
    for of, found in alone.items():
        said = f"{of.upper()} = StepSpread({found.mean:g}, {found.spread:g})"
        text = re.sub(rf"^{of.upper()} = .*$", said, text, flags=re.MULTILINE)
    drawn.write_text(text)
    for file in sorted((ROOT / "runtimes").glob("*.yaml")):
        runtime = runtime_named(file.stem)
        if is_of_rows(runtime):
            spread = under["training" if "train" in runtime.runs else "inference"]
            text = file.read_text()
            file.write_text(re.sub(r"(?m)^(speed: .*? spread: )[\d.]+", rf"\g<1>{spread:g}", text))


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


def answered(
    with_runtime: bool, wanted: Callable[[Row], object] = lambda row: True
) -> dict[str, tuple[Row, Answer]]:
    """The answers of the rows that are wanted."""
    kept: dict[tuple[str, ...], Answer | None] = {}
    found = {}
    for row in rows():
        if not wanted(row):
            continue
        key = (row.workload, row.hardware, row.policy, row.runtime)
        if key not in kept:
            kept[key] = answer(row, with_runtime)
            print(row.id, file=sys.stderr, flush=True)
        if (each := kept[key]) is not None:
            found[row.id] = row, each
    return found


def main() -> None:
    """Print the table, and write the spreads."""
    alone, under = answered(False), answered(True)
    judged = judge(under, alone)
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
    unsure, spreads = found_spreads(under, alone)
    for of in PHASES:
        print(
            f"{of}: no runtime: mean {unsure[of].mean:.2f}, spread {unsure[of].spread:.2f}; "
            f"runtime named: spread {spreads[of]:.2f}"
        )
    write(unsure, spreads)


if __name__ == "__main__":
    main()

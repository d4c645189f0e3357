"""A check's verdicts for machines and for reviews: JSON, JUnit XML, SARIF, annotations of GitHub
and its step summary.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hosim.base.groups import grouped
from hosim.gate.judged_metrics import FAMILIES, PEAK, REGRESSION, SAME, MetricVerdict, family, human
from hosim.gate.verdicts import ERROR, CaseVerdict, summary
from hosim.plain_text import counted, printable
from hosim.units import human_percent
from hosim.version import __version__

COMMENT = "<!-- hosim check -->"
"""The first line of a summary, by which a comment on a pull request is found again."""

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"

_HEIGHT = 6
_NAMED = 3
"""The number of cases of one note that are named."""

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def to_dict(verdicts: Sequence[CaseVerdict], strict: bool = False) -> dict[str, Any]:
    """Return the output of ``hosim check --json``."""
    return {
        "format": "hosim.check/1",
        "hosim": __version__,
        "passed": not any(v.fails(strict) for v in verdicts),
        "cases": [
            {
                "case": v.case,
                "verdict": v.verdict,
                "fails": v.fails(strict),
                "note": v.note or None,
                **({"notes": list(v.notes)} if v.notes else {}),
                "baseline": v.baseline,
                "metrics": {
                    m.name: {"verdict": m.verdict, "before": m.before, "now": m.now}
                    for m in v.metrics
                },
                "explanation": list(v.explanation),
            }
            for v in verdicts
        ],
    }


def junit(verdicts: Sequence[CaseVerdict], strict: bool = False) -> str:
    """JUnit XML: one test case per case, with an explanation if it failed."""
    errors = sum(v.verdict == ERROR for v in verdicts)
    suite = ET.Element(
        "testsuite",
        name="hosim",
        tests=str(len(verdicts)),
        failures=str(sum(v.fails(strict) for v in verdicts) - errors),
        errors=str(errors),
        skipped="0",
    )
    for v in verdicts:
        case = ET.SubElement(suite, "testcase", classname="hosim.check", name=_plain(v.case))
        if v.fails(strict):
            failure = ET.SubElement(
                case,
                "error" if v.verdict == ERROR else "failure",
                type=v.verdict,
                message=_plain(headline(v)),
            )
            failure.text = _plain("\n".join(details(v)))
        if v.notes:
            ET.SubElement(case, "system-out").text = _plain("\n".join(v.notes))
    ET.indent(suite)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"
    )


def sarif(verdicts: Sequence[CaseVerdict], strict: bool = False) -> dict[str, Any]:
    """SARIF 2.1.0: a result for each case that fails, at its place."""
    failing = [v for v in verdicts if v.fails(strict)]
    return {
        "$schema": SARIF,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "hosim",
                        "version": __version__,
                        "rules": [
                            {"id": rule, "shortDescription": {"text": f"simulated step: {rule}"}}
                            for rule in sorted({v.verdict for v in failing})
                        ],
                    }
                },
                "results": [
                    {
                        "ruleId": v.verdict,
                        "level": "error",
                        "message": {"text": "\n".join([headline(v), *details(v)])},
                        "locations": [
                            {
                                "physicalLocation": {
                                    "artifactLocation": {"uri": v.place[0]},
                                    "region": {"startLine": v.place[1]},
                                }
                            }
                        ],
                    }
                    for v in failing
                ],
            }
        ],
    }


def github(verdicts: Sequence[CaseVerdict], strict: bool = False) -> list[str]:
    """A workflow command of GitHub for each case that fails; the explanation is its text."""
    lines = []
    for v in verdicts:
        if v.fails(strict):
            title = printable(headline(v))
            text = "\n".join(map(printable, details(v))) or title
            lines.append(
                "::error "
                f"file={_property(printable(v.place[0]))},line={v.place[1]},title={_property(title)}::{_data(text)}"
            )
    return lines


def markdown(verdicts: Sequence[CaseVerdict], strict: bool = False) -> str:
    """A step summary: what is worse and why (:func:`worse_and_why`), a table of the cases
    (:func:`with_a_row`), and details.

    Those of a changed case are its changes and memory curves.
    """
    said = [line for text in worse_and_why(verdicts) for line in (f"**{_cell(text)}**", "")]
    lines = [
        COMMENT,
        *said,
        f"### hosim: {summary(verdicts)}",
        "",
        "| case | verdict | what changed |",
        "|---|---|---|",
    ]
    for v in with_a_row(verdicts):
        changed = "<br>".join(_cell(m.line()) for m in changed_metrics(v)) or _cell(v.note)
        lines.append(
            f"| {_cell(v.case)} | {'**' + v.verdict + '**' if v.fails(strict) else v.verdict} | "
            f"{changed} |"
        )
    lines += (
        ["", *(f"- {_cell(line)}" for line in noted(verdicts))]
        if any(v.notes for v in verdicts)
        else []
    )
    for v in verdicts:
        if v.explanation or v.fails(strict):
            lines += [
                "",
                f"#### {_cell(v.case)}: {v.verdict}",
                "",
                *_fenced(map(printable, details(v))),
            ]
        if v.explanation and all(v.curves):
            lines += [
                "",
                "Device memory over time, before and now:",
                "",
                *_fenced(curves(*v.curves)),
            ]
    return "\n".join(lines) + "\n"


def worse_and_why(verdicts: Sequence[CaseVerdict]) -> list[str]:
    """A sentence for each cause of a regression, where it is known; cases that have one in common
    are told together.
    """
    groups: dict[str, list[CaseVerdict]] = {}
    for v in verdicts:
        worse = v.verdict == REGRESSION and any(m.verdict == REGRESSION for m in v.metrics)
        cause = v.explanation[0] if worse and v.explanation else ""
        if cause and not any(cause.startswith(f"{m.name}:") for m in v.metrics):
            groups.setdefault(cause, []).append(v)
    return [_sentence(cause, cases) for cause, cases in groups.items()]


def _sentence(cause: str, cases: Sequence[CaseVerdict]) -> str:
    file, line = cases[0].place
    where = f" ({file}:{line})" if file else ""
    more = len(cases) - _NAMED
    rest = [f"{counted(more, 'more case')}"] if more > 0 else []
    told: list[str] = []
    before = ""
    for what, by_how_much in map(_worst, cases[:_NAMED]):
        told.append(by_how_much if what == before else f"{what} {by_how_much}")
        before = what
    return f"This change {' and '.join([', '.join(told), *rest])}: {cause}{where}"


def _worst(v: CaseVerdict) -> tuple[str, str]:
    """The metric that is worse, a peak if there is one, and by how much in the case: ``raises the peak HBM``,
    ``of shop by 64.0 MiB (+97.0 %)``.
    """
    m = min(
        (m for m in v.metrics if m.verdict == v.verdict),
        key=lambda m: FAMILIES.index(family(m.name)),
    )
    share = f" ({human_percent(m.change / m.before, signed=True)})" if m.before else ""
    kind, _, tier = m.name.partition(".")
    what = f"peak {tier.upper()}" if kind == PEAK else m.name
    verb = "raises" if m.change > 0 else "lowers"
    return f"{verb} the {what}", f"of {v.case} by {human(m.name, abs(m.change))}{share}"


def with_a_row(verdicts: Sequence[CaseVerdict]) -> list[CaseVerdict]:
    """The cases that have a row in tables: unchanged cases of a matrix are only counted."""
    return [v for v in verdicts if v.verdict != SAME or "/" not in v.case]


def noted(verdicts: Sequence[CaseVerdict]) -> list[str]:
    """A line for each note on the figures, with the cases that have it, or how many they are."""
    return [
        f"{', '.join(cases) if len(cases) <= _NAMED else counted(len(cases), 'case')}: {line}"
        for line, cases in grouped((line, v.case) for v in verdicts for line in v.notes).items()
    ]


def headline(v: CaseVerdict) -> str:
    """The case, its verdict, and the first metric with that verdict, a peak if there is one."""
    worse = sorted(
        (m for m in v.metrics if m.verdict == v.verdict),
        key=lambda m: FAMILIES.index(family(m.name)),
    )
    first = worse[0].line() if worse else v.note
    return f"{v.case}: {v.verdict}" + (f": {first}" if first else "")


def details(v: CaseVerdict) -> list[str]:
    """The lines beyond the headline."""
    return [*([v.note] if v.note else []), *v.explanation] or [m.line() for m in changed_metrics(v)]


def changed_metrics(v: CaseVerdict) -> list[MetricVerdict]:
    """The metrics that changed; none for a case without a baseline."""
    return (
        [m for m in v.metrics if m.verdict != SAME]
        if any(m.before is not None for m in v.metrics)
        else []
    )


def curves(before: Sequence[int], now: Sequence[int]) -> Iterator[str]:
    """Two memory curves one below the other, drawn with characters on one scale."""
    low, high = min(*before, *now), max(*before, *now)
    for title, curve in (("before", before), ("now", now)):
        yield f"{title}: {human('peak', min(curve))} to {human('peak', max(curve))}"
        levels = [
            -(-(held - low) * _HEIGHT * 8 // (high - low)) if high > low else _HEIGHT * 8
            for held in curve
        ]
        for line in range(_HEIGHT):
            floor = (_HEIGHT - 1 - line) * 8
            yield (
                "│" + "".join(_EIGHTHS[max(0, min(8, level - floor))] for level in levels).rstrip()
            )
        yield "└" + "─" * len(curve)


_MARKUP = re.compile(r"[`*_\[\]<>|~&]|\\(?=[!-/:-@\[-`{-~])")


def _cell(text: str) -> str:
    """Text as Markdown shows it, whatever a name in it looks like."""
    return _MARKUP.sub(r"\\\g<0>", printable(" ".join(text.split())))


def _fenced(lines: Iterable[str]) -> list[str]:
    """Lines as they are, between fences that none of them has."""
    inside = list(lines)
    fence = "`" * max(
        3, 1 + max([len(run) for line in inside for run in re.findall("`+", line)], default=0)
    )
    return [fence, *inside, fence]


def _plain(text: str) -> str:
    """Text without characters that XML cannot hold."""
    return "".join(
        c
        if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff")
        else "?"
        for c in text
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

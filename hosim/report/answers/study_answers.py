"""The answers of studies. Those that try many values (fit, sweep, frontier, robustness) are a
sentence and a curve of the makespan in text, those of stalls and differences a sentence and rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hosim.data.stages import StagesResult
from hosim.hardware import Hardware
from hosim.plain_text import counted, one_line
from hosim.report.answers.answer import MOST_LINES, ROWS, Answer, text_curve
from hosim.report.of_studies import rows, taken_from_recording, varied_columns, verdict_lines
from hosim.report.printing import (
    NOTHING,
    cell,
    cells_of,
    column_title,
    multiple,
    percent,
    time_or_nothing,
    titles_of,
)
from hosim.units import human_size, human_time

_PRICES, _OP, _NAME, _FIGURES = 2, 18, 34, 8
"""The most ways to save time that an answer names, the characters of names in its rows, and the
figures of a recording.
"""

Row = Mapping[str, Any]


def fit_answer(
    title: str,
    rows: Sequence[Row],
    verdict: str,
    found: bool,
) -> Answer:
    """The answer of a fit: ``rows`` are its probes, in the order of the values."""
    name = next(iter(rows[0]))
    verdict = f"{verdict[:1].upper()}{verdict[1:]}"
    points = [(cell(name, row[name]), _ns(row), f"{_took(row)}{_beyond(row)}") for row in rows]
    return _of_curve(title, verdict, points, found)


def frontier_answer(
    title: str,
    rows: Sequence[Row],
    hardware: Hardware,
    verdict: str,
) -> Answer:
    """The answer of a frontier: ``rows`` are its probes, by ascending budget; those on the curve are
    drawn.
    """
    tier = f"{hardware.device_tier}_peak_bytes"
    drawn = [row for row in rows if row["pareto"]]
    points = [(human_size(row[tier]), _ns(row), f"{_took(row)}{_costs(row)}") for row in drawn]
    return _of_curve(title, verdict, points, bool(drawn))


def sweep_answer(
    title: str,
    rows: Sequence[Row],
    fields: Sequence[str],
    hardware: Hardware,
) -> Answer:
    """The answer of a sweep: the fastest point, and a curve over the field, or the fastest points
    where several fields vary.
    """
    columns = varied_columns(rows, fields)
    fitting = sorted([row for row in rows if row["feasible"]], key=lambda row: row["makespan_ns"])
    misfits = len(rows) - len(fitting)
    lost = f"{misfits:,} of {counted(len(rows), 'point')} do not fit, or failed" if misfits else ""
    if not fitting:
        why = Counter(str(row["error"]) for row in rows).most_common(1)[0][0]
        return Answer(title, f"No point fits: {why}.", good=False)
    best, worst = fitting[0], fitting[-1]
    where = ", ".join([f"{column_title(c)} = {cell(c, best[c])}" for c in columns])
    shortest, longest = best["makespan_ns"], worst["makespan_ns"]
    verdict = f"Every point that fits takes {human_time(shortest)}."
    if shortest < longest:
        verdict = f"Fastest: {human_time(shortest)} at {where}; slowest: {human_time(longest)}."
    if len(columns) == 1:
        points = [(cell(columns[0], row[columns[0]]), _ns(row), _took(row)) for row in rows]
        return _of_curve(title, verdict, points, True, lost)
    names = [*columns, "makespan_ns", "slowdown", f"{hardware.device_tier}_peak_bytes"]
    titles = {c: column_title(c).replace(".", ".\n") for c in columns}
    titles |= {"makespan_ns": "time", "slowdown": "vs resident", names[-1]: "peak"}
    return Answer(
        title,
        verdict,
        columns=titles_of(names, titles),
        rows=cells_of(names, fitting),
        left=len(columns),
        rest=lost,
    )


def robustness_answer(title: str, report: Mapping[str, Any]) -> Answer:
    """The answer about varied times by policy: ``report`` is what ``hosim robustness --json``
    prints.
    """
    policies = sorted(
        report["policies"],
        key=lambda row: (row["makespan_ns"]["p95"] is None, row["makespan_ns"]["p95"] or 0),
    )
    points = []
    for row in policies:
        nominal, late = row["makespan_ns"]["nominal"], row["makespan_ns"]["p95"]
        fits = f"fits in {row['runs'] - row['infeasible']:,} of {counted(row['runs'], 'run')}"
        times = f"{human_time(late)} (nominal {human_time(nominal)}), " if nominal and late else ""
        points.append((str(row["policy"]), late, f"{times}{fits}"))
    best = policies[0]
    late = best["makespan_ns"]["p95"]
    if late is None:
        said = f"No policy fits in 95 % of runs; {best['error']}."
    else:
        said = (
            f"{best['policy']} is fastest when times vary: 95 % of its runs take at most "
            f"{human_time(late)}."
        )
    return _of_curve(title, said, points, late is not None)


def _of_curve(
    title: str,
    verdict: str,
    points: Sequence[tuple[str, float | None, str]],
    good: bool,
    lost: str = "",
) -> Answer:
    hidden = len(points) - MOST_LINES
    rest = [lost] if lost else []
    rest += [f"{hidden:,} more points (--detail)"] if hidden > 0 else []
    return Answer(
        title,
        verdict,
        good=good,
        curve=tuple(text_curve(points)),
        rest="; ".join(rest),
    )


def _ns(row: Row) -> float | None:
    value = row["makespan_ns"]
    return None if value is None or not row.get("feasible", True) else float(value)


def _beyond(row: Row) -> str:
    return "" if row["within"] or _ns(row) is None else ": too long"


def _costs(row: Row) -> str:
    """The cost of a step, or of a million tokens, if devices have a price."""
    for column, of in (("cost_per_million_tokens", "1M tokens"), ("cost", "step")):
        if row.get(column) is not None:
            return f", {row[column]:.4g} per {of}"
    return ""


def _took(row: Row) -> str:
    if _ns(row) is None and str(row.get("why")).startswith("takes"):
        return "too long by any plan"
    if _ns(row) is None:
        return "does not fit" if row.get("budget_bytes") or "within" in row else "error"
    slower = f", {multiple(row['slowdown'])}" if row.get("slowdown") else ""
    return f"{human_time(row['makespan_ns'])}{slower}"


def blame_answer(
    title: str,
    rows: Sequence[Row],
    count: int,
    verdict: str,
    prices: Sequence[str],
) -> Answer:
    """The answer about stalls: the longest ones, of ``count``, and what would save most."""
    first = "; ".join(prices[:_PRICES])
    saves = f" {first[:1].upper()}{first[1:]}." if first else ""
    hidden = count - len(rows)
    return Answer(
        title,
        f"{verdict}.{saves}",
        ranked=False,
        columns=("before", "at", "stall", "waits for", "on"),
        rows=tuple(
            [
                (
                    one_line(str(row["op"] or "(the end)"), _OP),
                    human_time(row["start_ns"]),
                    human_time(row["stall_ns"]),
                    one_line(str(row["tensor"] or row["cause"]), _NAME),
                    str(row["channel"] or row["processor"] or NOTHING),
                )
                for row in rows
            ]
        ),
        rest=f"{counted(hidden, 'shorter stall')}, and what prevents each (--detail)"
        if hidden > 0
        else "",
    )


def stages_answer(title: str, result: StagesResult, tier: str) -> Answer:
    """The time of a step of all stages, the waits of each for others, and its peak in the
    device's ``tier``.
    """
    if not result.feasible or result.step_ns is None:
        return Answer(title, f"Does not fit: {result.error}.", good=False, notes=result.notes)
    bubble = ""
    if result.bubble is not None:
        bubble = f"; the bubble is {percent(result.bubble, 1)} of the time of all stages"
    return Answer(
        title,
        f"The step takes {human_time(result.step_ns)}{bubble}.",
        ranked=False,
        columns=("stage", "ends at", "busy", "bubble", "waits", f"peak {tier}"),
        rows=tuple(
            [
                (
                    str(stage),
                    human_time(one.makespan_ns or 0),
                    time_or_nothing(one.busy_ns),
                    time_or_nothing(waited),
                    time_or_nothing(sum(one.stall_ns.values())),
                    human_size(one.peak_bytes[tier]),
                )
                for stage, (one, waited) in enumerate(
                    zip(result.stages, result.bubble_ns, strict=True)
                )
            ]
        ),
        rest="the bubble is the time that a stage waits for others; each stage was planned alone",
        notes=result.notes,
    )


def validation_answer(data: Mapping[str, Any]) -> Answer:
    """The verdict on a recording: ``data`` is a ``hosim.validation/1``."""
    on = f" on {data['device']}" if data["device"] else ""
    lines = [line.strip() for line in verdict_lines(data)] if data["errors"] else []
    first = lines[0] if lines else "no times are in the recording; its memory was replayed"
    clashes = data["memory"].get("mismatches", ())
    return Answer(
        f"{data['trace']}{on}: {counted(data['kernels'], 'kernel')}",
        f"{first[:1].upper()}{first[1:]}.",
        good=not data["errors"] or bool(data["explained"]),
        ranked=False,
        columns=("figure", "measured", "simulated", "error"),
        rows=tuple(
            [
                (one_line(name, _NAME), measured, simulated, error.partition(" (")[0])
                for name, measured, simulated, error in rows(data)
            ]
        ),
        shown=_FIGURES,
        rest="; ".join(
            [
                *lines[1 : 1 + _PRICES],
                *[f"contradiction in the recording: {clash}" for clash in clashes[:_PRICES]],
            ]
        ),
        notes=tuple([f"not in the recording: {line}" for line in data["missing"]]),
        chosen=taken_from_recording(data) if data["given"] else "",
    )


def diff_answer(
    verdict: str,
    figures: Sequence[Row],
    names: tuple[str, str],
    others: bool,
    top: int = ROWS,
) -> Answer:
    """The differences of two plans or results: the first figures that differ. ``others``: tensors or ops do,
    too.
    """
    hidden = len(figures) - top
    more = [counted(hidden, "more figure")] if hidden > 0 else []
    more += ["tensors and ops"] if others else []
    return Answer(
        f"{names[0]} beside {names[1]}",
        f"{verdict}.",
        ranked=False,
        columns=("figure", *[one_line(name, _NAME) for name in names]),
        rows=tuple(
            [
                (
                    column_title(str(row["figure"])),
                    *[cell(str(row["figure"]), row[side]) for side in "ab"],
                )
                for row in figures[:top]
            ]
        ),
        rest=f"{', '.join(more)} (--detail)" if more else "",
    )

"""Tables of sweeps and fits over serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType

from hosim.report.printed import open_table, paragraph
from hosim.report.studies import cell, errors
from hosim.report.tables import NOTHING
from hosim.units import human_percent

Row = Mapping[str, Any]

_SHOWN = (
    ("ttft_mean_ns", "first\ntoken"),
    ("ttft_p95_ns", "its\nP95"),
    ("tpot_mean_ns", "each\nafter it"),
    ("tpot_p95_ns", "its\nP95"),
    ("latency_mean_ns", "last\ntoken"),
    ("requests_per_s", "requests/s"),
    ("output_tokens_per_s", "tokens/s"),
    ("goodput_share", "within\nlimits"),
    ("prefix_hit_share", "hits"),
    ("preemptions", "pre-\nempted"),
)


def serving_sweep(rows: Sequence[Row], varied: Sequence[str]) -> RenderableType:
    """A row a point: the varied columns and the main figures; errors are below. Of several seeds median, least and most are shown."""
    seeds = "requests.seed" in varied and len({row["requests.seed"] for row in rows}) > 1
    columns = [column for column in varied if not (seeds and column == "requests.seed")]
    shown = [(key, name) for key, name in _SHOWN if any(row[key] is not None for row in rows)]
    table = open_table("Serving", *(column.replace(".", ".\n") for column in columns), *(name for _, name in shown), left=len(columns))
    points: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        points.setdefault(tuple(row[column] for column in columns), []).append(row)
    for point, group in points.items():
        cells = [cell(column, value) for column, value in zip(columns, point, strict=True)]
        served = [row for row in group if row["feasible"]]
        for number, text in enumerate(("", "least", "most") if seeds and len(served) > 1 else ("",)):
            of = (median, min, max)[number]
            figures = [_figure(key, [row[key] for row in served if row[key] is not None], of) for key, _ in shown]
            names = cells if not number else [text, *[""] * (len(cells) - 1)] if cells else []
            table.add_row(*names, *figures, style=None if served else "red")
    note = (
        f"each row is the median of {len({row['requests.seed'] for row in rows})} seeds, with the least and the most below" if seeds else ""
    )
    return Group(table, paragraph(*filter(None, [note])), errors(rows))


def serving_fit(rows: Sequence[Row], limited: Sequence[str], verdict: str, found: bool) -> RenderableType:
    """A row for each value tried, with what is limited, and the answer in a sentence."""
    name = next(iter(rows[0]))
    columns = [f"{limit.replace('.', '_')}_ns" for limit in limited]
    table = open_table("Tried", name, "within\nlimits", *limited, "requests/s", "tokens/s")
    for row in rows:
        figures = [_figure(key, [row[key]] if row[key] is not None else [], median) for key in (*columns, *_RATES)]
        table.add_row(cell(name, row[name]), "yes" if row["within"] else "no", *figures, style="green" if row["within"] else None)
    return Group(table, paragraph(f"{verdict}.", style="bold" if found else "bold red"))


_RATES = ("requests_per_s", "output_tokens_per_s")


def _figure(column: str, values: Sequence[Any], of: Any) -> str:
    if not values:
        return NOTHING
    value = of(values)
    if column.endswith("_share"):
        return human_percent(value)
    if column.endswith("_per_s"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return cell(column, round(value))

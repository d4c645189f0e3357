"""Tables of sweeps and fits over serving."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from hosim.base.groups import by_point
from hosim.base.nearest_rank import nearest_rank
from hosim.data.draws import FEW_DRAWS
from hosim.report.of_studies import errors
from hosim.report.printing import NOTHING, cell, open_table, paragraph
from hosim.serving import end_columns
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
    """A row a point: the varied columns and the main figures; errors are below. With several seeds
    P50, P5 and P95 are shown, with one the ends of 90 % intervals where there are some.
    """
    seeds = "requests.seed" in varied and len({row["requests.seed"] for row in rows}) > 1
    columns = [column for column in varied if not (seeds and column == "requests.seed")]
    shown = [(key, name) for key, name in _SHOWN if any(row[key] is not None for row in rows)]
    table = open_table(
        "Serving",
        *(column.replace(".", ".\n") for column in columns),
        *(name for _, name in shown),
        left=len(columns),
    )
    for point, group in by_point(rows, columns).items():
        cells = [cell(column, value) for column, value in zip(columns, point, strict=True)]
        served = [row for row in group if row["feasible"]]
        below = _SEED_LINES if seeds and len(served) > 1 else []
        if any(map(_has_ends, served)):
            below = _END_LINES
        for text, share, end in [("", 50, None), *below]:
            keys = [key if end is None else end_columns(key)[end] for key, _ in shown]
            figures = [
                figure(key, [row[key] for row in served if row.get(key) is not None], share)
                for key in keys
            ]
            names = cells if not text else [text, *[""] * (len(cells) - 1)] if cells else []
            table.add_row(*names, *figures, style=None if served else "red")
    note = ""
    if seeds:
        note = (
            f"each row is the median of {len({row['requests.seed'] for row in rows})} seeds, with "
            "P5 and P95 of them (nearest rank) below"
        )
    elif any(map(_has_ends, rows)):
        note = (
            f"low and high are the ends of 90 % intervals, from {FEW_DRAWS} draws, which are the "
            "same for all rows"
        )
    return Group(table, paragraph(*filter(None, [note])), errors(rows))


_Line = tuple[str, int, int | None]
_SEED_LINES: list[_Line] = [("P5", 5, None), ("P95", 95, None)]
_END_LINES: list[_Line] = [("low", 50, 0), ("high", 50, 1)]
"""The lines below a row of a sweep: which percentile of its seeds, and which end of intervals."""


def _has_ends(row: Row) -> bool:
    return row.get(end_columns("requests_per_s")[0]) is not None


def serving_fit(
    rows: Sequence[Row], limited: Sequence[str], verdict: str, found: bool
) -> RenderableType:
    """A row for each value tried, with what is limited, and the answer in a sentence."""
    name = next(iter(rows[0]))
    columns = [f"{limit.replace('.', '_')}_ns" for limit in limited]
    table = open_table("Tried", name, "within\nlimits", *limited, "requests/s", "tokens/s")
    for row in rows:
        figures = [
            figure(key, [row[key]] if row[key] is not None else [], 50)
            for key in (*columns, *_RATES)
        ]
        table.add_row(
            cell(name, row[name]),
            "yes" if row["within"] else "no",
            *figures,
            style="green" if row["within"] else None,
        )
    return Group(table, paragraph(f"{verdict}.", style="bold" if found else "bold red"))


_RATES = ("requests_per_s", "output_tokens_per_s")


def serving_frontier(
    rows: Sequence[Row], varied: Sequence[str], of: str, against: str
) -> RenderableType:
    """A row for each point by ascending cost: what it costs, the varied columns, and what is
    wanted; points on the curve are green.
    """
    shown = [
        (against, "cache" if against == "cache_bytes" else against),
        (of, "tokens/s" if of == "output_tokens_per_s" else "goodput/s"),
    ]
    more = [
        (key, name)
        for key, name in _SHOWN
        if key in ("ttft_p95_ns", "tpot_mean_ns", "goodput_share", "prefix_hit_share")
    ]
    known = any(map(_has_ends, rows))
    columns = [
        *shown,
        *((key, name) for key, name in more if any(row[key] is not None for row in rows)),
    ]
    titles = [{"ttft_p95_ns": "first token,\nP95"}.get(k, n) for k, n in columns]
    if known:
        titles.insert(len(shown), "90 % interval")
    table = open_table(
        "Frontier",
        *(v.replace(".", ".\n") for v in varied),
        "best",
        *titles,
        left=len(varied),
    )
    for row in rows:
        figures = [figure(key, [] if row[key] is None else [row[key]], 50) for key, _ in columns]
        if known:
            figures.insert(len(shown), _interval(row, of))
        cells = [cell(column, row[column]) for column in varied]
        table.add_row(
            *cells,
            "yes" if row["pareto"] else "",
            *figures,
            style="green" if row["pareto"] else None,
        )
    note = "'best' are points that no other one beats: as much for less, or more for the same"
    return Group(table, paragraph(note), errors(rows))


def _interval(row: Row, of: str) -> str:
    """The ends of a figure's interval."""
    ends = [figure(end, [] if row[end] is None else [row[end]], 50) for end in end_columns(of)]
    return " to ".join(ends)


def figure(column: str, values: Sequence[Any], share: int) -> str:
    """A percentile of the values of a column, as text."""
    if not values:
        return NOTHING
    value = nearest_rank(values, share)
    if column.endswith("_share"):
        return human_percent(value)
    if column.endswith("_per_s"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return cell(column, round(value))

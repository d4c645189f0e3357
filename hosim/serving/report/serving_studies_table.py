"""Sweeps, fits and frontiers over serving: their tables, and their answers, a sentence and a curve
or the five best rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from hosim.base.groups import by_point
from hosim.base.nearest_rank import nearest_rank
from hosim.data.draws import FEW_DRAWS
from hosim.plain_text import counted
from hosim.report.answers import Answer, text_curve
from hosim.report.of_studies import errors
from hosim.report.printing import NOTHING, cell, open_table, paragraph
from hosim.serving import end_columns
from hosim.units import human_percent

# -- tables ----------------------------------------------------------------------------------------


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
        table.add_row(
            *[cell(column, row[column]) for column in varied],
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


# -- answers ---------------------------------------------------------------------------------------


_LITTLE = 0.01
"""The share that more of a cost has to add, at least, to be worth it."""

_TOKENS, _LATE, _EACH, _KEPT = (
    "output_tokens_per_s",
    "ttft_p95_ns",
    "tpot_mean_ns",
    "goodput_share",
)


def serving_sweep_answer(title: str, rows: Sequence[Row], varied: Sequence[str]) -> Answer:
    """The point that serves most, and the one that answers first: of several seeds, by their
    medians.
    """
    columns = [column for column in varied if column != "requests.seed"] or list(varied)
    points = {
        point: {
            key: nearest_rank([row[key] for row in served if row[key] is not None], 50)
            for key in (_TOKENS, _LATE, _EACH, _KEPT)
            if any([row[key] is not None for row in served])
        }
        for point, group in by_point(rows, columns).items()
        if (served := [row for row in group if row["feasible"]])
    }
    lost = len(by_point(rows, columns)) - len(points)
    rest = f"{counted(lost, 'point')} failed, or had no room (--detail)" if lost else ""
    if not points:
        why = Counter(str(row["error"]) for row in rows).most_common(1)[0][0]
        return Answer(title, f"No point serves: {why}.", good=False)
    ranked = sorted(points, key=lambda point: -points[point][_TOKENS])
    first = min(points, key=lambda point: points[point].get(_LATE, 0))
    most = points[ranked[0]]
    said = (
        f"Most: {_text(_TOKENS, most)} tokens/s at {_at(columns, ranked[0])}, the first token "
        f"after {_text(_LATE, most)} (P95)."
    )
    if first != ranked[0]:
        said += f" Soonest: {_text(_LATE, points[first])} at {_at(columns, first)}."
    if len(columns) == 1:
        curve = [
            (cell(columns[0], point[0]), found[_TOKENS], _told(found))
            for point, found in points.items()
        ]
        return Answer(title, said, curve=tuple(text_curve(curve)), rest=rest)
    shown = [key for key in (_TOKENS, _LATE, _EACH, _KEPT) if key in most]
    names = {_TOKENS: "tokens/s", _LATE: "first, P95", _EACH: "each after", _KEPT: "within limits"}
    return Answer(
        title,
        said,
        columns=(*(c.replace(".", ".\n") for c in columns), *(names[key] for key in shown)),
        rows=tuple(
            [
                (
                    *(cell(c, value) for c, value in zip(columns, point, strict=True)),
                    *(_text(key, points[point]) for key in shown),
                )
                for point in ranked
            ]
        ),
        left=len(columns),
        rest=rest,
    )


def _at(columns: Sequence[str], point: Sequence[Any]) -> str:
    return ", ".join(
        [f"{name} = {cell(name, value)}" for name, value in zip(columns, point, strict=True)]
    )


def _text(key: str, found: Row) -> str:
    return figure(key, [found[key]] if key in found else [], 50)


def _told(found: Row) -> str:
    kept = f", {_text(_KEPT, found)} within limits" if _KEPT in found else ""
    return f"{_text(_TOKENS, found)} tokens/s, first token {_text(_LATE, found)} (P95){kept}"


def serving_fit_answer(
    title: str, rows: Sequence[Row], limited: Sequence[str], verdict: str, found: bool
) -> Answer:
    """The answer of a fit, and the values that it tried."""
    name = next(iter(rows[0]))
    keys = [*[f"{limit.replace('.', '_')}_ns" for limit in limited], "requests_per_s", _TOKENS]
    return Answer(
        title,
        f"{verdict[:1].upper()}{verdict[1:]}.",
        good=found,
        ranked=False,
        columns=(name, "within limits", *limited, "requests/s", "tokens/s"),
        rows=tuple(
            [
                (
                    cell(name, row[name]),
                    "yes" if row["within"] else "no",
                    *[figure(key, [] if row[key] is None else [row[key]], 50) for key in keys],
                )
                for row in rows
            ]
        ),
    )


def serving_frontier_answer(
    title: str, rows: Sequence[Row], varied: Sequence[str], of: str, against: str
) -> Answer:
    """The gain in what is served from more of what it costs, by the points that no other one
    beats.
    """
    best = [row for row in rows if row["pareto"]]
    if not best:
        why = Counter(str(row["error"]) for row in rows).most_common(1)[0][0]
        return Answer(title, f"No point serves: {why}.", good=False)
    unit = "tokens/s" if of == _TOKENS else "requests/s within limits"
    cost = "of cache" if against == "cache_bytes" else ""
    least, most = (
        f"{figure(of, [row[of]], 50)} {unit} with {cell(against, row[against])} {cost}".rstrip()
        for row in (best[0], best[-1])
    )
    said = f"At most {most}" + (f"; {least}." if len(best) > 1 else "; no other point has less.")
    enough = next(row for row in best if best[-1][of] <= (1 + _LITTLE) * row[of])
    if enough is not best[-1]:
        at = _at(varied, [enough[column] for column in varied])
        said += (
            f" More than {cell(against, enough[against])} {cost}".rstrip()
            + f" ({at}) adds at most {human_percent(best[-1][of] / enough[of] - 1)}."
        )
    points = [
        (
            f"{cell(against, row[against])} {cost}".rstrip(),
            float(row[of]),
            f"{figure(of, [row[of]], 50)} {unit}, "
            f"{_at(varied, [row[column] for column in varied])}",
        )
        for row in best
    ]
    beaten = len(rows) - len(best)
    return Answer(
        title,
        said,
        curve=tuple(text_curve(points)),
        rest=f"{counted(beaten, 'point')} with no more for as much (--detail)" if beaten else "",
    )

"""The answers of studies of serving: a sentence, and a curve or the five best rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hosim.base.groups import by_point
from hosim.base.nearest_rank import nearest_rank
from hosim.plain_text import counted
from hosim.report.answers import Answer, text_curve
from hosim.report.printing import cell
from hosim.serving.report.serving_studies_table import figure
from hosim.units import human_percent

Row = Mapping[str, Any]

_LITTLE = 0.01
"""The share that more of a cost has to add, at least, to be worth it."""

_TOKENS, _LATE, _EACH, _KEPT = (
    "output_tokens_per_s",
    "ttft_p95_ns",
    "tpot_mean_ns",
    "goodput_share",
)


def serving_sweep_answer(title: str, rows: Sequence[Row], varied: Sequence[str]) -> Answer:
    """Which point serves most, and which answers first: of several seeds, by their medians."""
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
    """How much more is served for more of what it costs, by the points that no other one beats."""
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

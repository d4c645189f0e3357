"""The atlas as one static page: a row for each model, card and length of context, with a filter."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from hosim.report import page_parts as page
from hosim.report.drawn import time_unit
from hosim.report.printing import NOTHING, and_more, open_table
from hosim.units import human_in, human_size, human_time

_ROWS = 15
"""Rows that a terminal shows."""
COLUMNS = (
    "model",
    "card",
    "context",
    "needs",
    "fits",
    "a token, all on the card",
    "weights below",
    "experts on the CPU",
)
_FILTER = """<p><label>Show rows with <input id="words" placeholder="4090 int4 yes" size="30"></label>
(words, all of which a row has)</p>"""
_SCRIPT = """<script>
document.getElementById("words").addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(/\\s+/);
  for (const row of document.querySelectorAll("tbody tr"))
    row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
});
</script>"""


def atlas_page(rows: Sequence[Mapping[str, Any]], version: str) -> str:
    """The page of the rows of :func:`hosim.study.atlas.atlas`, made by a ``version`` of hosim."""
    fits = sum([row["fits"] for row in rows])
    models, cards = {row["model"] for row in rows}, {row["card"] for row in rows}
    return page.page(
        "Will it run on my card?",
        [
            page.verdict(f"{fits:,} of {len(rows):,} fit with everything on the card.", bad=False),
            page.cards(
                [("models", f"{len(models):,}"), ("cards", f"{len(cards):,}"), ("hosim", version)]
            ),
            page.paragraph(
                "A token of one sequence, decoded at the length of context given. Below a model is "
                "the command that asks the same, below a time its 90 % interval. What does not "
                "fit the card is also shown with weights in the memory of the host, and with routed experts computed there."
            ),
            _FILTER,
            page.table(COLUMNS, [_asked(row) for row in rows], left=2),
            _SCRIPT,
        ],
    )


def atlas_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The first rows for a terminal, with the first way in which each runs."""
    table = open_table("", "model", "card", "context", "needs", "all on it", "a token", left=2)
    table.title = None
    for row in rows[:_ROWS]:
        ways = (("resident", ""), ("experts", ", experts on the CPU"), ("below", ", weights below"))
        times = [f"{human_time(row[key]['ns'])}{how}" for key, how in ways if row[key] is not None]
        model, card, context, needs, *_ = _cells(row)
        table.add_row(
            model, card, context, needs, "yes" if row["fits"] else "no", (times or [NOTHING])[0]
        )
    return Group(table, and_more(len(rows), _ROWS))


def _asked(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as text, with the command that asks the same below its model."""
    model, *rest = _cells(row)
    return f"{model}\n{row['command']}", *rest


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as text: model, card, context, memory and times."""
    free = row["capacity_bytes"] - row["needed_bytes"]
    return (
        row["model"],
        row["card"],
        f"{row['context']:,}",
        human_size(row["needed_bytes"]),
        f"yes\n{human_size(free)} free" if free >= 0 else f"no\nlacks {human_size(-free)}",
        *(_time(row[key]) for key in ("resident", "below", "experts")),
    )


def _time(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return NOTHING
    if found["low_ns"] is None:
        return human_time(found["ns"])
    unit = time_unit(found["high_ns"])
    middle, low, high = (human_in(found[key], unit) for key in ("ns", "low_ns", "high_ns"))
    return f"{middle}\n{low.partition(' ')[0]} to {high}"

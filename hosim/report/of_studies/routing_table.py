"""The table of how well routing was predicted, and what mispredictions cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from hosim.report.printing import NOTHING, open_table, paragraph, percent
from hosim.units import human_size, human_time

if TYPE_CHECKING:
    from hosim.study import Mispredictions


def predictions(rows: Sequence[Mispredictions]) -> RenderableType:
    """One row per policy with predictions: where the chosen experts' tensors came from, and what
    right and wrong predictions cost.
    """
    figures = (
        "chosen",
        "resident",
        "prefetched",
        "missed",
        "wrong",
        "wrong\nbytes",
        "wrong\ntime",
        "harm",
        "lost",
        "gained",
    )
    title = "Predictions (experts' tensors)"
    table = open_table(title, "policy", *figures, wraps=("policy",))
    for row in rows:
        table.add_row(
            row.policy,
            f"{row.chosen:,}",
            percent(row.resident, row.chosen),
            percent(row.prefetched, row.chosen),
            percent(row.missed, row.chosen),
            f"{row.wrong:,}" if row.wrong else NOTHING,
            human_size(row.wrong_bytes) if row.wrong else NOTHING,
            human_time(row.wrong_ns) if row.wrong else NOTHING,
            _difference(row.harm_ns),
            _difference(row.lost_ns),
            _difference(row.gained_ns),
        )
    lines = (
        "wrong: prefetched for a gate that did not choose it, with the time of these transfers. "
        "In makespan: what these took (harm), what "
        "perfect prediction would save (lost), what predicting saved over fetching when the gate "
        "has decided (gained)."
    )
    return Group(table, paragraph(lines, style="dim", space=True))


def _difference(value: int | None) -> str:
    if value is None:
        return NOTHING
    return f"-{human_time(-value)}" if value < 0 else human_time(value)

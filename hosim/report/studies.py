"""Tables of the what-if studies, as rich renderables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hosim.hardware import Hardware
from hosim.report.tables import NOTHING, open_table
from hosim.units import human_rate, human_size, human_time

Row = Mapping[str, Any]

_HUMAN = (("_bytes_per_s", human_rate), ("_bytes", human_size), ("_ns", human_time))


def sweep(rows: Sequence[Row], fields: Sequence[str], hardware: Hardware) -> RenderableType:
    """One row a point: what was varied, makespan, stalls together, peak of the device tier; the fastest is green, errors are below."""
    varied = [column for column in rows[0] if any(column.startswith(field) for field in fields) and column != "policy"]
    named = ["policy"] if len({row["policy"] for row in rows}) > 1 else []
    columns = [*varied, *named]
    shown = [_short(column) for column in columns]
    table = open_table("Sweep", *shown, "budget", "makespan", "stalls", f"peak\n{hardware.device_tier}", left=len(columns))
    best = min((row["makespan_ns"] for row in rows if row["feasible"]), default=None)
    for row in rows:
        cells = [cell(column, row[column]) for column in columns]
        budget = cell("budget_bytes", row["budget_bytes"])
        if not row["feasible"]:
            table.add_row(*cells, budget, "does not fit" if row["budget_bytes"] else "error", NOTHING, NOTHING, style="red")
            continue
        stalls = sum(value for column, value in row.items() if column.endswith("_stall_ns"))
        peak = row[f"{hardware.device_tier}_peak_bytes"]
        figures = [human_time(row["makespan_ns"]), human_time(stalls) if stalls else NOTHING, human_size(peak)]
        table.add_row(*cells, budget, *figures, style="green" if row["makespan_ns"] == best else None)
    return Group(table, errors(rows))


def errors(rows: Sequence[Row]) -> Text:
    """Each error once, with how many rows have it."""
    counted: dict[str, int] = {}
    for row in rows:
        if row.get("error"):
            counted[str(row["error"])] = counted.get(str(row["error"]), 0) + 1
    lines = [f"{error}{f' ({count} rows)' if count > 1 else ''}" for error, count in counted.items()]
    return Text("\n".join(lines) + "\n", style="red") if lines else Text("", end="")


def cell(column: str, value: Any) -> str:
    """A value for people, by the unit that the column's name ends in."""
    if value is None:
        return NOTHING
    for suffix, human in _HUMAN:
        if column.endswith(suffix) and isinstance(value, int):
            return human(value)
    return escape(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))


def _short(column: str) -> str:
    """A column's name without its unit, and broken where it is long."""
    for suffix, _ in _HUMAN:
        column = column.removesuffix(suffix)
    return column.replace(".", ".\n") if len(column) > 14 else column


def listing(title: str, rows: Sequence[Row], columns: Sequence[str], left: int = 1) -> Table:
    """A table of some columns of rows, quantities for people."""
    table = open_table(title, *(column_title(column) for column in columns), left=left)
    for row in rows:
        table.add_row(*(cell(column, row.get(column)) for column in columns))
    return table


def column_title(column: str) -> str:
    """What a column is called above a table.

    >>> column_title("peak_bytes")
    'peak'
    """
    for suffix, _ in _HUMAN:
        column = column.removesuffix(suffix)
    return column.replace("_", " ")

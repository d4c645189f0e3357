"""Columns of tables: the title of each, and how its values are written; and tables of rows that
have values by the names of columns.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hosim.report.printing.printed import OpenTable, open_table
from hosim.result import STALL_CAUSES
from hosim.units import human_rate, human_size, human_time

NOTHING = "-"
"""The text of a cell for a figure that is zero or does not exist."""

Row = Mapping[str, Any]


def percent(part: float, whole: float) -> str:
    """``part`` of ``whole`` in percent: one decimal below ten, none above; never rounded to 0 % or
    100 %.

    >>> percent(1, 8), percent(1, 100), percent(0, 5), percent(5, 5)
    ('12 %', '1.0 %', '0 %', '100 %')
    >>> percent(1, 10**6), percent(999_999, 10**6)
    ('<0.1 %', '>99 %')
    """
    value = 100 * part / whole if whole else 0.0
    if value == 0:
        return "0 %"
    if value < 0.1:
        return "<0.1 %"
    if 99 < value < 100:
        return ">99 %"
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"


def above(value: int, bound: int | None) -> str:
    """The gap between ``value`` and ``bound``: in percent, or as a multiple from 2 on.

    >>> above(101, 100), above(270, 100), above(100, 100), above(5, None)
    ('+1.0 %', '2.70x', '+0 %', '-')
    """
    if not bound:
        return NOTHING
    return f"{value / bound:.2f}x" if value >= 2 * bound else f"+{percent(value - bound, bound)}"


def multiple(value: float | None) -> str:
    """A multiple for people: three decimals below two, where small differences matter, two above; a
    dash for none.

    >>> multiple(1.0046), multiple(26.5), multiple(None)
    ('1.005x', '26.50x', '-')
    """
    return NOTHING if value is None else f"{value:.3f}x" if value < 2 else f"{value:.2f}x"


def time_or_nothing(value: int | None) -> str:
    """A time as people write it, nanoseconds given; a dash for none."""
    return human_time(value) if value else NOTHING


def size_or_nothing(value: int | None) -> str:
    """A size as people write it, bytes given; a dash for none."""
    return human_size(value) if value else NOTHING


def interval(low_ns: int | None, high_ns: int | None) -> str | None:
    """The ends of an interval of a time, both in nanoseconds; ``None`` if it has none."""
    return (
        None
        if low_ns is None or high_ns is None
        else f"{human_time(low_ns)} to {human_time(high_ns)}"
    )


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of tables: its title, and how a value is written if not by the unit in which its
    name ends.
    """

    title: str
    written: Callable[[Any], str] | None = None


def _share(value: float) -> str:
    return percent(value, 1)


COLUMNS: Mapping[str, TableColumn] = MappingProxyType(
    {
        "slowdown": TableColumn("slowdown", multiple),
        "gap_to_bound": TableColumn("gap to\nbound"),
        **{f"{cause}_stall_ns": TableColumn(f"{cause}\nstall") for cause in STALL_CAUSES},
        "interval": TableColumn("90 % interval"),
        "recomputes": TableColumn("ops\nrecomputed"),
        "moved_ops": TableColumn("ops\nmoved"),
        "of_budget": TableColumn("of\nbudget", _share),
        "of_memory": TableColumn("of\nmemory", _share),
        "utilization": TableColumn("utilization", _share),
        "overlapped": TableColumn("overlapped", _share),
        "contention_ns": TableColumn("contention"),
        "mean_queue": TableColumn("mean\nqueue"),
        "unfit": TableColumn("does not\nfit in"),
        "longer": TableColumn("times\nas long"),
        "within": TableColumn("within\nlimits"),
        "on_curve": TableColumn("on the\ncurve"),
        "step_cost": TableColumn("cost of\na step"),
        "token_cost": TableColumn("cost of\n1M tokens"),
    }
)
"""Columns by name. A name that is not here is a title itself, without the unit in which it ends."""
_UNITS = (("_bytes_per_s", human_rate), ("_bytes", human_size), ("_ns", human_time))


def column_title(name: str) -> str:
    """The name of a column without its unit; a varied field keeps the name that it was given by.

    >>> column_title("peak_bytes"), column_title("workload.cache_home")
    ('peak', 'workload.cache_home')
    """
    for suffix, _ in _UNITS:
        name = name.removesuffix(suffix)
    return name if "." in name else name.replace("_", " ")


def cell(name: str, value: Any) -> str:
    """A value of a column for people; text is as it is, and a dash stands for none.

    >>> cell("peak_bytes", 2048), cell("makespan_ns", "does not fit"), cell("slowdown", None)
    ('2.00 KiB', 'does not fit', '-')
    """
    if value is None:
        return NOTHING
    known = COLUMNS.get(name)
    if isinstance(value, str | bool):
        return str(value)
    if known is not None and known.written is not None:
        return known.written(value)
    if not isinstance(value, int):
        return str(value)
    return next((human(value) for unit, human in _UNITS if name.endswith(unit)), f"{value:,}")


_NO_TITLES: Mapping[str, str] = {}
_TITLES = {name: column.title for name, column in COLUMNS.items()}


def titles_of(names: Iterable[str], titles: Mapping[str, str] = _NO_TITLES) -> tuple[str, ...]:
    """The titles of columns; ``titles`` are those of columns that a table calls otherwise."""
    return tuple(
        [
            titles[name] if name in titles else _TITLES.get(name) or column_title(name)
            for name in names
        ]
    )


def cells_of(names: Sequence[str], rows: Iterable[Row]) -> tuple[tuple[str, ...], ...]:
    """The cells of some columns of rows."""
    return tuple([tuple([cell(name, row.get(name)) for name in names]) for row in rows])


def table_of(
    title: str,
    names: Sequence[str],
    rows: Iterable[Row],
    *,
    left: int = 1,
    titles: Mapping[str, str] = _NO_TITLES,
    spare: Sequence[str] = (),
    prose: Collection[str] = (),
    style: Callable[[Row], str | None] = lambda row: None,
) -> OpenTable:
    """A table of some columns of rows, the first ``left`` of which are text.

    ``titles`` are those of columns that this table calls otherwise, ``spare`` are columns that a
    narrow terminal does without, the first one first, ``prose`` those of text that wraps, and
    ``style`` is that of a row.
    """
    shown = dict(zip(names, titles_of(names, titles), strict=True))
    table = open_table(
        title,
        *shown.values(),
        left=left,
        spare=[shown[name] for name in spare if name in shown],
        prose=[shown[name] for name in prose if name in shown],
    )
    listed = list(rows)
    for row, cells in zip(listed, cells_of(names, listed), strict=True):
        table.add_row(*cells, style=style(row))
    return table


def known_in(rows: Iterable[Row], *names: str) -> list[str]:
    """Those of some columns in which some row has a value."""
    listed = list(rows)
    return [name for name in names if any([row.get(name) is not None for row in listed])]


def by_makespan(rows: Sequence[Row], green: bool = True) -> Callable[[Row], str | None]:
    """The style of rows by their makespan: red where that is a word, as of what does not fit, and
    ``green`` for the fastest.
    """
    best = min([ns for row in rows if isinstance(ns := row["makespan_ns"], int)], default=None)

    def style(row: Row) -> str | None:
        if isinstance(row["makespan_ns"], str):
            return "red"
        return "green" if green and row["makespan_ns"] == best else None

    return style

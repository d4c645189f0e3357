"""Tables as they are printed: columns that fit, whole figures."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.printing.columns import (
        COLUMNS,
        NOTHING,
        Row,
        TableColumn,
        above,
        by_makespan,
        cell,
        cells_of,
        column_title,
        interval,
        known_in,
        multiple,
        percent,
        size_or_nothing,
        table_of,
        time_or_nothing,
        titles_of,
    )
    from hosim.report.printing.printed import (
        ColumnNeed,
        FittedColumns,
        OpenTable,
        WholeFigures,
        and_more,
        begins_bold,
        broken,
        fitted,
        lines_of,
        open_table,
        paragraph,
        total,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "columns": "COLUMNS NOTHING Row TableColumn above by_makespan cell cells_of column_title "
            "interval known_in multiple percent size_or_nothing table_of time_or_nothing "
            "titles_of",
            "printed": "ColumnNeed FittedColumns OpenTable WholeFigures and_more begins_bold broken "
            "fitted lines_of open_table paragraph total",
        },
    )

__all__ = [
    "COLUMNS", "NOTHING", "ColumnNeed", "FittedColumns", "OpenTable", "Row", "TableColumn",
    "WholeFigures", "above", "and_more", "begins_bold", "broken", "by_makespan", "cell",
    "cells_of", "column_title", "fitted", "interval", "known_in", "lines_of", "multiple",
    "open_table", "paragraph", "percent", "size_or_nothing", "table_of", "time_or_nothing",
    "titles_of", "total",
]  # fmt: skip

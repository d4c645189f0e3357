"""Tables as they are printed: columns that fit, whole figures."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.printing.fitted_columns import (
        ColumnNeed,
        FittedColumns,
        broken,
        fitted,
        total,
    )
    from hosim.report.printing.printed import (
        OpenTable,
        WholeFigures,
        and_more,
        begins_bold,
        lines_of,
        open_table,
        paragraph,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "fitted_columns": "ColumnNeed FittedColumns broken fitted total",
            "printed": "OpenTable WholeFigures and_more begins_bold lines_of open_table paragraph",
        },
    )

__all__ = [
    "ColumnNeed", "FittedColumns", "OpenTable", "WholeFigures", "and_more", "begins_bold", "broken",
    "fitted", "lines_of", "open_table", "paragraph", "total",
]  # fmt: skip

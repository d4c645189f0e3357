"""The rows of a study's answer, and their file."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.study.rows_of_answers.rowfile import DIED, RowFile, unique
    from hosim.study.rows_of_answers.rows import (
        DEVICE_TIER,
        FEASIBLE,
        FIRST_COLUMNS,
        PEAK,
        SLOWDOWN,
        TEXTS,
        VARIED,
        Row,
        figure_columns,
        figures,
        frame,
        records,
        results_of,
        varied,
        varied_columns,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "rowfile": "DIED RowFile unique",
            "rows": "DEVICE_TIER FEASIBLE FIRST_COLUMNS PEAK Row SLOWDOWN TEXTS VARIED "
            "figure_columns "
            "figures frame records "
            "results_of varied varied_columns",
        },
    )

__all__ = [
    "DEVICE_TIER", "DIED", "FEASIBLE", "FIRST_COLUMNS", "PEAK", "SLOWDOWN", "TEXTS", "VARIED",
    "Row", "RowFile", "figure_columns", "figures", "frame", "records", "results_of", "unique",
    "varied", "varied_columns",
]  # fmt: skip

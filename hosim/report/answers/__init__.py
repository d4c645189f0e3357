"""The answers of studies: a sentence, a few rows and a curve."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.answers.answer import (
        ROWS,
        Answer,
        answered,
        rows_table,
        text_curve,
    )
    from hosim.report.answers.comparison_answer import (
        cheapest_sentence,
        comparison_answer,
        comparison_title,
        machines_answer,
        no_offload_sentence,
        row_line,
    )
    from hosim.report.answers.study_answers import (
        blame_answer,
        diff_answer,
        fit_answer,
        frontier_answer,
        robustness_answer,
        stages_answer,
        sweep_answer,
        validation_answer,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "answer": "Answer ROWS answered rows_table text_curve",
            "comparison_answer": "cheapest_sentence comparison_answer comparison_title machines_answer "
            "no_offload_sentence row_line",
            "study_answers": "blame_answer diff_answer fit_answer frontier_answer robustness_answer "
            "stages_answer sweep_answer validation_answer",
        },
    )

__all__ = [
    "ROWS", "Answer", "answered", "blame_answer", "cheapest_sentence", "comparison_answer",
    "comparison_title", "diff_answer", "fit_answer", "frontier_answer", "machines_answer",
    "no_offload_sentence", "robustness_answer", "row_line", "rows_table", "stages_answer",
    "sweep_answer", "text_curve", "validation_answer",
]  # fmt: skip

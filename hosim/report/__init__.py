"""Tables, figures and pages of results. This package neither prints nor computes new figures."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.atlas_page import atlas_page, atlas_table
    from hosim.report.cells import cell, html
    from hosim.report.explanation import (
        PlanExplanation,
        chosen_processors,
        explanation,
        explanation_lines,
        summary,
        to_dict,
    )
    from hosim.report.page_of_validation import validation_page
    from hosim.report.page_parts import (
        cards,
        folded,
        heading,
        lines,
        page,
        paragraph,
        picture,
        table,
        verdict,
    )
    from hosim.report.result_pages import (
        answer_parts,
        comparison_page,
        html_of,
        replay_page,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "atlas_page": "atlas_page atlas_table",
            "cells": "cell html",
            "explanation": "PlanExplanation chosen_processors explanation explanation_lines summary "
            "to_dict",
            "page_of_validation": "validation_page",
            "page_parts": "cards folded heading lines page paragraph picture table verdict",
            "result_pages": "answer_parts comparison_page html_of replay_page",
        },
    )

__all__ = [
    "PlanExplanation", "answer_parts", "atlas_page", "atlas_table", "cards", "cell",
    "chosen_processors", "comparison_page", "explanation", "explanation_lines", "folded",
    "heading", "html", "html_of", "lines", "page", "paragraph", "picture", "replay_page",
    "summary", "table", "to_dict", "validation_page", "verdict",
]  # fmt: skip

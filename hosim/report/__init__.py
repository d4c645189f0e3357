"""Results for people: tables, pictures and pages. Nothing here prints, or computes figures of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.cells import cell, html
    from hosim.report.change_figure import Curve, change_figure
    from hosim.report.explanation import PlanExplanation, explanation, summary, to_dict
    from hosim.report.figures import image, image_kind
    from hosim.report.llama_cpp_lines import command_line
    from hosim.report.memory_viz import memory_viz, to_pickle
    from hosim.report.mindspore_settings import shell
    from hosim.report.offload_verdicts import no_offload_sentence
    from hosim.report.page_parts import heading, lines, page, picture, table
    from hosim.report.perfetto import trace, trace_of_stages
    from hosim.report.printed import open_table, paragraph
    from hosim.report.replay_figures import replay_figure
    from hosim.report.result_pages import comparison_page, replay_page
    from hosim.report.tables import NOTHING, comparison, multiple
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "cells": "cell html",
            "change_figure": "Curve change_figure",
            "explanation": "PlanExplanation explanation summary to_dict",
            "figures": "image image_kind",
            "llama_cpp_lines": "command_line",
            "memory_viz": "memory_viz to_pickle",
            "mindspore_settings": "shell",
            "offload_verdicts": "no_offload_sentence",
            "page_parts": "heading lines page picture table",
            "perfetto": "trace trace_of_stages",
            "printed": "open_table paragraph",
            "replay_figures": "replay_figure",
            "result_pages": "comparison_page replay_page",
            "tables": "NOTHING comparison multiple",
        },
    )

__all__ = [
    "NOTHING",
    "Curve",
    "PlanExplanation",
    "cell",
    "change_figure",
    "command_line",
    "comparison",
    "comparison_page",
    "explanation",
    "heading",
    "html",
    "image",
    "image_kind",
    "lines",
    "memory_viz",
    "multiple",
    "no_offload_sentence",
    "open_table",
    "page",
    "paragraph",
    "picture",
    "replay_figure",
    "replay_page",
    "shell",
    "summary",
    "table",
    "to_dict",
    "to_pickle",
    "trace",
    "trace_of_stages",
]

"""Figures, and timelines in a page."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.drawn.figures import (
        CAUSE_STYLES,
        KIND_STYLES,
        LIMIT,
        LINES,
        MARKERS,
        OP_STYLE,
        blank,
        embedded,
        image,
        image_kind,
        legend_beside,
        limit_line,
        size_unit,
        style,
        time_unit,
    )
    from hosim.report.drawn.interactive import Shown, widget
    from hosim.report.drawn.memory_curve import memory_curve, resident_figure
    from hosim.report.drawn.recorded_timeline import (
        DrawnOp,
        Span,
        recorded_memory,
        recorded_widget,
        start_errors,
    )
    from hosim.report.drawn.replay_figures import (
        memory,
        memory_figure,
        replay_figure,
    )
    from hosim.report.drawn.side_by_side import Curve, change_figure, side_by_side_figure
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "figures": "CAUSE_STYLES KIND_STYLES LIMIT LINES MARKERS OP_STYLE blank embedded image "
            "image_kind legend_beside limit_line size_unit style time_unit",
            "interactive": "Shown widget",
            "memory_curve": "memory_curve resident_figure",
            "recorded_timeline": "DrawnOp Span recorded_memory recorded_widget start_errors",
            "replay_figures": "memory memory_figure replay_figure",
            "side_by_side": "Curve change_figure side_by_side_figure",
        },
    )

__all__ = [
    "CAUSE_STYLES", "KIND_STYLES", "LIMIT", "LINES", "MARKERS", "OP_STYLE", "Curve", "DrawnOp",
    "Shown", "Span", "blank", "change_figure", "embedded", "image", "image_kind", "legend_beside",
    "limit_line", "memory", "memory_curve", "memory_figure", "recorded_memory", "recorded_widget",
    "replay_figure", "resident_figure", "side_by_side_figure", "size_unit", "start_errors",
    "style", "time_unit", "widget",
]  # fmt: skip

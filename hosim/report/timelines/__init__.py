"""Timelines of replays and recordings: rows and curves, for a page and for other viewers."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.timelines.memory_viz_pickle import LABEL, memory_viz, to_pickle
    from hosim.report.timelines.perfetto import microseconds, named, trace, trace_of_stages
    from hosim.report.timelines.timeline_element import (
        BarStyle,
        Encoder,
        element,
        front_coded,
        further,
        joined,
        key,
        row_limit,
        script_json,
    )
    from hosim.report.timelines.timeline_rows import (
        OP,
        TRANSFER,
        Bar,
        Row,
        end_ns,
        held_over_time,
        of_devices,
        rows,
        sampled,
        stacked,
        thinned,
        timeline_of,
        used_channels,
        waits,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "memory_viz_pickle": "LABEL memory_viz to_pickle",
            "perfetto": "microseconds named trace trace_of_stages",
            "timeline_element": "BarStyle Encoder element front_coded further joined key "
            "row_limit script_json",
            "timeline_rows": "OP TRANSFER Bar Row end_ns held_over_time of_devices rows sampled "
            "stacked thinned timeline_of used_channels waits",
        },
    )

__all__ = [
    "LABEL", "OP", "TRANSFER", "Bar", "BarStyle", "Encoder", "Row", "element", "end_ns",
    "front_coded", "further", "held_over_time", "joined", "key", "memory_viz", "microseconds", "named", "of_devices",
    "row_limit", "rows", "sampled", "script_json", "stacked", "thinned", "timeline_of", "to_pickle",
    "trace", "trace_of_stages", "used_channels", "waits",
]  # fmt: skip

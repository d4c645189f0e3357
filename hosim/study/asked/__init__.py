"""Read the parts of a study's question: policies with settings, axes, routing steps, limits."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.study.asked.asked_in_vain import check_pinning, notes_on_choice
    from hosim.study.asked.axes import (
        Axis,
        Settings,
        Value,
        as_integer,
        parse_axis,
        parse_steps,
        read_points,
        read_vary,
        scalar,
        written,
    )
    from hosim.study.asked.policy_choice import (
        RECOMPUTE,
        REORDER,
        AnyPolicy,
        PolicyChoice,
        as_choice,
        parse_choice,
        parse_choices,
        without,
    )
    from hosim.study.asked.search_ends import (
        SearchEnds,
        read_search_ends,
        searching,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "asked_in_vain": "check_pinning notes_on_choice",
            "axes": "Axis Settings Value as_integer parse_axis parse_steps read_points read_vary "
            "scalar written",
            "policy_choice": "AnyPolicy PolicyChoice RECOMPUTE REORDER as_choice parse_choice "
            "parse_choices without",
            "search_ends": "SearchEnds read_search_ends searching",
        },
    )

__all__ = [
    "RECOMPUTE", "REORDER", "AnyPolicy", "Axis", "PolicyChoice", "SearchEnds", "Settings", "Value",
    "as_choice", "as_integer", "check_pinning", "notes_on_choice", "parse_axis", "parse_choice",
    "parse_choices", "parse_steps", "read_points", "read_search_ends", "read_vary", "scalar",
    "searching", "without", "written",
]  # fmt: skip

"""Runtimes: their files, and the runtimes of workloads."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.runtimes.runtime_file import (
        FORMAT,
        load_runtime,
        runtime_from_dict,
        runtime_named,
        runtime_to_dict,
        runtimes_for,
        under_runtime,
        with_runtime,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "runtime_file": "FORMAT load_runtime runtime_from_dict runtime_named runtime_to_dict "
            "runtimes_for under_runtime with_runtime",
        },
    )

__all__ = [
    "FORMAT",
    "load_runtime",
    "runtime_from_dict",
    "runtime_named",
    "runtime_to_dict",
    "runtimes_for",
    "under_runtime",
    "with_runtime",
]

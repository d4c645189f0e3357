"""The files with which the gate runs on a project's changes: cases, a workflow and a hook."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.ci.ci_files import (
        CiFiles,
        begin_cases,
        ci_files,
        installed_from,
        root_of,
        with_extras,
        write_ci_files,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ci_files": "CiFiles begin_cases ci_files installed_from root_of with_extras "
            "write_ci_files",
        },
    )

__all__ = [
    "CiFiles", "begin_cases", "ci_files", "installed_from", "root_of", "with_extras",
    "write_ci_files",
]  # fmt: skip

"""What a project needs for the gate to run on its changes: cases, a workflow and a hook."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.ci.ci_files import CiFiles, ci_files
    from hosim.gate.ci.requirement import installed_from, with_extras
    from hosim.gate.ci.written_files import begin_cases, root_of, write_ci_files
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ci_files": "CiFiles ci_files",
            "requirement": "installed_from with_extras",
            "written_files": "begin_cases root_of write_ci_files",
        },
    )

__all__ = [
    "CiFiles",
    "begin_cases",
    "ci_files",
    "installed_from",
    "root_of",
    "with_extras",
    "write_ci_files",
]

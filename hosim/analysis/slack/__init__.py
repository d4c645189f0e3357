"""The slack of each copy of a plan, the causes of waits, and the parts of a step's time."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.slack.awaited_copies import awaited_copies
    from hosim.analysis.slack.step_path import PathPart, Slopes, slopes, spent_ns, step_path
    from hosim.analysis.slack.transfer_slack import Latitude, latitudes
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "awaited_copies": "awaited_copies",
            "step_path": "PathPart Slopes slopes spent_ns step_path",
            "transfer_slack": "Latitude latitudes",
        },
    )

__all__ = [
    "Latitude", "PathPart", "Slopes", "awaited_copies", "latitudes", "slopes", "spent_ns",
    "step_path",
]  # fmt: skip

"""Describe how late each copy of a plan may be at no cost, and what ops wait for."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.slack.awaited_copies import awaited_copies
    from hosim.analysis.slack.transfer_slack import Latitude, latitudes
else:
    __getattr__, __dir__ = lazy_names(
        __name__, {"awaited_copies": "awaited_copies", "transfer_slack": "Latitude latitudes"}
    )

__all__ = ["Latitude", "awaited_copies", "latitudes"]

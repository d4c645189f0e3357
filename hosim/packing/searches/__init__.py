"""The placement of tensors for a whole plan: greedily, by an exact search, and by a sweep that
wastes next to nothing.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.packing.searches.greedy import improve
    from hosim.packing.searches.skyline import SkylineSearch
    from hosim.packing.searches.tiling import TilingSearch
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "greedy": "improve",
            "skyline": "SkylineSearch",
            "tiling": "TilingSearch",
        },
    )

__all__ = ["SkylineSearch", "TilingSearch", "improve"]

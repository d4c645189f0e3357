"""How tensors are placed for a whole plan: greedily, by an exact search, and by a sweep that wastes next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.engine.allocators.packing_searches.greedy import improve
    from hosim.engine.allocators.packing_searches.skyline import SkylineSearch
    from hosim.engine.allocators.packing_searches.tiling import TilingSearch
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "greedy": "improve",
            "skyline": "SkylineSearch",
            "tiling": "TilingSearch",
        },
    )

__all__ = [
    "SkylineSearch", "TilingSearch", "improve",
]  # fmt: skip

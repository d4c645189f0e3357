"""Static packing: offsets for tensors whose lives are known, as low as can be found. Pure functions
of whole numbers.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.packing.exchanges import (
        Exchange,
        Guess,
        Moment,
        Taste,
        exchanges,
        guessed_holes,
    )
    from hosim.analysis.packing.order_tree import (
        ApartError,
        any_order,
        gather,
        items_in_order,
        order_like,
    )
    from hosim.analysis.packing.section_events import SectionEvents
    from hosim.analysis.packing.skyline import SkylineSearch
    from hosim.analysis.packing.static import Packing, improve, pack
    from hosim.analysis.packing.tiling import TilingSearch
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "exchanges": "Exchange Guess Moment Taste exchanges guessed_holes",
            "order_tree": "ApartError any_order gather items_in_order order_like",
            "section_events": "SectionEvents",
            "skyline": "SkylineSearch",
            "static": "Packing improve pack",
            "tiling": "TilingSearch",
        },
    )

__all__ = [
    "ApartError", "Exchange", "Guess", "Moment", "Packing", "SectionEvents", "SkylineSearch",
    "Taste", "TilingSearch", "any_order", "exchanges", "gather", "guessed_holes", "improve",
    "items_in_order", "order_like", "pack",
]  # fmt: skip

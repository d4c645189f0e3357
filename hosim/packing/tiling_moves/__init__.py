"""The choices of the sweep over time: the tensors that take the place of others, the holes, and the
orders that are left.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.packing.tiling_moves.exchanges import NOTHING, Exchange, Moment, Taste, exchanges
    from hosim.packing.tiling_moves.holes import Guess, guessed_holes
    from hosim.packing.tiling_moves.order_tree import (
        ApartError,
        OrderTree,
        any_order,
        gather,
        items_in_order,
        order_like,
    )
    from hosim.packing.tiling_moves.section_events import SectionEvents
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "exchanges": "NOTHING Exchange Moment Taste exchanges",
            "holes": "Guess guessed_holes",
            "order_tree": "ApartError OrderTree any_order gather items_in_order order_like",
            "section_events": "SectionEvents",
        },
    )

__all__ = [
    "NOTHING", "ApartError", "Exchange", "Guess", "Moment", "OrderTree", "SectionEvents", "Taste",
    "any_order", "exchanges", "gather", "guessed_holes", "items_in_order", "order_like",
]  # fmt: skip

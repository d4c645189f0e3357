"""Integers in arrays, which compiled and interpreted code read alike: how classes declare them, the
form that they have here, and whether an extension was compiled from the source that is here.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.engine.cells.current_extensions import is_current
    from hosim.engine.cells.declared_arrays import Array, Flags, Int, Ints, Longs, made, state
    from hosim.engine.cells.made_arrays import (
        COMPILED,
        Cells,
        StateCells,
        copied,
        fill,
        flags,
        ints,
        longs,
        made_cells,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "current_extensions": "is_current",
            "declared_arrays": "Array Flags Int Ints Longs made state",
            "made_arrays": "COMPILED Cells StateCells copied fill flags ints longs made_cells",
        },
    )

__all__ = [
    "COMPILED", "Array", "Cells", "Flags", "Int", "Ints", "Longs", "StateCells", "copied", "fill", "flags",
    "ints", "is_current", "longs", "made", "made_cells", "state",
]  # fmt: skip

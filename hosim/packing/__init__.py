"""Static packing: offsets for tensors whose lives are known, as low as can be found. Pure functions
of whole numbers.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.packing.static import Packing, pack
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "static": "Packing pack",
        },
    )

__all__ = ["Packing", "pack"]

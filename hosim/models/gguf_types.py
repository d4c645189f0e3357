"""The bytes of a GGUF's weights, by their types, and the dtype in which an op that reads them
computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GgufType:
    """``block`` elements of a row are ``size`` bytes together."""

    name: str
    block: int
    size: int


_LISTED: tuple[tuple[int, str, int, int], ...] = (
    *((0, "F32", 1, 4), (1, "F16", 1, 2), (30, "BF16", 1, 2), (28, "F64", 1, 8), (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4)),
    *((27, "I64", 1, 8), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34)),
    *((9, "Q8_1", 32, 36), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176)),
    *((14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292), (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98)),
    *((19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136)),
    *((29, "IQ1_M", 256, 56), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17)),
    *((40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18)),
)  # fmt: skip

TYPES: Mapping[int, GgufType] = MappingProxyType(
    {number: GgufType(name, block, size) for number, name, block, size in _LISTED}
)
"""By number: the table of ggml's ``gguf-py/gguf/constants.py`` (``GGML_QUANT_SIZES``)."""

BY_NAME: Mapping[str, GgufType] = MappingProxyType({each.name: each for each in TYPES.values()})


def bytes_of(name: str, elements: int) -> int:
    """Bytes of so many elements of a type, which are whole blocks.

    >>> bytes_of("Q4_K", 4096), bytes_of("MXFP4", 64), bytes_of("F32", 3)
    (2304, 34, 12)
    """
    found = BY_NAME[name]
    return elements // found.block * found.size


def computes_of(size: int, elements: int) -> str:
    """The dtype of an op beside operands in 16 bits that reads ``elements`` in ``size`` bytes;
    empty: that of its other operands.

    >>> computes_of(4608, 8192), computes_of(34, 32), computes_of(2, 1)
    ('int4_weights', 'int8_weights', '')
    """
    bits = 8 * size / elements
    return "int4_weights" if bits <= 6 else "int8_weights" if bits < 16 else ""

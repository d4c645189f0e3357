"""Weights and caches in 8 and 4 bits: what they and their scales take, and which kernels multiply
them.

A row of a packed tensor has its elements, rounded up to whole bytes, and a scale for each group of
so many, symmetric where nothing else is said. The scale of a group of 0 is that of a whole row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class PackedDtype:
    """``scale_bytes`` and ``zero_bits`` for each ``group``, and ``index_bytes`` for each column. If
    scales are packed, too, each group of ``scales`` of them has one more in fp32.

    ``computes`` is the dtype of an op that reads it beside operands in 16 bits.
    """

    bits: int
    group: int
    scale_bytes: int
    computes: str
    blocks: bool = False
    """True if a group that is given is a block of so many rows, too, as in DeepSeek-V3."""
    zero_bits: int = 0
    index_bytes: int = 0
    scales: int = 0


PACKINGS: Mapping[str, PackedDtype] = {
    # a scale in fp32 for each row, or for each block
    "fp8_e4m3": PackedDtype(8, 0, 4, "int8_weights", blocks=True),
    "fp8_e5m2": PackedDtype(8, 0, 4, "int8_weights", blocks=True),
    # scales in 16 bits, as GPTQ's and compressed-tensors' symmetric ones
    "int8": PackedDtype(8, 0, 2, "int8_weights"),
    "int4": PackedDtype(4, 128, 2, "int4_weights"),
    # a zero in 16 bits beside each scale, as torchao's int4 weights and HQQ have
    "uint4": PackedDtype(4, 128, 4, "int4_weights"),
    # what files have: a zero of as many bits beside each scale, and in GPTQ's which group each
    # column is of
    "gptq4": PackedDtype(4, 128, 2, "int4_weights", zero_bits=4, index_bytes=4),
    "gptq8": PackedDtype(8, 128, 2, "int8_weights", zero_bits=8, index_bytes=4),
    "awq4": PackedDtype(4, 128, 2, "int4_weights", zero_bits=4),
    # FlexGen (arXiv 2303.06865, section 5.1): a scale and a minimum in 16 bits for 64 elements
    "flexgen4": PackedDtype(4, 64, 4, ""),
    # OCP Microscaling Formats 1.0: an exponent of 8 bits for 32 elements
    "mxfp4": PackedDtype(4, 32, 1, "int4_weights"),
    # ModelOpt: an exponent and mantissa of 8 bits for 16 elements
    "nvfp4": PackedDtype(4, 16, 1, "int4_weights"),
    # bitsandbytes without double quantisation: a maximum in fp32 for 64 elements
    "nf4": PackedDtype(4, 64, 4, "int4_weights"),
    # with it, QLoRA's (T. Dettmers et al., NeurIPS 2023): these in 8 bits, 256 of them with a scale
    "nf4_double": PackedDtype(4, 64, 1, "int4_weights", scales=256),
    # caches; vLLM's fp8 has one scale for all, the others a scale and a minimum in 16 bits for a
    # head's row, or as FlexGen for 64 elements
    "fp8_cache": PackedDtype(8, 0, 0, "fp16_fp8_cache"),
    "int8_cache": PackedDtype(8, 0, 4, "fp16_fp8_cache"),
    "int4_cache": PackedDtype(4, 64, 4, "fp16_int4_cache"),
    "flexgen4_cache": PackedDtype(4, 64, 4, ""),
}
WEIGHTS = (
    "fp8_e4m3",
    "fp8_e5m2",
    "int8",
    "int4",
    "uint4",
    "gptq4",
    "gptq8",
    "awq4",
    "flexgen4",
    "mxfp4",
    "nvfp4",
    "nf4",
    "nf4_double",
)
PACKED = ("all", "experts")
CACHES: Mapping[str, str] = {
    "fp8_e4m3": "fp8_cache",
    "fp8_e5m2": "fp8_cache",
    "int8": "int8_cache",
    "int4": "int4_cache",
    "flexgen4": "flexgen4_cache",
}
"""Packings by the parameter of a builder."""
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {"fp8": ("fp8_e4m3", "fp8_e5m2"), "int8": ("int8",)}
"""The dtypes that both operands of a product can have, and the weights that this takes."""
SEPARATE = frozenset({"nf4", "nf4_double", "flexgen4"})
"""Packings without a kernel for several rows: bitsandbytes unpacks a whole weight into 16 bits
first.
"""
FOR_TRANSFER = frozenset({"flexgen4", "flexgen4_cache"})
"""Packings that only save bytes on the way and in memory: whatever is read is unpacked into 16 bits
first, also for one row.
"""


def packed_bytes(shape: tuple[int, ...], dtype: str, group: int = 0) -> int:
    """Bytes of a packed tensor with its scales; ``group`` 0: as usual for ``dtype``, one of
    :data:`PACKINGS`.

    >>> (
    ...     packed_bytes((4096, 4096), "int4"),
    ...     packed_bytes((4096, 4096), "int4", 32),
    ...     packed_bytes((256, 130), "fp8_e4m3", 128),
    ... )
    (8650752, 9437184, 33296)
    """
    packing = PACKINGS[dtype]
    *outer, rows, width = (1, *shape)
    size = group or packing.group or width
    scales = (
        -(-width // size) * (-(-rows // size) if packing.blocks and group else rows) if width else 0
    )
    beside = (
        scales * packing.scale_bytes
        + -(-scales * packing.zero_bits // 8)
        + width * packing.index_bytes
        + (-(-scales // packing.scales) * 4 if packing.scales else 0)
    )
    return prod(outer) * (rows * -(-width * packing.bits // 8) + beside)

"""The FLOP of ONNX operators from the shapes of inputs and outputs, counted as torch does: two per
multiplication of a product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

from hosim.analysis.costmodel.kernels import UNKNOWN, KernelSizes, product_kernel
from hosim.io.importers.flop_formulas import (
    attention_flops,
    convolution_flops,
    matmul_flops,
    recurrent_flops,
)

Dims = tuple[int, ...]

_PRODUCTS = {"MatMul", "MatMulInteger", "QLinearMatMul"}


def onnx_flops(
    operator: str, inputs: Sequence[Dims | None], made: Dims, attributes: Mapping[str, Any]
) -> int:
    """The FLOP of an operator with inputs of these shapes (``None``: absent) whose first output has
    the shape ``made``.

    0 for operators that are bound by the bytes they move, and for operands of unexpected rank.
    """
    shapes = list(inputs)
    if operator in ("QLinearMatMul", "QLinearConv"):
        shapes = shapes[0:1] + shapes[3:4]  # scales and zero points stand between
    given = [shape for shape in shapes if shape is not None]
    if len(given) < 2 or not given[0] or not given[1]:
        return 0
    a, b = given[:2]
    if operator in _PRODUCTS:
        return matmul_flops(made, a[-1])
    if operator in ("Gemm", "FusedGemm"):
        return matmul_flops(made, a[0 if attributes.get("transA") else -1])
    if operator in ("Conv", "ConvInteger", "QLinearConv", "DeformConv", "FusedConv"):
        return convolution_flops(made, b)
    if operator == "ConvTranspose":
        return convolution_flops(a, b)
    if operator in ("LSTM", "GRU", "RNN") and len(given) > 2 and len(a) == 3:
        return recurrent_flops(a[0] * a[1], b, given[2])
    if operator == "Attention":
        return _attention(inputs, attributes)
    if operator == "Einsum":
        return _einsum(str(attributes.get("equation", "")), given)
    return 0


def onnx_kernel(
    operator: str, inputs: Sequence[Dims | None], made: Dims, flops: int
) -> KernelSizes:
    """The class of kernels of a product with one matrix, and its sizes."""
    if operator not in ("MatMul", "Gemm") or len(inputs) < 2 or inputs[1] is None:
        return UNKNOWN
    return product_kernel(made, inputs[1], flops)


def _attention(inputs: Sequence[Dims | None], attributes: Mapping[str, Any]) -> int:
    """Queries times keys and weights times values, including past ones and those that a causal mask
    hides.
    """
    q, k, v, _, past = ([*inputs] + [None] * 5)[:5]
    if (
        q is None
        or k is None
        or v is None
        or not len(q) == len(k) == len(v)
        or len(q) not in (3, 4)
    ):
        return 0
    length = k[-2] + (past[-2] if past is not None and len(past) == 4 else 0)
    if len(q) == 4:
        return attention_flops(q, (*k[:2], length, k[3]), v)
    heads, kv_heads = attributes.get("q_num_heads", 0), attributes.get("kv_num_heads", 0)
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or kv_heads < 1:
        return 0
    return attention_flops(
        (q[0], 1, q[1], q[2]), (q[0], 1, length, 0), (q[0], 1, length, v[2] // kv_heads * heads)
    )


def _einsum(equation: str, given: Sequence[Dims]) -> int:
    """The product of all sizes of two operands without an ellipsis."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != 2 or [*map(len, terms)] != [*map(len, given)]:
        return 0
    sizes = dict(zip("".join(terms), chain(*given), strict=True))
    shared = set(terms[0]) & set(terms[1])
    return 2 * prod(sizes.values()) if shared else 0

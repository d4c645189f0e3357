"""The ops with which torchao's programs quantise, dequantise and multiply by packed weights, as ops
of hosim that compute only sizes.

Imports torch. A file with such ops is read without torchao and without the libraries of its
kernels. In torchao, the ops that round consist of a dozen of torch's; here each is one op, as a
compiler makes it, which reads its inputs and writes its results. They are in a library of their
own, so that torchao can still be imported.
"""

from collections.abc import Collection
from typing import Any

import torch

NAMESPACE = "hosim_torchao"

LIBRARIES = ("torchao", "mslk", "fbgemm")
"""The libraries of torchao, and of the kernels that it calls for products of 4 bits."""

_library = torch.library.Library(NAMESPACE, "DEF")


def _rounded(
    x: Any, block_size: Any, scale: Any, zero_point: Any, output_dtype: Any, *_: Any
) -> Any:
    return torch.empty_like(x, dtype=output_dtype)


def _unpacked(
    x: Any,
    block_size: Any,
    scale: Any,
    zero_point: Any,
    input_dtype: Any,
    quant_min: Any = None,
    quant_max: Any = None,
    output_dtype: Any = torch.float32,
) -> Any:
    return torch.empty_like(x, dtype=output_dtype)


def _chosen(
    x: Any,
    mapping_type: Any,
    block_size: Any,
    target_dtype: Any,
    quant_min: Any = None,
    quant_max: Any = None,
    eps: Any = None,
    scale_dtype: Any = None,
    zero_point_dtype: Any = None,
    keepdim: bool = False,
) -> Any:
    torch._check(
        len(block_size) == x.dim() and all(n > 0 for n in block_size),
        lambda: "a block has a size in each dimension",
    )
    blocks = [size // block for size, block in zip(x.shape, block_size, strict=True)]
    shape = (
        blocks
        if keepdim
        else [count for count, block in zip(blocks, block_size, strict=True) if block == 1]
    )
    return x.new_empty(shape, dtype=scale_dtype or x.dtype), x.new_empty(
        shape, dtype=zero_point_dtype or torch.int32
    )


def _product(x: Any, weight: Any, scale: Any, zero_point: Any) -> Any:
    torch._check(
        weight.dim() == 2 and x.shape[-1] == 2 * weight.shape[1],
        lambda: "two weights of 4 bits are a byte, by row",
    )
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=torch.bfloat16)


_RANGE = "Scalar? quant_min=None, Scalar? quant_max=None"
for _schema, _kernel in (
    (
        "quantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, "
        "ScalarType output_dtype, "
        f"{_RANGE}) -> Tensor",
        _rounded,
    ),
    (
        "dequantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, "
        "ScalarType input_dtype, "
        f"{_RANGE}, ScalarType output_dtype=float) -> Tensor",
        _unpacked,
    ),
    (
        "choose_qparams_affine(Tensor input, str mapping_type, SymInt[] block_size, ScalarType "
        f"target_dtype, {_RANGE}, "
        "float? eps=None, ScalarType? scale_dtype=None, ScalarType? zero_point_dtype=None, bool "
        "keepdim=False) -> (Tensor, Tensor)",
        _chosen,
    ),
    *[
        (f"{name}{schema}", _product)
        for name in ("bf16i4bf16_rowwise", "bf16i4bf16_shuffled")
        for schema in (
            "(Tensor X, Tensor W, Tensor w_scale_group, Tensor w_zero_group) -> Tensor",
            # the names in earlier versions of the kernels
            ".before(Tensor X, Tensor WQ, Tensor w_scale, Tensor w_zp) -> Tensor",
        )
    ],
):
    _library.define(_schema)
    _library.impl(_schema.partition("(")[0], _kernel, "Meta")


def overload(name: str, arguments: Collection[str]) -> str:
    """Return the overload of one of these ops that has arguments of these names."""
    taken = getattr(getattr(torch.ops, NAMESPACE), name)
    fitting = [
        each
        for each in taken.overloads()
        if set(arguments) <= {one.name for one in getattr(taken, each)._schema.arguments}
    ]
    return fitting[0] if fitting else "default"

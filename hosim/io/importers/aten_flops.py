"""FLOP of torch's operators, from their names and the shapes of their arguments, as recordings have
them. torch is not needed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from hosim.analysis.costmodel.kernels import (
    UNKNOWN,
    KernelSizes,
    causal_kernel,
    full_kernel,
    product_kernel,
)
from hosim.io.importers.flop_formulas import (
    Dims,
    attention_flops,
    attention_gradient_flops,
    convolution_flops,
    matmul_flops,
    recurrent_flops,
    weight_gradient_flops,
)


@dataclass(frozen=True, slots=True)
class CallShapes:
    """A call of an operator, which is named without its namespace. By position: the shapes of the
    arguments that are tensors, the values of all arguments, and the shapes of the results.
    """

    operator: str
    shapes: Sequence[Dims | None]
    values: Sequence[Any] = ()
    made: Sequence[Dims | None] = ()

    def ranks(self, *places: int) -> Sequence[int]:
        """The ranks of the tensors at these positions; -1 where there is none."""
        return [
            -1 if shape is None else len(shape) for shape in (self.at(place) for place in places)
        ]

    def at(self, place: int) -> Dims | None:
        """The shape of the argument at a position; ``None`` if it is not a tensor."""
        return self.shapes[place] if place < len(self.shapes) else None

    def dims(self, place: int) -> Dims:
        """The shape at a position where there is a tensor."""
        shape = self.at(place)
        assert shape is not None
        return shape

    def value(self, place: int) -> Any:
        """The value at a position; ``None`` if the recording does not have it."""
        return self.values[place] if place < len(self.values) else None


Count = Callable[[CallShapes], "int | None"]


def _matrices(first: int) -> Count:
    def count(call: CallShapes) -> int | None:
        if call.ranks(first, first + 1) not in ([2, 2], [3, 3]):
            return None
        return matmul_flops(call.dims(first), call.dims(first + 1)[-1])

    return count


def _vector(first: int) -> Count:
    def count(call: CallShapes) -> int | None:
        shape = call.at(first)
        return None if not shape else matmul_flops(shape, 1)

    return count


def _matmul(call: CallShapes) -> int | None:
    """The FLOP of a product of tensors of any rank, from the shape of its result."""
    result = call.made[0] if call.made else None
    return (
        None
        if result is None or min(call.ranks(0, 1)) < 1
        else matmul_flops(result, call.dims(0)[-1])
    )


def _linear(call: CallShapes) -> int | None:
    return (
        matmul_flops(call.dims(0), call.dims(1)[0])
        if call.ranks(1) == [2] and call.ranks(0)[0] > 0
        else None
    )


def _grouped(call: CallShapes) -> int | None:
    """The FLOP of grouped products: rows sorted by group, with one matrix for each group; or
    columns times rows, where each group gives a matrix.
    """
    if call.ranks(0)[0] == 2 and call.ranks(1)[0] >= 2:
        return matmul_flops(call.dims(0), call.dims(1)[-1])
    return _matrices(0)(call)


def _convolution(transposed: Callable[[CallShapes], bool]) -> Count:
    def count(call: CallShapes) -> int | None:
        given, weight = call.ranks(0, 1)
        made = call.made[0] if call.made else None
        if made is None or weight < 3 or given not in (weight, weight - 1):
            return None
        return convolution_flops(call.dims(0) if transposed(call) else made, call.dims(1))

    return count


def _convolution_gradient(call: CallShapes) -> int | None:
    """The FLOP of a convolution's gradients. Arguments 0 to 2 are the result's gradient, the input
    and the weight; 7 says whether the convolution was transposed, 10 which gradients are requested.
    """
    ranks = call.ranks(0, 1, 2)
    if min(ranks) < 3 or len(set(ranks)) > 1:
        return None
    gradient, given, weight = (call.dims(place) for place in range(3))
    transposed, asked = call.value(7) is True, call.value(10)
    if not isinstance(asked, list) or len(asked) < 2:
        asked = [made is not None for made in (*call.made, None, None)]
    total = 0
    if asked[0]:
        total += convolution_flops(given if transposed else gradient, weight)
    if asked[1]:
        total += (
            weight_gradient_flops(given, gradient, weight)
            if transposed
            else weight_gradient_flops(gradient, given, weight)
        )
    return total


def _attention(call: CallShapes) -> int | None:
    return attention_flops(*map(call.dims, range(3))) if call.ranks(0, 1, 2) == [4, 4, 4] else None


def _attention_of_tokens(call: CallShapes) -> int | None:
    """Attention of ``[batch, tokens, heads, width]``."""
    if call.ranks(0, 1, 2) != [4, 4, 4]:
        return None
    return attention_flops(
        *[[shape[0], shape[2], shape[1], shape[3]] for shape in map(call.dims, range(3))]
    )


def _recurrent(times: int) -> Count:
    def count(call: CallShapes) -> int | None:
        if call.ranks(0, 1, 2) != [3, 2, 2]:
            return None
        return times * recurrent_flops(prod(call.dims(0)[:2]), call.dims(1), call.dims(2))

    return count


_COUNTED: Mapping[str, Count] = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm"), _matrices(0)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation", "_scaled_addmm"), _matrices(1)),
    **dict.fromkeys(
        ("_grouped_mm", "_scaled_grouped_mm", "grouped_mm", "grouped_mm_fallback"), _grouped
    ),
    **dict.fromkeys(
        ("convolution", "_convolution", "convolution_overrideable"),
        _convolution(lambda call: call.value(6) is True),
    ),
    **dict.fromkeys(
        """cudnn_convolution mkldnn_convolution miopen_convolution miopen_depthwise_convolution thnn_conv2d _slow_conv2d_forward
        slow_conv3d_forward _conv_depthwise2d conv_depthwise3d cudnn_convolution_relu""".split(),  # noqa: SIM905
        _convolution(lambda call: False),
    ),
    **dict.fromkeys(
        ("cudnn_convolution_transpose", "miopen_convolution_transpose"),
        _convolution(lambda call: True),
    ),
    "convolution_backward": _convolution_gradient,
    "convolution_backward_overrideable": _convolution_gradient,
    **dict.fromkeys(
        """_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
        _scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable""".split(),  # noqa: SIM905
        _attention,
    ),
    **dict.fromkeys(
        """_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward""".split(),  # noqa: SIM905
        lambda call: (
            attention_gradient_flops(*map(call.dims, range(1, 4)))
            if call.ranks(1, 2, 3) == [4, 4, 4]
            else None
        ),
    ),
    **dict.fromkeys(
        ("_flash_attention_forward", "_efficient_attention_forward", "_flash_attn_forward"),
        _attention_of_tokens,
    ),
    **dict.fromkeys(
        """_weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros _weight_int8pack_mm
        bf16i4bf16_rowwise bf16i4bf16_shuffled""".split(),  # noqa: SIM905
        _matmul,  # products with packed weights, which torch's counter omits
    ),
    "mkldnn_rnn_layer": _recurrent(1),
    "mkldnn_rnn_layer_backward": _recurrent(2),  # gradients of the input and of the weights
    **dict.fromkeys(("mv", "dot", "vdot"), _vector(0)),
    "addmv": _vector(1),
}
_COMPOSED: Mapping[str, Count] = {
    "matmul": _matmul,
    "linear": _linear,
    "mkldnn_linear": _linear,
    "_mkldnn_linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution(lambda call: False)),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        _convolution(lambda call: True),
    ),
    "scaled_dot_product_attention": _attention,
}
"""Operators that call those above. They are counted if a recording does not show the inner calls.
"""


def aten_flops(call: CallShapes) -> int | None:
    """The FLOP of a call, as torch's counter counts them; ``None`` for an operator that it does not
    count, and for unexpected ranks.
    """
    count = _COUNTED.get(call.operator)
    return None if count is None else count(call)


def composed_flops(call: CallShapes) -> int | None:
    """The FLOP of an operator that calls others, for recordings without these inner calls; ``None``
    for any other operator.
    """
    count = _COMPOSED.get(call.operator)
    return None if count is None else count(call)


_SECOND_OPERAND = {"mm": 1, "bmm": 1, "addmm": 2, "baddbmm": 2}
_FLASH = {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"}


def aten_kernel(call: CallShapes, flops: int) -> KernelSizes:
    """Return the class and sizes of the kernel, for products of rows with one matrix and for
    attention that is causal or has no mask; :data:`UNKNOWN` for other calls.
    """
    second, made = (
        call.at(_SECOND_OPERAND.get(call.operator, len(call.shapes))),
        call.made[0] if call.made else None,
    )
    if second is not None and made:
        return product_kernel(made, second, flops)
    if call.operator in _FLASH and flops:
        query, key, value = map(call.dims, range(3))
        causal = call.value(4)
        if call.at(5) is None and query[2] in ((1, key[2]) if causal is True else (1,)):
            return causal_kernel(query, key, value[3])
        if call.at(5) is None and causal is False:
            return full_kernel(query, key, value[3])
    return UNKNOWN

"""FLOP of ONNX operators from the shapes of inputs and outputs, counted as in torch (two per
multiplication of a product). For operators of onnxruntime (``com.microsoft``), which optimised and
quantised models have, also the shapes of their results.

The onnx package does not know the latter. Their definitions are in onnxruntime's
``docs/ContribOperators.md``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ContribCall:
    """A node: the shapes of its inputs (``None`` if absent) and its attributes."""

    inputs: Sequence[Dims | None]
    attributes: Mapping[str, Any]

    def at(self, place: int) -> Dims | None:
        """The shape of the input at a position."""
        return self.inputs[place] if place < len(self.inputs) else None

    def dims(self, place: int, *ranks: int) -> Dims:
        """The shape at a position. Raises :class:`_UnexpectedError` without a tensor of one of
        these ranks (of any rank, if none is given).
        """
        shape = self.at(place)
        if shape is None or (ranks and len(shape) not in ranks):
            raise _UnexpectedError
        return shape

    def number(self, key: str, default: int | None = None) -> int:
        """An attribute that is a whole number of at least 0. Raises :class:`_UnexpectedError` for
        any other.
        """
        value = self.attributes.get(key, default)
        if type(value) is not int or value < 0:
            raise _UnexpectedError
        return value


class _UnexpectedError(Exception):
    """A node whose inputs do not fit the operator's definition."""


@dataclass(frozen=True, slots=True)
class _Heads:
    """Queries, keys and values of attention as ``[batch, heads, tokens, width]``; keys include
    earlier tokens.
    """

    query: Dims
    key: Dims
    value: Dims

    @property
    def flops(self) -> int:
        return attention_flops(self.query, self.key, self.value)

    @property
    def result(self) -> Dims:
        """The shape of the result: tokens before heads, which are concatenated."""
        return self.query[0], self.query[2], self.query[1] * self.value[3]


Answer = tuple[Sequence[Dims], int]
"""The shapes of the results, as many as are known, and FLOP."""


def contrib(operator: str, call: ContribCall) -> Answer | None:
    """Return the shapes of an operator's results, and its FLOP; ``None`` for an unknown operator or
    inputs that do not fit its definition.
    """
    answer = _OPERATORS.get(operator)
    try:
        return None if answer is None else answer(call)
    except (_UnexpectedError, ZeroDivisionError):
        return None


def _normalised(call: ContribCall) -> Answer:
    """The result, the mean and inverse deviation of each row, and the sum that was normalised."""
    shape = call.dims(0)
    rows = (*shape[:-1], 1)
    return [shape, rows, rows, shape], 0


def _embedded(call: ContribCall) -> Answer:
    tokens, width = call.dims(0, 2), call.dims(2, 2)[1]
    return [(*tokens, width), (tokens[0],), (*tokens, width)], 0


def _halved(call: ContribCall) -> Answer:
    shape = call.dims(0)
    return [(*shape[:-1], shape[-1] // 2)], 0


def _product(second: int) -> Callable[[ContribCall], Answer]:
    def answer(call: ContribCall) -> Answer:
        a, b = list(call.dims(0)), list(call.dims(second))
        if len(a) < 2 or len(b) < 2:
            raise _UnexpectedError
        if call.number("transA", 0):
            a[-2:] = a[-1], a[-2]
        if call.number("transB", 0):
            b[-2:] = b[-1], b[-2]
        batch = _broadcast(a[:-2], b[:-2])
        if a[-1] != b[-2] or call.number("transBatchA", 0) or call.number("transBatchB", 0):
            raise _UnexpectedError
        made = (*batch, a[-2], b[-1])
        return [made], matmul_flops(made, a[-1])

    return answer


def _broadcast(a: Sequence[int], b: Sequence[int]) -> Dims:
    rank = max(len(a), len(b))
    pairs = list(zip([1] * (rank - len(a)) + [*a], [1] * (rank - len(b)) + [*b], strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        raise _UnexpectedError
    return tuple(y if x == 1 else x for x, y in pairs)


def _few_bits(call: ContribCall) -> Answer:
    """A product with a matrix in few bits, whose sizes are attributes."""
    made = (*call.dims(0)[:-1], call.number("N"))
    return [made], matmul_flops(made, call.number("K"))


def _gathered(call: ContribCall) -> Answer:
    """Rows of a table in few bits, with two or more elements to a byte."""
    table, places = call.dims(0, 2), call.dims(1)
    if call.number("gather_axis", 0):
        raise _UnexpectedError
    width = call.dims(2)[-1] * call.number("block_size", 128)
    packed = table[1] * 8 // call.number("bits", 4)
    return [(*places, packed if packed <= width else table[1])], 0


def _projected_attention(call: ContribCall) -> Answer:
    """Attention with the product that makes queries, keys and values."""
    (batch, tokens, _), (inner, outer), heads = (
        call.dims(0, 3),
        call.dims(1, 2),
        call.number("num_heads"),
    )
    sizes = call.attributes.get("qkv_hidden_sizes") or [outer // 3] * 3
    if (
        not isinstance(sizes, list)
        or len(sizes) != 3
        or not all(type(n) is int and n > 0 for n in sizes)
    ):
        raise _UnexpectedError
    past = call.dims(4, 5)[3] if call.at(4) is not None else 0
    length = past + tokens
    shown = _Heads(
        (batch, heads, tokens, sizes[0] // heads),
        (batch, heads, length, sizes[1] // heads),
        (batch, heads, length, sizes[2] // heads),
    )
    flops = matmul_flops((batch, tokens, outer), inner) + shown.flops
    return [shown.result, (2, batch, heads, length, sizes[0] // heads)], flops


def _quantised_attention(call: ContribCall) -> Answer:
    """Like :func:`_projected_attention`, with scales and zero points among the inputs, and the past
    as the ninth input.
    """
    inputs = (call.at(0), call.at(1), call.at(2), None, call.at(8))
    return _projected_attention(ContribCall(inputs, call.attributes))


def _multi_head(call: ContribCall) -> Answer:
    heads = call.number("num_heads")
    query = call.dims(0, 3, 5)
    if len(query) == 5:  # queries, keys and values in one
        batch, tokens, heads, _, width = query
        key: Dims = (batch, heads, tokens, width)
        shown = _Heads(key, key, key)
    elif call.at(1) is None:
        raise _UnexpectedError
    else:
        batch, tokens, hidden = query
        width, key = hidden // heads, call.dims(1, 3, 4, 5)
        length = key[2] if len(key) == 4 else key[1]
        value = call.at(2)
        wide = width if value is None else value[3] if len(value) == 4 else value[2] // heads
        shown = _Heads(
            (batch, heads, tokens, width),
            (batch, heads, length, width),
            (batch, heads, length, wide),
        )
    return _with_past(shown, call.at(6))


def _grouped_query(call: ContribCall) -> Answer:
    """Attention of groups of heads that share keys; without an input for keys, the queries' input
    also has the keys and values.
    """
    heads, shared = call.number("num_heads"), call.number("kv_num_heads")
    batch, tokens, hidden = call.dims(0, 3)
    if call.at(1) is None:
        width = hidden // (heads + 2 * shared)
        length = tokens
    else:
        width, key = hidden // heads, call.dims(1, 3, 4)
        length = key[1] if len(key) == 3 else key[2]
    kept: Dims = (batch, shared, length, width)
    return _with_past(_Heads((batch, heads, tokens, width), kept, kept), call.at(3))


def _with_past(shown: _Heads, past: Dims | None) -> Answer:
    """Attention that includes earlier tokens, and the keys and values of all tokens."""
    before = past[2] if past is not None and len(past) == 4 else 0

    def longer(shape: Dims) -> Dims:
        return (*shape[:2], shape[2] + before, shape[3])

    every = _Heads(shown.query, longer(shown.key), longer(shown.value))
    return [every.result, every.key, every.value], every.flops


def _experts(places: Sequence[int], packed: bool) -> Callable[[ContribCall], Answer]:
    """The products of each token with the matrices of ``k`` experts."""

    def answer(call: ContribCall) -> Answer:
        shape = call.dims(0)
        elements = sum(
            prod(call.dims(place, 3)[1:]) for place in places if call.at(place) is not None
        )
        if packed:
            elements = elements * 8 // call.number("expert_weight_bits", 4)
        return [shape], 2 * prod(shape[:-1]) * call.number("k", 1) * elements

    return answer


_OPERATORS: Mapping[str, Callable[[ContribCall], Answer]] = {
    **dict.fromkeys(
        """BiasGelu FastGelu QuickGelu Gelu BiasAdd BiasDropout BitmaskDropout BitmaskBiasDropout RotaryEmbedding GemmaRotaryEmbedding
        DequantizeLinear QuantizeLinear QLinearSigmoid QLinearLeakyRelu QLinearSoftmax GroupNorm SkipGroupNorm Inverse Rfft
        Trilu""".split(),  # noqa: SIM905
        lambda call: ([call.dims(0)], 0),
    ),
    **dict.fromkeys(
        """LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization""".split(),  # noqa: SIM905
        _normalised,
    ),
    "EmbedLayerNormalization": _embedded,
    "BiasSplitGelu": _halved,
    **dict.fromkeys(
        """FusedMatMul FusedMatMulActivation TransposeMatMul GemmFastGelu GemmFloat8 MatMulInteger16 MatMulIntegerToFloat
        DynamicQuantizeMatMul""".split(),  # noqa: SIM905
        _product(1),
    ),
    "QGemm": _product(3),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _few_bits),
    "GatherBlockQuantized": _gathered,
    "Attention": _projected_attention,
    "QAttention": _quantised_attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped_query,
    "MoE": _experts((2, 4, 6), packed=False),
    "QMoE": _experts((2, 5, 8), packed=True),
}


_PRODUCTS = {"MatMul", "MatMulInteger", "QLinearMatMul"}


def onnx_flops(
    operator: str, inputs: Sequence[Dims | None], made: Dims, attributes: Mapping[str, Any]
) -> int:
    """The FLOP of an operator with inputs of these shapes (``None``: absent) whose first output has
    the shape ``made``.

    It is 0 for operators that are bound by the bytes they move, and for operands of unexpected
    rank.
    """
    shapes = list(inputs)
    if operator in ("QLinearMatMul", "QLinearConv"):
        shapes = shapes[0:1] + shapes[3:4]  # without the scales and zero points between them
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
    """The class of kernels of a product with one matrix, and its sizes; else :data:`UNKNOWN`."""
    if operator not in ("MatMul", "Gemm") or len(inputs) < 2 or inputs[1] is None:
        return UNKNOWN
    return product_kernel(made, inputs[1], flops)


def _attention(inputs: Sequence[Dims | None], attributes: Mapping[str, Any]) -> int:
    """The FLOP of queries times keys and weights times values, with past ones and those that a
    causal mask hides.
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
    """The FLOP of an einsum of two operands without an ellipsis: twice the product of all sizes."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != 2 or [*map(len, terms)] != [*map(len, given)]:
        return 0
    sizes = dict(zip("".join(terms), chain(*given), strict=True))
    shared = set(terms[0]) & set(terms[1])
    return 2 * prod(sizes.values()) if shared else 0

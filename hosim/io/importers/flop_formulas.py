"""FLOP of matrix products, convolutions, attention and their gradients, from shapes. As in torch's
counter, each multiplication counts as two FLOP.

Every importer that does not run torch uses these formulas. Tests compare them with
``torch.utils.flop_counter``.
"""

from collections.abc import Sequence
from math import prod

Dims = Sequence[int]


def matmul_flops(made: Dims, inner: int) -> int:
    """The FLOP of a matrix product. ``made`` is the shape of its result, of which each element sums
    ``inner`` products.
    """
    return 2 * prod(made) * inner


def convolution_flops(positions: Dims, weight: Dims) -> int:
    """The FLOP of a convolution by ``weight``. ``positions`` is the shape of its result, or of its
    input if it is transposed.
    """
    return 2 * prod(positions) * prod(weight[1:])


def weight_gradient_flops(gradient: Dims, given: Dims, weight: Dims) -> int:
    """The FLOP of the gradient of a convolution's weight. ``gradient`` is the shape of the result's
    gradient, ``given`` that of the input. As in torch's counter, groups do not reduce it.
    """
    return 2 * prod(weight[2:]) * given[1] * prod(gradient)


def attention_flops(query: Dims, key: Dims, value: Dims) -> int:
    """The FLOP of attention over ``[batch, heads, tokens, width]``: queries times keys, and weights
    times values. Masked positions count, too.
    """
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (width + value[3])


def attention_gradient_flops(query: Dims, key: Dims, value: Dims) -> int:
    """The FLOP of the backward pass of :func:`attention_flops`: three products of the width of
    keys, including the recomputed weights, and two of the width of values.
    """
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (3 * width + 2 * value[3])


def recurrent_flops(tokens: int, *matrices: Dims) -> int:
    """The FLOP of a recurrent layer that multiplies each of ``tokens`` (summed over all sequences)
    by these matrices.
    """
    return 2 * tokens * sum(map(prod, matrices))

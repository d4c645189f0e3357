"""FLOP of products, convolutions, attention and their gradients from shapes, two for each
multiplication: what torch's counter counts.

Every importer that does not run torch counts by these. Tests hold them against
``torch.utils.flop_counter``.
"""

from collections.abc import Sequence
from math import prod

Dims = Sequence[int]


def matmul_flops(made: Dims, inner: int) -> int:
    """A product with a result of the shape ``made``, each element of which adds up ``inner``
    multiplications.
    """
    return 2 * prod(made) * inner


def convolution_flops(positions: Dims, weight: Dims) -> int:
    """A convolution by ``weight``. ``positions`` is the shape of its result, or of the input of a
    transposed one.
    """
    return 2 * prod(positions) * prod(weight[1:])


def weight_gradient_flops(gradient: Dims, given: Dims, weight: Dims) -> int:
    """The gradient of a convolution's weight from that of its result and its input. As in torch,
    groups make it no smaller.
    """
    return 2 * prod(weight[2:]) * given[1] * prod(gradient)


def attention_flops(query: Dims, key: Dims, value: Dims) -> int:
    """Attention of ``[batch, heads, tokens, width]``: queries times keys, and weights times values,
    those too that a mask hides.
    """
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (width + value[3])


def attention_gradient_flops(query: Dims, key: Dims, value: Dims) -> int:
    """The backward pass of :func:`attention_flops`: three products as wide as keys, the weights'
    again among them, and two as values.
    """
    batch, heads, queries, width = query
    return 2 * batch * heads * queries * key[2] * (3 * width + 2 * value[3])


def recurrent_flops(tokens: int, *matrices: Dims) -> int:
    """A recurrent layer that multiplies each of ``tokens`` (over all sequences) by these
    matrices.
    """
    return 2 * tokens * sum(map(prod, matrices))

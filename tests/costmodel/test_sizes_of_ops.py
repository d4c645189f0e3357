"""The class and sizes of products and attention, from the shapes of their operands."""

import pytest

from hosim.analysis.costmodel.kernels import (
    CLASSES,
    NO_WINDOW,
    UNKNOWN,
    causal_kernel,
    full_kernel,
    product_kernel,
)


@pytest.mark.parametrize(
    ("made", "second", "depth", "sizes"),
    [
        ((3, 7), (5, 7), 5, (3, 7, 5)),
        ((2, 3, 7), (5, 7), 5, (6, 7, 5)),  # a batch of rows
        ((2, 3, 7), (7, 5), 5, (6, 7, 5)),  # transposed
        ((1, 3, 7), (1, 5, 7), 5, (3, 7, 5)),  # a batch of one
        ((2, 3, 7), (2, 5, 7), 5, None),  # a matrix for each
        ((7,), (5, 7), 5, (1, 7, 5)),
        ((3,), (5,), 5, None),  # with a vector
        ((0, 7), (5, 7), 5, None),
        ((3, 7), (0, 7), 0, None),
    ],
)
def test_products(made, second, depth, sizes) -> None:
    flops = 2 * depth
    for n in made:
        flops *= n
    assert product_kernel(made, second, flops) == (UNKNOWN if sizes is None else ("gemm", sizes))


@pytest.mark.parametrize(
    ("query", "key", "out_width", "expected"),
    [
        ((2, 8, 5, 16), (2, 2, 9, 16), 16, ("context_attention", (2, 5, 4, 8, 2, 16, NO_WINDOW))),
        ((2, 8, 5, 24), (2, 8, 9, 24), 16, ("context_latent", (2, 5, 4, 8))),
        ((2, 8, 1, 16), (2, 2, 9, 16), 16, ("generation_attention", (2, 9, 8, 2, 16))),
        ((2, 8, 1, 24), (2, 1, 9, 24), 16, ("latent_attention", (2, 9, 8))),
    ],
)
def test_attention(query, key, out_width, expected) -> None:
    assert causal_kernel(query, key, out_width) == expected
    assert len(expected[1]) == len(CLASSES[expected[0]].sizes)


@pytest.mark.parametrize(
    ("query", "key", "out_width", "expected"),
    [
        ((2, 8, 5, 16), (2, 2, 9, 16), 16, ("full_attention", (2, 5, 9, 8, 2, 16))),
        ((2, 8, 1, 16), (2, 2, 9, 16), 16, ("generation_attention", (2, 9, 8, 2, 16))),
        ((2, 8, 5, 24), (2, 8, 9, 24), 16, UNKNOWN),
    ],
)
def test_attention_without_a_mask(query, key, out_width, expected) -> None:
    assert full_kernel(query, key, out_width) == expected
    assert not expected[0] or len(expected[1]) == len(CLASSES[expected[0]].sizes)

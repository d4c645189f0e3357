"""The FLOP of ONNX operators from shapes alone; onnx is not needed."""

from math import prod

import pytest

from hosim.io.importers.onnx import onnx_flops, onnx_kernel

A, B, BATCHES = (2, 3), (3, 4), (5, 2, 3)
Q, K, V = (2, 8, 5, 4), (2, 2, 9, 4), (2, 2, 9, 6)
Q3, K3, V3 = (2, 5, 32), (2, 9, 8), (2, 9, 12)
HEADS = {"q_num_heads": 8, "kv_num_heads": 2}


@pytest.mark.parametrize(
    ("operator", "inputs", "made", "attributes", "expected"),
    [
        *((operator, (A, B), (2, 4), {}, 2 * 8 * 3) for operator in ("MatMul", "MatMulInteger")),
        ("QLinearMatMul", (A, (), (), B, (), ()), (2, 4), {}, 2 * 8 * 3),
        (
            "QLinearConv",
            ((1, 2, 5, 5), (1,), (1,), (3, 2, 3, 3), (3,)),
            (1, 3, 3, 3),
            {},
            2 * 27 * 18,
        ),
        ("QLinearMatMul", (A, B), (2, 4), {}, 0),  # no second operand
        ("Gemm", (A, B), (2, 4), {"transA": 0}, 2 * 8 * 3),
        ("Gemm", (A, B), (3, 4), {"transA": 1}, 2 * 12 * 2),
        *(
            (operator, ((1, 4, 8, 8), (6, 2, 3, 3)), (1, 6, 6, 6), {}, 2 * 216 * 18)
            for operator in ("Conv", "ConvInteger", "DeformConv")
        ),
        ("ConvTranspose", ((1, 4, 5, 5), (4, 3, 2, 2)), (1, 3, 10, 10), {}, 2 * 100 * 12),
        *(
            (operator, ((7, 2, 5), (1, 12, 5), (1, 12, 3)), (7, 1, 2, 3), {}, 2 * 14 * 96)
            for operator in ("LSTM", "GRU", "RNN")
        ),
        ("LSTM", ((7, 2, 5), (1, 12, 5)), (7, 1, 2, 3), {}, 0),
        ("LSTM", ((7, 2), (1, 12, 5), (1, 12, 3)), (7, 1, 2, 3), {}, 0),
        ("Add", (A, A), A, {}, 0),
        ("MatMul", (A,), A, {}, 0),
        ("MatMul", (A, None), A, {}, 0),
        ("MatMul", ((), B), (), {}, 0),
        ("MatMul", (B, ()), (), {}, 0),
        ("MatMul", (None, A, B), (2, 4), {}, 2 * 8 * 3),
    ],
)
def test_products(
    operator: str, inputs: tuple, made: tuple[int, ...], attributes: dict, expected: int
) -> None:
    assert onnx_flops(operator, inputs, made, attributes) == expected


@pytest.mark.parametrize(
    ("inputs", "attributes", "expected"),
    [
        ((Q, K, V), {}, 2 * 2 * 8 * 5 * 9 * (4 + 6)),
        ((Q, K, V, None, None, None, None), {}, 2 * 2 * 8 * 5 * 9 * (4 + 6)),
        ((Q, K, V, (5, 12), (2, 2, 3, 4)), {}, 2 * 2 * 8 * 5 * 12 * (4 + 6)),
        (
            (Q, K, V, (5, 12), (2, 3, 4)),
            {},
            2 * 2 * 8 * 5 * 9 * (4 + 6),
        ),  # no past keys have this rank
        ((Q3, K3, V3), HEADS, 2 * 2 * 5 * 9 * (32 + 12 // 2 * 8)),
        ((Q3, K3, V3), {"q_num_heads": 3, "kv_num_heads": 1}, 2 * 2 * 5 * 9 * (32 + 12 * 3)),
        ((Q3, K3, V3), {}, 0),
        ((Q3, K3, V3), {"q_num_heads": 8}, 0),
        ((Q3, K3, V3), {"q_num_heads": 1.5, "kv_num_heads": 2}, 0),
        ((Q3, K3, V3), {"q_num_heads": 8, "kv_num_heads": 1.5}, 0),
        ((Q, K, None), {}, 0),
        ((Q, None, V), {}, 0),
        ((None, K, V), {}, 0),
        ((Q, K, V3), {}, 0),
        ((Q, K3, V), {}, 0),
        (((2, 3), (2, 3), (2, 3)), HEADS, 0),
        (((1, *Q), (1, *K), (1, *V)), HEADS, 0),
    ],
)
def test_attention(inputs: tuple, attributes: dict, expected: int) -> None:
    assert onnx_flops("Attention", inputs, (1,), attributes) == expected


@pytest.mark.parametrize(
    ("equation", "inputs", "expected"),
    [
        ("ij, jk -> ik", (A, B), 2 * 2 * 3 * 4),
        ("ij,jk", (A, B), 2 * 2 * 3 * 4),
        ("ij,kl->ijkl", (A, B), 0),  # nothing is added up
        ("ij,jk,kl->il", (A, B, (4, 5)), 0),
        ("ij,jk->ik", (A, B, B), 0),
        ("ijk,jk->ik", (A, B), 0),
        ("ij,j->ik", (A, B), 0),
        ("...ij,jk", (BATCHES, B), 0),
    ],
)
def test_einsum(equation: str, inputs: tuple, expected: int) -> None:
    assert onnx_flops("Einsum", inputs, (1,), {"equation": equation}) == expected
    assert onnx_flops("Einsum", inputs, (1,), {}) == 0


@pytest.mark.parametrize(
    ("operator", "inputs", "made", "expected"),
    [
        ("MatMul", (A, B), (2, 4), ("gemm", (2, 4, 3))),
        ("Gemm", ((3, 2), (4, 3)), (2, 4), ("gemm", (2, 4, 3))),  # both transposed
        ("MatMul", (BATCHES, B), (5, 2, 4), ("gemm", (10, 4, 3))),
        ("MatMul", (BATCHES, (5, 3, 4)), (5, 2, 4), ("", ())),
        ("MatMul", (A, None), A, ("", ())),
        ("MatMul", (A,), A, ("", ())),
        ("MatMulInteger", (A, B), (2, 4), ("", ())),
    ],
)
def test_products_with_one_matrix_are_kernels(
    operator: str, inputs: tuple, made: tuple[int, ...], expected: tuple
) -> None:
    assert onnx_kernel(operator, inputs, made, 2 * prod(made) * 3) == expected

"""FLOP of recorded calls by shapes: what torch's own counter says of the same calls."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import flop_registry

from hosim.io.importers import CallShapes, aten_flops, aten_kernel, composed_flops

aten = torch.ops.aten
FOR_CPU = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: aten._scaled_dot_product_flash_attention_backward,
}


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def described(call: Any, args: tuple, result: Any) -> CallShapes:
    """A call as a recording has it."""
    shapes = [list(a.shape) if isinstance(a, torch.Tensor) else None for a in args]
    made = [
        list(r.shape) if isinstance(r, torch.Tensor) else None
        for r in (result if isinstance(result, (tuple, list)) else [result])
    ]
    return CallShapes(call.__name__, shapes, args, made)


def convolution(groups: int, transposed: bool) -> tuple:
    weight = empty(8, 6 // groups if not transposed else 6, 3, 3)
    given = empty(2, 8 if transposed else 6, 9, 9)
    return given, weight, None, [2, 2], [1, 1], [1, 1], transposed, [0, 0], groups


def gradient(groups: int, transposed: bool, asked: list[bool]) -> tuple:
    given, weight, _, *rest = convolution(groups, transposed)
    made = aten.convolution(given, weight, None, *rest)
    return empty(*made.shape), given, weight, [weight.shape[0]], *rest, asked


Q, K, V = empty(2, 8, 5, 4), empty(2, 8, 9, 4), empty(2, 8, 9, 4)
CALLS = [
    (aten.mm, (empty(5, 3), empty(3, 4))),
    (aten.bmm, (empty(7, 5, 3), empty(7, 3, 4))),
    (aten.addmm, (empty(4), empty(5, 3), empty(3, 4))),
    (aten.baddbmm, (empty(7, 5, 4), empty(7, 5, 3), empty(7, 3, 4))),
    *(
        (aten.convolution, convolution(groups, transposed))
        for groups, transposed in ((1, False), (2, False), (1, True))
    ),
    *(
        (aten.convolution_backward, gradient(groups, transposed, [a, b, True]))
        for groups, transposed in ((1, False), (2, False), (1, True))
        for a, b in ((True, True), (False, True), (True, False))
    ),
    (aten._scaled_dot_product_flash_attention_for_cpu, (Q, K, V)),
    (
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
        (Q, Q, K, V, Q, empty(2, 8, 5), 0.0, False),
    ),
]


@pytest.mark.parametrize(("call", "args"), CALLS)
def test_as_torch_counts(call: Any, args: tuple) -> None:
    result = call(*args)
    expected = flop_registry[FOR_CPU.get(call, call)](*args, out_val=result)
    assert expected > 0
    assert aten_flops(described(call, args, result)) == expected


def test_operators_that_call_others() -> None:
    x, w = [5, 3], [4, 3]
    assert (
        composed_flops(CallShapes("linear", [x, w]))
        == composed_flops(CallShapes("matmul", [x, [3, 4]], (), [[5, 4]]))
        == 2 * 5 * 4 * 3
    )
    assert composed_flops(CallShapes("conv1d", [[2, 3, 9], [4, 3, 2]], (), [[2, 4, 8]])) == 2 * (
        2 * 4 * 8
    ) * (3 * 2)
    assert (
        composed_flops(CallShapes("scaled_dot_product_attention", [[2, 8, 5, 4]] * 3))
        == 2 * 2 * 8 * 5 * 5 * 8
    )
    assert composed_flops(CallShapes("relu", [x])) is None
    assert aten_flops(CallShapes("linear", [x, w])) is None  # its addmm is counted


def test_rows_in_groups_recurrent_layers_and_tokens_first() -> None:
    # rows by groups, 7 x 3 with matrices 3 x 5; columns by groups, the same; matrices in batches, 4
    # of 7 x 3 with 3 x 5
    for given, matrices, expected in (
        ([7, 3], [4, 3, 5], 210),
        ([7, 3], [3, 5], 210),
        ([4, 7, 3], [4, 3, 5], 840),
        ([4, 7, 3], [3, 5], None),
    ):
        for name in (
            "_grouped_mm",
            "grouped_mm_fallback",
        ):  # torch's, and what transformers calls where torch has none
            assert aten_flops(CallShapes(name, [given, matrices, [4]])) == expected
    for name, times in (("mkldnn_rnn_layer", 1), ("mkldnn_rnn_layer_backward", 2)):
        assert aten_flops(CallShapes(name, [[7, 2, 5], [12, 5], [12, 3]])) == times * 2 * 14 * (
            60 + 36
        )
    assert (
        aten_flops(CallShapes("mv", [[5, 3], [3]]))
        == aten_flops(CallShapes("addmv", [[5], [5, 3], [3]]))
        == 2 * 15
    )
    # two sequences of 5 queries and 9 keys, 8 heads and 2 of them, 4 wide
    assert (
        aten_flops(CallShapes("_flash_attn_forward", [[2, 5, 8, 4], [2, 9, 2, 4], [2, 9, 2, 4]]))
        == 2 * 2 * 8 * 5 * 9 * 8
    )


@pytest.mark.parametrize(
    "operator",
    ["mm", "addmm", "convolution", "convolution_backward", "_grouped_mm", "mkldnn_rnn_layer"],
)
@pytest.mark.parametrize("shapes", [[], [None] * 3, [[]] * 3, [[2], [2], [2]]])
def test_unexpected_shapes_are_not_counted(operator: str, shapes: list) -> None:
    assert aten_flops(CallShapes(operator, shapes, (), [[1]])) is None


def test_kernels() -> None:
    assert aten_kernel(CallShapes("addmm", [[4], [5, 3], [3, 4]], (), [[5, 4]]), 120) == (
        "gemm",
        (5, 4, 3),
    )
    q = [2, 8, 5, 4]
    flash = CallShapes("_scaled_dot_product_flash_attention", [q, q, q], (0, 0, 0, 0.0, True))
    assert aten_kernel(flash, 1) == ("context_attention", (2, 5, 0, 8, 8, 4, 2**40))
    for causal, expected in ((False, ("full_attention", (2, 5, 5, 8, 8, 4))), (None, ("", ()))):
        said = CallShapes("_scaled_dot_product_flash_attention", [q, q, q], (0, 0, 0, 0.0, causal))
        assert aten_kernel(said, 1) == expected
    assert aten_kernel(CallShapes("relu", [q]), 0)[0] == ""

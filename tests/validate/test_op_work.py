"""FLOP and bytes of operators by their shapes, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from kineto_toys import KERNEL, call, device_op, span, trace

from hosim.importers.kineto import parse_kineto
from hosim.validate.op_work import Counted, OpWork, work_of

F, H = "float", "c10::Half"


def launched(*operators: tuple[str, list[Any], list[str], list[str]]) -> Counted:
    """Each operator launches kernels of these names, of 5 us each."""
    events, at, number = [], 0, 0
    for name, shapes, dtypes, kernels in operators:
        events.append(span("cpu_op", name, at, 90, **{"Input Dims": shapes, "Input type": dtypes}))
        for k, kernel in enumerate(kernels):
            number += 1
            events.append(call("cudaLaunchKernel", at + 2 + 10 * k, 5, number))
            events.append(device_op(KERNEL, kernel, at + 9 + 10 * k, 5, number))
        at += 100
    return work_of(parse_kineto(trace(*events), "toy"))


CASES = {
    "mm": ("aten::mm", [[8, 4], [4, 2]], [H, H], ["gemm"], OpWork("matmul", "fp16", 128, 2 * (32 + 8 + 16), 5000)),
    "addmm": ("aten::addmm", [[2], [8, 4], [4, 2]], [F, F, F], ["gemm"], OpWork("matmul", "fp32", 128, 4 * (2 + 32 + 8 + 16), 5000)),
    "tf32": ("aten::mm", [[8, 4], [4, 2]], [F, F], ["x_tf32f32_y"], OpWork("matmul", "tf32", 128, 4 * 56, 5000)),
    "bmm": ("aten::bmm", [[3, 8, 4], [3, 4, 2]], [F, F], ["a", "b"], OpWork("matmul", "fp32", 384, 12 * 56, 10000)),
    "attention": (
        "aten::_scaled_dot_product_flash_attention",
        [[1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 6]],
        [H, H, H],
        ["flash"],
        OpWork("scaled_dot_product_flash_attention", "fp16", 2 * 2 * 3 * 5 * 10, 2 * (24 + 40 + 60 + 36), 5000),
    ),
    "broadcast": ("aten::add", [[4, 1], [3]], [F, F], ["k"], OpWork("elementwise", "fp32", 0, 4 * (4 + 3 + 12), 5000)),
    "in place": ("aten::add_", [[4, 3], [3]], [F, F], ["k"], OpWork("elementwise", "fp32", 0, 4 * (12 + 3 + 12), 5000)),
    "fill": ("aten::fill_", [[4, 3], []], [F, "Scalar"], ["k"], OpWork("fill", "fp32", 0, 48, 5000)),
    "a number first": ("aten::mul", [[], [4, 3]], ["Scalar", F], ["k"], OpWork("elementwise", "fp32", 0, 4 * 24, 5000)),
    "softmax": ("aten::_softmax", [[4, 3], []], [F, "Scalar"], ["k"], OpWork("softmax", "fp32", 0, 96, 5000)),
}


@pytest.mark.parametrize("case", CASES)
def test_work_by_hand(case: str) -> None:
    *operator, expected = CASES[case]
    found = launched(tuple(operator)).works
    if case == "attention":
        assert [(w.flops, w.bytes_accessed, w.dtype) for w in found] == [(expected.flops, expected.bytes_accessed, expected.dtype)]
    else:
        assert found == (expected,)


INPUT, WEIGHT, OUTPUT = [2, 3, 8, 8], [16, 3, 3, 3], [2, 16, 4, 4]
ONE_WAY = 2 * (2 * 16 * 4 * 4) * (3 * 3 * 3)


def test_a_convolution_and_its_backward_pass() -> None:
    """The stride of 2 is not recorded: the output's shape is that of its gradient."""
    forward = ("aten::cudnn_convolution", [INPUT, WEIGHT, []], [F, F, "ScalarList"], ["fprop"])
    backward = ("aten::convolution_backward", [OUTPUT, INPUT, WEIGHT], [F, F, F], ["x_dgrad_y", "x_wgrad_y"])
    works = launched(forward, backward).works
    assert [(w.kind, w.flops, w.time_ns) for w in works] == [("convolution", ONE_WAY, 5000), ("convolution_backward", 2 * ONE_WAY, 10000)]
    assert works[0].bytes_accessed == 4 * (384 + 432 + 512)
    only_weights = ("aten::convolution_backward", [OUTPUT, INPUT, WEIGHT], [F, F, F], ["x_wgrad_y"])
    assert launched(only_weights).works[0].flops == ONE_WAY
    older = ("aten::cudnn_convolution_backward", [INPUT, OUTPUT, WEIGHT], [F, F, F], ["x_dgrad_y", "x_wgrad_y"])
    assert [w.flops for w in launched(forward, older).works] == [ONE_WAY, 2 * ONE_WAY]


def test_what_shapes_do_not_tell_is_left_out() -> None:
    found = launched(
        ("aten::cudnn_convolution", [INPUT, WEIGHT], [F, F], ["fprop"]),
        ("aten::mystery", [[4]], [F], ["k", "k"]),
        ("aten::mm", [], [], ["gemm"]),
        ("aten::mm", [[4, 4], [5, 4]], [F, F], ["gemm"]),
    )
    assert found.works == ()
    assert (found.kernels_left_out, found.time_left_out_ns) == (5, 25_000)

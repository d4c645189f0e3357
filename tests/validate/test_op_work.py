"""FLOP and bytes of operators by their shapes, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from kineto_toys import COPY, KERNEL, MEMSET, call, device_op, span, trace

from hosim.io.importers.recordings import parse_kineto
from hosim.validate.op_costs import Counted, OpWork, work_of

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
    "mm": (
        "aten::mm",
        [[8, 4], [4, 2]],
        [H, H],
        ["gemm"],
        OpWork("matmul_unaligned", "fp16", 128, 2 * (32 + 8 + 16), 5000),
    ),
    "addmm": (
        "aten::addmm",
        [[2], [8, 4], [4, 2]],
        [F, F, F],
        ["gemm"],
        OpWork("matmul", "fp32", 128, 4 * (2 + 32 + 8 + 16), 5000),
    ),
    "tf32": (
        "aten::mm",
        [[8, 4], [4, 2]],
        [F, F],
        ["x_tf32f32_y"],
        OpWork("matmul", "tf32", 128, 4 * 56, 5000),
    ),
    "bmm": (
        "aten::bmm",
        [[3, 8, 4], [3, 4, 2]],
        [F, F],
        ["a", "b"],
        OpWork("matmul", "fp32", 384, 12 * 56, 10000),
    ),
    "attention": (
        "aten::_scaled_dot_product_flash_attention",
        [[1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 6]],
        [H, H, H],
        ["flash"],
        OpWork(
            "scaled_dot_product_flash_attention",
            "fp16",
            2 * 2 * 3 * 5 * 10,
            2 * (24 + 40 + 60 + 36),
            5000,
        ),
    ),
    "broadcast": (
        "aten::add",
        [[4, 1], [3]],
        [F, F],
        ["k"],
        OpWork("elementwise", "fp32", 0, 4 * (4 + 3 + 12), 5000),
    ),
    "in place": (
        "aten::add_",
        [[4, 3], [3]],
        [F, F],
        ["k"],
        OpWork("elementwise", "fp32", 0, 4 * (12 + 3 + 12), 5000),
    ),
    "fill": (
        "aten::fill_",
        [[4, 3], []],
        [F, "Scalar"],
        ["k"],
        OpWork("fill", "fp32", 0, 48, 5000),
    ),
    "a number first": (
        "aten::mul",
        [[], [4, 3]],
        ["Scalar", F],
        ["k"],
        OpWork("elementwise", "fp32", 0, 4 * 24, 5000),
    ),
    "softmax": (
        "aten::_softmax",
        [[4, 3], []],
        [F, "Scalar"],
        ["k"],
        OpWork("softmax", "fp32", 0, 96, 5000),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_work_by_hand(case: str) -> None:
    *operator, expected = CASES[case]
    found = launched(tuple(operator)).works
    if case == "attention":
        assert [(w.flops, w.bytes_accessed, w.dtype) for w in found] == [
            (expected.flops, expected.bytes_accessed, expected.dtype)
        ]
    else:
        assert found == (expected,)


INPUT, WEIGHT, OUTPUT = [2, 3, 8, 8], [16, 3, 3, 3], [2, 16, 4, 4]
ONE_WAY = 2 * (2 * 16 * 4 * 4) * (3 * 3 * 3)


def test_a_convolution_and_its_backward_pass() -> None:
    """The stride of 2 is not recorded: the output's shape is that of its gradient."""
    forward = ("aten::cudnn_convolution", [INPUT, WEIGHT, []], [F, F, "ScalarList"], ["fprop"])
    backward = (
        "aten::convolution_backward",
        [OUTPUT, INPUT, WEIGHT],
        [F, F, F],
        ["x_dgrad_y", "x_wgrad_y"],
    )
    works = launched(forward, backward).works
    gradients = [("convolution_dgrad", ONE_WAY, 5000), ("convolution_wgrad", ONE_WAY, 5000)]
    assert [(w.kind, w.flops, w.time_ns) for w in works] == [
        ("convolution", ONE_WAY, 5000),
        *gradients,
    ]
    assert works[0].bytes_accessed == 4 * (384 + 432 + 512)
    only_weights = ("aten::convolution_backward", [OUTPUT, INPUT, WEIGHT], [F, F, F], ["x_wgrad_y"])
    assert launched(only_weights).works[0].flops == ONE_WAY
    older = (
        "aten::cudnn_convolution_backward",
        [INPUT, OUTPUT, WEIGHT],
        [F, F, F],
        ["x_dgrad_y", "x_wgrad_y"],
    )
    assert [w.flops for w in launched(forward, older).works] == [ONE_WAY, ONE_WAY, ONE_WAY]


def test_what_shapes_do_not_tell_is_left_out() -> None:
    found = launched(
        ("aten::cudnn_convolution", [INPUT, WEIGHT], [F, F], ["fprop"]),
        ("aten::mystery", [[4]], [F], ["k", "k"]),
        ("aten::mm", [], [], ["gemm"]),
        ("aten::mm", [[4, 4], [5, 4]], [F, F], ["gemm"]),
    )
    assert found.works == ()
    assert (found.kernels_left_out, found.time_left_out_ns) == (5, 25_000)


NAMES = {
    "float": 4,
    "double": 8,
    H: 2,
    "c10::BFloat16": 2,
    "long int": 8,
    "int": 4,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}


def test_bytes_by_data_type() -> None:
    found = launched(*(("aten::zero_", [[7]], [name], ["k"]) for name in NAMES)).works
    assert [work.bytes_accessed for work in found] == [7 * size for size in NAMES.values()]


SMALL: dict[str, tuple[list[Any], list[str], OpWork | None]] = {
    "aten::copy_": ([[4, 3], [4, 3], [2]], [F, H, H], OpWork("copy", "fp32", 0, 48 + 24, 5000)),
    "aten::sum": ([[4, 3], [7]], [F, F], OpWork("reduction", "fp32", 0, 48, 5000)),
    "aten::mean": ([[4, 3]], [F], OpWork("reduction", "fp32", 0, 48, 5000)),
    "aten::native_layer_norm": ([[4, 3], [7]], [F, F], OpWork("norm", "fp32", 0, 2 * 48, 5000)),
    "aten::native_layer_norm_backward": (
        [[4, 3], [7]],
        [F, F],
        OpWork("native_layer_norm_backward", "fp32", 0, 3 * 48, 5000),
    ),
    "aten::native_dropout": (
        [[4, 3]],
        [F],
        OpWork("random", "fp32", 0, 2 * 48 + 12, 5000),
    ),  # and a mask
    "aten::embedding": (
        [[100, 8], [2, 3]],
        [F, "long int"],
        OpWork("embedding", "fp32", 0, 6 * (2 * 32 + 8), 5000),
    ),
    "aten::cat": (
        [[[4, 3], [2, 3]], []],
        ["TensorList", "Scalar"],
        OpWork("copy", "fp32", 0, 2 * 18 * 4, 5000),
    ),
    "aten::_foreach_add_": (
        [[[4], [2]], [[4], [2]]],
        ["TensorList"] * 2,
        OpWork("foreach_add", "fp32", 0, 3 * 24, 5000),
    ),
    "aten::_foreach_mul_": ([[], []], ["TensorList"] * 2, None),
    "aten::max_pool2d_with_indices": ([[1, 1, 4, 4]], [F], None),  # its strides were not recorded
    "aten::gelu_backward": (
        [[4, 3], [4, 3]],
        [F, H],
        OpWork("gelu_backward", "fp32", 0, 48 + 24 + 48, 5000),
    ),
    "aten::add": ([[0], [0, 1]], [F, F], None),  # of nothing
    "aten::mul": (
        [[-1], [2]],
        [F, F],
        OpWork("elementwise", "fp32", 0, 2 * 8, 5000),
    ),  # no shape of a tensor
    "aten::baddbmm": (
        [[3, 8, 2], [3, 8, 4], [3, 4, 2]],
        [F] * 3,
        OpWork("matmul", "fp32", 2 * 3 * 8 * 2 * 4, 4 * (48 + 96 + 24 + 48), 5000),
    ),
    "aten::mm": ([[8, 4]], [F], None),
    "aten::bmm": ([[8, 4], [4]], [F, F], None),
    "aten::addmm": ([[4], [4, 8]], [F, F], None),
    "aten::_scaled_dot_product_cudnn_attention": ([[1, 2, 3, 4]] * 2, [H] * 2, None),
    "aten::_scaled_dot_product_efficient_attention": (
        [[1, 2, 3, 4], [2, 5, 4], [1, 2, 5, 6]],
        [H] * 3,
        None,
    ),
    "aten::convolution_backward": ([[1, 1, 2, 2], [1, 1, 4, 4]], [F] * 2, None),
    "aten::cudnn_convolution": ([[1, 1, 4, 4]], [F], None),
}


@pytest.mark.parametrize("name", SMALL)
def test_work_of_one_operator(name: str) -> None:
    shapes, dtypes, expected = SMALL[name]
    left = (0, 0) if expected else (1, 5000)
    found = launched((name, shapes, dtypes, ["k"]))
    assert (found.works, found.kernels_left_out, found.time_left_out_ns) == (
        (expected,) if expected else (),
        *left,
    )


def test_a_mask_of_an_attention_does_not_count() -> None:
    """Query 24, key 40, value 60 and result 36 items of two bytes; the mask is a fourth tensor."""
    shapes = [[1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 6], [3, 5]]
    (work,) = launched(
        ("aten::_scaled_dot_product_efficient_attention", shapes, [H] * 4, ["k"])
    ).works
    assert (work.flops, work.bytes_accessed) == (2 * 2 * 3 * 5 * (4 + 6), 2 * (24 + 40 + 60 + 36))


def test_convolutions_of_each_library() -> None:
    """A backward pass without a kernel that tells takes both gradients; it reads and writes
    gradient, input and weight.
    """
    both_bytes = 2 * 4 * (512 + 384 + 432)
    backward = ("aten::convolution_backward", [OUTPUT, INPUT, WEIGHT], [F, F, F], ["other"])
    (work,) = launched(backward).works
    assert work == OpWork("convolution_backward", "fp32", 2 * ONE_WAY, both_bytes, 5000)
    for name in (
        "dgrad",
        "bwd_data",
        "backward_data",
        "wgrad",
        "bwd_filter",
        "backward_filter",
        "bwd_weight",
    ):
        (work,) = launched((*backward[:3], [name, name])).works
        assert (work.flops, work.time_ns) == (ONE_WAY, 10_000)
    older = ("aten::miopen_convolution_backward", [INPUT, OUTPUT, WEIGHT], [F, F, F], ["bwd_data"])
    for name in (
        "aten::cudnn_convolution",
        "aten::miopen_convolution",
        "aten::_convolution",
        "aten::convolution",
    ):
        first, second = launched((name, [INPUT, WEIGHT], [F, F], ["s1688"]), older).works
        assert (first.dtype, first.flops, first.bytes_accessed) == (
            "tf32",
            ONE_WAY,
            4 * (384 + 432 + 512),
        )
        assert (second.flops, second.bytes_accessed) == (ONE_WAY, both_bytes // 2)
        assert first.kind == "convolution"


def test_kernels_count_for_the_operator_around_that_is_known() -> None:
    """A kernel of ``mystery`` within ``add``, a memset within nothing, a kernel that no call
    launched, and a copy, which never counts.
    """
    shapes = {"Input Dims": [[4], [4]], "Input type": [F, F]}
    events = [
        span("cpu_op", "aten::add", 0, 90, **shapes),
        span("cpu_op", "aten::mystery", 1, 50, **shapes),
        call("cudaLaunchKernel", 2, 5, 1),
        device_op(KERNEL, "inner", 9, 5, 1),
        call("cudaLaunchKernel", 60, 5, 2),
        device_op(KERNEL, "outer", 66, 7, 2),
        span("cpu_op", "aten::mystery", 100, 50, **shapes),
        call("cudaMemsetAsync", 102, 5, 3),
        device_op(MEMSET, "Memset", 110, 100, 3, bytes=8),
        device_op(KERNEL, "stray", 220, 3, 99),
        call("cudaMemcpyAsync", 130, 5, 4),
        device_op(COPY, "Memcpy HtoD (Pinned -> Device)", 230, 100, 4, bytes=8),
    ]
    found = work_of(parse_kineto(trace(*events), "toy"))
    assert found == Counted((OpWork("elementwise", "fp32", 0, 48, 12_000),), 1, 3_000)


def one(
    name: str, shapes: list[Any], dtypes: list[str], concrete: list[str], *kernels: str
) -> list[dict[str, Any]]:
    """An operator with recorded numbers, and its kernels of 5 us."""
    arguments = {"Input Dims": shapes, "Input type": dtypes, "Concrete Inputs": concrete}
    events = [span("cpu_op", name, 0, 90, **arguments)]
    for k, kernel in enumerate(kernels):
        events += [
            call("cudaLaunchKernel", 2 + 10 * k, 5, k),
            device_op(KERNEL, kernel, 9 + 10 * k, 5, k, grid=[8, 1, 1], block=[1, 1, 1]),
        ]
    return events


@pytest.mark.parametrize(
    ("name", "concrete"),
    [
        ("aten::cudnn_convolution", ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]),
        ("aten::convolution", ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]),
        ("aten::convolution", ["", "", "", "[2]", "[1]", "[1]", "False", "[0]", "1"]),
    ],
)
def test_the_output_of_a_convolution_follows_from_its_strides(
    name: str, concrete: list[str]
) -> None:
    """8 and a padding of 1 on either side, a window of 3, a stride of 2: (8 + 2 - 3) // 2 + 1 =
    4.
    """
    (work,) = work_of(
        parse_kineto(trace(*one(name, [INPUT, WEIGHT], [F, F], concrete, "fprop")), "toy")
    ).works
    assert (work.flops, work.bytes_accessed) == (ONE_WAY, 4 * (384 + 432 + 512))
    transposed = [*concrete[:6], "True", *concrete[7:]]
    found = work_of(
        parse_kineto(
            trace(*one("aten::convolution", [INPUT, WEIGHT], [F, F], transposed, "fprop")), "toy"
        )
    )
    assert found.works == ()


def test_a_change_of_layout_is_a_work_of_its_own() -> None:
    """Forward: input and weight to channels last, the output back. Backward: gradient and weight,
    gradient and input; both results back.
    """
    concrete = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]
    kernels = ("nchwToNhwcKernel", "nchwToNhwcKernel", "fprop", "nhwcToNchwKernel")
    layout, product = work_of(
        parse_kineto(
            trace(*one("aten::cudnn_convolution", [INPUT, WEIGHT], [F, F], concrete, *kernels)),
            "toy",
        )
    ).works
    assert (layout.kind, layout.bytes_accessed, layout.time_ns) == (
        "layout",
        2 * 4 * (384 + 432 + 512),
        15_000,
    )
    assert (product.kind, product.time_ns, product.ops) == ("convolution", 5000, (2,))
    backward = (
        "aten::convolution_backward",
        [OUTPUT, INPUT, WEIGHT],
        [F] * 3,
        ["nchwToNhwc"] * 4 + ["dgrad", "wgrad"] + ["nhwcToNchw"] * 2,
    )
    layout, *products = launched(backward).works
    assert (layout.bytes_accessed, layout.time_ns) == (2 * 4 * (2 * 512 + 2 * (384 + 432)), 30_000)
    assert [work.kind for work in products] == ["convolution_dgrad", "convolution_wgrad"]


def test_a_pool_by_its_window_and_lists_by_their_kernels() -> None:
    arguments = [[2, 3, 8, 8]], [F], ["", "[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]", "False"]
    (pool,) = work_of(
        parse_kineto(trace(*one("aten::max_pool2d_with_indices", *arguments, "k")), "toy")
    ).works
    assert (pool.kind, pool.bytes_accessed) == ("pool", 4 * 384 + 96 * (4 + 8))
    lists = [[[4, 3], [2, 3]]], ["TensorList"], [""]
    (cat,) = work_of(
        parse_kineto(
            trace(*one("aten::cat", *lists, "CatArrayBatchedCopy<OpaqueType<2u>, int>")), "toy"
        )
    ).works
    assert (cat.dtype, cat.bytes_accessed) == ("bf16", 2 * 18 * 2)


def test_kinds_by_what_kernels_do() -> None:
    """An index for each element, or contiguous memory; rows of 16 bits that begin at multiples of
    16 bytes, or not.
    """
    add = ("aten::add", [[4], [4]], [F, F])
    works = launched(
        (*add, ["elementwise_kernel<128, 4>"]),
        (*add, ["vectorized_elementwise_kernel<4>"]),
        (*add, ["other"]),
    ).works
    assert [work.kind for work in works] == ["elementwise_strided", "elementwise", "elementwise"]
    aligned, not_aligned, wide = launched(
        ("aten::mm", [[3, 16], [16, 8]], [H, H], ["k"]),
        ("aten::mm", [[3, 16], [16, 9]], [H, H], ["k"]),
        ("aten::mm", [[3, 16], [16, 9]], [F, F], ["k"]),
    ).works
    assert [(work.kind, work.kernel) for work in (aligned, not_aligned, wide)] == [
        ("matmul", "gemm"),
        ("matmul_unaligned", ""),
        ("matmul", "gemm"),
    ]
    assert aligned.sizes == (3, 8, 16)


def test_attention_as_a_class_of_kernels() -> None:
    """Causal, a query sees up to itself; else as many keys as the mean of a causal one that has
    half of its queries before.
    """
    shapes = [[2, 4, 16, 8], [2, 2, 16, 8], [2, 2, 16, 8]]
    for causal, before in (("True", 0), ("False", 8)):
        concrete = ["", "", "", "0.", causal, "False"]
        events = one(
            "aten::_scaled_dot_product_flash_attention", shapes, [H] * 3, concrete, "flash"
        )
        (work,) = work_of(parse_kineto(trace(*events), "toy")).works
        assert (work.kernel, work.sizes[:6]) == ("context_attention", (2, 16, before, 4, 2, 8))


def test_kernels_from_before_have_the_work_of_the_end_of_the_recording() -> None:
    """Two kernels of one operator, the second of which was launched before as well; then both."""
    events = one("aten::add", [[4], [4]], [F, F], ["", "", "1"], "k", "l")
    second = device_op(KERNEL, "l", -20, 7, 98)
    found = work_of(parse_kineto(trace(*events, second), "toy"))
    assert ([work.ops for work in found.works], found.left_out) == ([(1, 2)], (0,))
    both = work_of(parse_kineto(trace(*events, device_op(KERNEL, "k", -30, 6, 97), second), "toy"))
    assert [(work.ops, work.time_ns) for work in both.works] == [((2, 3), 10_000), ((0, 1), 13_000)]
    assert both.left_out == ()


def test_kernels_without_an_operator_have_the_work_of_those_that_are_launched_alike() -> None:
    """The second ``k`` has no operator; a third has another grid."""
    known = one("aten::add", [[4], [4]], [F, F], ["", "", "1"], "k")
    stray = device_op(KERNEL, "k", 200, 7, 98, grid=[8, 1, 1], block=[1, 1, 1])
    other = device_op(KERNEL, "k", 210, 7, 99, grid=[9, 1, 1], block=[1, 1, 1])
    found = work_of(parse_kineto(trace(*known, stray, other), "toy"))
    assert [(work.kind, work.time_ns, work.ops) for work in found.works] == [
        ("elementwise", 5000, (0,)),
        ("elementwise", 7000, (1,)),
    ]
    assert (found.kernels_left_out, found.left_out) == (1, (2,))

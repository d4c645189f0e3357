"""Op times of a recording by a calibrated profile: what is fitted, alike and assumed, and that the
written profile says the same.
"""

from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from kineto_toys import KERNEL, call, device_op, span, trace

import hosim
from hosim.analysis.costmodel import op_durations
from hosim.analysis.costmodel.kernels import kernel_us
from hosim.base.files import read, write
from hosim.hardware import Hardware
from hosim.io import hardware_from_dict, load_hardware
from hosim.io.importers.recordings import KinetoTrace, parse_kineto
from hosim.shipped import find_hardware
from hosim.validate import (
    Calibration,
    Measurements,
    ModelledOps,
    calibrate,
    calibrated_profile,
    modelled,
)
from hosim.validate.fits import ErrorSpread, Figure
from hosim.validate.op_costs import (
    ASSUMED,
    Efficiency,
    KernelScale,
    OpWork,
    efficiency_of,
    graph_of,
    scale_kernels,
    scaled_constants,
)

BASE = "h100-80gb-sxm"
H = "c10::BFloat16"


@pytest.fixture(scope="module")
def base() -> Hardware:
    return load_hardware(find_hardware(BASE))


def recorded(name: str, *operators: tuple[str, list[Any], str, float]) -> KinetoTrace:
    """Each operator launches one kernel of its name and so many microseconds, 30 us before the one
    before it ends.
    """
    events, host, device = [], 0.0, 1000.0
    for i, (operator, shapes, kernel, us) in enumerate(operators):
        events.append(
            span(
                "cpu_op",
                operator,
                host,
                9,
                **{"Input Dims": shapes, "Input type": [H] * len(shapes)},
            )
        )
        events.append(call("cudaLaunchKernel", host + 1, 5, i))
        events.append(device_op(KERNEL, kernel, device, us, i, grid=[i + 1, 1, 1], block=[1, 1, 1]))
        host, device = host + 10, device + us + 1
    return parse_kineto(trace(*events), name)


def adds(count: int, elements: int, us: float) -> list[tuple[str, list[Any], str, float]]:
    return [("aten::add", [[elements], [elements]], "vectorized_elementwise_kernel", us)] * count


LEARNED = recorded(
    "learned",
    *adds(6, 8, 1.5),
    *adds(4, 1 << 24, 1.5 + 60),
    ("aten::mm", [[4096, 1024], [1024, 4096]], "gemm", 60.0),
)
OTHER = recorded(
    "other",
    *adds(3, 1 << 25, 1.5 + 120),
    ("aten::mm", [[2048, 1024], [1024, 4096]], "gemm", 30.0),
    ("aten::mul", [[1 << 22, 1], [1]], "elementwise_kernel", 14.0),
    ("aten::native_layer_norm", [[1 << 22]], "norm", 12.0),
)


@pytest.fixture(scope="module")
def calibration(base: Hardware) -> Calibration:
    return calibrate(Measurements((LEARNED,), ()), base)


@pytest.fixture(scope="module")
def profile(calibration: Calibration, tmp_path_factory: pytest.TempPathFactory) -> Hardware:
    """As written to a file and read again."""
    path = tmp_path_factory.mktemp("profile") / "own.yaml"
    write(path, calibrated_profile(calibration, read(find_hardware(BASE), "hardware"), "own"))
    return load_hardware(path)


@pytest.fixture(scope="module")
def found(calibration: Calibration, profile: Hardware) -> ModelledOps:
    return modelled(OTHER, calibration, profile)


def test_times_come_from_what_was_fitted_what_is_alike_and_what_is_assumed(
    found: ModelledOps, calibration: Calibration
) -> None:
    """3 x 2 bytes of 2^25 elements take twice as long as of 2^24, beyond the 1.5 us that any op
    takes.
    """
    assert calibration.fixed_ns == 1500
    assert [one.level for one in found.works] == ["fitted"] * 4 + ["assumed"] * 2
    assert found.works[0].predicted_ns == pytest.approx(121_500, rel=0.01)
    assert found.without_data is not None
    assert "norm bf16" in found.without_data
    assert found.total.low_ns < found.total.predicted_ns < found.total.high_ns
    assert found.total.measured_ns == round(1000 * (3 * 121.5 + 30 + 14 + 12))


def test_the_written_profile_gives_the_same_times(
    found: ModelledOps, calibration: Calibration, profile: Hardware
) -> None:
    """A comparison of policies on these ops takes what the prediction says, and the gap after ops
    that are no kernel of a class.
    """
    graph = graph_of([one.work for one in found.works])
    assert calibration.launch_ns is not None
    gap = calibration.launch_ns - calibration.fixed_ns
    expected = [one.predicted_ns + (0 if one.work.kernel else gap) for one in found.works]
    assert list(op_durations(graph, profile)) == expected
    (row,) = hosim.compare(graph, profile, policies=["resident"]).to_dict("records")
    assert row["makespan_ns"] == sum(expected)


def test_a_class_of_kernels_is_scaled_as_a_whole(base: Hardware) -> None:
    """Constants with the factor 1.5 and 2 us give 1.5 times the time of any size, and 2 us."""
    data = read(find_hardware(BASE), "hardware")
    for kernel, sizes in (
        ("gemm", [(4096, 1024, 1024), (16, 4096, 512)]),
        ("context_attention", [(2, 512, 0, 8, 8, 64, 2**40)]),
    ):
        before = [us for us, _ in kernel_us(base, kernel, "fp16", "uniform", sizes) or []]
        constants = dict(scaled_constants(KernelScale(kernel, "fp16", 1.5, 2000, 1, 0.1), base))
        own = base.compute.processor
        assert own is not None
        scaled = hardware_from_dict(
            {**data, "compute": {**data["compute"], "kernels": {kernel: {"fp16": constants}}}}
        )
        after = [us for us, _ in kernel_us(scaled, kernel, "fp16", "uniform", sizes) or []]
        if kernel == "gemm":
            assert after == pytest.approx([1.5 * us + 2 for us in before], rel=1e-4)
        else:  # without what rotates positions before
            assert after[0] < 1.5 * before[0]


def test_few_sizes_draw_a_factor_less_than_many(base: Hardware) -> None:
    sizes = [(4096, 1024, 256 * k) for k in range(4, 12)]
    us = [us for us, _ in kernel_us(base, "gemm", "fp16", "uniform", sizes) or []]
    works = [
        OpWork("matmul", "bf16", 1, 1, round(1300 * t), "gemm", size)
        for size, t in zip(sizes, us, strict=True)
    ]
    (one, _), (many, attention) = scale_kernels(works[:1], base, 0), scale_kernels(works, base, 0)
    assert 1 < one.factor < many.factor < 1.3
    assert one.spread > many.spread
    assert (attention.kernel, attention.factor, attention.sizes) == ("context_attention", 1.0, 0)


def fitted(kind: str, dtype: str, value: float) -> Efficiency:
    return Efficiency(
        kind,
        dtype,
        Figure(value, value, value, 9),
        1000,
        ErrorSpread(9, 0.02, 0.02, 9, 0.02, 0.0, 0),
    )


@pytest.mark.parametrize(
    ("kind", "dtype", "known", "expected"),
    [
        ("elementwise", "bf16", ("elementwise", "bf16", 0.8), (0.8, "fitted")),
        ("elementwise", "fp16", ("elementwise", "bf16", 0.8), (0.8, "alike")),
        ("copy", "fp32", ("elementwise", "bf16", 0.8), (0.8, "alike")),
        (
            "copy_strided",
            "fp32",
            ("elementwise_strided", "bf16", 0.4),
            (0.8, "alike"),
        ),  # as many elements, of twice the bytes
        ("copy_strided", "fp64", ("elementwise_strided", "bf16", 0.4), (0.95, "alike")),
        ("matmul", "fp16", ("matmul", "bf16", 0.5), (0.5, "alike")),
        ("matmul", "fp32", ("matmul", "bf16", 0.5), (0.65, "assumed")),
        ("mystery", "fp32", ("matmul", "bf16", 0.5), (0.4, "assumed")),
        # 1.1 elements a cycle of 132 multiprocessors at 1.83 GHz, each read and written, of 3.35
        # TB/s
        ("copy_strided", "bf16", ("matmul", "bf16", 0.5), (0.317, "assumed")),
    ],
)
def test_where_an_efficiency_is_from(
    base: Hardware,
    kind: str,
    dtype: str,
    known: tuple[str, str, float],
    expected: tuple[float, str],
) -> None:
    found = efficiency_of(kind, dtype, [fitted(*known)], base)
    assert (found.value, found.level) == expected


def test_what_is_assumed_of_a_kind_is_a_share_of_the_peak() -> None:
    assert all(0 < value < 1 and 0 < spread < 1 for value, spread in ASSUMED.values())


RECORDED = ("h100_qwen1.5_0.5b", "h100_vgg13_training", "h100_bert_small", "h100_vit_falconsai")


@pytest.mark.long
@pytest.mark.parametrize(("learned", "other"), list(permutations(RECORDED, 2)))
def test_a_model_predicts_another_one_on_the_same_gpu(
    shared: Path, learned: str, other: str, base: Hardware, compared: Any
) -> None:
    from hosim.io.importers.recordings import read_kineto

    folder = shared / "data" / "traces"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: it has the recordings that this test reads")
    calibration = calibrate(Measurements((read_kineto(folder / f"{learned}.json.gz"),), ()), base)
    profile = hardware_from_dict(
        calibrated_profile(calibration, read(find_hardware(BASE), "hardware"), "own")
    )
    found = modelled(read_kineto(folder / f"{other}.json.gz"), calibration, profile)
    total = found.total
    compared(
        "recorded",
        f"{other} from {learned}",
        "total op time, ns",
        total.measured_ns,
        total.predicted_ns,
        within=0.15,
    )
    assert total.low_ns < total.measured_ns < total.high_ns
    assert (
        median(
            abs(one.predicted_ns / one.work.time_ns - 1) for one in found.works if one.work.time_ns
        )
        < 0.25
    )

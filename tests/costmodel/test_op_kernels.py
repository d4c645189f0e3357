"""Ops that say which kernel they are: their times, and where these are from."""

from dataclasses import replace

import numpy as np
import pytest
from kernel_machine import GATHER, PROFILE, gathers, kernel_machine

from hosim.analysis.costmodel import op_durations, time_origins
from hosim.analysis.costmodel.kernels import TimeTable, most_like
from hosim.errors import GraphError, HardwareError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import MeasuredTimes
from hosim.io import hardware_from_dict, hardware_to_dict, workload_from_dict, workload_to_dict


def test_a_kernel_takes_what_its_class_says_and_other_ops_are_guessed() -> None:
    graph, machine = gathers((2, 4_000_000), (4, 0)), kernel_machine()
    # two ranks: 7 + 2 cycles, and half of 4 MB at 1 TB/s; four: 7 + 3 x 2; the other op: launch 5
    # us, 1 MB in 1 us
    assert op_durations(graph, machine) == (11_000, 13_000, 6_000)
    assert time_origins(graph, machine) == ("fitted model", "fitted model", "guess")


def test_no_kernel_takes_its_bytes_faster_than_memory_gives_them() -> None:
    builder = GraphBuilder("g")
    for i, size in enumerate((8_000_000, 30_000_000)):
        builder.op(f"g{i}", "all_gather", kernel="all_gather", sizes=(2, 0), bytes_accessed=size)
    # 9 us by the model; 8 MB at 1 TB/s are 8 us, 30 MB are 30
    assert op_durations(builder.build(), kernel_machine()) == (9_000, 30_000)


def test_peaks_fall_with_the_clock_that_is_sustained_and_fixed_cycles_do_not() -> None:
    half = kernel_machine(
        processor={
            "multiprocessors": 10,
            "clock": "1 MHz",
            "links": "1 TB/s",
            "sustained": "500 kHz",
        }
    )
    builder = GraphBuilder("g")
    builder.op("f", "matmul", flops=10**7)
    assert op_durations(gathers((2, 4_000_000)), half) == (11_000, 6_000)
    # launch 5 us, and 10 MFLOP at 10 TFLOP/s in 1 us, or at half of that in 2
    assert [op_durations(builder.build(), machine) for machine in (kernel_machine(), half)] == [
        (6_000,),
        (7_000,),
    ]
    assert hardware_from_dict(hardware_to_dict(half)) == half


def test_a_measured_duration_wins() -> None:
    graph = gathers((2, 4_000_000), duration_ns=3)
    assert op_durations(graph, kernel_machine()) == (3, 6_000)
    assert time_origins(graph, kernel_machine()) == ("measured", "guess")


def test_without_a_processor_or_links_or_a_dtype_of_kernels_everything_is_a_guess() -> None:
    plain = {"peak": {"bf16": "10 TFLOP/s"}, "launch": "5 us"}
    assert op_durations(
        gathers((2, 4_000_000)), hardware_from_dict({**PROFILE, "compute": plain})
    ) == (5_000, 6_000)
    no_links = kernel_machine(processor={"multiprocessors": 10, "clock": "1 MHz"})
    assert time_origins(gathers((2, 4_000_000)), no_links) == ("guess", "guess")
    assert time_origins(gathers((2, 4_000_000), dtype="fp32"), kernel_machine()) == (
        "guess",
        "guess",
    )


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            gathers((1, 2), kernel="broadcast"),
            "op 'g0' is an unknown kernel 'broadcast'; expected one of gemm",
        ),
        (gathers((1,)), "op 'g0', a kernel 'all_gather', has 1 sizes; expected ranks, bytes"),
        (gathers((1, 1), (1, 1, 1)), "op 'g1', a kernel 'all_gather', has 3 sizes"),
    ],
)
def test_an_op_that_is_no_kernel_is_named(graph: Graph, message: str) -> None:
    with pytest.raises(HardwareError, match="expected") as error:
        op_durations(graph, kernel_machine())
    assert message in str(error.value)


@pytest.mark.parametrize("shares", [0.0, 1e-308])
def test_constants_that_give_no_time_are_named(shares: float) -> None:
    machine = kernel_machine(
        kernels={"all_gather": {"fp16": {**GATHER, "small_share": shares, "large_share": shares}}}
    )
    with pytest.raises(
        HardwareError, match="op 'g0' would take inf us as a kernel 'all_gather'; expected up to"
    ) as error:
        op_durations(gathers((2, 4_000_000)), machine)
    assert error.value.where == "compute.kernels.all_gather"


def test_an_unknown_distribution_is_named() -> None:
    graph = gathers((2, 4))
    with pytest.raises(
        GraphError, match=r"meta\.routing_distribution: unknown distribution 'zipf'"
    ):
        op_durations(Graph("g", (), graph.ops, {"routing_distribution": "zipf"}), kernel_machine())


def test_kernels_and_sizes_are_part_of_a_workload_file() -> None:
    graph = gathers((2, 4_000_000))
    written = workload_to_dict(graph)
    assert (written["ops"][0]["kernel"], written["ops"][0]["sizes"]) == (
        "all_gather",
        [2, 4_000_000],
    )
    assert "kernel" not in written["ops"][1]
    assert workload_from_dict(written) == graph


TABLE = "kernel,dtype,ranks,bytes,latency_us\nall_gather,fp16,2,1000000,19\nall_gather,fp16,2,4000000,22\nall_gather,fp16,4,1000000,55\n"


def with_table(tmp_path, text=TABLE):
    (tmp_path / "t.csv").write_text(text)
    return hardware_from_dict(
        {**PROFILE, "compute": {**PROFILE["compute"], "tables": ["t.csv"]}},
        str(tmp_path / "machine.yaml"),
    )


def test_a_table_says_the_times_that_it_has(tmp_path) -> None:
    machine, graph = with_table(tmp_path), gathers((2, 1_000_000), (2, 4_000_000), (4, 1_000_000))
    assert op_durations(graph, machine)[:3] == (19_000, 22_000, 55_000)
    assert time_origins(graph, machine) == ("table", "table", "table", "guess")


def test_between_its_rows_the_ratio_to_the_model_is_interpolated(tmp_path) -> None:
    # the model says 9.5 us of 1 MB and 11 us of 4 MB: both measured times are twice that, and so is
    # what lies between: 2 (9 + 1)
    machine, graph = with_table(tmp_path), gathers((2, 2_000_000))
    assert op_durations(graph, machine)[0] == pytest.approx(20_000, abs=1)
    assert time_origins(graph, machine)[0] == "table"


def test_beyond_its_rows_the_model_extrapolates_from_the_edge(tmp_path) -> None:
    machine, graph = with_table(tmp_path), gathers((2, 40_000_000), (2, 10))
    assert op_durations(graph, machine)[:2] == pytest.approx((2 * 29_000, 2 * 9_000), abs=2)
    assert time_origins(graph, machine)[:2] == ("fitted model", "fitted model")


def test_corners_that_were_not_measured_do_not_count() -> None:
    # of the cell's four corners one is missing; the model says 1 us of all, and the middle in the
    # logarithms is the mean of three
    rows = ((1, 1), (1, 3), (3, 1))
    table = TimeTable(
        [MeasuredTimes("", "all_gather", "fp16", "uniform", rows, (2.0, 2.0, 16.0))],
        lambda sizes: np.ones(len(sizes)),
    )
    (us,), (inside,) = table.us([(2, 2)])
    weights = {1: np.log(4 / 3) / np.log(2), 3: np.log(3 / 2) / np.log(2)}
    corner = {(a, b): weights[a] * weights[b] for a in (1, 3) for b in (1, 3)}
    wanted = (corner[1, 1] + corner[1, 3] + 4 * corner[3, 1]) / (1 - corner[3, 3])
    assert (np.log2(us), inside) == (pytest.approx(wanted), True)


def test_rows_of_equal_sizes_count_as_their_mean() -> None:
    rows = ((1, 1), (1, 1))
    table = TimeTable(
        [MeasuredTimes("", "all_gather", "fp16", "uniform", rows, (2.0, 8.0))],
        lambda sizes: np.ones(len(sizes)),
    )
    (us,), _ = table.us([(1, 1)])
    assert us == pytest.approx(4)  # in the logarithms


def test_the_nearest_rows_count_where_no_corner_was_measured() -> None:
    rows = ((1, 9), (9, 1), (20, 20))
    table = TimeTable(
        [MeasuredTimes("", "all_gather", "fp16", "uniform", rows, (4.0, 4.0, 4.0))],
        lambda sizes: np.ones(len(sizes)),
    )
    (us,), _ = table.us([(15, 15)])
    assert us == pytest.approx(4)


def test_a_profile_keeps_its_tables(tmp_path) -> None:
    machine = with_table(tmp_path)
    again = hardware_from_dict(hardware_to_dict(machine))
    graph = gathers((2, 1_000_000))
    assert op_durations(graph, again) == op_durations(graph, machine)


def test_a_table_of_several_machines_is_refused(tmp_path) -> None:
    text = (
        TABLE.replace("kernel,", "machine,kernel,")
        .replace("all_gather,", "a,all_gather,", 1)
        .replace("\nall", "\nb,all")
    )
    with pytest.raises(
        InputError, match=r"compute\.tables\[0\]: 't\.csv' has times of several machines \(a, b\)"
    ):
        with_table(tmp_path, text)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (
            {"kernels": {"gather": {}}},
            "compute.kernels.gather: unknown class of kernels; expected one of gemm",
        ),
        ({"kernels": {"expert_product": {}}}, "compute.kernels.expert_product: unknown class"),
        (
            {"kernels": {"all_gather": {"fp4": GATHER}}},
            "compute.kernels.all_gather.fp4: unknown dtype; expected one of fp16",
        ),
        (
            {"kernels": {"all_gather": {"fp16": {**GATHER, "x": 1.0}}}},
            "unknown constant 'x'; all_gather has fixed_cycles",
        ),
        (
            {"kernels": {"custom_all_reduce": {"fp16": {"link_share": 1.0}}}},
            "expected the constant 'fixed_cycles' too",
        ),
        (
            {"processor": {"multiprocessors": 1, "clock": "0 Hz"}},
            "compute.processor.clock: expected a figure above 0",
        ),
        (
            {"processor": {"multiprocessors": 1, "clock": "1 GHz", "sustained": "2 GHz"}},
            "sustained: expected at most the clock that the peaks",
        ),
        (
            {"processor": {"multiprocessors": 1, "clock": "1 GB"}},
            "expected a frequency such as '1.41 GHz'",
        ),
    ],
)
def test_what_is_wrong_with_a_profile(compute, message) -> None:
    with pytest.raises(InputError) as error:
        kernel_machine(**compute)
    assert message in str(error.value)


def test_constants_need_a_processor() -> None:
    compute = {key: value for key, value in PROFILE["compute"].items() if key != "processor"}
    with pytest.raises(
        InputError, match=r"compute\.processor: times of kernels need the vendor's figures"
    ):
        hardware_from_dict({**PROFILE, "compute": compute})


@pytest.mark.parametrize(
    ("peak", "multiprocessors", "clock", "name"),
    [(312, 108, "1.41 GHz", "a100_sxm"), (989, 132, "1.83 GHz", "h100_sxm")],
)
def test_a_machine_without_constants_has_those_of_its_generation(
    peak, multiprocessors, clock, name
) -> None:
    figures = {"multiprocessors": multiprocessors, "clock": clock}
    machine = kernel_machine(peak={"bf16": f"{peak} TFLOP/s"}, processor=figures, kernels={})
    assert most_like(machine) == name
    builder_graph = gathers((2048, 4096, 4096), kernel="gemm")
    assert time_origins(builder_graph, machine) == ("fitted model", "guess")
    assert (
        2 * 2048 * 4096 * 4096 / (peak * 1e3)
        < op_durations(builder_graph, machine)[0]
        < 4 * 2048 * 4096 * 4096 / (peak * 1e3)
    )


def test_how_tokens_spread_over_experts_says_nothing_of_other_kernels() -> None:
    """A table of an all-gather counts in a workload of skewed experts too."""
    times = MeasuredTimes("g.csv", "all_gather", "fp16", "uniform", ((2, 4_000_000),), (50.0,))
    machine = kernel_machine()
    machine = replace(machine, compute=replace(machine.compute, tables=(times,)))
    graph = Graph("g", (), gathers((2, 4_000_000)).ops, {"routing_distribution": "power_law_1.2"})
    assert time_origins(graph, machine) == ("table", "guess")

"""Times and memory under a runtime, worked out by hand, and as properties."""

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import facts

import hosim
from hosim.analysis.costmodel import machine_under, op_durations, share_beside, under_runtime
from hosim.data.runtime import RUNTIME, Runtime, RuntimeFigure, as_data, from_data
from hosim.data.seen_peaks import DRIVER_BYTES, FITS, seen_peaks
from hosim.errors import HardwareError
from hosim.graph import Graph, GraphBuilder, Op
from hosim.shipped import find_hardware

GIB = 2**30
TOY = hosim.load_hardware(find_hardware("toy"))


def graph(*bytes_accessed: int, measured: int | None = None):
    builder = GraphBuilder("norms")
    for i, size in enumerate(bytes_accessed):
        builder.op(f"n{i}", "norm", bytes_accessed=size)
    if measured is not None:
        builder.op("measured", "norm", duration_ns=measured)
    return builder.build()


def test_a_step_sustains_a_share_of_the_speed_that_its_kernels_have() -> None:
    alone = op_durations(graph(1000, 3000, measured=70), TOY)
    under = op_durations(
        graph(1000, 3000, measured=70),
        machine_under(TOY, Runtime("half", speed=RuntimeFigure(0.5))),
    )
    assert under == (2 * alone[0], 2 * alone[1], 70)  # what was measured is some runtime's already


def test_ops_are_longer_by_the_time_for_which_collectives_run_beside_them() -> None:
    """A gather of 1,000 beside ops of 1,000 and 3,000: at 1.5 times a quarter these take 1.375
    times as long. It takes what it takes, as does a sum on the stream of the ops, and at half the
    speed all take twice that.
    """
    builder = GraphBuilder("gathered")
    builder.op("a", "norm", bytes_accessed=1_000)
    builder.op("b", "norm", bytes_accessed=3_000)
    builder.op("sum", "all_reduce", bytes_accessed=500)
    builder.op("gather", "all_gather", stream="comm", bytes_accessed=1_000)
    made = builder.build()
    free = machine_under(TOY, Runtime("none"))
    alone = op_durations(made, free)
    assert share_beside(made, alone) == Fraction(alone[3], alone[0] + alone[1])
    exposed = Runtime("all", exposed=RuntimeFigure(1.5))
    stands = 1 + Fraction(3, 2) * share_beside(made, alone)
    under = op_durations(made, machine_under(TOY, exposed))
    assert under == (ceil(alone[0] * stands), ceil(alone[1] * stands), *alone[2:])
    half = op_durations(made, machine_under(TOY, replace(exposed, speed=RuntimeFigure(0.5))))
    assert half == (
        ceil(2 * alone[0] * stands),
        ceil(2 * alone[1] * stands),
        *[2 * x for x in alone[2:]],
    )


def test_what_ops_wait_for_runs_beside_none() -> None:
    """a takes 10 and makes x, a sum of x takes 4, and b, which needs it, runs from 14 to 24.

    Beside a run all 3 of a gather on another stream, and beside b two that follow the sum on its
    stream: all 4 of the first and 6 of the 8 of the second, from 18 to 26.
    """
    builder = GraphBuilder("waits")
    builder.tensor("x", 1, "activation")
    builder.op("a", "norm", outputs=["x"])
    builder.op("sum", "all_reduce", mutates=["x"], stream="comm")
    builder.op("b", "norm", inputs=["x"])
    builder.op("second", "all_gather", stream="comm")
    builder.op("third", "all_gather", stream="comm")
    builder.op("early", "all_gather", stream="other")
    assert share_beside(builder.build(), [10, 4, 10, 4, 8, 3]) == Fraction(3 + 4 + 6, 20)


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=12),
    st.floats(0.1, 3),
    st.integers(0, 5000),
)
def test_a_step_takes_the_longer_of_host_and_device_at_least(
    sizes: list[int], speed: float, host: int
) -> None:
    """The host issues ops one by one (the golden timelines have it by hand), and is no part of what
    an op takes.
    """
    speed = round(speed, 3)
    made = graph(*sizes)
    alone, runtime = (
        op_durations(made, TOY),
        Runtime("any", speed=RuntimeFigure(speed), host=RuntimeFigure(float(host))),
    )
    machine = machine_under(TOY, runtime)
    device = sum([ceil(ns / speed) for ns in alone])
    assert abs(sum(op_durations(made, machine)) - device) <= len(sizes)
    result = hosim.replay(hosim.Plan(made), machine)
    assert result.makespan_ns >= max(len(sizes) * host, device - len(sizes))
    assert result.makespan_ns <= len(sizes) * host + device + len(sizes)
    assert result.makespan_ns == result.busy_ns + result.stall_ns["runtime"]
    assert op_durations(made, machine_under(TOY, Runtime("none"))) == alone


def test_the_interval_has_what_is_unknown_of_the_runtime() -> None:
    def interval(spread: float) -> tuple[int, int, int]:
        made = graph(10**12, 10**12)
        made = replace(
            made,
            meta={
                **made.meta,
                RUNTIME: as_data(Runtime("unsure", speed=RuntimeFigure(0.5, spread))),
            },
        )
        machine = under_runtime(made, TOY)
        result = hosim.replay(hosim.plan(made, machine, "resident"), machine)
        return result.makespan_low_ns, result.makespan_ns, result.makespan_high_ns

    sure, unsure = interval(0.0), interval(0.3)
    assert unsure[1] == sure[1]
    assert unsure[0] < sure[0] < sure[1] < sure[2] < unsure[2]


def test_the_interval_has_how_unsure_the_host_is() -> None:
    """The host's calls, which decide how long the step takes, are twice as slow in one of 20 cases,
    or not unsure at all.
    """
    runtime = Runtime("slow", host=RuntimeFigure(100_000.0, 0.4213))
    plan = hosim.plan(graph(4 * 10**6, 4 * 10**6), TOY, "resident")
    result = hosim.replay(plan, machine_under(TOY, runtime))
    sure = hosim.replay(plan, machine_under(TOY, Runtime("slow", host=RuntimeFigure(100_000.0))))
    assert result.makespan_ns == sure.makespan_ns
    assert result.makespan_high_ns > sure.makespan_high_ns


def test_an_optimizer_on_the_cpu_reaches_the_share_of_the_runtime() -> None:
    step = {"model": "gpt2", "phase": "train", "optimizer_on": "ddr", "sequence": 64}
    named = hosim.load(step)
    slow = replace(
        named,
        meta={**named.meta, RUNTIME: as_data(Runtime("loop", cpu_optimizer=RuntimeFigure(0.043)))},
    )
    machine = hosim.load_hardware(find_hardware("h100"))
    launch = machine.tiers[1].compute.launch_ns
    for op, fast, ns in zip(
        named.ops,
        op_durations(named, machine),
        op_durations(slow, under_runtime(slow, machine)),
        strict=True,
    ):
        assert ns == (
            pytest.approx(10 * (fast - launch) + launch, rel=0.01)
            if op.kind == "optimizer"
            else fast
        )


def test_peaks_by_hand() -> None:
    """10 GiB of tensors, a tenth more allocated, 2 GiB of buffers: 13 GiB, of which the allocator
    holds 1.5 times; beside it 1 + 3 GiB.
    """
    runtime = Runtime(
        "round",
        allocated=RuntimeFigure(1.1),
        buffers=RuntimeFigure(2.0 * GIB),
        reserved=RuntimeFigure(1.5),
        context=RuntimeFigure(1.0 * GIB),
        collectives=RuntimeFigure(3.0 * GIB),
    )
    machine = machine_under(hosim.load_hardware(find_hardware("h100")), runtime)
    seen = seen_peaks(replace(machine, devices=2), 10 * GIB)
    assert [
        peak.bytes / GIB for peak in (seen.allocated, seen.reserved, seen.device)
    ] == pytest.approx([13, 19.5, 23.5])
    assert seen.device.low_bytes == pytest.approx(
        seen.device.high_bytes, abs=2
    )  # nothing is unsure
    assert seen_peaks(machine, 10 * GIB).device.bytes / GIB == pytest.approx(
        20.5
    )  # one device has no communicator
    assert seen.usable_bytes == 81559 * 2**20 - DRIVER_BYTES
    assert seen.verdict == FITS
    three = replace(runtime, copy_buffers=RuntimeFigure(3.0))  # 3 buffers of 2 GiB are held too
    held = seen_peaks(
        machine_under(hosim.load_hardware(find_hardware("h100")), three), 10 * GIB, 2 * GIB
    )
    assert held.allocated.bytes / GIB == pytest.approx(13 + 6)


@given(st.integers(0, 200 * GIB), st.floats(0, 1), st.floats(0, 1))
def test_peaks_contain_one_another(peak: int, first: float, second: float) -> None:
    runtime = Runtime(
        "unsure",
        allocated=RuntimeFigure(1.05, first),
        reserved=RuntimeFigure(1.2, second),
        context=RuntimeFigure(5e8, 0.3),
    )
    seen = seen_peaks(machine_under(TOY, runtime), peak)
    assert peak <= seen.allocated.bytes <= seen.reserved.bytes <= seen.device.bytes
    for each in (seen.allocated, seen.reserved, seen.device):
        assert peak <= each.low_bytes <= each.bytes <= each.high_bytes
    assert (seen.verdict == FITS) == (seen.device.high_bytes <= seen.usable_bytes)


def test_without_a_runtime_nothing_is_said() -> None:
    assert seen_peaks(TOY, GIB) is None
    assert under_runtime(graph(1), TOY) is TOY


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"name": "x", "speed": 2},
        {"name": "x", "fast": {"value": 1}},
        {"name": "x", "speed": {"value": 0}},
    ],
)
def test_what_is_no_runtime_is_refused(data: object) -> None:
    with pytest.raises(HardwareError):
        from_data(data)


def test_a_runtime_survives_a_workload_file(tmp_path) -> None:
    """Its figures are in ``meta``, so that a file of the graph has the same times."""
    made = hosim.load(
        {
            "model": "gpt2",
            "phase": "train",
            "runtime": "torchtitan-compiled",
            "sequence": 64,
            "layers": 1,
        }
    )
    hosim.save_workload(made, tmp_path / "step.json")
    again = hosim.load_workload(tmp_path / "step.json")
    tables = [hosim.compare(each, "h100", "resident") for each in (made, again)]
    assert tables[0].makespan_ns[0] == tables[1].makespan_ns[0]
    assert from_data(again.meta[RUNTIME]) == from_data(made.meta[RUNTIME])


def test_products_of_one_row_wait_for_the_loads_of_their_multiprocessors() -> None:
    """An A100 has 108 multiprocessors: at 1 GB/s each 108 bytes take a microsecond."""
    a100 = hosim.load_hardware(find_hardware("a100"))
    slow = machine_under(a100, Runtime("slow", row_rate=RuntimeFigure(1e9)))
    step = "llama-3.1-8b:phase=decode:layers=1:context=64:merged=true"
    for more, limited in (("", True), (":batch=2", False), (":weights=int4", False)):
        made = hosim.load(step + more)
        alone, under = op_durations(made, a100), op_durations(made, slow)
        for op, before, after in zip(made.ops, alone, under, strict=True):
            if limited and op.kernel == "gemm":
                assert after == ceil(op.bytes_accessed / 108) > before
            elif op.name != "lm_head":  # its weights are in 16 bits in any case
                assert after == before
    free = machine_under(a100, Runtime("free", row_rate=RuntimeFigure(1e15)))
    made = hosim.load(step)
    assert op_durations(made, free) == op_durations(made, a100)


def test_a_runtime_says_what_its_mixtures_take_beside_their_products() -> None:
    """The tables of an H100 have 66,120 cycles of 1.83 GHz, 36.131 us; other kernels stay."""
    h100 = hosim.load_hardware(find_hardware("h100"))
    own = machine_under(h100, Runtime("own", mixture=RuntimeFigure(25_000.0)))
    made = Graph(
        "mixture",
        (),
        tuple(
            Op(kernel, "matmul", dtype="bf16", flops=1, kernel=kernel, sizes=sizes)
            for kernel, sizes in {
                "moe": (64, 2048, 768, 8, 128, 1, 1),
                "gemm": (64, 64, 64),
            }.items()
        ),
    )
    (mixture, product), under = op_durations(made, h100), op_durations(made, own)
    assert under == (pytest.approx(mixture - 36_131 + 25_000, abs=1), product)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("speed", 0.5, "0.50"),
        ("row_rate", 5e9, "5 GB/s"),
        ("mixture", 2500, "2.5 us"),
        ("exposed", 1.5, "1.5"),
        ("host", 1500, "1.5 us"),
        ("host_copy", 500, "0.5 us"),
        ("ahead", 7, "7"),
        ("gathers", 3, "3"),
        ("stores", 4, "4"),
        ("cache_copy", 2048, "2.00 KiB"),
        ("copy_buffers", 2, "2"),
    ],
)
def test_the_line_of_a_runtime_has_the_figures_that_it_has(
    field: str, value: float, said: str
) -> None:
    alone, rests = (
        Runtime("r", **{field: RuntimeFigure(value, one_row=one)}).line.split("; ")
        for one in (False, True)
    )
    assert [facts(part) for part in alone] == [said]
    assert (rests[0], rests[1].split()[0]) == (alone[0], field)


def test_the_line_of_a_runtime_names_what_it_waits_for_and_pins() -> None:
    named = {"blocks": ("store", "prefetch"), "pins": ("store",)}
    for once in (False, True):
        line = Runtime("r", pins_once=once, **named).line
        assert (
            facts(line, "store", "prefetch", "once") == "store, prefetch, store" + ", once" * once
        )
    assert facts(Runtime("r").line) == ""
    host = RuntimeFigure(1000.0)
    parts = [Runtime("r", host=host, segments=said).line.count(",") for said in (False, True)]
    assert parts == [0, 1]

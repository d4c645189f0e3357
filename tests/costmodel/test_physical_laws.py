"""What no machine does: a product faster than any measured, one row that waits for more than
memory, a reduction above its link.
"""

import csv
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from statistics import median

import pytest
from kernel_rows import FOLDER, kernel_tables

import hosim
from hosim.analysis.costmodel import op_durations
from hosim.analysis.costmodel.kernels import NO_WINDOW, kernel_us
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.io import load_hardware, load_named
from hosim.shipped import find_hardware

MAXIMA = Path(__file__).parents[3] / "shared" / "data" / "maxima"
GPUS = (
    "a100-40gb-sxm", "a100-80gb-sxm", "a6000", "b200-180gb-sxm", "b300-288gb-sxm", "gb200-186gb",
    "gh200-96gb", "h100-80gb-sxm", "h100-96gb", "h20-96gb", "h200-141gb-sxm", "l40s", "mi300x-192gb",
    "rtx-3090", "rtx-4090", "rtx-5090", "rtx-pro-6000", "t4", "v100-32gb",
)  # fmt: skip
DTYPES = ("bf16", "fp8", "int8_weights", "int4_weights")
BYTES = {"bf16": 2.0, "fp8": 1.0, "int8_weights": 1.0, "int4_weights": 0.5}
CHIPS_DIFFER = 0.05

LISTED = {
    "NVIDIA A100 SXM": "a100-80gb-sxm", "NVIDIA H100 SXM": "h100-80gb-sxm", "NVIDIA H200 SXM": "h200-141gb-sxm",
    "NVIDIA B200 SXM": "b200-180gb-sxm", "NVIDIA B300 SXM": "b300-288gb-sxm",
    "NVIDIA GH200 SXM": "gh200-96gb",
    "NVIDIA GB200 SXM": "gb200-186gb", "AMD MI300X": "mi300x-192gb", "NVIDIA GeForce RTX 4090": "rtx-4090",
}  # fmt: skip
"""The profiles of the accelerators that were measured, by their names in the list."""
TABLES = {"a100_sxm": "a100-80gb-sxm", "h100_sxm": "h100-80gb-sxm", "l40s": "l40s"}


@cache
def machine(name: str) -> Hardware:
    return hosim.load_hardware(find_hardware(name))


def products(dtype: str, *shapes: tuple[int, int, int]) -> Graph:
    builder = GraphBuilder("products")
    for m, n, k in shapes:
        builder.op(
            f"{m} {n} {k}",
            "matmul",
            dtype=dtype,
            kernel="gemm",
            sizes=(m, n, k),
            flops=2 * m * n * k,
        )
    return builder.build()


def fastest(name: str, dtype: str) -> float:
    """FLOP a nanosecond of the fastest of products from one row to 65,536."""
    sides = (1024, 4096, 8192, 28672, 128256)
    graph = products(
        dtype,
        *(
            (m, n, k)
            for m in (1, 16, 256, 1024, 4096, 8192, 65536)
            for n in sides
            for k in sides[:-1]
        ),
    )
    return max(
        op.flops / ns for op, ns in zip(graph.ops, op_durations(graph, machine(name)), strict=True)
    )


@cache
def measured() -> dict[tuple[str, str], tuple[float, bool]]:
    """TFLOP/s of the fastest product of a profile in fp16 or fp8, and whether a whole table of its
    times is beside the project.
    """
    found: dict[tuple[str, str], tuple[float, bool]] = {}
    for row in csv.DictReader((MAXIMA / "products.csv").read_text().splitlines()):
        if row["accelerator"] in LISTED:
            key = LISTED[row["accelerator"]], "fp8" if row["dtype"].startswith("fp8") else "fp16"
            found[key] = max(found.get(key, (0.0, False))[0], float(row["tflops"])), False
    for table in kernel_tables("gemm") if FOLDER.is_dir() else ():
        if table.dtype in ("fp16", "fp8", "int8_weights", "int4_weights"):
            key = TABLES[table.machine], "fp8" if table.dtype == "fp8" else "fp16"
            best = float(
                (
                    2e-6 * table.sizes["m"] * table.sizes["n"] * table.sizes["k"] / table.latency_us
                ).max()
            )
            found[key] = max(found.get(key, (0.0, False))[0], best), True
    return found


@pytest.mark.skipif(not MAXIMA.is_dir(), reason=f"no {MAXIMA}")
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_product_is_faster_than_any_that_was_measured(dtype: str) -> None:
    computed = "fp8" if dtype == "fp8" else "fp16"
    known = {name: found for (name, of), found in measured().items() if of == computed}
    assert len(known) >= 5
    for name, (most, by_table) in known.items():
        assert fastest(name, dtype) / 1e3 <= most * (1 if by_table else 1 + CHIPS_DIFFER), name


@pytest.mark.parametrize("name", ["b200-180gb-sxm", "gb200-186gb", "mi300x-192gb", "l40s"])
def test_a_profile_names_the_fastest_product(name: str) -> None:
    """The largest product takes exactly that; without the figure it would be faster than any that
    was measured.
    """
    figures = machine(name).compute.processor
    assert figures is not None
    (op,) = products("bf16", (65536, 128256, 28672)).ops
    assert op_durations(products("bf16", (65536, 128256, 28672)), machine(name)) == (
        -(-op.flops * 10**9 // figures.best_flops["bf16"]),
    )


def weights_time(name: str, dtype: str) -> float:
    """How long one row's product takes for each byte of its weights, in what the memory's bandwidth
    would take; without its fixed time.
    """
    n, k = 28672, 8192
    one, two = op_durations(products(dtype, (1, n, k), (1, 2 * n, k)), machine(name))
    return (two - one) * machine(name).device.bandwidth_bytes_per_s / (n * k * BYTES[dtype]) / 1e9


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_row_takes_what_its_weights_take_from_memory(dtype: str) -> None:
    """On every processor: the bandwidth that is reached is at least 0.69 (an H20, which unpacks int4
    with 78 multiprocessors for 4 TB/s), and differs by a quarter at most.
    """
    times = [weights_time(name, dtype) for name in GPUS]
    assert min(times) >= 1
    assert max(times) <= 1 / 0.69
    assert max(times) <= 1.25 * min(times)


def test_a_whole_step_of_one_row_takes_what_the_memory_takes() -> None:
    """Decoding with weights of 16 GB, on every GPU: the time in what the memory's bandwidth would
    take is within a quarter of the median. Where a step reads less, the fixed times of its kernels
    tell on the fastest memories: 1.46 with 2.5 GB on a B200.
    """
    step = load_named("llama-3.1-8b:phase=decode:context=64:merged=true:fused=true")
    times = [
        sum(op_durations(step, machine(name))) * machine(name).device.bandwidth_bytes_per_s
        for name in GPUS
    ]
    assert max(times) <= 1.25 * median(times)
    assert min(times) >= median(times) / 1.25


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_of_one_row_is_as_much_faster_as_the_memory(dtype: str, rows: int) -> None:
    """Between two cards of one generation, of which the second has 2.07 times the bandwidth and
    0.58 of the FLOP a second.
    """
    shape = (rows, 28672, 8192)
    (slow,), (fast,) = (
        op_durations(products(dtype, shape), machine(name)) for name in ("l40s", "rtx-5090")
    )
    assert slow / fast == pytest.approx(1792 / 864, rel=0.1)


def sums(kernel: str, *asked: tuple[int, int]) -> Graph:
    """All-reduces among so many devices of so many bytes."""
    builder = GraphBuilder("sum")
    for devices, size in asked:
        builder.op(
            f"sum {devices} {size}",
            "all_reduce",
            dtype="bf16",
            kernel=kernel,
            sizes=(devices, size),
            bytes_accessed=0,
        )
    return builder.build()


LINKED = {
    "8 x A100 SXM, NVLink 3": "a100-80gb-sxm", "8 x H200 SXM, NVLink 4, NVSwitch": "h200-141gb-sxm",
    "8 x B200, NVLink 5, NVSwitch": "b200-180gb-sxm", "8 x MI300X, Infinity Fabric": "mi300x-192gb",
}  # fmt: skip


@pytest.mark.skipif(not MAXIMA.is_dir(), reason=f"no {MAXIMA}")
@pytest.mark.parametrize("of", LINKED)
def test_no_all_reduce_is_faster_than_any_that_was_measured(of: str) -> None:
    """Bus bandwidth of 16 GiB, by devices."""
    fastest: dict[int, float] = {}
    for row in csv.DictReader((MAXIMA / "links.csv").read_text().splitlines()):
        if row["machine"] == of and row["link"].startswith("all-reduce"):
            devices = int(row["devices"])
            fastest[devices] = max(fastest.get(devices, 0.0), float(row["gb_per_s"]))
    for devices, most in fastest.items():
        (ns,) = op_durations(sums("all_reduce", (devices, 1 << 34)), machine(LINKED[of]))
        bus = (1 << 34) / ns * 2 * (devices - 1) / devices
        assert 0.7 * most < bus <= most * (1 + CHIPS_DIFFER), devices


def test_devices_of_a_mesh_use_the_links_between_them() -> None:
    """Seven links of 64 GB/s: two devices use one of them, four three, and all take as long as with
    a switch.
    """
    figures = machine("mi300x-192gb").compute.processor
    assert figures is not None
    assert (figures.mesh, figures.link_bytes_per_s) == (8, 448 * 10**9)
    compute = replace(machine("mi300x-192gb").compute, processor=replace(figures, mesh=0))
    switched = replace(machine("mi300x-192gb"), compute=compute)
    asked = sums("all_reduce", *[(devices, 1 << 34) for devices in (2, 4, 8)])
    times = (op_durations(asked, each) for each in (machine("mi300x-192gb"), switched))
    ratios = [meshed / alone for meshed, alone in zip(*times, strict=True)]
    assert ratios == pytest.approx([7, 7 / 3, 1], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "link"), [("rtx-pro-6000", 16e9), ("rtx-5090", 16e9), ("rtx-4090", 8e9)]
)
@pytest.mark.parametrize("kernel", ["all_reduce", "custom_all_reduce"])
def test_cards_without_peer_access_reduce_through_host_memory(
    name: str, link: float, kernel: str
) -> None:
    """Two cards: 20 us, and the bytes of one at what was measured between them."""
    times = op_durations(sums(kernel, *[(2, s) for s in (0, 1 << 20, 1 << 30)]), machine(name))
    assert times == pytest.approx(
        [20_000 + size / link * 1e9 for size in (0, 1 << 20, 1 << 30)], rel=1e-3
    )


def attention_us(name: str, tokens: int, before: int) -> float:
    """A prompt of a model with 32 heads of 128, of which four share keys."""
    sizes = (1, tokens, before, 32, 8, 128, NO_WINDOW)
    ((us, _),) = kernel_us(machine(name), "context_attention", "fp16", "uniform", [sizes]) or []
    return us


@pytest.mark.parametrize("name", ["rtx-3090", "rtx-4090", "rtx-5090"])
def test_only_products_are_slower_on_a_geforce_card(name: str) -> None:
    """By hand: an A100 reaches 0.485 of its peak, so that what is not the products takes 1.06
    of their time; of products at half the rate it is 0.53. So with the largest products: 0.857 of
    the peak leaves 0.167, and half of that is 0.083.
    """

    def of_peak(of: str, us: float) -> float:
        return us * machine(of).compute.peak_flops["fp16"]

    def further_keys(of: str) -> float:
        return of_peak(of, attention_us(of, 2048, 65536) - attention_us(of, 2048, 32768))

    def product(of: str) -> float:
        return of_peak(of, op_durations(products("bf16", (16384, 32768, 8192)), machine(of))[0])

    assert further_keys(name) / further_keys("a100-80gb-sxm") == pytest.approx(
        1.53 / 2.06, rel=0.03
    )
    assert product(name) / product("a100-80gb-sxm") == pytest.approx(1.083 / 1.167, rel=0.01)


@pytest.mark.parametrize(("name", "us"), [("rtx-4090", 4224.98), ("rtx-pro-6000", 2138.07)])
def test_attention_beside_what_was_timed(compared, name: str, us: float) -> None:
    """casys-kaist/LLMServingSim@5daddb21: 2,048 tokens on 16,384, llama-3.1-8b."""
    asked = f"attention of 2,048 tokens on 16,384, {name}"
    compared("LLMServingSim", asked, "us", us, attention_us(name, 2048, 16384), within=0.36)


@pytest.mark.parametrize("machine", ["a100", "h100", "l40s", "rtx-5090"])
def test_more_scales_take_longer_by_their_bytes_at_most(machine: str) -> None:
    """A token of an 8B model: the bytes of a step rise by no less than its time does."""
    times, read = [], []
    for weights in ("int4:group=128", "int4:group=64", "int4:group=32", "uint4:group=32"):
        graph = load_named(f"llama-3.1-8b:phase=decode:context=64:merged=true:weights={weights}")
        times.append(sum(op_durations(graph, load_hardware(find_hardware(machine)))))
        read.append(sum([op.bytes_accessed for op in graph.ops]))
    assert times == sorted(set(times))
    for ours, more in zip(times[1:], read[1:], strict=True):
        assert 1 < ours / times[0] < more / read[0] + 0.001


def test_scales_of_the_usual_groups_are_those_of_the_tables() -> None:
    usual, given = [
        load_named(f"llama-3.1-8b:phase=decode:layers=1:merged=true:weights=int4{group}")
        for group in ("", ":group=128")
    ]
    h100 = load_hardware(find_hardware("h100"))
    assert op_durations(usual, h100) == op_durations(given, h100)
    product = next(op for op in usual.ops if op.dtype == "int4_weights")
    ((us, _),) = kernel_us(h100, "gemm", "int4_weights", "uniform", [product.sizes]) or []
    assert op_durations(usual, h100)[usual.op_index[product.name]] == ceil(1000 * us)

"""The first step, on the GPU: channels, kernels, decoders under simple schemes, and the time of
each op of their captured steps; and the machine that they were measured on.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from hosim.cache_plan import Plan
from hosim.errors import ExecutionError, InputError
from hosim.graph import Graph
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.on_torch.gpu.captured_step import Ran, Work, captured, events_of, run_steps
from hosim.on_torch.gpu.functional_decoder import CONFIGS
from hosim.on_torch.gpu.gpu_seam import TO_DEVICE, TO_HOST, Device
from hosim.on_torch.gpu.output_files import say, workload_mapping, write_json, write_rows
from hosim.on_torch.gpu.scheme_runs import new_folder
from hosim.validate.kit import (
    FORMAT,
    bandwidth_sweep,
    measured_device,
    read_json,
    swept_channels,
    whole,
)

SIZES = tuple(1 << power for power in range(12, 31))
"""4 KiB to 1 GiB."""


def measure_channels(device: Device, out: Path, dry: bool) -> None:
    """Write ``bandwidth.json``."""
    path = out / "bandwidth.json"
    found = sweep(device, *((SIZES[:5], 2) if dry else (SIZES, 10)))
    say("copies beside kernels")
    rows = beside(device, 64, 1 << 14, 2, 1) if dry else beside(device, 8192, 1 << 26)
    write_json(
        path, {"format": FORMAT, "device": device.describe(), **found, "beside_kernels": rows}
    )


def measure_kernels(device: Device, out: Path, dry: bool) -> None:
    """Write ``kernels.csv``."""
    path = out / "kernels.csv"
    shapes = SMALL if dry else SHAPES
    write_rows(path, COLUMNS, kernel_rows(device, str(device.describe()["name"]), shapes))


def measure_step(device: Device, path: Path, work: Work, steps: int) -> None:
    """Run a captured step with everything resident, and write its ops' times."""
    try:
        step = captured(work, device.torch_device)
    except InputError as error:  # a release of torch that traces other ops: other steps may do
        raise ExecutionError(str(error)) from error
    plan = Plan(step.program.graph)
    with new_folder(path) as folder:
        ran = run_steps(step, plan, _room(device), device, steps, steps, folder)
        write_json(
            folder / "workload.json.gz", workload_mapping(_with_times(step.program.graph, ran))
        )
        write_json(folder / "timeline.json.gz", events_of(plan, ran.timelines[-1]))
        write_json(
            folder / "run.json",
            {**run_mapping(work, ran), "outside_bytes": _outside(ran, step.held_bytes)},
        )


def run_mapping(work: Work, ran: Ran) -> dict[str, Any]:
    """Return the record of its run in the folder of a captured step."""
    return {
        "format": FORMAT,
        "step": {
            "config": work.config,
            "mode": work.mode,
            "length": work.length,
            "batch": work.batch,
            "seed": work.seed,
        },
        "wall_ns": ran.step_ns,
        "memory": ran.peaks,
        "results": ran.digest,
        "clocks": ran.clocks,
    }


def work_of(path: Path) -> Work:
    """The step that a ``run.json`` of :func:`measure_steps` is of. Raises :class:`InputError`."""
    step, source = read_json(path, ["step"])["step"], str(path)
    if (
        not isinstance(step, dict)
        or step.get("config") not in [*CONFIGS]
        or step.get("mode") not in ("prefill", "train")
    ):
        raise InputError("expected the config and the mode of a step", source=source, where="step")
    least = {"length": 1, "batch": 1, "seed": -(1 << 60)}
    return Work(
        step["config"],
        step["mode"],
        **{key: whole(step.get(key), source, f"step.{key}", least[key]) for key in least},
    )


def _outside(ran: Ran, held_bytes: int) -> int:
    """Bytes that something beside the step's own tensors holds, such as workspaces of cuBLAS."""
    return 0 if ran.at_rest_bytes is None else max(0, ran.at_rest_bytes - held_bytes)


def _with_times(graph: Graph, ran: Ran) -> Graph:
    """The graph with the median time of each op."""
    spans = [list(zip(line.op_start_ns, line.op_end_ns, strict=True)) for line in ran.timelines]
    times = [
        round(statistics.median(end - start for start, end in ends))
        for ends in zip(*spans, strict=True)
    ]
    ops = [replace(op, duration_ns=ns) for op, ns in zip(graph.ops, times, strict=True)]
    return Graph(graph.name, graph.tensors, ops, graph.meta)


def _room(device: Device) -> Hardware:
    """A machine for runs that move nothing: as much memory as there is, and channels of any
    speed.
    """
    about = device.describe()
    room = int(about.get("free_memory_bytes") or about["host_memory_bytes"])
    tiers = (
        Tier("hbm", room, 10**12, "device"),
        Tier("ddr", int(about["host_memory_bytes"]), 10**11, "host"),
    )
    channels = (Channel("h2d", "ddr", "hbm", 10**10), Channel("d2h", "hbm", "ddr", 10**10))
    return Hardware(str(about["name"]), tiers, channels, Compute({}))


# -- channels, alone and beside kernels
# --------------------------------------------------------------------------------------------------


def sweep(device: Device, sizes: Sequence[int], repeats: int) -> dict[str, Any]:
    """Nanoseconds of each of ``repeats`` copies and host allocations, after one that does not
    count.

    ``both`` is one copy each way at once, from the start of the first to the end of the last
    (``ns``), with pinned memory: copies of pageable memory block the host, and so cannot overlap.
    """
    copies = []
    for pinned in (True, False):
        for size in sizes:
            directions = (TO_DEVICE, TO_HOST, "both") if pinned else (TO_DEVICE, TO_HOST)
            for direction in directions:
                pairs = [
                    _pair(device, one, size, pinned)
                    for one in ((TO_DEVICE, TO_HOST) if direction == "both" else (direction,))
                ]
                times = [device.time_copies(pairs) for _ in range(repeats + 1)][1:]
                row = {
                    "direction": direction,
                    "pinned": pinned,
                    "bytes": size,
                    "median_ns": round(statistics.median(times)),
                    "ns": times,
                }
                copies.append(row)
                del pairs
    return {"copies": copies, "host_allocations": _host_allocations(device, sizes)}


def _pair(device: Device, direction: str, size: int, pinned: bool) -> tuple[str, Any, Any]:
    host, there = device.host(size, torch.uint8, pinned), device.empty(size, torch.uint8)
    host.zero_()  # pages exist before they are copied
    there.zero_()
    return (direction, there, host) if direction == TO_DEVICE else (direction, host, there)


def _host_allocations(
    device: Device, sizes: Sequence[int], at_once: int = 3
) -> list[dict[str, Any]]:
    """Each size a few times, without freeing in between, because torch would serve the next from
    its cache.
    """
    rows = []
    for pinned in (True, False):
        for size in sizes:
            held: list[Any] = []
            times = []
            for _ in range(at_once):
                start = time.perf_counter_ns()
                held.append(device.host(size, torch.uint8, pinned))
                times.append(time.perf_counter_ns() - start)
            rows.append({"pinned": pinned, "bytes": size, "ns": times})
            held.clear()
            device.empty_caches()
    return rows


def beside(
    device: Device, width: int, copy_bytes: int, times: int = 8, repeats: int = 5
) -> list[dict[str, Any]]:
    """A row for each kernel and direction: nanoseconds of the kernels alone, of the copies alone,
    and of both while the other ran.

    ``width`` is that of square matrices in bf16; the addition reads and writes as many bytes as 16
    of them have. Kernels run ``times`` times, and copies as often as fills about the same time, so
    that each is beside the other nearly all the time. Medians of ``repeats``.
    """
    one, two, out = (
        device.empty(width * width, torch.bfloat16).zero_().view(width, width) for _ in range(3)
    )
    wide, also = (device.empty(16 * width * width, torch.bfloat16).zero_() for _ in range(2))
    there, host = (
        device.empty(copy_bytes, torch.uint8).zero_(),
        device.host(copy_bytes, torch.uint8).zero_(),
    )
    kernels: dict[str, Callable[[], Any]] = {
        "product": lambda: torch.mm(one, two, out=out),
        "addition": lambda: torch.add(wide, 1.0, out=also),
    }
    rows = []
    for name, kernel in kernels.items():
        kernel()  # libraries are loaded before anything is timed
        for direction in (TO_DEVICE, TO_HOST):
            copy = (direction, there, host) if direction == TO_DEVICE else (direction, host, there)
            alone = _median(device, [[kernel] * times, []], repeats)[0]
            one_copy = _median(device, [[], [copy]], repeats)[1]
            copies = [copy] * max(1, round(alone / max(one_copy, 1)))
            copied = _median(device, [[], copies], repeats)[1]
            both = _median(device, [[kernel] * times, copies], repeats)
            rows.append(
                {
                    "kernel": name,
                    "direction": direction,
                    "width": width,
                    "times": times,
                    "copies": len(copies),
                    "copy_bytes": copy_bytes,
                    "kernels_alone_ns": alone,
                    "copies_alone_ns": copied,
                    "kernels_beside_ns": both[0],
                    "copies_beside_ns": both[1],
                }
            )
    return rows


def _median(device: Device, work: list[list[Any]], repeats: int) -> tuple[int, int]:
    """Nanoseconds that the kernels and the copies take when both begin together, after one round
    that does not count.
    """
    kernels, copies = work
    rounds = [device.time_both(kernels, copies) for _ in range(repeats + 1)][1:]
    return round(statistics.median(one for one, _ in rounds)), round(
        statistics.median(two for _, two in rounds)
    )


# -- the machine that was measured -----------------------------------------------------------------


def measured_machine(out: Path) -> Hardware:
    """Its free memory and its measured channels, and half of the host's memory, as that much may be
    pinned.

    A dry run has a machine that is slow enough to cause waits. Raises :class:`InputError` for a
    folder that was not measured.
    """
    about = measured_device(out / "meta.json")
    if about["kind"] == "cpu":
        tiers = (Tier("hbm", 1 << 32, 10**11, "device"), Tier("ddr", 1 << 32, 10**10, "host"))
        slow = (
            Channel("h2d", "ddr", "hbm", 10**9, 10_000),
            Channel("d2h", "hbm", "ddr", 10**9, 10_000),
        )
        return Hardware("cpu stand-in", tiers, slow, Compute({}))
    channels = swept_channels(bandwidth_sweep(out / "bandwidth.json"), host="ddr", device="hbm")
    tiers = (
        Tier("hbm", about["free_memory_bytes"], 10**12, "device"),
        Tier("ddr", about["host_memory_bytes"] // 2, 10**11, "host"),
    )
    return Hardware(about["name"], tiers, channels, Compute({}))


# -- kernels that the cost model knows: products and attention -------------------------------------


COLUMNS = (
    "machine",
    "kernel",
    "dtype",
    *("m", "n", "k", "batch", "queries", "before", "keys", "heads", "kv_heads", "width", "window"),
    "latency_us",
)
_NO_WINDOW = 1 << 40


@dataclass(frozen=True)
class KernelShapes:
    """Products: rows, (columns, depth). Prompts and steps: sequences, tokens of each, (heads, heads
    of keys), width of a head.
    """

    products: Sequence[tuple[int, tuple[int, int]]]
    prompts: Sequence[tuple[int, int, tuple[int, int], int]]
    steps: Sequence[tuple[int, int, tuple[int, int], int]]


_MATRICES = ((2048, 2048), (8192, 2048), (2048, 8192), (4096, 4096), (14336, 4096), (8192, 8192))
_HEADS = ((32, 8), (32, 32))
SHAPES = KernelShapes(
    tuple(itertools.product((1, 16, 128, 1024, 4096, 8192), _MATRICES)),
    tuple(itertools.product((1, 4), (512, 2048, 8192), _HEADS, (64, 128))),
    tuple(itertools.product((1, 8, 32), (1024, 8192), _HEADS, (128,))),
)
SMALL = KernelShapes(((8, (16, 32)), (16, (32, 16))), ((1, 16, (4, 2), 8),), ((2, 16, (4, 2), 8),))
"""For a CPU."""

Row = Mapping[str, Any]


def kernel_rows(
    device: Device, machine: str, shapes: KernelShapes, calls: int = 20
) -> Iterator[Row]:
    """A row for each shape, with the time of one of ``calls`` calls in a row, in microseconds (the
    median of three such rows).

    Shapes that do not fit in memory have no row.
    """
    for m, (n, k) in shapes.products:
        yield from _timed(
            device,
            machine,
            "gemm",
            {"m": m, "n": n, "k": k},
            partial(_product, device, m, n, k),
            calls,
        )
    for batch, queries, (heads, kv_heads), width in shapes.prompts:
        sizes = {
            "batch": batch,
            "queries": queries,
            "before": 0,
            "heads": heads,
            "kv_heads": kv_heads,
            "width": width,
            "window": _NO_WINDOW,
        }
        made = partial(_attention, device, batch, queries, queries, heads, kv_heads, width)
        yield from _timed(device, machine, "context_attention", sizes, made, calls)
    for batch, keys, (heads, kv_heads), width in shapes.steps:
        sizes = {"batch": batch, "keys": keys, "heads": heads, "kv_heads": kv_heads, "width": width}
        made = partial(_attention, device, batch, 1, keys, heads, kv_heads, width)
        yield from _timed(device, machine, "generation_attention", sizes, made, calls)


def _timed(
    device: Device,
    machine: str,
    kernel: str,
    sizes: Row,
    made: Callable[[], Callable[[], Any]],
    calls: int,
) -> Iterator[Row]:
    try:
        run = made()
        for _ in range(3):
            run()
        times = [device.time_calls(run, calls) for _ in range(3)]
    except torch.cuda.OutOfMemoryError:
        device.empty_caches()
        return
    yield {
        "machine": machine,
        "kernel": kernel,
        "dtype": "bfloat16",
        **sizes,
        "latency_us": round(statistics.median(times) / 1000, 3),
    }


def _product(device: Device, m: int, n: int, k: int) -> Callable[[], Any]:
    left, right = (
        device.empty(rows * k, torch.bfloat16).normal_().view(rows, k) for rows in (m, n)
    )
    return lambda: functional.linear(left, right)


def _attention(
    device: Device, batch: int, queries: int, keys: int, heads: int, kv_heads: int, width: int
) -> Callable[[], Any]:
    """Causal attention; of one query over a cache there is nothing to mask."""

    def drawn(count: int, tokens: int) -> Any:
        return (
            device.empty(batch * count * tokens * width, torch.bfloat16)
            .normal_()
            .view(batch, count, tokens, width)
        )

    q, k, v = drawn(heads, queries), drawn(kv_heads, keys), drawn(kv_heads, keys)
    grouped = {"enable_gqa": True} if kv_heads < heads else {}
    return lambda: functional.scaled_dot_product_attention(
        q, k, v, is_causal=queries > 1, **grouped
    )

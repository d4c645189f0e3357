"""The first step, on the GPU: channels, kernels, decoders under simple schemes, and the time of
each op of their captured steps.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hosim.cache_plan import Plan
from hosim.errors import ExecutionError, InputError
from hosim.graph import Graph
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.on_torch.gpu import kernel_times
from hosim.on_torch.gpu.captured_step import Ran, Work, captured, events_of, run_steps
from hosim.on_torch.gpu.functional_decoder import CONFIGS
from hosim.on_torch.gpu.gpu_seam import TO_DEVICE, TO_HOST, Device
from hosim.on_torch.gpu.output_files import write_json, write_rows
from hosim.on_torch.gpu.progress_lines import say
from hosim.on_torch.gpu.scheme_runs import new_folder
from hosim.on_torch.gpu.travel_files import workload_mapping
from hosim.validate.kit import FORMAT, read_json, whole

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
    shapes = kernel_times.SMALL if dry else kernel_times.SHAPES
    rows = kernel_times.kernel_rows(device, str(device.describe()["name"]), shapes)
    write_rows(path, kernel_times.COLUMNS, rows)


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

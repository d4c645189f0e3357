"""The first step, on the GPU: channels, kernels, decoders under simple schemes, and the time of
each op of their captured steps.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from hosim.cache_plan import Plan
from hosim.errors import ExecutionError, InputError
from hosim.graph import Graph
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.on_torch.gpu import kernel_times
from hosim.on_torch.gpu.bandwidth_sweep import SIZES, sweep
from hosim.on_torch.gpu.beside_kernels import beside
from hosim.on_torch.gpu.captured_step import Ran, Work, captured, events_of, run_steps
from hosim.on_torch.gpu.functional_decoder import CONFIGS
from hosim.on_torch.gpu.gpu_seam import Device
from hosim.on_torch.gpu.output_files import write_json, write_rows
from hosim.on_torch.gpu.progress_lines import say
from hosim.on_torch.gpu.scheme_runs import new_folder
from hosim.on_torch.gpu.travel_files import workload_mapping
from hosim.validate.kit import FORMAT, read_json, whole


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

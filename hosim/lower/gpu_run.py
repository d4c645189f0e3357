"""One command for a GPU machine: run a decoder under hosim's plans, and compare predictions with measurements.

``python -m hosim.lower.gpu_run --out DIR`` measures the machine's copies and the decoder's ops with everything resident, plans for shares
of the resident peak with these times, runs each plan, and writes a folder for each: ``run.json`` (predictions and measurements),
``plan.json``, and ``timeline.json`` (the run's own ops and transfers, for https://ui.perfetto.dev). ``summary.json`` has the machine and
all runs. With ``--dry-run`` it does everything without a GPU: it runs the tiny decoder on a machine made of the CPU's memory.

It has not run on a GPU yet: tests run the dry run, and the GPU machine on a stand-in for ``torch.cuda``.

Measured peaks are those of ``max_memory_allocated``. Predicted peaks are those of the account in program order with the caching allocator's
rounding, plus what is allocated outside the program (workspaces of cuBLAS), which the resident run shows while nothing runs. Measured times
are medians of steps by the host's clock, from the first launch to the end of the last work; predicted ones are makespans.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import HosimError, InfeasibleError, InputError
from hosim.graph import Graph
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io import save_plan
from hosim.lower.insert import insert
from hosim.lower.measured_timeline import measured
from hosim.lower.offload import planned
from hosim.lower.on_cpu import CpuDevice
from hosim.lower.on_cuda import CudaDevice
from hosim.lower.run import Executor
from hosim.lower.torch_decoder import SIZES, TorchDecoder
from hosim.lower.torch_program import TorchProgram, capture
from hosim.lower.training import capture_training
from hosim.result import CACHING, IN_PROGRAM_ORDER, Result, Timeline
from hosim.timeline import last_ns

FORMAT = "hosim.gpu_run/1"
MODES = ("prefill", "train")


@dataclass(frozen=True)
class CapturedStep:
    """A captured step with the tensors it holds and one call's inputs, by placeholder."""

    program: TorchProgram
    held: Mapping[str, Any]
    inputs: Mapping[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print a table; the exit code: 0 ok, 2 wrong usage or a failure on the way, 3 if nothing fits."""
    options = _parser().parse_args(arguments)
    try:
        shares = _shares(options.shares)
        modes = [_mode(name) for name in options.modes.split(",")]
        with _threads(1 if options.dry_run else None):
            summary = _run(options, modes, shares)
    except HosimError as error:
        print(f"gpu_run: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    _print(summary["runs"])
    return 0


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """The number of threads for each op: with one, the times of small ops are steady."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hosim.lower.gpu_run", description="Run a decoder under hosim's plans on a CUDA device."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; created if it does not exist")
    parser.add_argument("--config", choices=sorted(SIZES), default="1b", help="sizes of the decoder (default: 1b)")
    parser.add_argument("--modes", default=",".join(MODES), help="default: %(default)s")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a step (default: 1)")
    parser.add_argument("--shares", default="75,50", help="budgets, in per cent of the resident peak (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps, after two warm-up steps (default: 5)")
    parser.add_argument("--policy", default="hyperoffload", help="what plans (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="everything but the GPU: the tiny decoder on the CPU")
    return parser


def _shares(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 0 < int(part) <= 100 for part in parts):
        raise InputError(f"expected whole numbers from 1 to 100, such as 75,50, got {text!r}", source="--shares")
    return [int(part) for part in parts]


def _mode(name: str) -> str:
    if name not in MODES:
        raise InputError(f"expected some of {', '.join(MODES)}, got {name!r}", source="--modes")
    return name


def _run(options: argparse.Namespace, modes: Sequence[str], shares: Sequence[int]) -> dict[str, Any]:
    cuda = not options.dry_run
    if cuda and not torch.cuda.is_available():
        raise InputError("expected a CUDA device, torch finds none (--dry-run runs on the CPU)")
    if min(options.length, options.batch, options.steps) < 1:
        raise InputError("expected --length, --batch and --steps of at least 1")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder: {error.strerror}", source=str(options.out)) from error
    hardware = _measured_machine() if cuda else _stand_in()
    summary = {"format": FORMAT, "dry_run": not cuda, "torch": torch.__version__, "machine": _described(hardware, cuda), "runs": []}
    for mode in modes:
        work = _work("tiny" if options.dry_run else options.config, mode, options.length, options.batch, "cuda" if cuda else "cpu")
        graph, resident = _timed(work, hardware, cuda, options.steps)
        all_there = replay(Plan(graph), hardware, account=IN_PROGRAM_ORDER, allocator=CACHING)
        summary["runs"].append(_row(mode, 100, None, all_there, resident, resident, 0))
        outside = resident["outside_bytes"]
        for share in shares:
            budget = (_peak(all_there) + outside) * share // 100
            if budget <= outside:
                raise InfeasibleError(f"{share} % of the resident peak is less than the {outside} B outside the program")
            plan, predicted = planned(graph, hardware, budget - outside, options.policy, replayed=_in_blocks)
            got = _steps(work, plan, hardware, cuda, options.steps)
            row = _row(mode, share, budget, predicted, got, resident, len(plan.cache_ops))
            summary["runs"].append(row)
            _write(options.out / f"{mode}-{share}", row, plan, predicted, hardware, got["timeline"])
        del work
        gc.collect()
    _write_json(options.out / "summary.json", summary)
    return summary


# -- the machine -------------------------------------------------------------------------------------------------------


def _measured_machine() -> Hardware:
    """The GPU as a profile: its memory, and its channels as measured with pinned copies. Op times are measured separately."""
    free, _ = torch.cuda.mem_get_info()
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    down, down_ns = _copies(to_host=True)
    up, up_ns = _copies(to_host=False)
    tiers = (Tier("hbm", free, 10**12, "device"), Tier("ddr", host, 10**11, "host"))
    channels = (Channel("h2d", "ddr", "hbm", up, up_ns), Channel("d2h", "hbm", "ddr", down, down_ns))
    return Hardware(torch.cuda.get_device_name(), tiers, channels, Compute({}))


def _copies(*, to_host: bool, small: int = 1 << 20, large: int = 1 << 28, times: int = 10) -> tuple[int, int]:
    """Bytes per second and latency in nanoseconds of pinned copies: the line through the median times of two sizes."""
    took = []
    for size in (small, large):
        on_device = torch.empty(size, dtype=torch.uint8, device="cuda")
        on_host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        source, destination = (on_device, on_host) if to_host else (on_host, on_device)
        runs = []
        for _ in range(times):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            destination.copy_(source, non_blocking=True)
            end.record()
            torch.cuda.synchronize()
            runs.append(start.elapsed_time(end) * 1e6)
        took.append(statistics.median(runs))
    rate = (large - small) / (took[1] - took[0])
    return int(rate * 1e9), max(0, round(took[0] - small / rate))


def _stand_in() -> Hardware:
    """The profile that a dry run plans for: chosen by hand, and slow enough to cause waits."""
    tiers = (Tier("hbm", 1 << 32, 10**11, "device"), Tier("ddr", 1 << 32, 10**10, "host"))
    channels = (Channel("h2d", "ddr", "hbm", 10**9, 10_000), Channel("d2h", "hbm", "ddr", 10**9, 10_000))
    return Hardware("cpu stand-in", tiers, channels, Compute({}))


def _described(hardware: Hardware, cuda: bool) -> dict[str, Any]:
    channels = {c.name: {"bytes_per_s": c.bandwidth_bytes_per_s, "latency_ns": c.latency_ns} for c in hardware.channels}
    return {"name": hardware.name, "cuda": torch.version.cuda if cuda else None, "hbm_bytes": hardware.device.capacity_bytes, **channels}


# -- the work ----------------------------------------------------------------------------------------------------------


def _work(config: str, mode: str, length: int, batch: int, device: str) -> CapturedStep:
    with torch.device(device):
        model = TorchDecoder(SIZES[config], length)
        generator = torch.Generator(device=device).manual_seed(2)
        tokens, targets = torch.randint(0, SIZES[config].vocabulary, (2, batch, length), generator=generator).unbind()
        targets = targets.contiguous().clone()
        tokens = tokens.contiguous().clone()
    if mode == "prefill":
        with torch.no_grad():
            exported = torch.export.export(model.eval(), (tokens,))
        program = capture(exported, name=f"decoder-{config}-{mode}-{length}")
        own = {**exported.state_dict, **exported.constants}
        held = {given.placeholder: own[given.name] for given in program.givens if given.own}
        return CapturedStep(program, held, {given.placeholder: tokens for given in program.givens if not given.own})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = {"tokens": tokens, "targets": targets}
    step = capture_training(
        model, inputs, optimizer, name=f"decoder-{config}-{mode}-{length}", loss=lambda model, inputs: model.loss(**inputs)
    )
    held = {given.placeholder: value for given, value in zip(step.program.givens, step.values, strict=True) if value is not None}
    others = [given.placeholder for given in step.program.givens if given.placeholder not in held]
    return CapturedStep(step.program, held, dict(zip(others, (inputs[name] for name in step.inputs), strict=True)))


def _timed(work: CapturedStep, hardware: Hardware, cuda: bool, steps: int) -> tuple[Graph, dict[str, Any]]:
    """The workload with each op's median time while everything is resident, and the times of these steps."""
    got = _steps(work, Plan(work.program.graph), hardware, cuda, steps, all_recorded=True)
    lines: list[Timeline] = got["timelines"]
    times = [
        round(statistics.median(end - start for start, end in ends))
        for ends in zip(*(list(zip(line.op_start_ns, line.op_end_ns, strict=True)) for line in lines), strict=True)
    ]
    ops = tuple(replace(op, duration_ns=ns) for op, ns in zip(work.program.graph.ops, times, strict=True))
    return replace(work.program.graph, ops=ops), got


def _in_blocks(plan: Plan, hardware: Hardware, budget: int) -> Result:
    """The replay of a plan in program order and in the caching allocator's blocks; not feasible if these take more than the budget."""
    result = replay(plan, hardware, account=IN_PROGRAM_ORDER, allocator=CACHING)
    if result.feasible and _peak(result) > budget:
        return replace(result, feasible=False, error=f"its blocks take {_peak(result)} B")
    return result


def _without_times(plan: Plan, graph: Graph) -> Plan:
    """The plan for the program's graph, of which the plan's workload is a copy with measured times."""
    if plan.edits is None:
        return replace(plan, graph=graph)
    edits = replace(plan.edits, base=graph)
    return replace(plan, graph=edits.graph(), edits=edits)


def _steps(work: CapturedStep, plan: Plan, hardware: Hardware, cuda: bool, steps: int, all_recorded: bool = False) -> dict[str, Any]:
    """Run steps under a plan: two to warm up, timed ones, and recorded ones."""
    lowered = insert(work.program, _without_times(plan, work.program.graph), hardware.device_tier)
    machine = CudaDevice(hardware) if cuda else CpuDevice(hardware, throttle=True)
    took, timelines = [], []
    with Executor(lowered, hardware, machine) as executor:
        executor.place(work.held)
        for _ in range(2):
            results = [result.cpu() for result in executor.run(work.inputs)]
        outside = torch.cuda.memory_allocated() - _held_bytes(work) if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        for _ in range(steps):
            start = time.perf_counter_ns()
            executor.run(work.inputs)
            took.append(time.perf_counter_ns() - start)
        peak = torch.cuda.max_memory_allocated() if cuda else None
        for _ in range(steps if all_recorded else 1):
            executor.run(work.inputs, record=True)
            assert executor.timeline is not None
            timelines.append(executor.timeline)
    return {
        "results": results,
        "outside_bytes": outside,
        "step_ns": took,
        "peak_bytes": peak,
        "timeline": timelines[-1],
        "timelines": timelines,
    }


def _held_bytes(work: CapturedStep) -> int:
    """Bytes of the allocator's blocks of all that a step holds and is given, in multiples of 512 B, when all of it is on the device."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in (*work.held.values(), *work.inputs.values())}
    return sum(-(-size // 512) * 512 for size in storages.values())


def _peak(result: Result) -> int:
    assert result.allocator is not None
    return result.allocator.peak_allocated_bytes


# -- results -----------------------------------------------------------------------------------------------------------


def _row(
    mode: str, share: int, budget: int | None, predicted: Result, got: Mapping[str, Any], resident: Mapping[str, Any], cache_ops: int
) -> dict[str, Any]:
    step = round(statistics.median(got["step_ns"]))
    timeline: Timeline = got["timeline"]
    waited = sum(stall.stall_ns for stall in timeline.stalls)
    return {
        "mode": mode,
        "share_percent": share,
        "budget_bytes": budget,
        "cache_ops": cache_ops,
        "same_results": None
        if mode == "train"
        else _same(got["results"], resident["results"]),  # each training step has weights of its own
        "outside_bytes": resident["outside_bytes"],
        "predicted": {
            "peak_bytes": _peak(predicted) + resident["outside_bytes"],
            "step_ns": predicted.makespan_ns,
            "stall_ns": sum(predicted.stall_ns.values()),
        },
        "measured": {
            "peak_bytes": got["peak_bytes"],
            "step_ns": step,
            "steps_ns": got["step_ns"],
            "recorded_step_ns": last_ns(timeline),
            "recorded_stall_ns": waited,
        },
    }


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def _write(folder: Path, row: dict[str, Any], plan: Plan, predicted: Result, hardware: Hardware, timeline: Timeline) -> None:
    folder.mkdir(exist_ok=True)
    _write_json(folder / "run.json", {"format": FORMAT, **row})
    save_plan(plan, folder / "plan.json")
    real = measured(replay(plan, hardware), timeline)
    _write_json(folder / "timeline.json", _events(plan, real))


def _events(plan: Plan, real: Result) -> dict[str, Any]:
    """Ops and transfers of a run in the Trace Event Format."""
    assert real.timeline is not None
    line, ops = real.timeline, plan.graph.ops
    events = [
        {"ph": "X", "name": op.name, "cat": op.kind, "pid": 1, "tid": op.stream, "ts": start / 1000, "dur": (end - start) / 1000}
        for op, start, end in zip(ops, line.op_start_ns, line.op_end_ns, strict=True)
    ]
    events += [
        {
            "ph": "X",
            "name": plan.graph.tensors[x.tensor].name,
            "cat": plan.cache_ops[x.cache_op].op,
            "pid": 1,
            "tid": x.channel,
            "ts": x.start_ns / 1000,
            "dur": (x.end_ns - x.start_ns) / 1000,
        }
        for x in line.transfers
    ]
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _write_json(path: Path, content: object) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(part, path)


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"{'run':14} {'budget':>15} {'peak':>15} {'predicted':>15} {'off':>7} {'step ms':>9} {'predicted':>9} {'off':>7}")  # noqa: T201
    for row in rows:
        got, said = row["measured"], row["predicted"]
        peak = _beside(got["peak_bytes"], said["peak_bytes"])
        budget = f"{row['budget_bytes']:,}" if row["budget_bytes"] else "resident"
        step = f"{got['step_ns'] / 1e6:>9.2f} {said['step_ns'] / 1e6:>9.2f} {got['step_ns'] / said['step_ns'] - 1:>+7.1%}"
        print(f"{row['mode']}-{row['share_percent']:<6} {budget:>15} {peak} {step}")  # noqa: T201


def _beside(got: int | None, said: int) -> str:
    if got is None:
        return f"{'not measured':>15} {said:>15,} {'':>7}"
    return f"{got:>15,} {said:>15,} {got / said - 1:>+7.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

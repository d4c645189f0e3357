"""The third step, on the GPU: run each plan, and write what was measured beside what was
predicted.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hosim.base import files
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.on_torch.gpu.attempts import Attempts, noted_failures
from hosim.on_torch.gpu.captured_step import CapturedStep, Work, captured, events_of, run_steps
from hosim.on_torch.gpu.gpu_seam import Device
from hosim.on_torch.gpu.measuring import measured_machine, run_mapping, work_of
from hosim.on_torch.gpu.output_files import plan_of_mapping, say, write_json
from hosim.validate import plan_rows
from hosim.validate.kit import FORMAT, read_json, whole


def run_plans(device: Device, out: Path, steps: int, attempts: Attempts) -> None:
    """Run each plan of the folder that has not run.

    Raises :class:`InputError` for a folder without plans.
    """
    plans = sorted(out.glob("[!.]*-plan-*/predicted.json"))
    if not plans:
        raise InputError(
            "no plan (MODEL-MODE-LENGTH-plan-SHARE); run `python -m hosim.gpu plan` first",
            source=str(out),
        )
    hardware, steps_of = measured_machine(out), _Steps(device)
    for folder in (path.parent for path in plans):
        if not (folder / "plan.json").exists():
            say(f"{folder.name}: nothing fits")
        elif (folder / "run.json").exists():
            say(f"{folder.name}: there already")
        else:
            attempts.do(
                folder.name, partial(_run, device, hardware, folder, out, steps, steps_of), device
            )
        write_summary(out)


class _Steps:
    """Captured steps. The last one is kept, because its plans stand together; one whose run failed
    is captured again.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: dict[Work, CapturedStep] = {}

    @contextmanager
    def of(self, work: Work) -> Iterator[CapturedStep]:
        step = self._kept.pop(work, None)
        self._kept.clear()
        if step is None:
            step = captured(work, self._device.torch_device)
        else:
            step.renew()
        yield step
        self._kept[work] = step


def _run(
    device: Device, hardware: Hardware, folder: Path, out: Path, steps: int, steps_of: _Steps
) -> None:
    resident = out / f"{folder.name.rpartition('-plan-')[0]}-step" / "run.json"
    work = work_of(resident)
    path = folder / "plan.json"
    data = files.read_json(str(path), "a plan", "plan again: python -m hosim.gpu plan")
    with steps_of.of(work) as step:
        plan = plan_of_mapping(data, step.program.graph, str(path))
        ran = run_steps(step, plan, hardware, device, steps, 1, folder, _budget(folder, resident))
    line = ran.timelines[-1]
    write_json(folder / "timeline.json.gz", events_of(plan, line))
    waited = sum(stall.stall_ns for stall in line.stalls)
    write_json(folder / "run.json", {**run_mapping(work, ran), "recorded_stall_ns": waited})


def _budget(folder: Path, resident: Path) -> int:
    """The bytes that the program of a plan may hold: its budget without what was allocated outside
    the program.
    """
    path = folder / "predicted.json"
    budget = whole(read_json(path).get("budget_bytes"), str(path), "budget_bytes")
    return budget - whole(read_json(resident).get("outside_bytes"), str(resident), "outside_bytes")


# -- the summary -----------------------------------------------------------------------------------


def write_summary(out: Path) -> list[dict[str, Any]]:
    """Write ``summary.json`` from the folders that are there, with what failed; returns its
    rows.
    """
    rows, device = plan_rows(out), read_json(out / "meta.json", ["device"])["device"]
    write_json(
        out / "summary.json",
        {"format": FORMAT, "device": device, "runs": rows, "failed": dict(noted_failures(out))},
    )
    return rows


def table(rows: Sequence[Mapping[str, Any]], failed: Mapping[str, str]) -> str:
    """The rows as text, and a line for each that failed."""
    lines = [
        f"{'':28} {'budget':>15} {'allocated':>15} {'predicted':>15} {'off':>7} {'step ms':>9} "
        f"{'predicted':>9} {'off':>7}"
    ]
    for row in rows:
        got, said = row["measured"], row["predicted"]
        if row["error"] is not None:
            lines.append(f"{row['name']:28} {row['error']}")
            continue
        budget = "resident" if row["budget_bytes"] is None else f"{row['budget_bytes']:,}"
        peak = _beside(got["allocated_bytes"], said["allocated_bytes"], 15, "{:,}", 1)
        step = _beside(got["step_ns"], said["step_ns"], 9, "{:.2f}", 1e6)
        other = "  other results" if row["same_results"] is False else ""
        lines.append(f"{row['name']:28} {budget:>15} {peak} {step}{other}".rstrip())
    lines += [f"failed: {name}: {reason}" for name, reason in failed.items()]
    return "\n".join(lines)


def _beside(got: int | None, said: int, width: int, form: str, unit: float) -> str:
    predicted = form.format(said / unit if unit != 1 else said)
    if got is None:
        return f"{'-':>{width}} {predicted:>{width}} {'':>7}"
    return (
        f"{form.format(got / unit if unit != 1 else got):>{width}} {predicted:>{width}} "
        f"{said / got - 1:>+7.1%}"
    )

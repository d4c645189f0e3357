"""The third step, on the GPU: run each plan, and write what was measured beside what was
predicted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hosim.base.files import read_json
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.on_torch.gpu.attempts import Attempts
from hosim.on_torch.gpu.captured_step import CapturedStep, Work, captured, events_of, run_steps
from hosim.on_torch.gpu.gpu_seam import Device
from hosim.on_torch.gpu.measured_machine import measured_machine
from hosim.on_torch.gpu.measuring import run_mapping, work_of
from hosim.on_torch.gpu.output_files import write_json
from hosim.on_torch.gpu.progress_lines import say
from hosim.on_torch.gpu.summary_table import write_summary
from hosim.on_torch.gpu.travel_files import plan_of_mapping
from hosim.validate.kit import read_json as kit_json
from hosim.validate.kit import whole


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
    data = read_json(str(path), "a plan", "plan again: python -m hosim.gpu plan")
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
    budget = whole(kit_json(path).get("budget_bytes"), str(path), "budget_bytes")
    return budget - whole(kit_json(resident).get("outside_bytes"), str(resident), "outside_bytes")

"""The kit for a GPU machine on a stand-in for ``torch.cuda``: its steps, and what they write."""

import contextlib
import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402

from hosim import load_workload  # noqa: E402
from hosim.cache_plan import Plan  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.on_torch.gpu import captured_step, command, measuring, planning, running  # noqa: E402
from hosim.on_torch.gpu.captured_step import captured  # noqa: E402
from hosim.on_torch.gpu.gpu_seam import CpuBackend  # noqa: E402
from hosim.on_torch.gpu.measuring import measured_machine  # noqa: E402
from hosim.on_torch.lower import rule_of  # noqa: E402


class Pretended(CpuBackend):
    """A device of CUDA whose memory holds 4096 B beside the step's own."""

    kind = "cuda"
    held = 0

    def peaks(self):
        return {
            "max_memory_allocated": 1_000_000,
            "max_memory_reserved": 2 << 20,
            "memory_allocated": self.held + 4096,
        }

    def activities(self):
        return [torch.profiler.ProfilerActivity.CPU]

    def describe(self):
        return {
            "kind": "cuda",
            "index": 0,
            "name": "GPU",
            "free_memory_bytes": 1 << 32,
            "host_memory_bytes": 1 << 33,
        }

    @contextlib.contextmanager
    def history(self, kept):
        yield
        kept.append({"segments": [], "device_traces": []})


@pytest.fixture
def pretended(monkeypatch):
    """Each kernel takes 1 ms; the decoder really runs on the CPU."""
    device, runs, budgets = Pretended(), [], []
    cuda = fake_cuda.install(monkeypatch, op_ns=1_000_000, launch_ns=0, devices=1)
    monkeypatch.setattr(command, "CudaBackend", lambda index: device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def step_of(work, where):
        found = captured(work, where)
        device.held = found.held_bytes
        return found

    for module in (measuring, running):
        monkeypatch.setattr(module, "captured", step_of)
    run = captured_step.Executor.run

    def noted(executor, values, record=False):
        runs.append(record)
        budgets.append(executor._budget_bytes)
        return run(executor, values, record=record)

    monkeypatch.setattr(captured_step.Executor, "run", noted)
    return SimpleNamespace(runs=runs, budgets=budgets, cuda=cuda)


def test_a_run_on_a_gpu(pretended, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        planning, "rule_of", lambda allocator: rule_of(None)
    )  # the decoder is smaller than a segment of the allocator
    out = tmp_path / "out"
    line = [
        "--configs",
        "tiny",
        "--modes",
        "prefill",
        "--lengths",
        "8",
        "--batch",
        "2",
        "--iterations",
        "3",
    ]
    line += ["--shares", "60", "--out", str(out)]
    with fake_cuda.Launched(pretended.cuda):
        assert command.main(["measure", "--only", "steps", *line]) == 0
    graph = load_workload(out / "tiny-prefill-8-step" / "workload.json.gz")
    assert {op.duration_ns for op in graph.ops} == {
        1_000_000,
        2_000_000,
    }  # a copy within an op is a kernel more
    run = json.loads((out / "tiny-prefill-8-step" / "run.json").read_text())
    assert (run["outside_bytes"], run["memory"]["max_memory_allocated"], len(run["wall_ns"])) == (
        4096,
        1_000_000,
        3,
    )
    # Two steps to warm up, three timed ones, three recorded ones for the times of the ops, one
    # under the profiler, one under the history.
    assert pretended.runs == [False] * 5 + [True] * 3 + [False] * 2
    copies = [
        {"direction": way, "pinned": True, "bytes": 1 << 10, "ns": [1 << 10]}
        for way in ("h2d", "d2h")
    ]
    (out / "bandwidth.json").write_text(json.dumps({"format": "hosim.gpu/1", "copies": copies}))
    assert command.main(["plan", *line]) == 0
    peak = replay(
        Plan(graph), measured_machine(out), account="program", allocator="caching"
    ).allocator.peak_allocated_bytes
    said = json.loads((out / "tiny-prefill-8-plan-60" / "predicted.json").read_text())
    assert said["budget_bytes"] == (peak + 4096) * 60 // 100
    assert said["allocated_bytes"] <= said["budget_bytes"]
    pretended.runs.clear()
    with fake_cuda.Launched(pretended.cuda):
        assert command.main(["run", *line]) == 0
    assert pretended.runs == [False] * 5 + [True] + [False] * 2
    assert set(pretended.budgets[-8:]) == {
        said["budget_bytes"] - 4096
    }  # what is allocated outside the program is not the program's
    files = {path.name for path in (out / "tiny-prefill-8-plan-60").iterdir()}
    assert files == {
        "predicted.json",
        "plan.json",
        "run.json",
        "trace.json.gz",
        "memory.json.gz",
        "timeline.json.gz",
    }
    resident, planned = json.loads((out / "summary.json").read_text())["runs"]
    assert resident["predicted"]["allocated_bytes"] == peak + 4096
    assert planned["measured"]["reserved_bytes"] == 2 << 20
    assert planned["same_results"] is True
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == [
        "tiny-prefill-8-step",
        "resident",
        "1,000,000",
        f"{peak + 4096:,}",
    ]

"""The parts of the recording kit one by one: the sweep, what is asked of a profiler and of a
device, what a command line chooses.
"""

import contextlib
import gzip
import json
import weakref
from types import SimpleNamespace

import pytest
import torch

from hosim.on_torch.gpu import (
    command,
    gpu_seam,
    measuring,
    profiled,
    scheme_runs,
)
from hosim.on_torch.gpu.functional_decoder import CONFIGS
from hosim.on_torch.gpu.gpu_seam import CpuBackend
from hosim.on_torch.gpu.measuring import SIZES, sweep
from hosim.validate.kit import SCHEMES


class Scripted:
    """A device whose timed copies take 100, 101, 102 ... ns, and which knows what of its memory is
    still held.
    """

    def __init__(self):
        self.copies, self.asked, self.held, self.left = [], [], [], []

    def live(self):
        return sum(reference() is not None for reference in self.held)

    def made(self, where, size, fill, *how):
        self.asked.append((where, size, *how, self.live()))
        tensor = torch.full((size,), fill, dtype=torch.uint8)
        self.held.append(weakref.ref(tensor))
        return tensor

    def host(self, size, dtype, pinned):
        assert dtype is torch.uint8
        return self.made("host", size, 7, pinned)

    def empty(self, size, dtype):
        assert dtype is torch.uint8
        return self.made("device", size, 7)

    def time_copies(self, pairs):
        assert all(
            int(tensor.sum()) == 0 for _, *both in pairs for tensor in both
        )  # every page exists
        names = {
            id(tensor): where[0]
            for (where, *_), tensor in zip(
                self.asked[-2 * len(pairs) :], self.tensors(), strict=True
            )
        }
        self.copies.append(
            [
                (stream, names[id(to)] + names[id(source)], to.numel())
                for stream, to, source in pairs
            ]
        )
        return 99 + len(self.copies)

    def tensors(self):
        return [tensor for reference in self.held if (tensor := reference()) is not None]

    def empty_caches(self):
        self.left.append(self.live())


def test_the_sweep_times_each_copy_but_the_first(monkeypatch):
    device, looks = Scripted(), iter(range(0, 10_000, 5))
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter_ns=lambda: next(looks)))
    made = sweep(device, (8, 16), 2)
    rows = [
        *((d, True, size) for size in (8, 16) for d in ("h2d", "d2h", "both")),
        *((d, False, size) for size in (8, 16) for d in ("h2d", "d2h")),
    ]
    # Three copies a row, of which the first does not count: 101 and 102 for row 0, 104 and 105 for
    # row 1; the median 101.5 is rounded.
    assert made["copies"] == [
        {
            "direction": d,
            "pinned": pinned,
            "bytes": size,
            "median_ns": round(101.5 + 3 * i),
            "ns": [101 + 3 * i, 102 + 3 * i],
        }
        for i, (d, pinned, size) in enumerate(rows)
    ]
    up, down = ("h2d", "dh"), ("d2h", "hd")
    streams = {"h2d": [up], "d2h": [down], "both": [up, down]}
    assert device.copies == [
        [(*copy, size) for copy in streams[d]] for d, _, size in rows for _ in range(3)
    ]
    # Nothing of one row is held while the next one begins, and host memory comes first.
    each = [
        [("host", size, pinned, 2 * i), ("device", size, 2 * i + 1)]
        for d, pinned, size in rows
        for i in range(len(streams[d]))
    ]
    sizes = [(pinned, size) for pinned in (True, False) for size in (8, 16)]
    alone = [("host", size, pinned, i) for pinned, size in sizes for i in range(3)]
    assert device.asked == [one for pair in each for one in pair] + alone
    assert made["host_allocations"] == [
        {"pinned": pinned, "bytes": size, "ns": [5, 5, 5]} for pinned, size in sizes
    ]
    assert device.left == [0, 0, 0, 0]


def test_what_is_swept_by_default():
    assert [SIZES[0], SIZES[1], SIZES[-1], len(SIZES)] == [4096, 8192, 1 << 30, 19]


class Recorded(CpuBackend):
    """Says that it is a GPU, and has counters and a history."""

    kind = "cuda"

    def __init__(self, snapshots):
        super().__init__()
        self.snapshots, self.log = snapshots, []

    def synchronize(self):
        self.log.append("synchronize")
        super().synchronize()

    def reset_peaks(self):
        self.log.append("reset")

    def peaks(self):
        self.log.append("peaks")
        return {"max_memory_allocated": 12}

    def empty_caches(self):
        self.log.append("empty")

    @contextlib.contextmanager
    def history(self, kept):
        self.log.append("history")
        yield
        self.log.append("kept")
        kept += self.snapshots


SNAPSHOT = {
    "segments": [],
    "device_traces": [[{"action": "alloc", "addr": 1, "size": 2, "frames": []}]],
    "allocator_settings": {},
}


def test_a_run_with_counters_and_a_history(tmp_path, monkeypatch):
    asked, steps = [], []
    profile = torch.profiler.profile
    monkeypatch.setattr(
        torch.profiler, "profile", lambda **given: asked.append(given) or profile(**given)
    )
    step, made_of = scheme_runs.Workload.step, []
    monkeypatch.setattr(
        scheme_runs.Workload,
        "step",
        lambda work: device.log.append("step") or steps.append(step(work)) or steps[-1],
    )
    workload = scheme_runs.Workload
    monkeypatch.setattr(
        scheme_runs,
        "Workload",
        lambda *given, **more: made_of.append((given[1:], more)) or workload(*given, **more),
    )
    device, run = (
        Recorded([SNAPSHOT]),
        scheme_runs.RecordingRun("tiny", "prefill", 8, "resident", 1, 3, 2, 5),
    )
    scheme_runs.record_run(device, CONFIGS["tiny"], run, tmp_path, smallest_offload=1)
    sizes = {"train": False, "length": 8, "batch": 1, "seed": 5, "smallest_offload": 1}
    assert made_of == [((CONFIGS["tiny"], SCHEMES["resident"]), sizes)]
    (given,) = asked
    assert given.pop("experimental_config") is not None
    assert given == {
        "activities": device.activities(),
        "record_shapes": True,
        "profile_memory": True,
    }
    made = json.loads((tmp_path / run.name / "run.json").read_text())
    assert [len(made.pop(key)) for key in ("wall_ns", "profiled_wall_ns")] == [3, 2]
    assert len(steps) == 2 + 3 + 2 + 2
    assert made == {
        "format": "hosim.gpu/1",
        "run": {
            "config": "tiny",
            "mode": "prefill",
            "length": 8,
            "scheme": "resident",
            "batch": 1,
            "iterations": 3,
            "profiled": 2,
            "seed": 5,
        },
        "losses": steps,
        "memory": {"max_memory_allocated": 12},
        "memory_history": True,
        "moves": [],
        "clocks": [],
    }
    timed = ["step", "synchronize"]
    assert device.log == [
        *("step", "step", "synchronize", "reset", "synchronize", *timed * 3, "peaks"),
        *("synchronize", *timed * 2, "history", "step", "step", "kept"),
    ]
    assert json.loads(
        gzip.decompress((tmp_path / run.name / "memory.json.gz").read_bytes())
    ) == profiled.trim_snapshot(SNAPSHOT)
    assert {path.name for path in (tmp_path / run.name).iterdir()} == {
        "run.json",
        "trace.json.gz",
        "memory.json.gz",
    }
    assert [path.name for path in tmp_path.iterdir()] == [run.name]


def test_waits_of_streams_are_recorded_where_torch_can(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.profiler, "profile", lambda **given: given)
    device = SimpleNamespace(kind="cuda", activities=lambda: ["all"])
    plain = {"activities": ["all"], "record_shapes": True, "profile_memory": True}
    monkeypatch.setattr(
        torch._C._profiler, "_ExperimentalConfig", lambda **given: asked.append(given) or "waits"
    )
    assert profiled.profiler(device) == {**plain, "experimental_config": "waits"}
    assert asked == [{"enable_cuda_sync_events": True}]
    assert profiled.profiler(SimpleNamespace(kind="cpu", activities=lambda: ["all"])) == plain
    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", lambda: None)  # an older one
    assert profiled.profiler(device) == plain
    monkeypatch.delattr(torch._C._profiler, "_ExperimentalConfig")
    assert profiled.profiler(device) == plain


def test_the_options():
    assert vars(command._parser().parse_args(["all"])) == {
        "what": "all",
        "out": None,
        "only": "bandwidth,kernels,schemes,steps",
        "configs": "1b,3b",
        "modes": "prefill,train",
        "schemes": "resident,stream-params,offload-activations,offload-optimizer,both",
        "lengths": "1024",
        "batch": 1,
        "iterations": 10,
        "profiled": 2,
        "shares": "90,75,50",
        "policy": "hyperoffload",
        "effort": None,
        "minutes": None,
        "seed": 1,
        "device": 0,
        "dry_run": False,
    }


@pytest.mark.parametrize(
    ("line", "parameters"),
    [
        (["all"], {"effort": 0.0}),
        (["all", "--effort", "0.5"], {"effort": 0.5}),
        (["all", "--policy", "longest_gap"], {}),
        (["plan"], {}),
        (["plan", "--effort", "0"], {"effort": 0.0}),
    ],
)
def test_a_gpu_does_not_wait_for_effort(monkeypatch, tmp_path, line, parameters):
    seen = []
    for name in ("_measure", "run_plans", "_summarize", "_check_same"):
        monkeypatch.setattr(command, name, lambda *arguments: None)
    monkeypatch.setattr(
        "hosim.on_torch.gpu.planning.plan_steps",
        lambda out, shares, policy, parameters, attempts: seen.append(parameters),
    )
    assert command.main([*line, "--dry-run", "--out", str(tmp_path)]) == 0
    assert seen == [parameters]


def options(*more):
    return command._parser().parse_args([*more])


def test_the_device(monkeypatch):
    monkeypatch.setattr(command, "CudaBackend", lambda index: ("gpu", index))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert command._device(options("all", "--device", "1")) == ("gpu", 1)
    assert command._device(options("all")) == ("gpu", 0)
    assert type(command._device(options("all", "--dry-run"))) is CpuBackend


@pytest.fixture
def noted(monkeypatch):
    """What the first step does with a device that is there, without doing it."""
    done, device = [], SimpleNamespace(describe=lambda: {"name": "GPU"}, empty_caches=lambda: None)
    monkeypatch.setattr(command, "_device", lambda given: device)
    monkeypatch.setattr(
        measuring, "sweep", lambda *given: done.append(("sweep", *given[1:])) or {"copies": []}
    )
    monkeypatch.setattr(
        measuring, "beside", lambda *given: done.append(("beside", *given[1:])) or []
    )

    def record_run(_, config, run, out, smallest_offload):
        done.append((config.name, run, smallest_offload))
        meta = json.loads((out / "meta.json").read_text())  # an interrupted recording has it
        assert meta["runs"] == []
        if run.scheme == "both":
            raise torch.cuda.OutOfMemoryError("no memory\nfor you")

    monkeypatch.setattr(command, "record_run", record_run)
    return done


def test_what_is_measured(noted, tmp_path, capsys):
    arguments = [
        "--configs",
        "1b",
        "--modes",
        "train",
        "--schemes",
        "both,resident",
        "--lengths",
        "64",
        "--batch",
        "3",
        "--iterations",
        "4",
    ]
    more = ["--profiled", "5", "--seed", "6", "--only", "bandwidth,schemes"]
    runs = [
        scheme_runs.RecordingRun("1b", "train", 64, scheme, 3, 4, 5, 6)
        for scheme in ("both", "resident")
    ]
    assert command.main(["measure", "--out", str(tmp_path / "a"), *arguments, *more]) == 1
    assert noted == [
        ("sweep", SIZES, 10),
        ("beside", 8192, 1 << 26),
        *(("1b", run, 1 << 20) for run in runs),
    ]
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "bandwidth",
        "copies beside kernels",
        "1b-train-64-both",
        "1b-train-64-both: no memory",
        "1b-train-64-resident",
    ]
    rows = {"format": "hosim.gpu/1", "device": {"name": "GPU"}, "copies": [], "beside_kernels": []}
    assert json.loads((tmp_path / "a" / "bandwidth.json").read_text()) == rows
    meta = json.loads((tmp_path / "a" / "meta.json").read_text())
    assert (meta["dry_run"], meta["smallest_offload_bytes"]) == (False, 1 << 20)
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["failed"] == {
        "1b-train-64-both": "no memory"
    }
    noted.clear()
    assert command.main(["measure", "--only", "bandwidth", "--out", str(tmp_path / "b")]) == 0
    assert noted == [("sweep", SIZES, 10), ("beside", 8192, 1 << 26)]
    noted.clear()
    small = [
        scheme_runs.RecordingRun("tiny", "train", length, "resident", 1, 10, 2, 1)
        for length in (16, 32, 48)
    ]
    dry = [
        "measure",
        "--out",
        str(tmp_path / "c"),
        "--dry-run",
        "--modes",
        "train",
        "--schemes",
        "resident",
        "--lengths",
        "8,8,8",
    ]
    assert command.main([*dry, "--only", "bandwidth,schemes"]) == 0
    assert noted == [
        ("sweep", SIZES[:5], 2),
        ("beside", 64, 1 << 14, 2, 1),
        *(("tiny", run, 1) for run in small),
    ]
    noted.clear()
    assert command.main([*dry, "--only", "bandwidth,schemes"]) == 0
    assert noted == [("tiny", run, 1) for run in small]  # the bandwidth is there already


def test_folders_that_cannot_be_made(noted, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert command.main(["measure", "--out", str(tmp_path / "file")]) == 2
    assert (
        capsys.readouterr().err
        == f"hosim.gpu: {tmp_path}/file: cannot create the folder: File exists\n"
    )
    folder = tmp_path / "deep" / "out"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(
        json.dumps({"format": "hosim.gpu/1", "device": {"name": "other"}})
    )
    assert command.main(["measure", "--out", str(folder)]) == 2
    said = (
        f"hosim.gpu: {folder}: the folder holds measurements of other, this is GPU: give "
        "another folder\n"
    )
    assert (capsys.readouterr().err, noted) == (said, [])


def test_memory_of_a_gpu(monkeypatch):
    asked, emptied = [], []
    monkeypatch.setattr(gpu_seam.torch.cuda, "set_device", lambda index: asked.append(index))
    monkeypatch.setattr(gpu_seam.torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(gpu_seam.torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(gpu_seam.torch.cuda, "empty_cache", lambda: emptied.append("device"))
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: emptied.append("host"), raising=False)
    monkeypatch.setattr(gpu_seam.torch, "empty", lambda count, **given: (count, given))
    device = gpu_seam.CudaBackend()
    assert (asked, device.torch_device) == ([0], torch.device("cuda", 0))
    assert device.empty(5, "dtype") == (5, {"dtype": "dtype", "device": torch.device("cuda", 0)})
    assert device.host(6, "dtype") == (6, {"dtype": "dtype", "pin_memory": True})
    assert device.host(7, "dtype", False) == (7, {"dtype": "dtype", "pin_memory": False})
    device.empty_caches()
    assert emptied == ["device", "host"]
    monkeypatch.delattr(torch._C, "_host_emptyCache")
    device.empty_caches()
    assert emptied == ["device", "host", "device"]


def test_the_cpu_backend_copies_as_late_as_the_waits_allow():
    device, eager = CpuBackend(), CpuBackend(lazy=False)
    assert device.empty(2, torch.float32).isnan().tolist() == [True, True]
    assert device.host(2, torch.uint8).tolist() == [255, 255]
    source, here, back = (
        torch.ones(2),
        device.empty(2, torch.float32),
        device.empty(2, torch.float32),
    )
    device.copy("h2d", here, source)
    event = device.mark("h2d")
    device.copy("h2d", back, source)
    device.wait("d2h", event)  # the other stream waits, and has not come so far
    device.copy("d2h", back, here)
    assert here.isnan().all()
    device.wait("h2d", device.mark("h2d"))  # waits for nothing but itself
    device.wait("main", device.mark("main"))
    device.wait("main", event)
    assert here.tolist() == [1, 1]
    assert back.isnan().all()
    device.wait("main", device.mark("d2h"))
    assert back.tolist() == [1, 1]
    back.zero_()
    device.synchronize()
    assert back.tolist() == [1, 1]  # the second copy of the first stream
    eager.copy("h2d", back, torch.zeros(2))
    assert back.tolist() == [0, 0]
    assert device.mark("main") == ("main", 0)
    assert device.mark("h2d") == ("h2d", 2)


def test_which_groups_of_a_scheme_live_where():
    assert {
        name: (scheme.name, scheme.parameters, scheme.activations, scheme.optimizer)
        for name, scheme in SCHEMES.items()
    } == {
        "resident": ("resident", False, False, False),
        "stream-params": ("stream-params", True, False, False),
        "offload-activations": ("offload-activations", False, True, False),
        "offload-optimizer": ("offload-optimizer", False, False, True),
        "both": ("both", True, True, True),
    }


def test_wrong_numbers_are_said_in_full(capsys):
    for arguments, message in (
        (["--lengths", "1,-2"], "--lengths: expected whole numbers from 1, got '-2'"),
        (["--modes", "train,test"], "--modes: expected some of prefill, train, got 'test'"),
        (["--schemes", "x"], f"--schemes: expected some of {', '.join(SCHEMES)}, got 'x'"),
        (["--batch", "0"], "--batch: expected at least 1, got 0"),
        (
            ["--only", "all"],
            "--only: expected some of bandwidth, kernels, schemes, steps, got 'all'",
        ),
        (["--configs", "2b"], "--configs: expected some of tiny, 1b, 3b, got '2b'"),
        (
            ["--shares", "75,0"],
            "--shares: expected whole numbers from 1 to 100, such as 75,50, got '0'",
        ),
    ):
        assert command.main(["list", *arguments]) == 2
        assert capsys.readouterr().err == f"hosim.gpu: {message}\n"
    assert (
        command.main(
            ["list", "--batch", "1", "--lengths", "1", "--modes", "train", "--schemes", "both"]
        )
        == 0
    )

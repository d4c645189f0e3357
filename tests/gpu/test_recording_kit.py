"""The recording kit without a GPU: every scheme up to the GPU's own calls, and what its files
hold.
"""

import contextlib
import gzip
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from hosim.errors import InputError
from hosim.io.importers.recordings import parse_kineto
from hosim.on_torch.gpu import command, functional_decoder, gpu_seam, profiled, scheme_runs
from hosim.on_torch.gpu.functional_decoder import CONFIGS
from hosim.on_torch.gpu.gpu_seam import CpuBackend
from hosim.on_torch.gpu.moves import Mover
from hosim.on_torch.gpu.output_files import write_json
from hosim.on_torch.gpu.scheme_runs import Workload
from hosim.validate.kit import SCHEMES, bandwidth_sweep
from hosim.validate.offloads import machine_of, predict_recording
from hosim.validate.snapshots import parse_snapshot

TINY = CONFIGS["tiny"]

# Refuses what hosim's own files import beyond torch, numpy and the standard library, as on a
# machine that has no more.
ALONE = """
import builtins, runpy, sys
real = builtins.__import__
def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__") or ""
    top = name.partition(".")[0]
    if importer.startswith("hosim") and level == 0 and top not in {"hosim", "torch", "numpy"} | set(sys.stdlib_module_names):
        raise ModuleNotFoundError(f"No module named {name!r}", name=top)
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = guarded
sys.argv[0] = "kit"
runpy.run_module("hosim.gpu", run_name="__main__")
"""


DRY = ("measure", "--only", "schemes", "--dry-run", "--out", "x")
SMALL = ("--dry-run", "--lengths", "1024", "--iterations", "1", "--profiled", "1")


def execute(*arguments):
    return subprocess.run(
        [sys.executable, "-c", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """All runs of a dry run, made by the one command."""
    out = tmp_path_factory.mktemp("recording") / "out"
    done = execute(ALONE, "measure", "--only", "bandwidth,schemes", *SMALL, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_one_command_records_every_scheme(recording):
    meta = json.loads((recording / "meta.json").read_text())
    assert not (recording / "failed.json").exists()
    assert meta["dry_run"] is True
    assert meta["software"]["torch"] == torch.__version__
    train = {f"tiny-train-16-{scheme}" for scheme in SCHEMES}
    prefill = {f"tiny-prefill-16-{scheme}" for scheme in SCHEMES if scheme != "offload-optimizer"}
    assert set(meta["runs"]) == train | prefill
    assert {path.name for path in recording.iterdir()} == {
        "meta.json",
        "bandwidth.json",
        "summary.json",
        *meta["runs"],
    }
    assert {path.name for path in (recording / "tiny-train-16-both").iterdir()} == {
        "run.json",
        "trace.json.gz",
    }


@pytest.mark.parametrize("mode", ["prefill", "train"])
def test_every_scheme_computes_the_same(recording, mode):
    losses = {
        tuple(json.loads(path.read_text())["losses"])
        for path in recording.glob(f"tiny-{mode}-*/run.json")
    }
    (only,) = losses
    assert len(only) == 5
    assert all(math.isfinite(loss) for loss in only)
    assert (len(set(only)) > 1) == (mode == "train")


def test_the_moves_are_those_of_the_scheme(recording):
    moves = {
        path.parent.name: json.loads(path.read_text())["moves"]
        for path in recording.glob("*/run.json")
    }
    assert moves["tiny-train-16-resident"] == moves["tiny-prefill-16-resident"] == []
    size = 2 * functional_decoder.count(TINY.layer_shapes)
    fetched = [
        (m["tensor"], m["after"], m["bytes"])
        for m in moves["tiny-prefill-16-stream-params"]
        if m["op"] == "prefetch"
    ]
    assert fetched == [
        ("layer.0.parameters", "embedding.forward", size),
        ("layer.1.parameters", "layer.0.forward", size),
        ("layer.2.parameters", "layer.1.forward", size),
        ("layer.3.parameters", "layer.2.forward", size),
    ]
    states = [m["tensor"] for m in moves["tiny-train-16-offload-optimizer"] if m["op"] == "store"]
    assert states == [f"layer.{i}.optimizer_state" for i in range(4)]
    stored = {m["tensor"] for m in moves["tiny-train-16-offload-activations"] if m["op"] == "store"}
    fetched = {
        m["tensor"] for m in moves["tiny-train-16-offload-activations"] if m["op"] == "prefetch"
    }
    assert stored == fetched
    assert {name.split(".")[1] for name in stored} == {
        "0",
        "1",
        "2",
    }  # those of the last layer stay
    kinds = {m["tensor"].split(".")[2] for m in moves["tiny-train-16-both"]}
    assert kinds == {"parameters", "activation", "optimizer_state"}


def test_the_sweep_has_every_size_direction_and_kind_of_memory(recording):
    rows = json.loads((recording / "bandwidth.json").read_text())
    seen = {(row["direction"], row["pinned"], row["bytes"]) for row in rows["copies"]}
    kinds = [("h2d", True), ("d2h", True), ("both", True), ("h2d", False), ("d2h", False)]
    assert seen == {(*kind, 4096 << step) for kind in kinds for step in range(5)}
    assert all(row["median_ns"] > 0 and len(row["ns"]) == 2 for row in rows["copies"])
    assert len(rows["host_allocations"]) == 10


def test_the_trace_says_where_each_phase_begins(recording):
    trace = json.loads(
        gzip.decompress((recording / "tiny-train-16-both" / "trace.json.gz").read_bytes())
    )
    marks = [
        e["name"]
        for e in sorted(trace["traceEvents"], key=lambda e: e.get("ts", 0))
        if e.get("cat") == "user_annotation"
    ]
    layers = range(4)
    assert [mark for mark in marks if mark.startswith("hosim.")] == [
        *(
            "hosim.step",
            "hosim.embedding.forward",
            *(f"hosim.layer.{i}.forward" for i in layers),
            "hosim.head.forward",
        ),
        *(
            "hosim.head.backward",
            *(f"hosim.layer.{i}.backward" for i in reversed(layers)),
            "hosim.embedding.backward",
        ),
        *(
            "hosim.embedding.update",
            *(f"hosim.layer.{i}.update" for i in layers),
            "hosim.head.update",
        ),
    ]


def test_a_dry_run_predicts_nothing_and_says_why(recording):
    with pytest.raises(
        InputError, match=r"trace\.json\.gz: no kernel, copy or memset of a device was recorded"
    ):
        predict_recording(recording, "tiny", "train", 16)
    assert json.loads((recording / "meta.json").read_text())["models"]["tiny"][
        "layer_parameters"
    ] == functional_decoder.count(TINY.layer_shapes)
    assert (
        machine_of(bandwidth_sweep(recording / "bandwidth.json"))
        .channel_between["ddr", "hbm"]
        .bandwidth_bytes_per_s
        > 0
    )


def test_what_is_there_is_left_alone(recording, tmp_path, capsys):
    recording = shutil.copytree(recording, tmp_path / "again")  # the command writes meta.json anew
    before = {path: path.stat().st_mtime_ns for path in recording.glob("*/*")}
    command_line = [
        "measure",
        "--only",
        "schemes",
        "--out",
        str(recording),
        "--dry-run",
        "--lengths",
        "1024",
    ]
    assert command.main(command_line) == 0
    said = capsys.readouterr().err.splitlines()
    assert sorted(said) == sorted(
        f"{path.parent.name}: there already" for path in recording.glob("*/run.json")
    )
    assert before == {path: path.stat().st_mtime_ns for path in recording.glob("*/*")}


def workload(scheme, *, lazy=True, train=True):
    return Workload(
        CpuBackend(lazy), TINY, SCHEMES[scheme], train=train, length=8, seed=3, smallest_offload=1
    )


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "resident"])
def test_copies_that_happen_at_once_and_as_late_as_possible_give_the_same(scheme):
    early, late = workload(scheme, lazy=False), workload(scheme, lazy=True)
    assert [early.step() for _ in range(3)] == [late.step() for _ in range(3)]


@pytest.mark.parametrize("scheme", ["stream-params", "offload-activations", "both"])
def test_the_stand_in_notices_a_wait_that_is_missing(scheme, monkeypatch):
    monkeypatch.setattr(Mover, "need", lambda self, event: None)
    broken = workload(scheme)
    assert any(math.isnan(broken.step()) for _ in range(2))


def test_an_optimizer_that_does_not_wait_is_noticed(monkeypatch):
    monkeypatch.setattr(Mover, "need", lambda self, event: None)
    broken, sound = workload("offload-optimizer"), workload("resident")
    assert [broken.step() for _ in range(3)][2] != [sound.step() for _ in range(3)][2]


def test_a_training_step_is_that_of_torch():
    ours = workload("resident")
    groups = [ours._embedding, *(ours._layers.ready(i) for i in range(TINY.layers)), ours._head]
    shapes = [TINY.embedding_shapes, *[TINY.layer_shapes] * TINY.layers, TINY.head_shapes]
    leaves = [group.detach().clone().requires_grad_() for group in groups]
    weights = [
        functional_decoder.views(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=True)
    ]
    x = functional_decoder.embed(weights[0], ours._tokens)
    for layer in weights[1:-1]:
        x = functional_decoder.layer(TINY, layer, x, ours._positions)[0]
    loss = functional_decoder.loss(weights[-1], x, ours._targets)
    loss.backward()
    wide = [leaf.detach().float().requires_grad_() for leaf in leaves]
    for one, leaf in zip(wide, leaves, strict=True):
        one.grad = leaf.grad.float()
    torch.optim.AdamW(wide, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1).step()
    assert ours.step() == loss.item()
    for group, one in zip(groups, wide, strict=True):
        torch.testing.assert_close(group, one.detach().bfloat16(), atol=1e-5, rtol=1 / 128)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all"], "expected --out"),
        ([*DRY, "--schemes", "magic"], "expected some of resident"),
        ([*DRY, "--lengths", "long"], "--lengths: expected whole numbers"),
        (
            [*DRY, "--lengths", "0"],
            "--lengths: expected whole numbers from 1, got '0'",
        ),
        (
            [*DRY, "--shares", "0"],
            "--shares: expected whole numbers from 1 to 100, such as 75,50, got '0'",
        ),
        ([*DRY, "--shares", ","], "--shares: expected at least one, got nothing"),
        ([*DRY, "--modes", ""], "--modes: expected at least one, got nothing"),
        ([*DRY, "--batch", "0"], "--batch: expected at least 1, got 0"),
        ([*DRY, "--iterations", "0"], "--iterations: expected at least 1, got 0"),
        ([*DRY, "--profiled", "-1"], "--profiled: expected at least 1, got -1"),
    ],
)
def test_wrong_usage_is_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys, tmp_path):
    assert command.main(["all", "--out", str(tmp_path / "out")]) == 2
    assert "torch finds none" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_leaves_no_folder(monkeypatch, tmp_path, capsys):
    def run_out(*_):
        raise torch.cuda.OutOfMemoryError("no memory left")

    monkeypatch.setattr(scheme_runs, "_measure", run_out)
    out = tmp_path / "out"
    line = [
        "measure",
        "--only",
        "schemes",
        "--out",
        str(out),
        "--dry-run",
        "--lengths",
        "1",
        "--modes",
        "train",
        "--schemes",
        "both",
    ]
    assert command.main(line) == 1
    assert "no memory left" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == [
        "failed.json",
        "meta.json",
        "summary.json",
    ]
    assert json.loads((out / "summary.json").read_text())["failed"] == {
        "tiny-train-16-both": "no memory left"
    }
    monkeypatch.undo()
    assert command.main(line) == 0
    assert json.loads((out / "summary.json").read_text())["failed"] == {}
    assert not (out / "failed.json").exists()


@pytest.mark.parametrize(
    "name", ["h100_bert_small", "mi300x_qwen1.5_0.5b", "event_sync_multi_stream"]
)
def test_a_trimmed_trace_reads_as_before(shared, name):
    path = shared / "data" / "traces" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no file {path}")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trimmed = profiled.trim_trace(trace)
    assert parse_kineto(trimmed, name) == parse_kineto(trace, name)
    assert len(json.dumps(trimmed)) < 0.8 * len(json.dumps(trace))


def test_a_trimmed_trace_has_what_work_and_uses_follow_from():
    """Strides of a convolution, the number that an operator shares with its gradient, the group of
    a collective, and modules.
    """
    said = {"Concrete Inputs": ["[2]"], "Sequence number": 3, "Fwd thread id": 1}
    group = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": 4,
        "stream": 7,
        "x": 1,
    }
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::conv2d",
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "dur": 2,
            "args": said,
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclAllReduce",
            "pid": 0,
            "tid": 7,
            "ts": 2,
            "dur": 2,
            "args": group,
        },
        {
            "ph": "X",
            "cat": "python_function",
            "name": "nn.Module: Linear_0",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "dur": 9,
            "args": {"Python id": 1},
        },
        {
            "ph": "X",
            "cat": "python_function",
            "name": "step.py(3): step",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "dur": 9,
            "args": {},
        },
    ]
    trace = {"traceEvents": events}
    trimmed = profiled.trim_trace(trace)
    assert parse_kineto(trimmed, "step") == parse_kineto(trace, "step")
    assert [len(event.get("args", ())) for event in trimmed["traceEvents"]] == [2, 5, 0]
    assert parse_kineto(trimmed, "step").modules


def test_a_trimmed_snapshot_reads_as_before():
    block = {
        "address": 4096,
        "size": 512,
        "requested_size": 500,
        "state": "active_allocated",
        "frames": [{"name": "f"}],
    }
    segment = {
        "device": 0,
        "address": 4096,
        "total_size": 512,
        "stream": 0,
        "segment_type": "small",
        "blocks": [block],
        "frames": [],
    }
    entry = {
        "action": "alloc",
        "addr": 4096,
        "size": 500,
        "stream": 0,
        "time_us": 7,
        "frames": [{"name": "f"}],
    }
    raw = {
        "segments": [segment],
        "device_traces": [[entry]],
        "allocator_settings": {"expandable_segments": True},
        "external": [1],
    }
    trimmed = profiled.trim_snapshot(raw)
    assert "frames" not in json.dumps(trimmed)
    assert parse_snapshot(trimmed) == parse_snapshot(raw)


@pytest.mark.parametrize("scheme", ["offload-optimizer", "both"])
def test_a_buffer_that_is_filled_before_it_is_stored_is_noticed(scheme, monkeypatch):
    fetch = Mover.fetch
    monkeypatch.setattr(
        Mover,
        "fetch",
        lambda self, tensor, there, here, after=None: fetch(self, tensor, there, here),
    )
    broken, sound = workload(scheme), workload("resident")
    assert [broken.step() for _ in range(4)] != [sound.step() for _ in range(4)]


def test_list_names_the_runs_of_the_defaults_in_order(capsys):
    assert command.main(["list"]) == 0
    train = ["resident", "stream-params", "offload-activations", "offload-optimizer", "both"]
    schemes = {
        "train": train,
        "prefill": [scheme for scheme in train if scheme != "offload-optimizer"],
    }
    assert capsys.readouterr().out.splitlines() == [
        *(
            f"{config}-{mode}-1024-{scheme}"
            for config in ("1b", "3b")
            for mode in ("prefill", "train")
            for scheme in schemes[mode]
        ),
        *(f"{config}-{mode}-1024-step" for config in ("1b", "3b") for mode in ("prefill", "train")),
    ]
    assert (
        command.main(
            [
                "list",
                "--dry-run",
                "--lengths",
                "7,9,",
                "--modes",
                "train",
                "--schemes",
                "both,resident",
            ]
        )
        == 0
    )
    of_both = [
        f"tiny-train-{length}-{scheme}" for length in (16, 32) for scheme in ("both", "resident")
    ]
    assert capsys.readouterr().out.splitlines() == [
        *of_both,
        "tiny-train-16-step",
        "tiny-train-32-step",
    ]


def test_the_sizes_of_the_decoders():
    # A layer: two norms of h, q and o of h x h, k and v of (h kv / heads) x h, three matrices of h
    # x ffn. Embedding and head: v x h each, and the head's norm of h.
    def weights(layers, h, heads, kv, ffn, v):
        layer = 2 * h + 2 * h * h + 2 * (h * kv // heads) * h + 3 * h * ffn
        return h // heads, layer, 2 * v * h + h + layers * layer

    found = {name: (c.head_size, c.layer_parameters, c.parameters) for name, c in CONFIGS.items()}
    assert found == {
        "tiny": weights(4, 32, 4, 2, 64, 96),
        "1b": weights(16, 2048, 32, 8, 8192, 32000),
        "3b": weights(28, 3072, 24, 8, 8192, 32000),
    }
    assert found["tiny"] == (8, 9280, 43296)


def test_the_files_say_what_was_run(recording):
    meta = json.loads((recording / "meta.json").read_text())
    software, device = meta.pop("software"), meta.pop("device")
    assert list(software) == ["torch", "cuda", "hip", "numpy", "python", "system"]
    assert software["python"] == ".".join(map(str, sys.version_info[:3]))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert device == {
        "kind": "cpu",
        "index": 0,
        "name": platform.machine(),
        "driver": None,
        "host_memory_bytes": memory,
    }
    sizes = {"layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocabulary": 96}
    assert meta == {
        "format": "hosim.gpu/1",
        "command": [
            "python",
            "-m",
            "hosim.gpu",
            "measure",
            "--only",
            "bandwidth,schemes",
            *SMALL,
            "--out",
            str(recording),
        ],
        "dry_run": True,
        "models": {
            "tiny": {
                "name": "tiny",
                **sizes,
                "parameters": 43296,
                "layer_parameters": 9280,
                "dtype": "bf16",
            }
        },
        "smallest_offload_bytes": 1,
        "runs": sorted(path.parent.name for path in recording.glob("*/run.json")),
    }
    run = json.loads((recording / "tiny-train-16-both" / "run.json").read_text())
    assert [len(run.pop(key)) for key in ("wall_ns", "profiled_wall_ns", "losses")] == [1, 1, 5]
    assert run.pop("moves")
    what = {
        "config": "tiny",
        "mode": "train",
        "length": 16,
        "scheme": "both",
        "batch": 1,
        "iterations": 1,
        "profiled": 1,
        "seed": 1,
    }
    assert run == {
        "format": "hosim.gpu/1",
        "run": what,
        "memory": None,
        "memory_history": False,
        "clocks": [],
    }
    rows = json.loads((recording / "bandwidth.json").read_text())
    assert (rows["format"], rows["device"]) == ("hosim.gpu/1", device)
    assert [(row["pinned"], row["bytes"], len(row["ns"])) for row in rows["host_allocations"]] == [
        (pinned, 4096 << step, 3) for pinned in (True, False) for step in range(5)
    ]
    assert all(row["median_ns"] == round(sum(row["ns"]) / 2) for row in rows["copies"])
    for folder in recording.glob("*-16-*"):
        assert folder.stat().st_mode & 0o777 == 0o755


def test_the_optimizer_states_come_in_two_buffers(recording):
    """Two buffers: layers 0 and 1 come first, a buffer is dropped when the next layer but one comes
    into it, and each is stored.
    """
    moves = json.loads((recording / "tiny-train-16-offload-optimizer" / "run.json").read_text())[
        "moves"
    ]
    size = 2 * 4 * 9280  # both moments in single precision

    def at(op, layer, phase):
        return {
            "op": op,
            "tensor": f"layer.{layer}.optimizer_state",
            "bytes": size,
            "after": f"{phase}.update",
        }

    # The buffers still hold layers 2 and 3 of the step before.
    assert moves == [
        *(at("detach", 2, "embedding"), at("prefetch", 0, "embedding")),
        *(at("detach", 3, "layer.0"), at("prefetch", 1, "layer.0"), at("store", 0, "layer.0")),
        *(at("detach", 0, "layer.1"), at("prefetch", 2, "layer.1"), at("store", 1, "layer.1")),
        *(at("detach", 1, "layer.2"), at("prefetch", 3, "layer.2"), at("store", 2, "layer.2")),
        at("store", 3, "layer.3"),
    ]


def test_a_loss_is_that_of_double_precision():
    """A decoder of three layers written out in double precision, with its own rotation: pairs as
    complex numbers.
    """
    config = functional_decoder.Config(
        "own", layers=3, hidden=32, heads=4, kv_heads=2, ffn=48, vocabulary=50
    )
    work = Workload(
        CpuBackend(), config, SCHEMES["resident"], train=True, length=6, batch=2, seed=5
    )
    shapes = [config.embedding_shapes, *[config.layer_shapes] * 3, config.head_shapes]
    groups = [work._embedding, *(work._layers.ready(i) for i in range(3)), work._head]
    with torch.no_grad():
        for group in groups:
            group.mul_(8)  # far from a loss that is that of a guess
    flat = [
        torch.split(group.double(), [math.prod(s) for s in some])
        for group, some in zip(groups, shapes, strict=True)
    ]
    weights = [
        [w.view(s) for w, s in zip(group, some, strict=True)]
        for group, some in zip(flat, shapes, strict=True)
    ]

    def norm(x, w):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w

    def turned(
        x,
    ):  # element j of a head turns with element j + 4, at position p by p / theta^(j / 4)
        p, j = (
            torch.arange(6, dtype=torch.float64)[:, None, None],
            torch.arange(4, dtype=torch.float64),
        )
        z = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(
            torch.ones(6, 1, 4, dtype=torch.float64), p / 500_000.0 ** (j / 4)
        )
        return torch.cat((z.real, z.imag), -1)

    x = weights[0][0][work._tokens]
    for n1, wq, wk, wv, wo, n2, gate, up, down in weights[1:-1]:
        y = norm(x, n1)
        q, k, v = (
            turned((y @ wq.T).view(2, 6, 4, 8)),
            turned((y @ wk.T).view(2, 6, 2, 8)),
            (y @ wv.T).view(2, 6, 2, 8),
        )
        heads = []
        for head in range(4):
            scores = torch.einsum("bqd,bkd->bqk", q[:, :, head], k[:, :, head // 2]) / 8**0.5
            scores = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -math.inf)
            heads.append(scores.softmax(-1) @ v[:, :, head // 2])
        x = x + torch.cat(heads, -1) @ wo.T
        y = norm(x, n2)
        z = y @ gate.T
        x = x + (z * z.sigmoid() * (y @ up.T)) @ down.T
    logits = norm(x, weights[-1][0]) @ weights[-1][1].T
    expected = (
        (logits.logsumexp(-1) - logits.gather(-1, work._targets[..., None])[..., 0]).mean().item()
    )
    assert abs(expected - math.log(50)) > 0.1
    assert work.step() == pytest.approx(expected, rel=1.5e-2)  # bfloat16 rounds to 1 in 256


class FakeCuda:
    """Stands for torch.cuda: it writes down what is asked of it. An event is timed by when it was
    recorded.
    """

    def __init__(self, monkeypatch):
        self.calls = []
        self.now = 0.0
        for name in ("set_device", "synchronize", "reset_peak_memory_stats", "empty_cache"):
            monkeypatch.setattr(
                torch.cuda, name, lambda *given, name=name: self.calls.append((name, *given))
            )
        for i, name in enumerate(
            ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")
        ):
            monkeypatch.setattr(torch.cuda, name, lambda i=i: 100 + i)
        streams = iter(("first", "second"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.stream("current"))
        monkeypatch.setattr(torch.cuda, "Stream", lambda: self.stream(next(streams)))
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "Event", self.event)
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 7))
        monkeypatch.setattr(
            gpu_seam.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 3}.__getitem__
        )
        monkeypatch.setattr(
            torch.cuda.memory,
            "_record_memory_history",
            lambda **given: self.calls.append(("history", given)),
        )
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: "snapshot")
        properties = SimpleNamespace(
            name="GPU", total_memory=7, multi_processor_count=3, major=9, minor=0
        )
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: {"cuda:2": properties}[str(device)]
        )

    def stream(self, name):
        return SimpleNamespace(
            name=name, wait_event=lambda event: self.calls.append((name, "waits", event.number))
        )

    @contextlib.contextmanager
    def on(self, stream):
        self.calls.append(("on", stream.name))
        yield
        self.calls.append(("off", stream.name))

    def event(self, enable_timing=False):
        event = SimpleNamespace(number=len(self.calls), at=None)

        def record(stream):
            self.now += 2.0
            event.at = self.now
            self.calls.append((stream.name, "timed" if enable_timing else "records", event.number))

        event.record, event.elapsed_time = record, lambda other: other.at - event.at
        return event


def test_what_is_asked_of_a_gpu(monkeypatch):
    fake = FakeCuda(monkeypatch)
    device = gpu_seam.CudaBackend(2)
    copied = SimpleNamespace(
        copy_=lambda source, non_blocking: fake.calls.append(("copy", source, non_blocking))
    )
    event = device.mark("h2d")
    device.wait("main", event)
    device.wait("d2h", event)
    device.copy("d2h", copied, "source")
    assert fake.calls == [
        ("set_device", 2),
        ("first", "records", 1),
        ("current", "waits", 1),
        ("second", "waits", 1),
        *(("on", "second"), ("copy", "source", True), ("off", "second")),
    ]
    fake.calls.clear()
    # The events are recorded at 4, 6, 8 and 10 ms: from the first to the last are 6 ms.
    assert device.time_copies([("h2d", copied, "a"), ("d2h", copied, "b")]) == 6_000_000
    assert fake.calls == [
        ("synchronize",),
        *(
            ("first", "timed", 1),
            ("on", "first"),
            ("copy", "a", True),
            ("off", "first"),
            ("first", "timed", 1),
        ),
        *(
            ("second", "timed", 6),
            ("on", "second"),
            ("copy", "b", True),
            ("off", "second"),
            ("second", "timed", 6),
        ),
        ("synchronize",),
    ]
    fake.calls.clear()
    device.reset_peaks()
    device.empty_caches()
    kept = []
    with device.history(kept):
        assert kept == []
    asked = {"enabled": "all", "context": None, "max_entries": 1 << 20}
    assert (kept, fake.calls) == (
        ["snapshot"],
        [
            ("reset_peak_memory_stats",),
            ("empty_cache",),
            ("history", asked),
            ("synchronize",),
            ("history", {"enabled": None}),
        ],
    )
    assert device.peaks() == {
        "max_memory_allocated": 100,
        "max_memory_reserved": 101,
        "memory_allocated": 102,
        "memory_reserved": 103,
    }
    assert [one.name for one in device.activities()] == ["CPU", "CUDA"]
    version = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC "
        "version: gcc 12.2.0\n"
    )
    monkeypatch.setattr(
        gpu_seam.Path, "read_text", lambda path: {"/proc/driver/nvidia/version": version}[str(path)]
    )
    assert device.describe() == {
        "kind": "cuda",
        "name": "GPU",
        "index": 2,
        "total_memory_bytes": 7,
        "free_memory_bytes": 5,
        "host_memory_bytes": 12288,
        "multiprocessors": 3,
        "capability": "9.0",
        "driver": "550.54.15",
        "allocator": "native",
    }
    monkeypatch.setattr(gpu_seam.Path, "read_text", lambda path: "no number")
    assert device.describe()["driver"] is None


def test_a_device_that_is_not_there_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for index in ("2", "-1"):
        assert (
            command.main(
                [
                    "measure",
                    "--only",
                    "schemes",
                    "--out",
                    str(tmp_path / "out"),
                    f"--device={index}",
                ]
            )
            == 2
        )
        assert (
            capsys.readouterr().err
            == f"hosim.gpu: --device: expected an index below 2, got {index}\n"
        )


def test_a_folder_of_something_else_is_left_alone(capsys, tmp_path):
    (tmp_path / "meta.json").write_text('{"model": {}}')
    assert command.main(["measure", "--only", "schemes", "--dry-run", "--out", str(tmp_path)]) == 2
    expected = "expected a file that `python -m hosim.gpu` writes (format hosim.gpu/1)"
    assert capsys.readouterr().err == f"hosim.gpu: {tmp_path}/meta.json: {expected}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["meta.json"]


def test_what_is_trimmed_and_what_is_kept():
    metadata = {"ph": "M", "name": "process_name", "args": {"name": "python", "labels": "GPU 0"}}
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "ts": 1,
        "dur": 2,
        "args": {"stream": 7, "grid": [1, 1, 1], "warps per SM": 2},
    }
    bare = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "args": {"Call stack": "..."}}
    python = {"ph": "X", "cat": "python_function", "name": "forward", "args": {}}
    counter = {"ph": "C", "name": "ignored"}
    raw = {
        "schemaVersion": 1,
        "traceName": "x",
        "deviceProperties": [],
        "traceEvents": [metadata, kernel, bare, python, counter],
    }
    assert profiled.trim_trace(raw) == {
        "schemaVersion": 1,
        "deviceProperties": [],
        "traceEvents": [
            metadata,
            {**kernel, "args": {"stream": 7, "grid": [1, 1, 1]}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm"},
        ],
    }
    sizes = ("total_size", "allocated_size", "active_size")
    about = ("device", "address", "stream", "segment_type", "segment_pool_id", "is_expandable")
    block = dict.fromkeys(("address", "size", "requested_size", "state"), 1)
    segment = {**dict.fromkeys((*sizes, *about), 2), "blocks": [block]}
    entry = dict.fromkeys(
        ("action", "addr", "size", "stream", "time_us", "pool_id", "device_free", "user_metadata"),
        3,
    )
    kept = {"segments": [segment], "device_traces": [[entry]], "allocator_settings": {}}
    noisy = {**segment, "blocks": [{**block, "frames": []}], "frames": []}
    assert (
        profiled.trim_snapshot({"segments": [noisy], "device_traces": [[{**entry, "frames": []}]]})
        == kept
    )


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(
        InputError, match=r"^\S*/no/a\.json: cannot be written: No such file or directory$"
    ):
        write_json(tmp_path / "no" / "a.json", {})


def test_json_is_written_whole_and_always_the_same(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1]})
    write_json(tmp_path / "a.json.gz", {"b": [1]})
    assert (tmp_path / "a.json").read_text() == '{\n "b": [\n  1\n ]\n}\n'
    data = (tmp_path / "a.json.gz").read_bytes()
    assert gzip.decompress(data) == b'{"b":[1]}'
    assert data[4:9] == b"\0\0\0\0\x02"  # no time; the strongest compression
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"b": object()})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.json.gz"]


def test_keys_and_values_leave_one_layer_later(recording):
    """Of each layer they are stored as it computes, and dropped once the next layer is queued;
    those of the last one, at the head.
    """
    moves = json.loads(
        (recording / "tiny-prefill-16-offload-activations" / "run.json").read_text()
    )["moves"]
    size = 2 * 16 * 2 * 8  # 16 positions, two heads of 8

    def both(op, layer, after):
        return [
            {"op": op, "tensor": f"layer.{layer}.activation.{i}", "bytes": size, "after": after}
            for i in range(2)
        ]

    assert moves == [
        *both("store", 0, "layer.0.forward"),
        *(
            move
            for i in (1, 2, 3)
            for move in both("store", i, f"layer.{i}.forward")
            + both("detach", i - 1, f"layer.{i}.forward")
        ),
        *both("detach", 3, "head.forward"),
    ]


def test_streamed_parameters_come_in_two_buffers_both_ways(recording):
    """A step begins with layers 2 and 3 in the buffers; backward finds them there again, and the
    update stores what it changed.
    """
    moves = json.loads((recording / "tiny-train-16-stream-params" / "run.json").read_text())[
        "moves"
    ]

    def at(op, layer, after):
        return {"op": op, "tensor": f"layer.{layer}.parameters", "bytes": 2 * 9280, "after": after}

    assert moves == [
        *(at("detach", 2, "embedding.forward"), at("prefetch", 0, "embedding.forward")),
        *(at("detach", 3, "layer.0.forward"), at("prefetch", 1, "layer.0.forward")),
        *(at("detach", 0, "layer.1.forward"), at("prefetch", 2, "layer.1.forward")),
        *(at("detach", 1, "layer.2.forward"), at("prefetch", 3, "layer.2.forward")),
        *(at("detach", 3, "layer.2.backward"), at("prefetch", 1, "layer.2.backward")),
        *(at("detach", 2, "layer.1.backward"), at("prefetch", 0, "layer.1.backward")),
        at("store", 0, "layer.0.update"),
        *(
            at("detach", 0, "layer.1.update"),
            at("prefetch", 2, "layer.1.update"),
            at("store", 1, "layer.1.update"),
        ),
        *(
            at("detach", 1, "layer.2.update"),
            at("prefetch", 3, "layer.2.update"),
            at("store", 2, "layer.2.update"),
        ),
        at("store", 3, "layer.3.update"),
    ]


def test_activations_leave_one_layer_later_and_come_back_one_layer_ahead(recording):
    moves = json.loads((recording / "tiny-train-16-offload-activations" / "run.json").read_text())[
        "moves"
    ]
    sizes = [
        [
            move["bytes"]
            for move in moves
            if move["op"] == "store" and f"layer.{i}." in move["tensor"]
        ]
        for i in range(4)
    ]
    assert [len(layer) for layer in sizes] == [len(sizes[0])] * 3 + [0]

    def all_of(op, layer, after):
        names = [f"layer.{layer}.activation.{number}" for number in range(len(sizes[layer]))]
        return [
            {"op": op, "tensor": name, "bytes": size, "after": after}
            for name, size in zip(names, sizes[layer], strict=True)
        ]

    assert moves == [
        *all_of("store", 0, "layer.0.forward"),
        *(all_of("store", 1, "layer.1.forward") + all_of("detach", 0, "layer.1.forward")),
        *(all_of("store", 2, "layer.2.forward") + all_of("detach", 1, "layer.2.forward")),
        *all_of("detach", 2, "layer.3.forward"),
        *all_of("prefetch", 2, "layer.3.backward"),
        *all_of("prefetch", 1, "layer.2.backward"),
        *(all_of("detach", 2, "layer.1.backward") + all_of("prefetch", 0, "layer.1.backward")),
        *all_of("detach", 1, "layer.0.backward"),
        *all_of("detach", 0, "embedding.backward"),
    ]


def test_what_is_drawn_for_a_step():
    """Groups from seeds one after the other, tokens from the first; targets are the tokens one
    later.
    """
    work = Workload(CpuBackend(), TINY, SCHEMES["resident"], train=True, length=8, batch=2, seed=3)
    tokens = torch.randint(96, (2, 9), generator=torch.Generator().manual_seed(3))
    assert torch.equal(work._tokens, tokens[:, :-1])
    assert torch.equal(work._targets, tokens[:, 1:])
    groups = [work._embedding, *(work._layers.ready(i) for i in range(4)), work._head]
    shapes = [TINY.embedding_shapes, *[TINY.layer_shapes] * 4, TINY.head_shapes]
    for i, (group, shape) in enumerate(zip(groups, shapes, strict=True)):
        generator = torch.Generator().manual_seed(3 + i)
        for weight in functional_decoder.views(group, shape):
            wanted = torch.empty_like(weight)
            assert torch.equal(
                weight,
                torch.ones_like(weight)
                if weight.dim() == 1
                else wanted.normal_(0.0, 0.02, generator=generator),
            )
    assert [gradient.numel() for gradient in work._gradients] == [group.numel() for group in groups]
    states = [*work._outer_states, *(work._layer_states.ready(i) for i in range(4))]
    assert [state.numel() for state in states] == [
        2 * groups[i].numel() for i in (0, 5, 1, 2, 3, 4)
    ]
    assert all(state.dtype == torch.float32 and not state.any() for state in states)
    before = Workload(
        CpuBackend(), TINY, SCHEMES["resident"], train=True, length=8
    )  # one sequence, seed 1, only large storages move
    assert (before._tokens.shape, before._smallest) == ((1, 8), 1 << 20)
    assert torch.equal(
        before._tokens,
        torch.randint(96, (1, 9), generator=torch.Generator().manual_seed(1))[:, :-1],
    )


@pytest.mark.parametrize(
    ("smallest", "sizes"),
    [
        (1, [32, 32, 128, *[512] * 8, *[1024] * 6]),
        (33, [128, *[512] * 8, *[1024] * 6]),
        (129, [*[512] * 8, *[1024] * 6]),
        (512, [*[512] * 8, *[1024] * 6]),
        (513, [1024] * 6),
    ],
)
def test_which_activations_are_offloaded(smallest, sizes):
    """Eight positions: 32 B of a norm's factors, 128 B of attention's sums, 32 numbers in half (512
    B) and single precision, 64 in half.

    The tables of the positions, 128 B each, stay, because all layers have the same.
    """
    work = Workload(
        CpuBackend(True),
        TINY,
        SCHEMES["offload-activations"],
        train=True,
        length=8,
        seed=3,
        smallest_offload=smallest,
    )
    work.step()
    moves = [move for move in work.mover.take_moves() if move["op"] == "store"]
    for layer in range(3):
        assert (
            sorted(move["bytes"] for move in moves if f"layer.{layer}." in move["tensor"]) == sizes
        )

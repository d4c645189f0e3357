"""The recording kit without a GPU: every scheme up to the GPU's own calls, and what its files hold."""

import gzip
import json
import math
import subprocess
import sys

import pytest
import torch

from hosim.errors import InputError
from hosim.importers.kineto import parse_kineto
from hosim.record import command, functional_decoder, trim
from hosim.record.functional_decoder import CONFIGS
from hosim.record.gpu_seam import CpuBackend
from hosim.record.moves import Mover
from hosim.record.schemes import SCHEMES, Workload
from hosim.validate.offload_prediction import machine_of, predict_recording
from hosim.validate.snapshot import parse_snapshot

TINY = CONFIGS["tiny"]

# Refuses what the kit's own files import beyond torch, numpy and the standard library, and anything of hosim but the kit.
GUARD = """
import builtins, runpy, sys
real = builtins.__import__
def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__") or ""
    top = name.partition(".")[0]
    ours = importer.startswith(("hosim.record", "hosim_record")) or importer == "__main__"
    if ours and level == 0 and top not in {"torch", "numpy"} | set(sys.stdlib_module_names):
        raise ImportError(f"{importer} imports {name}")
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = guarded
"""
AS_MODULE = GUARD + "sys.argv[0] = 'record'; runpy.run_module('hosim.record', run_name='__main__')"
AS_FOLDER = (
    GUARD
    + """
class NoHosim:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hosim":
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, NoHosim())
runpy.run_path(sys.argv.pop(1), run_name='__main__')
"""
)


def execute(*arguments):
    return subprocess.run([sys.executable, "-c", *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """All runs of a dry run, made by the one command."""
    out = tmp_path_factory.mktemp("recording") / "out"
    done = execute(AS_MODULE, "all", "--out", out, "--dry-run", "--lengths", "1024", "--iterations", "1", "--profiled", "1")
    assert done.returncode == 0, done.stderr
    return out


def test_one_command_records_every_scheme(recording):
    meta = json.loads((recording / "meta.json").read_text())
    assert meta["failed"] == []
    assert meta["dry_run"] is True
    assert meta["software"]["torch"] == torch.__version__
    train = {f"train-16-{scheme}" for scheme in SCHEMES}
    prefill = {f"prefill-16-{scheme}" for scheme in SCHEMES if scheme != "offload-optimizer"}
    assert set(meta["runs"]) == train | prefill
    assert {path.name for path in recording.iterdir()} == {"meta.json", "bandwidth.json", *meta["runs"]}
    assert {path.name for path in (recording / "train-16-both").iterdir()} == {"run.json", "trace.json.gz"}


@pytest.mark.parametrize("mode", ["prefill", "train"])
def test_every_scheme_computes_the_same(recording, mode):
    losses = {tuple(json.loads(path.read_text())["losses"]) for path in recording.glob(f"{mode}-*/run.json")}
    (only,) = losses
    assert len(only) == 5
    assert all(math.isfinite(loss) for loss in only)
    assert (len(set(only)) > 1) == (mode == "train")


def test_the_moves_are_those_of_the_scheme(recording):
    moves = {path.parent.name: json.loads(path.read_text())["moves"] for path in recording.glob("*/run.json")}
    assert moves["train-16-resident"] == moves["prefill-16-resident"] == []
    size = 2 * functional_decoder.count(TINY.layer_shapes)
    fetched = [(m["tensor"], m["after"], m["bytes"]) for m in moves["prefill-16-stream-params"] if m["op"] == "prefetch"]
    assert fetched == [
        ("layer.0.parameters", "embedding.forward", size),
        ("layer.1.parameters", "layer.0.forward", size),
        ("layer.2.parameters", "layer.1.forward", size),
        ("layer.3.parameters", "layer.2.forward", size),
    ]
    states = [m["tensor"] for m in moves["train-16-offload-optimizer"] if m["op"] == "store"]
    assert states == [f"layer.{i}.optimizer_state" for i in range(4)]
    stored = {m["tensor"] for m in moves["train-16-offload-activations"] if m["op"] == "store"}
    fetched = {m["tensor"] for m in moves["train-16-offload-activations"] if m["op"] == "prefetch"}
    assert stored == fetched
    assert {name.split(".")[1] for name in stored} == {"0", "1", "2"}  # those of the last layer stay
    kinds = {m["tensor"].split(".")[2] for m in moves["train-16-both"]}
    assert kinds == {"parameters", "activation", "optimizer_state"}


def test_the_sweep_has_every_size_direction_and_kind_of_memory(recording):
    rows = json.loads((recording / "bandwidth.json").read_text())
    seen = {(row["direction"], row["pinned"], row["bytes"]) for row in rows["copies"]}
    kinds = [("h2d", True), ("d2h", True), ("both", True), ("h2d", False), ("d2h", False)]
    assert seen == {(*kind, 4096 << step) for kind in kinds for step in range(5)}
    assert all(row["median_ns"] > 0 and len(row["ns"]) == 2 for row in rows["copies"])
    assert len(rows["host_allocations"]) == 10


def test_the_trace_says_where_each_phase_begins(recording):
    trace = json.loads(gzip.decompress((recording / "train-16-both" / "trace.json.gz").read_bytes()))
    marks = [e["name"] for e in sorted(trace["traceEvents"], key=lambda e: e.get("ts", 0)) if e.get("cat") == "user_annotation"]
    layers = range(4)
    assert [mark for mark in marks if mark.startswith("hosim.")] == [
        *("hosim.step", "hosim.embedding.forward", *(f"hosim.layer.{i}.forward" for i in layers), "hosim.head.forward"),
        *("hosim.head.backward", *(f"hosim.layer.{i}.backward" for i in reversed(layers)), "hosim.embedding.backward"),
        *("hosim.embedding.update", *(f"hosim.layer.{i}.update" for i in layers), "hosim.head.update"),
    ]


def test_a_dry_run_predicts_nothing_and_says_why(recording):
    with pytest.raises(InputError, match=r"trace\.json\.gz: no kernel, copy or memset of a device was recorded"):
        predict_recording(recording, "train", 16)
    assert json.loads((recording / "meta.json").read_text())["model"]["layer_parameters"] == functional_decoder.count(TINY.layer_shapes)
    assert machine_of(json.loads((recording / "bandwidth.json").read_text())).channel_between["ddr", "hbm"].bandwidth_bytes_per_s > 0


def test_what_is_there_is_left_alone_and_nothing_else_is_mixed_in(recording, capsys, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in recording.glob("*/*")}
    command_line = ["runs", "--out", str(recording), "--dry-run", "--lengths", "1024"]
    assert command.main(command_line) == 0
    assert before == {path: path.stat().st_mtime_ns for path in recording.glob("*/*")}
    monkeypatch.setitem(CONFIGS, "tiny", CONFIGS["1b"])
    assert command.main(command_line) == 2
    assert "holds a recording of tiny" in capsys.readouterr().err


def test_the_folder_alone_runs_where_hosim_is_not_installed(root, tmp_path):
    kit = tmp_path / "kit"
    kit.mkdir()
    for path in (root / "hosim" / "record").glob("*.py"):
        (kit / path.name).write_bytes(path.read_bytes())
    done = execute(AS_FOLDER, kit, "bandwidth", "--out", tmp_path / "out", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bandwidth.json", "meta.json"}


def workload(scheme, *, lazy=True, train=True):
    return Workload(CpuBackend(lazy), TINY, SCHEMES[scheme], train=train, length=8, seed=3, smallest_offload=1)


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
    weights = [functional_decoder.views(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=True)]
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
        (["runs", "--dry-run", "--out", "x", "--schemes", "magic"], "expected some of resident"),
        (["runs", "--dry-run", "--out", "x", "--lengths", "long"], "--lengths: expected whole numbers"),
        (["runs", "--dry-run", "--out", "x", "--batch", "0"], "--batch: expected at least 1"),
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

    monkeypatch.setattr(command, "_measure", run_out)
    out = tmp_path / "out"
    line = ["runs", "--out", str(out), "--dry-run", "--lengths", "1", "--modes", "train", "--schemes", "both"]
    assert command.main(line) == 1
    assert "no memory left" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["meta.json"]
    assert json.loads((out / "meta.json").read_text())["failed"] == ["train-16-both"]


@pytest.mark.parametrize("name", ["h100_bert_small", "mi300x_qwen1.5_0.5b", "event_sync_multi_stream"])
def test_a_trimmed_trace_reads_as_before(shared, name):
    path = shared / "data" / "traces" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no file {path}")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trimmed = trim.trim_trace(trace)
    assert parse_kineto(trimmed, name) == parse_kineto(trace, name)
    assert len(json.dumps(trimmed)) < 0.8 * len(json.dumps(trace))


def test_a_trimmed_snapshot_reads_as_before():
    block = {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": [{"name": "f"}]}
    segment = {"device": 0, "address": 4096, "total_size": 512, "stream": 0, "segment_type": "small", "blocks": [block], "frames": []}
    entry = {"action": "alloc", "addr": 4096, "size": 500, "stream": 0, "time_us": 7, "frames": [{"name": "f"}]}
    raw = {"segments": [segment], "device_traces": [[entry]], "allocator_settings": {"expandable_segments": True}, "external": [1]}
    trimmed = trim.trim_snapshot(raw)
    assert "frames" not in json.dumps(trimmed)
    assert parse_snapshot(trimmed) == parse_snapshot(raw)


@pytest.mark.parametrize("scheme", ["offload-optimizer", "both"])
def test_a_buffer_that_is_filled_before_it_is_stored_is_noticed(scheme, monkeypatch):
    fetch = Mover.fetch
    monkeypatch.setattr(Mover, "fetch", lambda self, tensor, there, here, after=None: fetch(self, tensor, there, here))
    broken, sound = workload(scheme), workload("resident")
    assert [broken.step() for _ in range(4)] != [sound.step() for _ in range(4)]

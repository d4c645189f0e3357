"""The three steps of the kit for a GPU machine, without one: a dry run, and what each step does
with the folder of the one before.
"""

import contextlib
import gzip
import json
import shutil
import sys
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from test_recording_kit import ALONE, execute  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from hosim import load_plan, load_workload, record, save_plan, save_workload  # noqa: E402
from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan  # noqa: E402
from hosim.cli.main import app  # noqa: E402
from hosim.edits import Edits, Recompute  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.graph import GraphBuilder  # noqa: E402
from hosim.hardware import Channel, Compute, Hardware, Tier  # noqa: E402
from hosim.io.importers.recordings import read_kernel_tables  # noqa: E402
from hosim.on_torch.gpu import command, measuring, planning, profiled, running  # noqa: E402
from hosim.on_torch.gpu.captured_step import CapturedStep, DecoderModule, Work, captured, events_of  # noqa: E402
from hosim.on_torch.gpu.functional_decoder import CONFIGS  # noqa: E402
from hosim.on_torch.gpu.gpu_seam import CpuBackend, CudaBackend  # noqa: E402
from hosim.on_torch.gpu.measuring import beside, measured_machine  # noqa: E402
from hosim.on_torch.gpu.output_files import (  # noqa: E402
    plan_of_mapping,
    workload_mapping,
    write_json,
)
from hosim.on_torch.gpu.running import table  # noqa: E402
from hosim.on_torch.gpu.scheme_runs import Workload  # noqa: E402
from hosim.on_torch.lower import rule_of  # noqa: E402
from hosim.result import CACHING, Timeline, Transfer  # noqa: E402
from hosim.validate.kit import FORMAT, SCHEMES  # noqa: E402

SMALL = (
    "--dry-run",
    "--modes",
    "prefill",
    "--lengths",
    "8",
    "--iterations",
    "1",
    "--profiled",
    "1",
    "--schemes",
    "resident",
)


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "140"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The first and the third step on a machine with torch alone, the second here."""
    out = tmp_path_factory.mktemp("gpu") / "out"
    for what in ("measure", "plan", "run"):
        arguments = (what, *SMALL, "--shares", "50,1", "--out", str(out))
        if what == "plan":
            assert command.main(arguments) == 0
        else:
            done = execute(ALONE, *arguments)
            assert done.returncode == 0, done.stderr
    return out


def test_a_dry_run_predicts_and_measures(folder):
    assert {path.name for path in folder.iterdir()} == {
        *(
            "meta.json",
            "bandwidth.json",
            "kernels.csv",
            "summary.json",
            "tiny-prefill-16-resident",
            "tiny-prefill-16-step",
        ),
        *("tiny-prefill-16-plan-50", "tiny-prefill-16-plan-1"),
    }
    resident, half, none = json.loads((folder / "summary.json").read_text())["runs"]
    assert [row["name"] for row in (resident, half, none)] == [
        f"tiny-prefill-16-{last}" for last in ("step", "plan-50", "plan-1")
    ]
    assert half["budget_bytes"] == resident["predicted"]["allocated_bytes"] // 2
    assert half["predicted"]["allocated_bytes"] <= half["budget_bytes"]
    assert half["cache_ops"] > 0
    assert (resident["same_results"], half["same_results"], none["same_results"]) == (
        True,
        True,
        None,
    )
    assert half["measured"]["step_ns"] > 0
    assert half["measured"]["allocated_bytes"] is None  # torch counts no host memory
    assert none["error"].startswith("no plan of policy hyperoffload stays within ")
    files = {path.name for path in (folder / "tiny-prefill-16-plan-50").iterdir()}
    assert files == {"predicted.json", "plan.json", "run.json", "trace.json.gz", "timeline.json.gz"}
    events = json.loads(
        gzip.decompress((folder / "tiny-prefill-16-plan-50" / "timeline.json.gz").read_bytes())
    )["traceEvents"]
    assert {"h2d", "compute"} <= {event["tid"] for event in events}


def test_validate_reads_all_of_a_dry_run(folder):
    outcome = invoke("validate", folder, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    data = json.loads(outcome.stdout)
    assert (data["dry_run"], data["runs"]) == (True, [])
    assert data["plans"] == json.loads((folder / "summary.json").read_text())["runs"]
    text = invoke("validate", folder).stdout
    assert "tiny-prefill-16-plan-50" in text
    assert "tiny-prefill-16-plan-1: " in text
    assert "A dry run" in text


def test_what_is_done_is_left_alone(folder, tmp_path, capsys):
    again = shutil.copytree(folder, tmp_path / "again")
    assert command.main(["run", *SMALL, "--out", str(again)]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "tiny-prefill-16-plan-1: nothing fits",
        "tiny-prefill-16-plan-50: there already",
    ]
    assert said.out == table(json.loads((folder / "summary.json").read_text())["runs"], {}) + "\n"


def test_the_measured_step_is_a_workload_for_every_command(folder):
    graph = load_workload(folder / "tiny-prefill-16-step" / "workload.json.gz")
    assert graph.name == "decoder-tiny-prefill-16"
    assert all(op.duration_ns for op in graph.ops)
    plan = load_plan(folder / "tiny-prefill-16-plan-50" / "plan.json", graph)
    path = folder / "tiny-prefill-16-plan-50" / "plan.json"
    assert plan_of_mapping(json.loads(path.read_text()), graph, str(path)) == plan


def test_the_kernels_are_a_table_of_times(folder):
    tables = {one.kernel: one for one in read_kernel_tables(folder / "kernels.csv")}
    assert {name: len(one) for name, one in tables.items()} == {
        "gemm": 2,
        "context_attention": 1,
        "generation_attention": 1,
    }
    assert {name: values.tolist() for name, values in tables["gemm"].sizes.items()} == {
        "m": [8, 16],
        "n": [16, 32],
        "k": [32, 16],
    }
    rows = json.loads((folder / "bandwidth.json").read_text())["beside_kernels"]
    assert [(row["kernel"], row["direction"]) for row in rows] == [
        ("product", "h2d"),
        ("product", "d2h"),
        ("addition", "h2d"),
        ("addition", "d2h"),
    ]
    assert all(row[key] > 0 for row in rows for key in row if key.endswith("_ns"))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("plan", "{0}/meta.json: no such file"),
        (
            "run",
            "{0}: no plan (MODEL-MODE-LENGTH-plan-SHARE); run `python -m hosim.gpu plan` first",
        ),
    ],
)
def test_steps_in_the_wrong_order(what, message, tmp_path, capsys):
    assert command.main([what, *SMALL, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"hosim.gpu: {message.format(tmp_path)}\n"


STEP_RUN, ONE_PLAN = "tiny-prefill-16-step/run.json", "tiny-prefill-16-plan-50/plan.json"


@pytest.mark.parametrize(
    ("what", "name", "changed", "message"),
    [
        ("plan", "meta.json", {"device": None}, "device: expected an object"),
        ("plan", "meta.json", {"device": {"name": "cpu"}}, "device.kind: expected a text"),
        (
            "plan",
            "meta.json",
            {"device": {"name": "x", "kind": "cuda"}},
            "device.free_memory_bytes: expected a whole number of at least 2",
        ),
        ("plan", STEP_RUN, {"wall_ns": []}, "wall_ns: expected a list of at least one time in ns"),
        (
            "plan",
            STEP_RUN,
            {"outside_bytes": None},
            "outside_bytes: expected a whole number of at least 0",
        ),
        (
            "run",
            STEP_RUN,
            {"step": {"config": []}},
            "step: expected the config and the mode of a step",
        ),
        (
            "run",
            STEP_RUN,
            {"step": {"config": "tiny", "mode": "train"}},
            "step.length: expected a whole number of at least 1",
        ),
        ("run", ONE_PLAN, {"initial": [1]}, "the plan is not for this decoder ("),
        ("run", ONE_PLAN, None, "expected a plan, an object of JSON; plan again"),
        ("run", ONE_PLAN, "{", "damaged JSON of a plan ("),
        (
            "run",
            "meta.json",
            {"device": {"name": "other"}},
            "the folder holds measurements of other, this is ",
        ),
    ],
)
def test_a_damaged_folder_is_one_line(folder, tmp_path, what, name, changed, message, capsys):
    out = shutil.copytree(folder, tmp_path / "out")
    if what == "run":
        (out / "tiny-prefill-16-plan-50" / "run.json").unlink()
    data = {**json.loads((out / name).read_text()), **changed} if isinstance(changed, dict) else []
    (out / name).write_text(changed if isinstance(changed, str) else json.dumps(data))
    assert command.main([what, *SMALL, "--shares", "50", "--out", str(out)]) == 2
    (line,) = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("hosim.gpu: ")
    ]
    assert message in line


@pytest.mark.long
def test_the_prediction_of_another_plan_is_not_put_beside_a_run(folder, tmp_path, capsys):
    out = shutil.copytree(folder, tmp_path / "out")
    half, none = out / "tiny-prefill-16-plan-50", out / "tiny-prefill-16-plan-1"
    before = {path.name: path.read_bytes() for path in half.iterdir()}
    shutil.copy(half / "plan.json", none)  # of a plan that fitted once
    line = ["plan", *SMALL, "--shares", "50,1", "--out", str(out), "--policy"]
    assert command.main([*line, "layerwise"]) == 0
    assert (
        "tiny-prefill-16-plan-50: another plan has run there, and is left alone; "
        in capsys.readouterr().err
    )
    assert {path.name: path.read_bytes() for path in half.iterdir()} == before
    assert not (none / "plan.json").exists()
    assert command.main([*line, "hyperoffload"]) == 0  # the same plan
    assert "left alone" not in capsys.readouterr().err
    (half / "run.json").unlink()
    assert command.main([*line, "layerwise"]) == 0
    assert json.loads((half / "plan.json").read_text())["policy"] == "layerwise"


def test_planning_without_hosims_libraries(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "hosim.on_torch.gpu.planning", None)
    assert command.main(["plan", *SMALL, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "hosim.gpu: planning needs hosim.on_torch.gpu.planning, which is not here: copy the "
        "folder to where hosim is installed"
    )


# ---- files that travel


def machine():
    tiers = (Tier("hbm", 1 << 30, 10**12, "device"), Tier("ddr", 1 << 30, 10**11, "host"))
    return Hardware(
        "m",
        tiers,
        (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
        Compute({}),
    )


def everything():
    """A graph that uses every key of a workload."""
    b = GraphBuilder("all", meta={"source": "test"})
    b.tensor("w", 40, "parameter", home="ddr")
    b.tensor("kept", 8, persistent=True)
    b.tensor("x", 600)
    b.op(
        "f",
        "matmul",
        inputs=["w"],
        outputs=["x"],
        duration_ns=50,
        flops=5,
        kernel="gemm",
        sizes=(1, 2, 3),
        bytes_accessed=6,
    )
    b.op(
        "g",
        "relu",
        inputs=["x"],
        mutates=["kept"],
        deps=["f"],
        duration_ns=0,
        workspace_bytes=3,
        stream="aux",
        dtype="fp32",
    )
    return b.build()


def test_a_workload_is_written_as_hosim_writes_it(tmp_path):
    graph = everything()
    (tmp_path / "ours.json").write_text(json.dumps(workload_mapping(graph)))
    loaded = load_workload(tmp_path / "ours.json")
    assert (loaded, loaded.meta) == (graph, graph.meta)
    save_workload(loaded, tmp_path / "theirs.json")
    assert len(json.loads((tmp_path / "theirs.json").read_text())["ops"]) == 2


def plans():
    graph = everything()
    yield Plan(
        graph,
        "mine",
        (CacheOp(PREFETCH, 0, "ddr", "hbm"), CacheOp(STORE, 2, "hbm", "ddr", 0)),
        {0: ("ddr",), 1: ("hbm", "ddr")},
    )
    edits = Edits(graph, ("f", "g"), (Recompute("f", "g", "f~2"),))
    yield Plan(
        edits.graph(),
        "mine",
        (CacheOp(DETACH, edits.graph().tensor_index["x@f~2"], "hbm", None, 2),),
        edits=edits,
    )


@pytest.mark.parametrize("plan", list(plans()), ids=["moves", "edits"])
def test_a_plan_is_read_as_hosim_reads_it(plan, tmp_path):
    save_plan(plan, tmp_path / "plan.json")
    read = plan_of_mapping(
        json.loads((tmp_path / "plan.json").read_text()), plan.workload, "plan.json"
    )
    assert read == load_plan(tmp_path / "plan.json", plan.workload) == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"workload": "other"},
            "plan.json: expected a plan for all, got one for other; plan again",
        ),
        ({"order": ["g", "f"]}, "plan.json: the plan is not for this decoder ("),
        ({"initial": {"y": []}}, "plan.json: the plan is not for this decoder ('y'); plan again"),
        (
            {"cache_ops": [{"op": "store"}]},
            "plan.json: the plan is not for this decoder ('tensor'); plan again",
        ),
    ],
)
def test_a_plan_of_something_else(change, message):
    data = {"workload": "all", "policy": "mine", "cache_ops": [], "initial": {}} | change
    with pytest.raises(InputError) as caught:
        plan_of_mapping(data, everything(), "plan.json")
    assert str(caught.value).startswith(message)


def test_the_machine_of_a_folder(tmp_path):
    device = {
        "kind": "cuda",
        "name": "GPU",
        "free_memory_bytes": 70 << 30,
        "host_memory_bytes": 2 << 30,
    }
    (tmp_path / "meta.json").write_text(json.dumps({"format": "hosim.gpu/1", "device": device}))
    rows = [
        {"direction": "h2d", "pinned": True, "bytes": 1 << 20, "ns": [7_000 + 20_000]},
        {"direction": "d2h", "pinned": True, "bytes": 1 << 20, "ns": [50_000]},
        {"direction": "h2d", "pinned": False, "bytes": 1 << 20, "ns": [1]},
        {"direction": "both", "pinned": True, "bytes": 1 << 20, "ns": [60_000]},
    ]
    (tmp_path / "bandwidth.json").write_text(json.dumps({"format": "hosim.gpu/1", "copies": rows}))
    found = measured_machine(tmp_path)
    assert (found.name, found.device_tier, found.device.capacity_bytes) == (
        "GPU",
        "hbm",
        70 << 30,
    )  # what is free
    assert {tier.name: tier.capacity_bytes for tier in found.tiers}[
        "ddr"
    ] == 1 << 30  # half of the host's memory
    up, down = found.channel_between["ddr", "hbm"], found.channel_between["hbm", "ddr"]
    assert (up.name, up.bandwidth_bytes_per_s, up.beside) == (
        "h2d",
        (1 << 20) * 10**9 // 27_000,
        (("d2h", (1 << 20) * 10**9 // 60_000),),
    )
    assert (down.name, down.bandwidth_bytes_per_s) == ("d2h", (1 << 20) * 10**9 // 50_000)


# ---- predictions


def test_the_kit_checks_plans_as_offload_does():
    """On a GPU by what torch's allocator reserves, one segment here; on a CPU by what the program
    holds.
    """
    b = GraphBuilder("toy")
    b.tensor("x", 600)
    b.op("f", "matmul", outputs=["x"], duration_ns=50)
    b.op("g", "relu", inputs=["x"], duration_ns=50)
    plan, hardware = Plan(b.build(), "mine", (CacheOp(STORE, 0, "hbm", "ddr", 0),)), machine()
    assert rule_of(CACHING)(plan, hardware, 2 << 20).feasible
    assert not rule_of(CACHING)(plan, hardware, (2 << 20) - 1).feasible
    assert rule_of(None)(plan, hardware, 600).feasible
    assert not rule_of(None)(plan, hardware, 599).feasible


def test_a_plan_runs_within_the_budget_of_its_program(tmp_path):
    write_json(tmp_path / "predicted.json", {"format": FORMAT, "budget_bytes": 1000})
    write_json(tmp_path / "resident.json", {"format": FORMAT, "outside_bytes": 100})
    assert running._budget(tmp_path, tmp_path / "resident.json") == 900


def test_what_a_prediction_adds():
    """Bytes outside the program to both peaks, and what the resident step took beyond its ops to
    the time.
    """
    b = GraphBuilder("toy")
    b.tensor("x", 600)
    b.op("f", "matmul", outputs=["x"], duration_ns=50)
    result = replay(Plan(b.build()), machine(), account="program", allocator="caching")
    found = planning._figures(result, 100, 7)
    assert found == {
        "allocated_bytes": 1124,
        "reserved_bytes": (2 << 20) + 100,
        "step_ns": 57,
        "beyond_ops_ns": 7,
        "stall_ns": 0,
    }


def test_ops_and_transfers_as_events():
    b = GraphBuilder("toy")
    b.tensor("x", 600)
    b.op("f", "matmul", outputs=["x"], duration_ns=50)
    plan = Plan(b.build(), "mine", (CacheOp(STORE, 0, "hbm", "ddr", 0),))
    line = Timeline((0,), (1_000,), (), (Transfer(0, 0, "d2h", 600, 1_000, 1_500, 3_000, 0),), ())
    assert events_of(plan, line) == {
        "displayTimeUnit": "ns",
        "traceEvents": [
            {
                "ph": "X",
                "name": "f",
                "cat": "matmul",
                "tid": "compute",
                "pid": 1,
                "ts": 0.0,
                "dur": 1.0,
            },
            {"ph": "X", "name": "x", "cat": "store", "tid": "d2h", "pid": 1, "ts": 1.5, "dur": 1.5},
        ],
    }


def test_the_table():
    def row(name, budget, peak, step_ns, error=None):
        measured, predicted = (
            {"allocated_bytes": peak, "step_ns": step_ns},
            {"allocated_bytes": 2_000, "step_ns": 4_000_000},
        )
        same = budget != 1_500
        return {
            "name": name,
            "budget_bytes": budget,
            "measured": measured,
            "predicted": predicted,
            "error": error,
            "same_results": same,
        }

    rows = [
        row("a-step", None, 2_500, 5_000_000),
        row("a-plan-50", 1_500, None, 3_200_000),
        row("a-plan-1", 15, None, None, "nothing fits"),
    ]
    assert table(rows, {"bandwidth": "no copy engine"}).splitlines() == [
        "                                      budget       allocated       predicted     off   "
        "step ms predicted     off",
        "a-step                              resident           2,500           2,000  -20.0%     "
        " 5.00      4.00  -20.0%",
        "a-plan-50                              1,500               -           2,000             "
        " 3.20      4.00  +25.0%  other results",
        "a-plan-1                     nothing fits",
        "failed: bandwidth: no copy engine",
    ]


# ---- the captured decoder


def test_blocks_of_what_is_held():
    """Multiples of 512 B, each storage once: 1, 512 and 513 B take 512 + 512 + 1024 B."""
    one, two, three = (torch.zeros(size, dtype=torch.uint8) for size in (1, 512, 513))
    assert (
        CapturedStep(
            None, {"a": one, "b": two, "b again": two[3:], "rate": 0.1}, {"x": three}
        ).held_bytes
        == 2048
    )


def test_the_captured_decoder_is_that_of_the_schemes():
    """Of one seed: the same weights and tokens, so that the schemes' check figure follows from its
    logits, and the losses are equal.
    """
    step = captured(Work("tiny", "prefill", 8, 2, 3), "cpu")
    scheme = Workload(
        CpuBackend(), CONFIGS["tiny"], SCHEMES["resident"], train=False, length=8, batch=2, seed=3
    )
    values = {**step.held, **step.inputs}
    (logits,) = step.program.module(*(values[given.placeholder] for given in step.program.givens))
    assert logits.float().logsumexp(-1).mean().item() == scheme.step()
    train = captured(Work("tiny", "train", 8, 2, 3), "cpu")
    values = {**train.held, **train.inputs}
    (loss,) = train.program.module(*(values[given.placeholder] for given in train.program.givens))
    trained = Workload(
        CpuBackend(), CONFIGS["tiny"], SCHEMES["resident"], train=True, length=8, batch=2, seed=3
    )
    assert loss.item() == trained.step()
    assert {value.untyped_storage().nbytes() for value in train.inputs.values()} == {2 * 8 * 8}


def test_the_decoder_is_causal():
    model = DecoderModule(CONFIGS["tiny"], 8, 1)
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        before, after = (
            model._hidden(tokens),
            model._hidden(tokens.clone().index_fill_(1, torch.tensor([5]), 90)),
        )
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


# ---- what is asked of a GPU


def test_clocks_are_sampled_while_something_runs(tmp_path):
    """A line that was cut off is left out; where there is no such program, and on a CPU, there are
    none.
    """
    samples, row = [], "1980, 2619, 45, 300.10, 0x0000000000000000"
    script = (
        "import sys; print(sys.argv[2] + chr(10) + '1980, 26', flush=True); "
        "open(sys.argv[1], 'w').close(); input()"
    )
    with profiled.sampled(
        "cuda", 1, samples, [sys.executable, "-c", script, str(tmp_path / "printed"), row]
    ):
        while not (tmp_path / "printed").exists():
            time.sleep(0.01)
    assert samples == [dict(zip(profiled.FIELDS, row.split(", "), strict=True))]
    with (
        profiled.sampled("cpu", 0, samples, ["no such program"]),
        profiled.sampled("cuda", 0, samples, ["no such program"]),
    ):
        pass
    assert len(samples) == 1


def test_both_are_timed_by_events_on_their_streams(monkeypatch):
    """Events are recorded at 2, 4, 6 and 8 ms; copies are queued before kernels."""
    log, clock = [], iter(range(2, 100, 2))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "main")
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "copies")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.at = next(clock)
            log.append((stream, self.at))

        def elapsed_time(self, other):
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(
        CudaBackend, "copy", lambda self, stream, to, source: log.append((stream, to, source))
    )
    device = CudaBackend(0)
    assert device.time_both([lambda: log.append("kernel")] * 2, [("d2h", "to", "from")]) == (
        2_000_000,
        2_000_000,
    )
    expected = [
        ("copies", 2),
        ("d2h", "to", "from"),
        ("copies", 4),
        ("main", 6),
        "kernel",
        "kernel",
        ("main", 8),
    ]
    assert log == ["synchronize", *expected, "synchronize"]
    assert device.time_both([], [("d2h", "to", "from")]) == (0, 2_000_000)


def test_calls_are_timed_in_a_graph(monkeypatch):
    log = []
    device = CpuBackend()
    device.time_both = lambda kernels, copies: [kernel() for kernel in kernels] and (700, 0)
    monkeypatch.setattr(
        torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: log.append("replay"))
    )
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
    assert CudaBackend.time_calls(device, lambda: log.append("call"), 7) == 100
    assert log == ["call"] * 7 + ["replay", "replay"]


def test_shapes_that_do_not_fit_have_no_row():
    class Full(CpuBackend):
        def time_calls(self, call, count):
            raise torch.cuda.OutOfMemoryError("no memory left")

    assert list(measuring.kernel_rows(Full(), "GPU", measuring.SMALL)) == []


def test_copies_fill_the_time_of_the_kernels():
    """Kernels take 1,000 ns and a copy 300: three copies."""
    device = CpuBackend()
    device.time_both = lambda kernels, copies: (1000 * bool(kernels), 300 * len(copies))
    first = beside(device, 4, 16, 2, 1)[0]
    assert {
        key: first[key]
        for key in ("copies", "kernels_alone_ns", "copies_alone_ns", "kernels_beside_ns")
    } == {
        "copies": 3,
        "kernels_alone_ns": 1000,
        "copies_alone_ns": 900,
        "kernels_beside_ns": 1000,
    }


# ---- a user's own step


def test_a_users_own_step(tmp_path):
    model = torch.nn.Linear(8, 8)
    with record(tmp_path / "a" / "step"):
        model(torch.ones(2, 8)).sum().backward()
    assert {path.name for path in (tmp_path / "a" / "step").iterdir()} == {
        "run.json",
        "trace.json.gz",
    }
    run = json.loads((tmp_path / "a" / "step" / "run.json").read_text())
    assert (run["format"], run["memory"], len(run["wall_ns"])) == ("hosim.gpu/1", None, 1)
    events = json.loads(gzip.decompress((tmp_path / "a" / "step" / "trace.json.gz").read_bytes()))[
        "traceEvents"
    ]
    assert any(event["name"] == "aten::addmm" for event in events)
    outcome = invoke("validate", tmp_path / "a" / "step")
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    assert "no kernel, copy or memset of a device was recorded" in outcome.stderr


def test_after_an_error_inside_nothing_is_written(tmp_path):
    with pytest.raises(ZeroDivisionError), record(tmp_path / "step"):
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match="cannot be a folder: Not a directory"),
        record(tmp_path / "file"),
    ):
        pass
    with pytest.raises(InputError, match="the folder holds something already"), record(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_said_before_the_step(tmp_path, monkeypatch):
    def refused(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refused)
    with (
        pytest.raises(InputError, match=r"/step: cannot create the folder: Permission denied"),
        record(tmp_path / "step"),
    ):
        pytest.fail("the step ran")

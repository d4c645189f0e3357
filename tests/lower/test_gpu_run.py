"""The command for a GPU machine, without one: everything but the GPU's own calls."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import fake_cuda  # noqa: E402
from fake_cuda import FakeCuda  # noqa: E402

from hosim.cache_plan import STORE, CacheOp, Plan  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.errors import InputError  # noqa: E402
from hosim.graph import GraphBuilder  # noqa: E402
from hosim.lower import gpu_run, host_pool, on_cuda  # noqa: E402
from hosim.lower.run import Executor  # noqa: E402
from hosim.lower.torch_decoder import SIZES, TorchDecoder  # noqa: E402
from hosim.result import Timeline, Transfer  # noqa: E402
from hosim.timeline import last_ns  # noqa: E402


def test_a_dry_run_predicts_and_measures(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    threads, machine, during = torch.get_num_threads(), gpu_run._stand_in, []
    monkeypatch.setattr(gpu_run, "_stand_in", lambda: (during.append(torch.get_num_threads()), machine())[1])
    assert gpu_run.main(["--out", str(out), "--dry-run", "--length", "8", "--steps", "1", "--shares", "50"]) == 0
    assert torch.get_num_threads() == threads
    assert during == [1]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["dry_run"]
    runs = {(run["mode"], run["share_percent"]): run for run in summary["runs"]}
    assert list(runs) == [("prefill", 100), ("prefill", 50), ("train", 100), ("train", 50)]
    for (mode, share), run in runs.items():
        predicted, measured = run["predicted"], run["measured"]
        assert predicted["step_ns"] > 0
        assert measured["step_ns"] > 0
        assert measured["peak_bytes"] is None  # torch counts no host memory
        assert run["same_results"] is (None if mode == "train" else True)
        if share == 100:
            assert run["budget_bytes"] is None
            continue
        assert run["budget_bytes"] == runs[mode, 100]["predicted"]["peak_bytes"] // 2
        assert 0 < predicted["peak_bytes"] <= run["budget_bytes"]
        assert run["cache_ops"] > 0
        folder = out / f"{mode}-{share}"
        assert json.loads((folder / "run.json").read_text())["measured"] == measured
        assert len(json.loads((folder / "plan.json").read_text())["cache_ops"]) == run["cache_ops"]
        events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
        assert {event["tid"] for event in events} == {"compute", "h2d", "d2h"} or mode == "prefill"
        assert {"h2d", "compute"} <= {event["tid"] for event in events}
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 1 + len(runs)
    assert table[2].startswith("prefill-50")
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shares", "75,0"], "--shares: expected whole numbers from 1 to 100, such as 75,50, got '75,0'"),
        (["--modes", "decode"], "--modes: expected some of prefill, train, got 'decode'"),
        (["--dry-run", "--steps", "0"], "expected --length, --batch and --steps of at least 1"),
        ([], "expected a CUDA device, torch finds none (--dry-run runs on the CPU)"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_run.main(["--out", str(tmp_path / "out"), *arguments]) == 2
    assert capsys.readouterr().err == f"gpu_run: {message}\n"
    assert not (tmp_path / "out").exists()


def test_a_decoder_that_there_is_not(capsys):
    with pytest.raises(SystemExit) as left:
        gpu_run.main(["--out", "x", "--config", "2b"])
    assert left.value.code == 2
    assert "argument --config: invalid choice: '2b' (choose from" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert gpu_run.main(["--out", str(tmp_path / "file"), "--dry-run"]) == 2
    assert "cannot create the folder: File exists" in capsys.readouterr().err


def test_the_decoder_is_causal():
    model = TorchDecoder(SIZES["tiny"], 8)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 90
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_policies_that_decide_during_the_run_are_refused():
    from hosim import GraphBuilder

    builder = GraphBuilder("toy")
    builder.tensor("w", 40, "parameter")
    builder.op("f", "matmul", inputs=["w"], duration_ns=50)
    with pytest.raises(InputError, match="policy on_demand decides during the run"):
        gpu_run.planned(builder.build(), gpu_run._stand_in(), 10**6, "on_demand")


class PretendedGpu:
    """What measuring the machine uses of ``torch``: copies up take 7 us and 50 GB/s, down 9 us and 40 GB/s; one in three is disturbed."""

    uint8 = torch.uint8

    def __init__(self):
        self.now_ms, self.count, self.sizes = 0.0, 0, set()
        self.cuda = self

    def Event(self, enable_timing):  # noqa: N802
        gpu = self

        class Mark:
            def record(self):
                self.at_ms = gpu.now_ms

            def elapsed_time(self, later):
                assert enable_timing
                return later.at_ms - self.at_ms

        return Mark()

    def empty(self, size, dtype, device="host", pin_memory=False):
        assert dtype == torch.uint8
        assert (device == "cuda") != pin_memory
        gpu = self

        class Buffer:
            place = device

            def copy_(self, source, non_blocking):
                assert non_blocking
                assert {self.place, source.place} == {"cuda", "host"}
                gpu.sizes.add(size)
                gpu.count += 1
                latency_ns, bytes_per_ns = (7_000, 50) if self.place == "cuda" else (9_000, 40)
                gpu.now_ms += (latency_ns + size / bytes_per_ns) / 1e6 * (3 if gpu.count % 3 == 0 else 1)

        return Buffer()

    def synchronize(self):
        self.now_ms += 1  # whatever the host does between two copies

    def mem_get_info(self):
        return 70 << 30, 80 << 30

    def get_device_name(self):
        return "pretended"


def test_the_machine_as_its_copies_find_it(monkeypatch):
    monkeypatch.setattr(gpu_run, "torch", PretendedGpu())
    monkeypatch.setattr(gpu_run.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 20}.__getitem__)
    machine = gpu_run._measured_machine()
    assert (machine.name, machine.device_tier, machine.device.capacity_bytes) == ("pretended", "hbm", 70 << 30)  # what is free
    assert {tier.name: tier.capacity_bytes for tier in machine.tiers}["ddr"] == 2 << 30  # half of the host's memory
    up, down = machine.channel_between["ddr", "hbm"], machine.channel_between["hbm", "ddr"]
    assert (up.name, down.name) == ("h2d", "d2h")
    assert up.bandwidth_bytes_per_s == pytest.approx(50e9, rel=1e-6)
    assert down.bandwidth_bytes_per_s == pytest.approx(40e9, rel=1e-6)
    assert (up.latency_ns, down.latency_ns) == (7_000, 9_000)
    assert gpu_run.torch.sizes == {1 << 20, 1 << 28}
    assert gpu_run.torch.count == 40


class Ticks:
    """Stands in for ``time``: look number n at it is at n * step_ns, and the step grows by grows_ns with each look."""

    def __init__(self, step_ns, grows_ns=0):
        self.now_ns, self.step_ns, self.grows_ns = 0, step_ns, grows_ns

    def perf_counter_ns(self):
        self.now_ns += self.step_ns
        self.step_ns += self.grows_ns
        return self.now_ns

    def perf_counter(self):
        return self.perf_counter_ns() / 1e9


class Pretended:
    """A GPU with 4096 B allocated outside the program, on which each op takes 1 ms; the decoder really runs on the CPU.

    The host's steps take 2, 4, 6 ... ms by its own clock. The peak is 1,000,000 B for the first plan, 1,000,001 B for the second.
    """

    def __init__(self, monkeypatch):
        self.asked, self.work, self.threads = None, None, None
        self.runs, self.planned, self.timelines, self.peaks = [], [], [], []
        self.captured, self.plans = gpu_run._work, gpu_run.planned
        cuda = FakeCuda()
        monkeypatch.setattr(on_cuda, "cuda", cuda)
        monkeypatch.setattr(on_cuda, "_used_on", lambda tensor, stream: None)
        monkeypatch.setattr(fake_cuda, "time", Ticks(1_000_000))
        monkeypatch.setattr(gpu_run, "time", Ticks(1_000_000, 1_000_000))
        empty = torch.empty
        monkeypatch.setattr(host_pool.torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
        monkeypatch.setattr(gpu_run, "_work", self.work_of)
        monkeypatch.setattr(gpu_run, "planned", self.plan)
        monkeypatch.setattr(gpu_run, "_measured_machine", gpu_run._stand_in)
        monkeypatch.setattr(torch.version, "cuda", "12.4")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: gpu_run._held_bytes(self.work) + 4096)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: self.peaks.append(1_000_000 + len(self.peaks)))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.peaks[-1])
        run = Executor.run

        def noted(executor, values, record=False):
            self.runs.append(record)
            results = run(executor, values, record=record)
            self.timelines.append(executor.timeline)
            return results

        monkeypatch.setattr(Executor, "run", noted)

    def work_of(self, *asked):
        self.asked, self.work, self.threads = asked, self.captured(*asked[:4], "cpu"), torch.get_num_threads()
        return self.work

    def plan(self, *asked, **more):
        self.planned.append((asked[2:], self.plans(*asked, **more)))
        return self.planned[-1][1]


@pytest.fixture
def pretended(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield Pretended(monkeypatch)
    torch.set_num_threads(before)


def test_a_run_on_a_gpu(pretended, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--config", "tiny", "--modes", "prefill", "--length", "8", "--batch", "2", "--steps", "3", "--shares", "60"]
    assert gpu_run.main(["--out", str(out), *arguments]) == 0
    assert pretended.asked == ("tiny", "prefill", 8, 2, "cuda")
    assert pretended.threads == 2
    # Two steps to warm up, three timed ones, and three recorded ones for the times of the ops; then one recorded one for the plan.
    assert pretended.runs == [False] * 5 + [True] * 3 + [False] * 5 + [True]
    ((asked, (plan, predicted)),) = pretended.planned
    peak = replay(Plan(plan.graph), gpu_run._stand_in(), account="program", allocator="caching").allocator.peak_allocated_bytes
    budget = (peak + 4096) * 60 // 100
    assert asked == (budget - 4096, "hyperoffload")
    ops, timeline = len(plan.graph.ops), pretended.timelines[-1]
    assert {op.duration_ns for op in plan.graph.ops} == {1_000_000}
    row = {"mode": "prefill", "same_results": True, "outside_bytes": 4096}
    all_there = {
        **row,
        "share_percent": 100,
        "budget_bytes": None,
        "cache_ops": 0,
        "predicted": {"peak_bytes": peak + 4096, "step_ns": ops * 1_000_000, "stall_ns": 0},
        "measured": {
            "peak_bytes": 1_000_000,
            "step_ns": 4_000_000,
            "steps_ns": [2_000_000, 4_000_000, 6_000_000],
            "recorded_step_ns": (2 * ops - 1) * 1_000_000,  # an op every 2 ms
            "recorded_stall_ns": 0,
        },
    }
    planned = {
        **row,
        "share_percent": 60,
        "budget_bytes": budget,
        "cache_ops": len(plan.cache_ops),
        "predicted": {
            "peak_bytes": predicted.allocator.peak_allocated_bytes + 4096,
            "step_ns": predicted.makespan_ns,
            "stall_ns": sum(predicted.stall_ns.values()),
        },
        "measured": {
            "peak_bytes": 1_000_001,
            "step_ns": 10_000_000,
            "steps_ns": [8_000_000, 10_000_000, 12_000_000],
            "recorded_step_ns": last_ns(timeline),
            "recorded_stall_ns": sum(stall.stall_ns for stall in timeline.stalls),
        },
    }
    assert predicted.allocator.peak_allocated_bytes <= budget - 4096
    assert plan.cache_ops
    channel = {"bytes_per_s": 10**9, "latency_ns": 10_000}
    machine = {"name": "cpu stand-in", "cuda": "12.4", "hbm_bytes": 1 << 32, "h2d": channel, "d2h": channel}
    summary = json.loads((out / "summary.json").read_text())
    runs = [all_there, planned]
    assert summary == {"format": "hosim.gpu_run/1", "dry_run": False, "torch": torch.__version__, "machine": machine, "runs": runs}
    assert json.loads((out / "prefill-60" / "run.json").read_text()) == {"format": "hosim.gpu_run/1", **planned}
    assert [event["ts"] for event in json.loads((out / "prefill-60" / "timeline.json").read_text())["traceEvents"]] == [
        *(start / 1000 for start in timeline.op_start_ns),
        *(transfer.start_ns / 1000 for transfer in timeline.transfers),
    ]
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("prefill-100", "resident", "1,000,000", f"{peak + 4096:,}", f"{1_000_000 / (peak + 4096) - 1:+.1%}"),
        *("4.00", f"{ops}.00", f"{4 / ops - 1:+.1%}"),
    ]


def test_a_budget_that_what_is_outside_the_program_takes(pretended, tmp_path, capsys, monkeypatch):
    """What lies outside is as large as the program's own peak: half of both leaves nothing."""
    monkeypatch.setattr(gpu_run, "_peak", lambda result: 4096)
    arguments = ["--config", "tiny", "--modes", "prefill", "--length", "4", "--steps", "1", "--shares", "50"]
    assert gpu_run.main(["--out", str(tmp_path / "out"), *arguments]) == 3
    assert capsys.readouterr().err == "gpu_run: 50 % of the resident peak is less than the 4096 B outside the program\n"


def test_the_options():
    assert vars(gpu_run._parser().parse_args(["--out", "x"])) == {
        "out": Path("x"),
        "config": "1b",
        "modes": "prefill,train",
        "length": 2048,
        "batch": 1,
        "shares": "75,50",
        "steps": 5,
        "policy": "hyperoffload",
        "dry_run": False,
    }
    assert gpu_run._shares("1,100") == [1, 100]
    with pytest.raises(InputError, match="got '101'"):
        gpu_run._shares("101")


def toy():
    """Op f makes x, of 600 B, and op g reads it; x goes down meanwhile."""
    builder = GraphBuilder("toy")
    builder.tensor("x", 600)
    builder.op("f", "matmul", outputs=["x"], duration_ns=50)
    builder.op("g", "relu", inputs=["x"], duration_ns=50)
    return Plan(builder.build(), "mine", (CacheOp(STORE, 0, "hbm", "ddr", 0),))


def test_a_plan_has_to_fit_in_the_blocks_of_the_allocator():
    plan, hardware = toy(), gpu_run._stand_in()
    assert gpu_run._in_blocks(plan, hardware, 1024).feasible
    found = gpu_run._in_blocks(plan, hardware, 1023)
    assert (found.feasible, found.error) == (False, "its blocks take 1024 B")
    small = replace(hardware, tiers=(replace(hardware.tiers[0], capacity_bytes=500), hardware.tiers[1]))
    assert gpu_run._in_blocks(plan, small, 10) == replay(plan, small, account="program", allocator="caching")


def test_ops_and_transfers_as_events():
    plan = toy()
    timeline = Timeline((0, 3_500), (1_000, 4_000), (), (Transfer(0, 0, "d2h", 600, 1_000, 1_500, 3_000, 0),), ())
    result = replace(replay(plan, gpu_run._stand_in()), timeline=timeline)
    assert gpu_run._events(plan, result) == {
        "displayTimeUnit": "ns",
        "traceEvents": [
            {"ph": "X", "name": "f", "cat": "matmul", "pid": 1, "tid": "compute", "ts": 0.0, "dur": 1.0},
            {"ph": "X", "name": "g", "cat": "relu", "pid": 1, "tid": "compute", "ts": 3.5, "dur": 0.5},
            {"ph": "X", "name": "x", "cat": "store", "pid": 1, "tid": "d2h", "ts": 1.5, "dur": 1.5},
        ],
    }


def test_the_table(capsys):
    def row(share, budget, peak, step_ns):
        measured, predicted = {"peak_bytes": peak, "step_ns": step_ns}, {"peak_bytes": 2_000, "step_ns": 4_000_000}
        return {"mode": "train", "share_percent": share, "budget_bytes": budget, "measured": measured, "predicted": predicted}

    gpu_run._print([row(100, None, 3_000, 5_000_000), row(50, 1_500, None, 3_000_000)])
    assert capsys.readouterr().out.splitlines() == [
        "run                     budget            peak       predicted     off   step ms predicted     off",
        "train-100           resident           3,000           2,000  +50.0%      5.00      4.00  +25.0%",
        "train-50               1,500    not measured           2,000              3.00      4.00  -25.0%",
    ]


def test_blocks_of_what_is_held():
    """Multiples of 512 B, each storage once: 1, 512 and 513 B take 512 + 512 + 1024 B."""
    one, two, three = (torch.zeros(size, dtype=torch.uint8) for size in (1, 512, 513))
    assert gpu_run._held_bytes(gpu_run.CapturedStep(None, {"a": one, "b": two, "b again": two[3:]}, {"x": three})) == 2048


def test_the_work_is_the_decoder_on_random_tokens():
    drawn = torch.randint(0, 96, (2, 3, 4), generator=torch.Generator().manual_seed(2))
    prefill = gpu_run._work("tiny", "prefill", 4, 3, "cpu")
    assert prefill.program.graph.name == "decoder-tiny-prefill-4"
    assert [value.tolist() for value in prefill.inputs.values()] == [drawn[0].tolist()]
    model = TorchDecoder(SIZES["tiny"], 4)
    own = [*model.parameters(), *model.buffers()]
    assert len(prefill.held) == len(own)
    assert all(any(torch.equal(value, mine) for mine in own) for value in prefill.held.values())
    train = gpu_run._work("tiny", "train", 4, 3, "cpu")
    assert train.program.graph.name == "decoder-tiny-train-4"
    assert [value.tolist() for value in train.inputs.values()] == drawn.tolist()
    assert all(value.untyped_storage().nbytes() == 3 * 4 * 8 for value in (*prefill.inputs.values(), *train.inputs.values()))
    learned = list(model.parameters())
    assert len(train.held) == len(own) + 3 * len(learned)  # two moments and a count of steps each
    (loss,) = train.program.module(*(train.held.get(one.placeholder, train.inputs.get(one.placeholder)) for one in train.program.givens))
    wanted = torch.nn.functional.cross_entropy(model(drawn[0]).flatten(0, 1), drawn[1].flatten())
    assert loss == wanted
    wanted.backward()
    torch.optim.AdamW(learned, lr=1e-4, fused=True).step()
    assert all(any(torch.equal(value, mine) for value in train.held.values()) for mine in learned)

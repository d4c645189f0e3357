"""The command for a GPU machine, without one: everything but the GPU's own calls."""

import json

import pytest

torch = pytest.importorskip("torch")

from hosim.errors import InputError  # noqa: E402
from hosim.lower import gpu_run  # noqa: E402
from hosim.lower.torch_decoder import SIZES, TorchDecoder  # noqa: E402


def test_a_dry_run_predicts_and_measures(tmp_path, capsys):
    out = tmp_path / "out"
    threads = torch.get_num_threads()
    assert gpu_run.main(["--out", str(out), "--dry-run", "--length", "8", "--steps", "1", "--shares", "50"]) == 0
    assert torch.get_num_threads() == threads
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

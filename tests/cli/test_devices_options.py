"""Several devices and jitter on the command line."""

import json

import pytest
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.shipped import find_hardware

run = CliRunner().invoke


@pytest.fixture
def files(tmp_path):
    workload = {
        "format": "hosim.workload/1",
        "name": "two",
        "tensors": [{"name": "w", "bytes": 40, "kind": "parameter", "home": "ddr"}],
        "ops": [{"name": "f", "kind": "any", "inputs": ["w"], "duration_ns": 50}],
    }
    fetch = {"op": "prefetch", "tensor": "w", "from": "ddr", "to": "hbm", "after": None}
    plan = {"format": "hosim.plan/1", "workload": "two", "policy": "manual", "cache_ops": [fetch]}
    for name, data in (("w.json", workload), ("p.json", plan)):
        (tmp_path / name).write_text(json.dumps(data))
    root = "fabrics:\n  root: {bandwidth: 1.5 GB/s, channels: [h2d, d2h]}\n"
    (tmp_path / "h.yaml").write_text(find_hardware("toy").read_text() + root)
    return [
        str(tmp_path / "p.json"),
        str(tmp_path / "w.json"),
        "--hardware",
        str(tmp_path / "h.yaml"),
    ]


def figures(*arguments):
    done = run(app, ["replay", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_devices(files):
    assert "devices" not in figures(*files)
    # the root carries 1.5 bytes a nanosecond for a host's devices: alone 40 B take 40 ns, of four
    # each has 0.375: 107 ns
    data = figures(*files, "--devices", "4")
    assert data["makespan_ns"] == 157
    assert data["devices"]["count"] == data["devices"]["feasible"] == 4
    assert data["devices"]["makespan_ns"] == {"min": 157, "median": 157, "max": 157}
    assert (
        data["devices"]["each"]
        == [{"makespan_ns": 157, "stall_ns": 107, "peak_bytes": {"hbm": 40, "ddr": 40}}] * 4
    )
    assert data["peak_bytes"] == {"hbm": 40, "ddr": 160}
    many = figures(*files, "--devices", "25")
    assert many["devices"]["count"] == 25
    assert "each" not in many["devices"]
    shown = run(app, ["replay", *files, "--devices", "4", "--detail"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0


def test_jitter(files):
    nominal, jittered = figures(*files), figures(*files, "--op-sigma", "0.2", "--seed", "3")
    assert "jitter" not in nominal
    assert jittered["jitter"] == {"seed": 3, "op_sigma": 0.2, "transfer_sigma": 0.0}
    assert jittered["busy_ns"] != nominal["busy_ns"]
    assert jittered["lower_bound_ns"] is None
    other = figures(*files, "--op-sigma", "0.2", "--seed", "4", "--devices", "3")
    assert other["devices"]["makespan_ns"]["min"] < other["devices"]["makespan_ns"]["max"]
    refused = run(app, ["replay", *files, "--op-sigma", "-0.2"])
    assert refused.exit_code == 2

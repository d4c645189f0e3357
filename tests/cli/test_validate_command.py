"""``hosim validate``: a recording in, figures, JSON and a page out; whatever is wrong with it in
one line.
"""

import json
import re

import pytest
from kineto_toys import KERNEL, call, device_op, step, trace
from recorded_toy import sweep, write
from typer.testing import CliRunner

from hosim.cli.main import app


def run(*arguments):
    return CliRunner().invoke(app, ["validate", *map(str, arguments)], env={"COLUMNS": "120"})


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "step.json"
    path.write_text(json.dumps(step()))
    return path


def test_json(recorded):
    outcome = run(recorded, "--json")
    assert outcome.exit_code == 0
    data = json.loads(outcome.stdout)
    assert data["format"] == "hosim.validation/1"
    assert (data["trace"], data["device"], data["kernels"]) == ("step", "Toy", 2)
    assert set(data["makespan"]) == {"measured_ns", "simulated_ns", "error"}
    assert (
        data["makespan"]["error"]
        == data["makespan"]["simulated_ns"] / data["makespan"]["measured_ns"] - 1
    )
    assert set(data["kernel_start"]) == {"mean_error_ns", "p95_error_ns"}
    assert {"count", "bytes", "measured_overlap_ns", "simulated_overlap_ns"} <= set(data["copies"])
    assert (data["copies"]["count"], data["copies"]["bytes"]) == (2, 4096 + 64)
    assert {
        "measured_peak_bytes",
        "simulated_peak_bytes",
        "max_abs_error_bytes",
        "reserved_peak_bytes",
    } <= set(data["memory"])
    assert outcome.stdout == run(recorded, "--json").stdout


def test_table(recorded):
    answer = run(recorded).stdout.splitlines()
    assert answer[0] == "step on Toy: 2 kernels"
    assert answer[1].startswith("Validated: ")
    outcome = run(recorded, "--detail")
    assert outcome.exit_code == 0
    assert "makespan" in outcome.stdout
    assert "Furthest off" in outcome.stdout
    assert "given: durations of 4 device ops" in outcome.stdout


def test_a_page_of_its_own(recorded, tmp_path):
    outcome = run(recorded, "--html", tmp_path / "r.html")
    assert outcome.exit_code == 0
    text = (tmp_path / "r.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text)  # nothing comes from elsewhere
    assert text.count("<script") == 2  # the data of the timeline, and what draws it
    assert text.count("data:image/svg+xml;base64,") == 2
    assert run(recorded, "--html", tmp_path / "again.html").exit_code == 0
    assert (tmp_path / "again.html").read_text() == text


def test_names_of_kernels_are_text_in_the_page(tmp_path):
    document = step()
    for event in document["traceEvents"]:
        if event["cat"] == "kernel":
            event["name"] = "<script>alert(1)</script>"
    (tmp_path / "t.json").write_text(json.dumps(document))
    assert run(tmp_path / "t.json", "--html", tmp_path / "r.html").exit_code == 0
    assert "<script>alert" not in (tmp_path / "r.html").read_text()
    assert run(tmp_path / "t.json").exit_code == 0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "expected a trace of the PyTorch profiler"),
        (b"hello", "expected a trace of the PyTorch profiler"),
        (json.dumps(step()).encode()[:700], "damaged JSON of a profiler trace"),
        (json.dumps(trace()).encode(), "no kernel, copy or memset of a device was recorded"),
        (b"\x1f\x8b123", "damaged gzip file"),
        (b"SQLite format 3\0", "Nsight Systems"),
        (b'{"nodes": []}', "expected a trace of the PyTorch profiler"),
        (b"\x80\x04cposix\nsystem\n.", "snapshot"),
    ],
    ids=["empty", "text", "cut off", "nothing", "gzip", "sqlite", "other json", "pickle"],
)
def test_what_is_no_recording(tmp_path, content, expected):
    path = tmp_path / "file"
    path.write_bytes(content)
    outcome = run(path, "--html", tmp_path / "r.html")
    assert outcome.exit_code == 2
    assert expected in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert str(path) in outcome.stderr
    assert not (tmp_path / "r.html").exists()


def test_no_file(tmp_path):
    outcome = run(tmp_path / "none")
    assert (outcome.exit_code, outcome.stderr) == (2, f"error: {tmp_path / 'none'}: no such file\n")


def test_a_folder_of_the_recording_kit(tmp_path):
    runs = {"resident": ([830_000], 5), "stream-params": ([1_500_000], 4)}
    write(tmp_path, False, 100_000, 150_000, sweep(1000), runs)
    outcome = run(tmp_path, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    data = json.loads(outcome.stdout)
    assert {key: value for key, value in data.items() if key != "runs"} == {
        "format": "hosim.schemes/2",
        "recording": tmp_path.name,
        "device": "Toy",
        "dry_run": False,
        "plans": [],
    }
    found = {(r["mode"], r["length"], r["scheme"]): r for r in data["runs"]}
    assert set(found) == {
        ("prefill", 64, scheme)
        for scheme in ("resident", "stream-params", "offload-activations", "both")
    }
    # times as derived in tests/validate/test_offload.py; four layers of 300,000 B are moved, and
    # two at a time lie in memory: 100,450,000 - 1,200,000 + 600,000
    assert found["prefill", 64, "stream-params"] == {
        "model": "toy",
        "mode": "prefill",
        "length": 64,
        "scheme": "stream-params",
        "makespan": {
            "measured_ns": 1_500_000,
            "simulated_ns": 1_410_000,
            "error": 1_410_000 / 1_500_000 - 1,
        },
        "stall": {"measured_ns": 670_000, "simulated_ns": 590_000},
        "peak": {"measured_bytes": 4, "simulated_bytes": 99_850_000, "error": 99_850_000 / 4 - 1},
        "reserved": {"measured_bytes": 4, "simulated_bytes": 98 << 20, "error": (98 << 20) / 4 - 1},
        "moved_bytes": {"h2d": 1_200_000, "d2h": 0},
    }
    assert found["prefill", 64, "both"]["makespan"]["measured_ns"] is None
    table = run(tmp_path)
    assert table.exit_code == 0
    assert "stream-params" in table.stdout
    assert "-6.00 %" in table.stdout


def test_a_folder_of_something_else(tmp_path):
    outcome = run(tmp_path)
    assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)
    expected = (
        f"error: {tmp_path}: expected a folder that python -m hosim.gpu has written, with "
        "its meta.json"
    )
    assert outcome.stderr == f"{expected}; this one is empty\n"
    for name in ("d.txt", "a.json", "c.md", "b.yaml"):
        (tmp_path / name).write_text("no")
    assert (
        run(tmp_path).stderr
        == f"{expected}; this one has a.json, b.yaml, c.md and 1 other file: name a recording in "
        "it\n"
    )
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert run(tmp_path).stderr.endswith("give it where a WORKLOAD belongs\n")


def test_a_bound_on_the_error(tmp_path):
    """Of 40 kernels one starts 500 us late, and nothing says why."""
    events = [call("cudaLaunchKernel", 20 * k, 5, k + 1) for k in range(40)]
    good = [device_op(KERNEL, f"k{k}", 20 * k + 8, 10, k + 1) for k in range(40)]
    late = [{**op, "ts": op["ts"] + (500 if k >= 20 else 0)} for k, op in enumerate(good)]
    for name, ops in (("good", good), ("late", late)):
        (tmp_path / name).write_text(json.dumps(trace(*events, *ops)))
    assert run(tmp_path / "good", "--max-error", "1%").exit_code == 0
    outcome = run(tmp_path / "late", "--max-error", "1%")
    assert (outcome.exit_code, outcome.stderr.splitlines()[-1]) == (
        1,
        f"{tmp_path / 'late'}: not validated: a wait on the device without cause",
    )
    assert "Not validated: 1 op" in outcome.stdout
    assert run(tmp_path / "late").exit_code == 0
    outcome = run(tmp_path / "good", "--max-error", "3")
    assert (outcome.exit_code, outcome.stderr) == (
        2,
        "error: expected a share from 0 to 1 such as '1%', got '3'\n",
    )

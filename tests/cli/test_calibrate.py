"""``hosim calibrate``: files, tables and JSON, errors in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_trace import TRUTH, recording
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.io import load_hardware


def run(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["calibrate", *map(str, arguments)], env={"COLUMNS": "120"})
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "made.json"
    path.write_text(json.dumps(recording(6, 1)))
    return path


def test_the_same_profile_every_time(tmp_path: Path) -> None:
    """From a recording without slow copies, which would count as well: with the bandwidths that it
    was made with.
    """
    trace = tmp_path / "made.json"
    trace.write_text(json.dumps(recording(6, 1, replace(TRUTH, outliers=0))))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run(trace, "-o", tmp_path / name / "p.yaml", "--base", "h100-80gb-sxm")
    written = (tmp_path / "a" / "p.yaml").read_bytes()
    assert written == (tmp_path / "b" / "p.yaml").read_bytes()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["p.yaml"]
    machine = load_hardware(tmp_path / "a" / "p.yaml")
    assert machine.name == "p"
    assert {
        c.name: round(c.bandwidth_bytes_per_s / 1e9)
        for c in machine.channels
        if c.name in ("h2d", "d2h")
    } == {"h2d": 25, "d2h": 20}


def test_what_is_held_out_leaves_the_profile_as_it_is(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "made.json"
    other.write_text(json.dumps(recording(6, 1, stretched=(3, 4.0))))
    reports = []
    for path, name in ((trace, "a"), (other, "b")):
        (tmp_path / name).mkdir()
        done = run(
            path,
            "-o",
            tmp_path / name / "p.yaml",
            "--base",
            "h100-80gb-sxm",
            "--hold-out",
            "0.5",
            "--json",
        )
        reports.append(json.loads(done.stdout))
    assert (tmp_path / "a" / "p.yaml").read_bytes() == (tmp_path / "b" / "p.yaml").read_bytes()
    errors = [report.pop("held_out")[0]["ops"]["median"] for report in reports]
    assert reports[0] == reports[1]
    assert errors[0] < 0.05 < 0.5 < errors[1]


def test_tables_and_json(trace: Path, tmp_path: Path) -> None:
    tables = run(trace, "--base", "h100-80gb-sxm", "--hold-out", "0.5", "--predict", trace).stdout
    for part in (
        "Channels of Toy",
        "pageable",
        "matmul",
        "launch of an op",
        "Unseen: made",
        "makespan",
        "P95",
    ):
        assert part in tables
    data = json.loads(run(trace, "--json").stdout)
    assert data["format"] == "hosim.calibration/1"
    assert data["base"] is None
    assert data["efficiency"] == []
    assert any("--base" in line for line in data["missing"])
    for way in data["channels"]:
        figure = way["bandwidth_bytes_per_s"]
        assert figure["low"] < figure["value"] < figure["high"]
        assert figure["samples"] == 42
        assert way["residuals"]["median"] < way["residuals"]["p95"]


def test_a_prediction_needs_a_profile_and_says_its_interval(trace: Path) -> None:
    """The recorded device, a Toy, has no shipped profile. With one, the total of the profile lies
    within its interval.
    """
    refused = run(trace, "--predict", trace, code=2).stderr.splitlines()[-1]
    assert (
        refused == "error: --predict: needs a profile of the recorded device: name it with --base"
    )
    (held,) = json.loads(
        run(trace, "--base", "h100-80gb-sxm", "--predict", trace, "--json").stdout
    )["held_out"]
    total = held["ops"]["by_profile"]
    assert total["low_ns"] < total["predicted_ns"] < total["high_ns"]
    assert total["error"] == pytest.approx(total["predicted_ns"] / total["measured_ns"] - 1)


def empty(folder: Path) -> Path:
    path = folder / "empty"
    path.mkdir()
    return path


def cpu_only(folder: Path) -> Path:
    path = folder / "cpu.json"
    path.write_text('{"traceEvents": []}')
    return path


def one_kernel(folder: Path) -> Path:
    path = folder / "one.json"
    at = {"ph": "X", "pid": 1, "tid": 7, "ts": 1, "dur": 2}
    path.write_text(
        json.dumps(
            {
                "traceEvents": [
                    {**at, "cat": "kernel", "name": "k", "args": {"device": 0, "stream": 7}}
                ]
            }
        )
    )
    return path


@pytest.mark.parametrize(
    ("make", "options", "problem"),
    [
        (empty, (), "expected bandwidth.json"),
        (cpu_only, (), "no kernel, copy or memset"),
        (one_kernel, (), "nothing to calibrate from"),
        (one_kernel, ("--hold-out", "0.5"), "no two of its ops are alike"),
        (one_kernel, ("-o", "p.yaml"), "name the profile to start from"),
        (one_kernel, ("--hold-out", "1.5"), "between 0 and 1"),
    ],
    ids=["folder", "cpu", "kernel", "hold-out", "base", "share"],
)
def test_errors_are_one_line(
    tmp_path: Path, make: Any, options: tuple[str, ...], problem: str
) -> None:
    done = run(make(tmp_path), *options, code=2)
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "p.yaml").exists()


def test_a_bandwidth_sweep_alone(tmp_path: Path) -> None:
    """Copies of 1, 2 and 4 MB at 25 B/ns. The device's name says which shipped profile to start
    from.
    """
    copies = [
        {"direction": way, "pinned": True, "bytes": size, "ns": [size // 25 + k for k in range(4)]}
        for way in ("h2d", "d2h")
        for size in (1_000_000, 2_000_000, 4_000_000)
    ]
    sweep = tmp_path / "bandwidth.json"
    sweep.write_text(
        json.dumps({"format": "hosim.gpu/1", "device": {"name": "NVIDIA H200"}, "copies": copies})
    )
    done = run(sweep, "-o", tmp_path / "p.json.gz")
    said = "base: h200-141gb-sxm, the profile of the recorded device"
    assert done.stderr.splitlines() == [said, f"wrote {tmp_path / 'p.json.gz'}"]
    machine = load_hardware(tmp_path / "p.json.gz")
    assert machine.name == "p"
    assert {
        c.name: round(c.bandwidth_bytes_per_s / 1e9)
        for c in machine.channels
        if c.name in ("h2d", "d2h")
    } == {"h2d": 25, "d2h": 25}
    assert json.loads(run(sweep, "--json").stdout)["held_out"] == []
    for option, value, what in (
        ("--hold-out", "0.5", "needs a trace: a bandwidth sweep has no iterations"),
    ):
        assert (
            run(sweep, option, value, code=2).stderr.splitlines()[-1]
            == f"error: {option}: {option} {what}"
        )
    trace = one_kernel(tmp_path)
    assert run(sweep, "--predict", trace, code=2).stderr.splitlines()[-1] == (
        "error: --predict: --predict needs a trace to fit: a bandwidth sweep has no ops"
    )

"""Recordings with numbers that no recording has: the error is one line, and names the file."""

import json
from pathlib import Path
from typing import Any

import kineto_toys
import pytest
from typer.testing import CliRunner

from hosim.cli.main import app

BLOCK = {"size": 512, "state": "active_allocated", "address": 4096}
SEGMENT = {
    "address": 4096,
    "total_size": 512,
    "stream": 3,
    "segment_type": "small",
    "blocks": [BLOCK],
    "device": 0,
}
HISTORY = [
    {"action": "segment_alloc", "addr": 4096, "size": 512, "stream": 3},
    {"action": "alloc", "addr": 4096, "size": 500, "stream": 3},
]


def refused(command: str, path: Path, text: str) -> str:
    """The one line of stderr after the name of the file."""
    path.write_text(text)
    outcome = CliRunner().invoke(
        app,
        [
            *command.split(),
            str(path),
            *(["-o", str(path) + ".out.json"] if command == "import" else []),
        ],
    )
    assert (outcome.exit_code, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1), (
        outcome.exception
    )
    assert outcome.stderr.startswith(f"error: {path}: ")
    assert len(outcome.stderr) <= len("error: \n") + 400
    return outcome.stderr.removeprefix(f"error: {path}: ")


NUMBERS = [
    (key, value)
    for key in ("addr", "size", "time_us")
    for value in ("1e999", "-1e999", "NaN", "[]")
]
HUGE = "1" + "0" * 40


@pytest.mark.parametrize(
    ("key", "value"), [*NUMBERS, ("size", HUGE), ("size", str((1 << 42) + 1)), ("time_us", HUGE)]
)
def test_a_snapshot(key: str, value: str, tmp_path: Path) -> None:
    text = json.dumps(
        {"segments": [SEGMENT], "device_traces": [[HISTORY[0], {**HISTORY[1], key: "@"}]]}
    ).replace('"@"', value)
    assert refused("validate", tmp_path / "snapshot.json", text).startswith("device_traces[0][1]: ")


@pytest.mark.parametrize(
    "change",
    [
        {"allocator_settings": {"max_split_size": 99}},
        {"device_traces": []},
        {"device_traces": [HISTORY, HISTORY]},
    ],
)
def test_a_snapshot_that_cannot_be_replayed(change: dict[str, Any], tmp_path: Path) -> None:
    refused(
        "validate",
        tmp_path / "snapshot.json",
        json.dumps({"segments": [SEGMENT], "device_traces": [HISTORY], **change}),
    )


@pytest.mark.parametrize("size", [1 << 42, -(1 << 42), 1 << 63, 10**40])
def test_an_allocation_that_no_device_has(size: int, tmp_path: Path) -> None:
    trace = kineto_toys.step()
    trace["traceEvents"] += [kineto_toys.memory(1500, size, 4096, 4096)]
    assert "expected a whole number in Bytes" in refused(
        "validate", tmp_path / "trace.json", json.dumps(trace)
    )


def test_a_total_that_no_device_has(tmp_path: Path) -> None:
    trace = kineto_toys.step()
    trace["traceEvents"] += [kineto_toys.memory(1500, 512, 4096, 1 << 63)]
    assert "expected a whole number in Total Allocated" in refused(
        "validate", tmp_path / "trace.json", json.dumps(trace)
    )


def test_an_inductor_graph_whose_ops_contradict_each_other(tmp_path: Path) -> None:
    buffers = [
        {
            "name": f"buf{i}",
            "size_alloc": 8,
            "size_free": 8,
            "is_input": False,
            "is_output": False,
            "deps": [f"buf{i - 1}"] if i else [],
        }
        for i in range(2)
    ]
    nodes = [
        {"name": f"op{i}", "buffer_names": ["buf1"] if i else [], "unmet_deps": []}
        for i in range(2)
    ]
    document = {"nodes": nodes, "buffers": buffers}
    said = refused("import", tmp_path / "graph.json", json.dumps(document))
    assert said.startswith(
        "ops[1].inputs[0]: op 'op1' uses tensor 'buf0' before any op produces it"
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [("", "nothing to calibrate from: "), ("--hold-out 0.5", "nothing can be held out: ")],
)
def test_a_recording_with_too_little_to_calibrate_from(
    options: str, problem: str, tmp_path: Path
) -> None:
    """A trace of one kernel."""
    kernel = {
        "ph": "X",
        "pid": 1,
        "tid": 7,
        "ts": 1,
        "dur": 2,
        "cat": "kernel",
        "name": "k",
        "args": {"device": 0, "stream": 7},
    }
    assert refused(
        f"calibrate {options}", tmp_path / "one.json", json.dumps({"traceEvents": [kernel]})
    ).startswith(problem)

"""Asking for weights below the device: by command, sweep and case of the gate; and the figures of
docs/serving.md.
"""

import json
import re
from pathlib import Path

import pytest
from rendered import facts
from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.gate import load_suite
from hosim.serving.gate import measure_served
from hosim.units import human_size, human_time

DOCS = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
COMMAND = next(
    line for line in DOCS.splitlines() if line.startswith("hosim serve") and "--weights " in line
)
ROWS = re.findall(
    r"^\| `(\w+)` \| (.* of .* layers, .*) \| (.*) \| (.*) \| (.*) \| (.*) \|$", DOCS, re.MULTILINE
)


MODEL = {"model": "llama-3.1-8b", "layers": 4}
DRAWN = "poisson:rate=50:count=4:prompt=40:output=3"


def test_the_command_says_what_came_up():
    line = [
        "serve",
        "gpt2",
        "-H",
        "h100",
        "--requests",
        DRAWN,
        "--weights",
        "zero_inference",
        "--weights-memory",
        "200MB",
    ]
    weights = json.loads(CliRunner().invoke(app, [*line, "--json"]).stdout)["weights"]
    assert weights["channels"]["h2d"]["bytes"] == weights["bytes"] > 0
    table = CliRunner().invoke(app, [*line, "--detail"], env={"COLUMNS": "200"}).stdout
    assert f"{weights['moved_layers']}, {weights['layers']}" in facts(table)
    assert "h2d" in table
    fits = (
        CliRunner()
        .invoke(
            app,
            [*line[:-4], "--weights", "static_split", "--weights-memory", "20GiB", "--detail"],
            env={"COLUMNS": "200"},
        )
        .stdout
    )
    assert "all stay" in fits


def test_a_sweep_over_policies_and_memory():
    asked = {"weights": ["static_split", "zero_inference"], "weights_memory": ["1 GB", "3 GB"]}
    table = hosim.serve_sweep(MODEL, "h100-80gb-sxm", DRAWN, vary=asked, jobs=1)
    assert list(table["weights"]) == [
        "static_split",
        "static_split",
        "zero_inference",
        "zero_inference",
    ]
    assert table["feasible"].tolist() == [False, True, False, True]  # the head has 1.05 GB
    assert table["tpot_mean_ns"][1] < table["tpot_mean_ns"][3]


def test_a_case_of_the_gate(tmp_path):
    more = 'weights = "zero_inference", weights_memory = "200MB"'
    asked = (
        f'[cases.a]\nhardware = "h100-80gb-sxm"\nserve = {{model = "gpt2", requests = '
        f'"{DRAWN}", {more}}}\n'
    )
    (tmp_path / "hosim.toml").write_text(asked)
    (case,) = load_suite(tmp_path / "hosim.toml").cases
    record = measure_served(case).record
    served = hosim.serve(
        "gpt2", "h100-80gb-sxm", DRAWN, weights="zero_inference", weights_memory="200MB"
    )
    told = served.weights
    assert record.metrics["stall.weights"] == told.stall_ns > 0
    assert record.metrics["moved.h2d"] == told.bytes
    assert (
        record.metrics["peak.ddr"] == told.peak_bytes["ddr"] < told.iteration_bytes
    )  # the embedding is the head, and comes up twice
    assert record.peaks["hbm"].composition["parameter"] == told.peak_bytes["hbm"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "cells"), [(name, rest) for name, *rest in ROWS], ids=[row[0] for row in ROWS]
)
def test_the_table_of_weights_is_what_the_command_prints(policy, cells):
    words = COMMAND.replace("--weights hyperoffload", f"--weights {policy}").split()[1:]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    weights = found["weights"]
    assert cells == [
        f"{weights['moved_layers']} of {weights['layers']} layers, "
        f"{human_size(weights['iteration_bytes'])}",
        f"{human_time(weights['stall_ns'] // weights['iterations'])} each",
        human_time(round(found["ttft_ns"]["mean"])),
        human_time(round(found["tpot_ns"]["mean"])),
        f"{found['output_tokens_per_s']:,.1f}",
    ]


def test_the_table_has_rows():
    assert len(ROWS) == 4

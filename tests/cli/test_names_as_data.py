"""Names in files are data: whatever they hold, they control no terminal, start no line of a log,
and are no markup and no mathematics.
"""

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from quick_cases import one_in
from toy_files import write_toy
from typer.testing import CliRunner

from hosim.cli.main import app

NAME = "{} n\n::error::x\x1b[31m[/][bold]$a$\u202e\x9b\u0085\u2028"


def named(what: str) -> str:
    return NAME.format(what)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A workload and a machine all of whose names are hostile; the parameter is below, and fetched
    before the second op.
    """
    tensors = [
        {"name": named("w"), "bytes": 4000, "kind": "parameter", "home": named("below")},
        *({"name": named(f"a{i}"), "bytes": 3000, "kind": "activation"} for i in range(3)),
    ]
    ops = [
        {
            "name": named("f"),
            "kind": named("k"),
            "stream": named("s"),
            "outputs": [named("a0")],
            "duration_ns": 50,
        },
        {
            "name": named("g"),
            "kind": named("k"),
            "inputs": [named("w")],
            "outputs": [named("a1")],
            "duration_ns": 50,
            "deps": [named("f")],
        },
        {
            "name": named("h"),
            "kind": "x",
            "inputs": [named("a0"), named("a1")],
            "outputs": [named("a2")],
            "duration_ns": 50,
        },
    ]
    workload = {
        "format": "hosim.workload/1",
        "name": named("load"),
        "meta": {"from": named("m")},
        "tensors": tensors,
        "ops": ops,
    }
    machine = {
        "format": "hosim.hardware/1",
        "name": named("machine"),
        "source": named("source"),
        "device_tier": named("hbm"),
        "tiers": {
            named("hbm"): {"capacity": "20000 B", "bandwidth": "1 GB/s"},
            named("below"): {"capacity": "1 MiB", "bandwidth": "1 GB/s"},
        },
        "channels": {
            named(way): {
                "from": named(source),
                "to": named(to),
                "bandwidth": "1 GB/s",
                "latency": "0 us",
            }
            for way, source, to in (("up", "below", "hbm"), ("down", "hbm", "below"))
        },
        "compute": {"peak": {"bf16": "1 TFLOP/s"}},
    }
    paths = {
        "workload": tmp_path / "w.json",
        "machine": tmp_path / "m.json",
        "plan": tmp_path / "plan.json",
    }
    paths["workload"].write_text(json.dumps(workload))
    paths["machine"].write_text(json.dumps(machine))
    return {name: str(path) for name, path in paths.items()} | {"folder": str(tmp_path)}


COMMANDS = [
    "workload show {workload}",
    "hardware show {machine}",
    "import {workload} -o {folder}/out.json",
    "compare-policies {workload} -H {machine} -b 80%",
    "compare-policies {workload} -H {machine} -b 40%",
    "compare-policies {workload} -H {machine} -b 80% --html {folder}/page.html --plot "
    "{folder}/picture.svg",
    "plan {workload} -H {machine} -b 80% -o {plan} --explain --all",
    "plan {workload} -H {machine} -b 80% -o {plan} --explain",
    "plan {workload} -H {machine} -b 9000B -p resident -o {plan}",
    "replay {plan} {workload} -H {machine} --plot {folder}/t.png --html {folder}/page.html "
    "--trace {folder}/trace.json",
    "replay {plan} {workload} -H {machine} --allocator caching",
    "blame {workload} -H {machine} -b 80%",
    "frontier {workload} -H {machine} --points 3",
    "diff layerwise on_demand -w {workload} -H {machine} -b 80%",
    "robustness {workload} -H {machine} -b 80% --op-sigma 0.1 --runs 2",
    "pipeline {workload} {workload} -H {machine} -b 80% --trace {folder}/trace.json",
    "sweep {workload} -H {machine} --vary budget=70%,80% -o {folder}/rows.csv",
    "fit {workload} -H {machine} --largest hardware.devices=1..2",
]
UNFIT = {
    "compare-policies {workload} -H {machine} -b 40%",
    "replay {plan} {workload} -H {machine} --allocator caching",
}


@pytest.mark.parametrize("command", one_in(4, COMMANDS))
def test_names_control_no_terminal_and_start_no_line(command: str, files: dict[str, str]) -> None:
    if "{plan}" in command and command.startswith("replay"):
        CliRunner().invoke(
            app,
            ["plan", files["workload"], "-H", files["machine"], "-b", "80%", "-o", files["plan"]],
        )
    outcome = CliRunner().invoke(app, [part.format(**files) for part in command.split()])
    assert outcome.exit_code == (3 if command in UNFIT else 0), (outcome.exception, outcome.stderr)
    assert all(line.isprintable() for line in (outcome.stdout + outcome.stderr).split("\n"))


def test_names_in_a_picture_are_text_of_its_file(files: dict[str, str]) -> None:
    picture = Path(files["folder"]) / "picture.svg"
    outcome = CliRunner().invoke(
        app,
        [
            "compare-policies",
            files["workload"],
            "-H",
            files["machine"],
            "-b",
            "80%",
            "--plot",
            str(picture),
        ],
    )
    assert outcome.exit_code == 0
    texts = [part.text or "" for part in ElementTree.fromstring(picture.read_text()).iter()]
    assert any("[bold]$a$" in text for text in texts)


def test_names_in_a_file_of_rows_that_would_be_formulas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workload's, in a cell, and a tier's, in a heading; the file is read back by a second
    run.
    """
    monkeypatch.chdir(tmp_path)
    write_toy(tmp_path)
    for name, old, new in (
        ("workload.json", '"name": "toy"', '"name": "=1+2"'),
        ("hw.yaml", '"ddr"', '"=ddr"'),
    ):
        Path(name).write_text(Path(name).read_text().replace(old, new))
    sweep = [
        "sweep",
        "workload.json",
        "-H",
        "hw.yaml",
        "-p",
        "layerwise",
        "--vary",
        "budget=90B",
        "-o",
        "rows.csv",
    ]
    for computed in (1, 0):
        outcome = CliRunner().invoke(app, sweep)
        assert (
            outcome.exit_code,
            outcome.stderr.endswith(f" {computed} of them computed now\n"),
        ) == (0, True), outcome.stderr
    with Path("rows.csv").open(newline="") as stream:
        heads, cells = csv.reader(stream)
    assert [text for text in heads + cells if text.lstrip("'").startswith("=")] == [
        "'=ddr_peak_bytes",
        "'=1+2",
    ]

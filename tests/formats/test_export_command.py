"""``hosim export --mindspore`` end to end."""

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.formats import bridges

run = CliRunner().invoke
NAMES = [f"t{i}" for i in range(6)]
WORKLOAD = {
    "format": "hosim.workload/1",
    "name": "six",
    "tensors": [
        {"name": "a", "bytes": 40, "kind": "activation"},
        *({"name": n, "bytes": 50, "kind": "activation"} for n in NAMES),
    ],
    "ops": [
        {"name": "first", "kind": "any", "outputs": ["a"], "duration_ns": 50},
        *({"name": f"f{n}", "kind": "any", "outputs": [n], "duration_ns": 50} for n in NAMES),
        {"name": "last", "kind": "any", "inputs": ["a"], "duration_ns": 50},
    ],
}
ARGUMENTS = ["export", "w.json", "--mindspore", "--hardware", "toy", "--trials", "40"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("w.json").write_text(json.dumps(WORKLOAD))


@pytest.mark.long
def test_lines_that_a_shell_takes():
    done = run(app, [*ARGUMENTS, "--budget", "80 B"])
    assert done.exit_code == 0, done.output
    printed = subprocess.run(
        ["bash", "-c", f"{done.stdout}\nenv | grep HYPER_OFFLOAD_"],
        capture_output=True,
        text=True,
        check=True,
    )
    data = json.loads(run(app, [*ARGUMENTS, "--budget", "80 B", "--json"]).stdout)
    assert dict(line.split("=") for line in printed.stdout.split()) == data["environment"]
    assert data["format"] == "hosim.mindspore/1"
    assert (data["budget_bytes"], data["policy"], data["auto_offload"], data["trials"]) == (
        80,
        "hyperoffload",
        "activation",
        40,
    )
    assert data["of_settings"]["peak_bytes"] <= 80
    assert (
        data["gap"]["makespan_ns"]
        == data["of_settings"]["makespan_ns"] - data["of_plan"]["makespan_ns"]
    )
    assert "# makespan" in done.stdout
    assert done.stderr == ""


def test_files(tmp_path):
    done = run(app, [*ARGUMENTS, "--budget", "80 B", "-o", "s.sh"])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("wrote s.sh: ")
    assert Path("s.sh").read_text() == run(app, [*ARGUMENTS, "--budget", "80 B"]).stdout
    printed = run(app, [*ARGUMENTS, "--budget", "80 B", "-o", "s.json", "--json"]).stdout
    assert Path("s.json").read_text() == printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "s.sh", "w.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["export", "w.json", "--hardware", "toy"],
            2,
            "error: export: requires --mindspore or --llama-cpp",
        ),
        (
            [*ARGUMENTS, "-o", "nowhere/s.sh"],
            2,
            "error: nowhere/s.sh: cannot be written: no such directory",
        ),
        ([*ARGUMENTS, "--budget", "45 B"], 3, "error: out of memory: op 'ft0' needs 50 B"),
        (
            [*ARGUMENTS, "--budget", "80 B", "--policy", "resident"],
            3,
            "error: resident: out of memory: ",
        ),
    ],
    ids=["no-runtime", "no-directory", "nothing-fits", "the-plan-does-not-fit"],
)
def test_errors(arguments, code, message):
    done = run(app, arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_ctrl_c_keeps_the_best_so_far(monkeypatch):
    whole = bridges.search

    def interrupted(*arguments, **options):
        for n, best in enumerate(whole(*arguments, **options)):
            if n == 30:
                raise KeyboardInterrupt
            yield best

    monkeypatch.setattr(bridges, "search", interrupted)
    done = run(app, [*ARGUMENTS, "--budget", "80 B", "-o", "s.json"])
    assert done.exit_code == 130
    assert json.loads(Path("s.json").read_text())["trials"] == 30
    assert done.stderr.endswith("the best of the 30 settings tried so far\n")

"""Options and files that ask for too much: one line with the limit and how to raise it, before any
work.
"""

import json
from pathlib import Path

import pytest
from toy_files import NOTE, write_toy
from typer.testing import CliRunner

from hosim.cli.main import app
from hosim.units import parse_size

RAISES = " raises this limit"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy's files, in the present folder."""
    monkeypatch.chdir(tmp_path)
    write_toy(tmp_path)
    return tmp_path


def stderr_of(*arguments: str) -> str:
    """The one line of a command that refuses its input."""
    outcome = CliRunner().invoke(app, [*arguments])
    said = outcome.stderr.removeprefix(NOTE)
    assert (outcome.exit_code, outcome.stdout, said.count("\n")) == (2, "", 1), outcome.output
    assert len(said) <= 400
    return said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["replay", "plan.json", "workload.json", "-H", "hw.yaml", "--devices", "1000000000"],
            "devices: expected at most 16384 devices, got 1000000000; "
            'HOSIM_LIMITS="devices=1000000000"',
        ),
        (
            ["robustness", "workload.json", "-H", "hw.yaml", "--runs", "1000000"],
            'runs: expected at most 100000 runs, got 1000000; HOSIM_LIMITS="runs=1000000"',
        ),
        (
            [
                "sweep",
                "workload.json",
                "-H",
                "hw.yaml",
                "--vary",
                "channels.h2d.bandwidth=1..2GB/s:1000000",
            ],
            "channels.h2d.bandwidth: expected at most 100000 points in a grid, got 1000000; "
            'HOSIM_LIMITS="grid_points=1000000"',
        ),
        (
            [
                "sweep",
                "workload.json",
                "-H",
                "hw.yaml",
                *["--vary=budget=1..64B:64", "--vary=policy.k=1..64", "--vary=devices=1..64"],
            ],
            "vary: expected at most 100000 points in a grid, got 262144; "
            'HOSIM_LIMITS="grid_points=262144"',
        ),
        (
            ["frontier", "workload.json", "-H", "hw.yaml", "--points", "1000000000"],
            "frontier: expected at most 100000 points in a grid, got 1000000004; "
            'HOSIM_LIMITS="grid_points=1000000004"',
        ),
    ],
    ids=["devices", "runs", "range", "product", "frontier"],
)
def test_an_option(arguments: list[str], expected: str) -> None:
    assert stderr_of(*arguments) == f"error: {expected}{RAISES}\n"


def test_a_limit_that_is_raised_lets_the_option_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["robustness", "workload.json", "-H", "hw.yaml", "-p", "resident", "--runs", "3"]
    monkeypatch.setenv("HOSIM_LIMITS", "runs=2")
    assert (
        stderr_of(*arguments)
        == f'error: runs: expected at most 2 runs, got 3; HOSIM_LIMITS="runs=3"{RAISES}\n'
    )
    monkeypatch.setenv("HOSIM_LIMITS", "runs=3")
    assert CliRunner().invoke(app, arguments).exit_code == 0
    monkeypatch.setenv("HOSIM_LIMITS", "runs=three")
    assert (
        stderr_of(*arguments)
        == "error: HOSIM_LIMITS: runs: expected a whole number above 0, got 'three'\n"
    )


def test_the_ends_of_a_range_are_finite() -> None:
    """As a fraction, such a number would have as many digits as its exponent says."""
    text = "policy.k=1..1e999999999:3"
    problem = "expected a range between two finite numbers, got '1..1e999999999:3'"
    assert (
        stderr_of("sweep", "workload.json", "-H", "hw.yaml", "--vary", text)
        == f"error: policy.k: {problem}\n"
    )


def test_points_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = ["sweep", "workload.json", "-H", "hw.yaml", "--points", "points.csv"]
    Path("points.csv").write_text("budget\n" + "x" * 200_000 + "\n")
    expected = (
        "points.csv: expected at most 128KiB in a field of CSV, got more; "
        f'HOSIM_LIMITS="csv_field_bytes=256KiB"{RAISES}'
    )
    assert stderr_of(*sweep) == f"error: {expected}\n"
    monkeypatch.setenv("HOSIM_LIMITS", "grid_points=3")
    Path("points.csv").write_text("budget\n" + "50%\n" * 4)
    assert (
        stderr_of(*sweep) == "error: points.csv: expected at most 3 points in a grid, got 4; "
        f'HOSIM_LIMITS="grid_points=4"{RAISES}\n'
    )


def test_a_routing() -> None:
    """By the arguments of a random trace, by the steps in the file, and by the ops of all steps
    together.
    """
    routing = {"format": "hosim.routing/1", "workload": "toy", "gates": []}
    replay = ["compare-policies", "workload.json", "-H", "hw.yaml", "--routing", "routing.json"]
    Path("routing.json").write_text(json.dumps({**routing, "generate": {"steps": 10**9, "top": 1}}))
    expected = "expected at most 10000 steps of a routing, got 1000000000; HOSIM_LIMITS="
    assert stderr_of(*replay).startswith(f"error: routing.json: generate.steps: {expected}")
    Path("routing.json").write_text(json.dumps({**routing, "steps": [[]] * 10_001}))
    assert stderr_of(*replay).startswith(
        "error: routing.json: steps: expected at most 10000 steps of a routing, got 10001; "
        "HOSIM_LIMITS="
    )


def test_steps_of_a_routing_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six steps of one op each are six ops."""
    monkeypatch.setenv("HOSIM_LIMITS", "records=5")
    Path("routing.json").write_text(
        json.dumps({"format": "hosim.routing/1", "workload": "toy", "gates": [], "steps": [[]] * 6})
    )
    line = stderr_of(
        "compare-policies", "workload.json", "-H", "hw.yaml", "--routing", "routing.json"
    )
    assert (
        line
        == f'error: steps: expected at most 5 records, got 6; HOSIM_LIMITS="records=6"{RAISES}\n'
    )


GATE = (
    'tolerance = {peak = "0 B"}\n[cases.a]\nworkload = "workload.json"\nhardware = '
    '"hw.yaml"\npolicy = "resident"\n'
)


@pytest.mark.parametrize(
    ("folded", "found"),
    [
        ("w.{0-999999999}", "got 1000000000; "),
        ("{0-99999}{0-99999}", "got 10000000000; "),
        ("{0-1,5-2000000}", "got 1999998; "),
    ],
)
def test_names_of_a_baseline_that_stand_for_many(folded: str, found: str) -> None:
    Path("hosim.toml").write_text(GATE)
    runner = CliRunner()
    assert runner.invoke(app, ["baseline", "write", "--no-cache", "-j", "1"]).exit_code == 0
    file = Path("hosim-baselines/a.toml")
    file.write_text(
        file.read_text().replace(
            "[asked]", f'[moved.h2d]\nitems = ["parameter 40 {folded}"]\n\n[asked]'
        )
    )
    line = stderr_of("baseline", "show", "a")
    assert f"moved.h2d.items[0]: expected at most 1000000 records, {found}" in line


def test_cases_of_a_matrix() -> None:
    lists = {
        key: json.dumps([f"{key}{i}" for i in range(60)])
        for key in ("workloads", "hardware", "policies")
    }
    Path("hosim.toml").write_text(
        "[matrix.m]\n" + "".join(f"{key} = {listed}\n" for key, listed in lists.items())
    )
    assert "matrix.m: expected at most 100000 points in a grid, got 216000; " in stderr_of(
        "check", "--no-cache", "-j", "1"
    )


@pytest.mark.parametrize("budget", ["1e999999B", "1e999999999B", "9" * 5000 + "B"])
def test_a_size_of_many_digits(budget: str) -> None:
    outcome = CliRunner().invoke(
        app, ["frontier", "workload.json", "-H", "hw.yaml", "--budget", budget]
    )
    assert (outcome.exit_code, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1)
    with pytest.raises(Exception, match="expected a size"):
        parse_size(budget)


@pytest.mark.parametrize(
    ("file", "old", "where"),
    [
        ("workload.json", '"a"', "tensors"),
        ("workload.json", '"f"', "ops"),
        ("workload.json", '"toy"', "name"),
        ("hw.json", '"ddr"', "tiers"),
        ("hw.json", '"h2d"', "channels"),
        ("hw.json", '"toy"', "name"),
    ],
)
def test_a_long_name(file: str, old: str, where: str) -> None:
    Path("hw.json").write_text(Path("hw.yaml").read_text())
    Path(file).write_text(Path(file).read_text().replace(old, f'"{"n" * 10_001}"'))
    line = stderr_of("frontier", "workload.json", "-H", "hw.json")
    expected = (
        f"{where}: expected at most 10000 characters in a name, got 10001; "
        'HOSIM_LIMITS="name_length=10001"'
    )
    assert line == f"error: {file}: {expected}{RAISES}\n"

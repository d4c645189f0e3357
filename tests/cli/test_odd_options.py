"""Options with values of any size, and files that are none: a command answers within its contract,
in one line.
"""

import os
from pathlib import Path

import pytest
from toy_files import NOTE, write_toy
from typer.testing import CliRunner, Result

from hosim.cli.main import app


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy's files, in the present folder."""
    monkeypatch.chdir(tmp_path)
    write_toy(tmp_path)
    return tmp_path


def hosim(line: str, *more: str) -> Result:
    return CliRunner().invoke(app, [*line.split(), *more])


@pytest.mark.parametrize("sigma", ["1e151", "1e155", "1e300", "1.7e308"])
@pytest.mark.parametrize("option", ["--op-sigma", "--transfer-sigma"])
def test_times_may_vary_by_any_finite_number(option: str, sigma: str) -> None:
    replay, robustness = (
        "replay plan.json workload.json -H hw.yaml",
        "robustness workload.json -H hw.yaml --runs 3",
    )
    for command in (replay, robustness):
        outcome = hosim(command, option, sigma)
        assert (outcome.exit_code, outcome.stderr) == (0, NOTE), outcome.exception


@pytest.mark.parametrize(
    "command", ["sweep workload.json -H hw.yaml --vary budget=90B,100B", "check", "baseline write"]
)
@pytest.mark.parametrize("jobs", [1025, 2**31, 2**63, 10**30])
def test_processes_beyond_any_machine_are_refused(command: str, jobs: int) -> None:
    outcome = hosim(command, "--jobs", str(jobs))
    assert outcome.exit_code == 2
    said = outcome.stderr.removeprefix(NOTE)
    assert said.startswith(
        f"error: jobs: expected at most 1024 processes, got {jobs if jobs < 2**63 else 'more'}; "
        "HOSIM_LIMITS="
    )
    assert said.count("\n") == 1


ODD = "\x1b[31m" + "x" * 5000 + "\n::error::"


@pytest.mark.parametrize(
    "arguments",
    [
        ["policies", ODD],
        [ODD],
        [f"--{ODD}"],
        ["plan", f"--{ODD}"],
        ["robustness", "workload.json", "-H", "hw.yaml", "--runs", ODD],
        ["baseline", ODD],
        ["validate", ODD],
        ["calibrate", ODD],
        ["schema", ODD],
    ],
    ids=lambda arguments: arguments[0][:10],
)
def test_an_error_about_a_long_argument_is_a_short_line(arguments: list[str]) -> None:
    outcome = CliRunner().invoke(app, arguments)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    lines = outcome.stderr.removesuffix("\n").split("\n")
    assert len([line for line in lines if line.lower().startswith("error: ")]) == 1
    assert all(line.isprintable() and len(line) <= len("error: ") + 400 for line in lines)


FIFO = "expected a file, this is a pipe; write it to a file first"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    "command",
    [
        "replay pipe workload.json -H hw.yaml",
        "replay plan.json pipe -H hw.yaml",
        "replay plan.json workload.json -H pipe",
        "compare-policies workload.json -H hw.yaml --routing pipe",
        "sweep workload.json -H hw.yaml --points pipe",
        "check --config pipe",
        "import pipe -o out.json",
        "validate pipe",
        "calibrate pipe",
        "diff pipe pipe",
    ],
)
def test_a_pipe_that_nobody_writes_to_is_no_file(command: str) -> None:
    os.mkfifo("pipe")
    outcome = hosim(command)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (2, "", f"error: pipe: {FIFO}\n")


def test_a_pipe_of_the_shell_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, Path("hw.yaml").read_bytes())
    os.close(writing)
    try:
        assert hosim(f"replay plan.json workload.json -H /dev/fd/{reading}").exit_code == 0
    finally:
        os.close(reading)


@pytest.mark.parametrize("columns", ["", "0", "000", "1", "-5", "many"])
def test_a_table_is_shown_whatever_the_width(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    outcome = hosim("compare-policies workload.json -H hw.yaml -b 100B")
    assert outcome.exit_code == 0
    assert "t" in outcome.stdout

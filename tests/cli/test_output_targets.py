"""Files that commands write: what cannot be one is refused before the work begins."""

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hosim.cli.main import app

ALL = typer.main.get_command(app)
WRITING = sorted(
    (name, option.opts[0])
    for name, command in ALL.commands.items()
    for option in command.params
    if option.param_type_name == "option" and option.metavar == "FILE" and (option.help or "").startswith(("Write", "Where to write"))
)
"""Every option that names a file to write, by command."""


def test_which_options_write() -> None:
    assert len(WRITING) == 23
    assert {("plan", "--output"), ("sweep", "--output"), ("replay", "--plot"), ("check", "--sarif"), ("import", "--output")} <= {*WRITING}


@pytest.mark.parametrize(
    ("command", "option", "name", "problem"),
    [
        *((command, option, "pipe", "this is a pipe; name a file") for command, option in WRITING),
        ("plan", "--output", "/dev/null", "this is a device; name a file"),
        ("plan", "--output", ".", "this is a directory; name a file"),
        ("sweep", "--output", "no/file", "no such directory"),
    ],
)
def test_no_work_for_what_cannot_be_a_file(
    command: str, option: str, name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments that are missing or name no file would be errors of their own, which come later."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    arguments = [parameter.name for parameter in ALL.commands[command].params if parameter.param_type_name == "argument"]
    needed = ["-H", "none"] if any("-H" in parameter.opts and parameter.required for parameter in ALL.commands[command].params) else []
    outcome = CliRunner().invoke(app, [command, *["none"] * len(arguments), *needed, option, name])
    assert outcome.stderr == f"error: {name}: cannot be written: {problem}\n"
    assert outcome.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe"]


@pytest.mark.parametrize(
    ("command", "name"), [("plan", "p.txt"), ("import", "x.svg"), ("calibrate", "hw.csv"), ("plan", "p.md.gz"), ("import-kernels", "k.txt")]
)
def test_no_json_in_a_file_of_another_ending(command: str, name: str) -> None:
    outcome = CliRunner().invoke(app, [command, "none", *(["-H", "none"] if command == "plan" else []), "-o", name])
    known = ".csv, .csv.gz" if command == "import-kernels" else ".json, .json.gz or .yaml"
    assert (outcome.exit_code, outcome.stderr) == (2, f"error: {name}: expected a name that ends in {known}\n")


@pytest.mark.parametrize("command", ["replay", "compare-policies", "validate", "check", "serve"])
@pytest.mark.parametrize("name", ["x.txt", "x.html.gz"])
def test_no_page_in_a_file_of_another_ending(command: str, name: str) -> None:
    arguments = {"replay": ["p", "w", "-H", "h"], "compare-policies": ["w", "-H", "h"], "validate": ["t"], "check": []}
    outcome = CliRunner().invoke(app, [command, *arguments.get(command, ["m", "-H", "h", "--requests", "r"]), "--html", name])
    assert (outcome.exit_code, outcome.stderr) == (2, f"error: {name}: expected a name that ends in .html or .htm\n")

"""Files that commands write: what cannot be one is refused before the work begins."""

import os
from pathlib import Path

import pytest
import typer
from toy_files import write_toy
from typer.testing import CliRunner

from hosim.cli.main import app

ALL = typer.main.get_command(app)
WRITING = sorted(
    (name, option.opts[0])
    for name, command in ALL.commands.items()
    for option in command.params
    if option.param_type_name == "option"
    and option.metavar == "FILE"
    and (option.help or "").startswith(("Write", "Where to write"))
)
"""Every option that names a file to write, by command."""


def test_which_options_write() -> None:
    assert len(WRITING) == 30
    assert {
        ("plan", "--output"),
        ("sweep", "--output"),
        ("replay", "--plot"),
        ("check", "--sarif"),
        ("import", "--output"),
    } <= {*WRITING}


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
    command: str,
    option: str,
    name: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arguments that are missing or name no file would be errors of their own, which come later."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    arguments = [
        parameter.name
        for parameter in ALL.commands[command].params
        if parameter.param_type_name == "argument"
    ]
    needed = (
        ["-H", "none"]
        if any(
            "-H" in parameter.opts and parameter.required
            for parameter in ALL.commands[command].params
        )
        else []
    )
    outcome = CliRunner().invoke(app, [command, *["none"] * len(arguments), *needed, option, name])
    assert outcome.stderr == f"error: {name}: cannot be written: {problem}\n"
    assert outcome.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("plan", "p.txt"),
        ("import", "x.svg"),
        ("calibrate", "hw.csv"),
        ("plan", "p.md.gz"),
        ("import-kernels", "k.txt"),
    ],
)
def test_no_json_in_a_file_of_another_ending(command: str, name: str) -> None:
    outcome = CliRunner().invoke(
        app, [command, "none", *(["-H", "none"] if command == "plan" else []), "-o", name]
    )
    known = ".csv, .csv.gz" if command == "import-kernels" else ".json, .json.gz or .yaml"
    assert (outcome.exit_code, outcome.stderr) == (
        2,
        f"error: {name}: expected a name that ends in {known}\n",
    )


@pytest.mark.parametrize("command", ["replay", "compare-policies", "validate", "check", "serve"])
@pytest.mark.parametrize("name", ["x.txt", "x.html.gz"])
def test_no_page_in_a_file_of_another_ending(command: str, name: str) -> None:
    arguments = {
        "replay": ["p", "w", "-H", "h"],
        "compare-policies": ["w", "-H", "h"],
        "validate": ["t"],
        "check": [],
    }
    outcome = CliRunner().invoke(
        app, [command, *arguments.get(command, ["m", "-H", "h", "--requests", "r"]), "--html", name]
    )
    assert (outcome.exit_code, outcome.stderr) == (
        2,
        f"error: {name}: expected a name that ends in .html or .htm\n",
    )


def refused(folder: Path, line: str) -> str:
    """What a command says that ends with 2 and leaves the toy's files as they were."""
    write_toy(folder)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    outcome = CliRunner().invoke(app, line.split())
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    return outcome.stderr


PLAN = "plan workload.json -H hw.yaml -p layerwise"
REPLAY = "replay plan.json workload.json -H hw.yaml"


@pytest.mark.parametrize(
    ("line", "named", "also"),
    [
        (f"{PLAN} -o workload.json", "--output workload.json", "WORKLOAD"),
        (f"{PLAN} -o ./workload.json", "--output workload.json", "WORKLOAD"),
        (f"{PLAN} -o link.json", "--output link.json", "WORKLOAD"),
        (f"{PLAN} -o hw.yaml", "--output hw.yaml", "--hardware"),
        (f"{REPLAY} --trace plan.json", "--trace plan.json", "PLAN"),
        (f"{REPLAY} --memory-viz workload.json", "--memory-viz workload.json", "WORKLOAD"),
        (f"{REPLAY} --html x --trace x.json --memory-viz x.json", "--trace x.json", "--memory-viz"),
        ("import workload.json -o workload.json", "--output workload.json", "SOURCE"),
        ("calibrate x.json plan.json -o plan.json", "--output plan.json", "TRACE"),
        (
            "compare-policies workload.json -H toy,hw.yaml --plot hw.yaml",
            "--plot hw.yaml",
            "--hardware",
        ),
        (
            "pipeline workload.json plan.json -H toy --trace plan.json",
            "--trace plan.json",
            "WORKLOAD",
        ),
        (
            "serve plan.json:phase=decode -H toy --requests r --trace plan.json",
            "--trace plan.json",
            "MODEL",
        ),
        (
            "sweep workload.json -H hw.yaml --points plan.json -o plan.json",
            "--output plan.json",
            "--points",
        ),
        ("check --config hw.yaml --junit hw.yaml", "--junit hw.yaml", "--config"),
    ],
)
def test_no_command_overwrites_what_it_is_given(
    line: str, named: str, also: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.json").symlink_to("workload.json")
    assert refused(tmp_path, line) == f"error: {named}: also given as {also}; name another file\n"


@pytest.mark.parametrize(("command", "option"), WRITING)
def test_a_dash_is_no_file(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [
        parameter.name
        for parameter in ALL.commands[command].params
        if parameter.param_type_name == "argument"
    ]
    outcome = CliRunner().invoke(app, [command, *["none"] * len(arguments), option, "-"])
    assert (outcome.exit_code, outcome.stderr) == (
        2,
        f"error: {option}: expected a file name, got '-'\n",
    )

"""The program itself: it starts at once, never shows a traceback, and its exit codes are those
documented.
"""

import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import hosim
from hosim.cli import main as program
from hosim.errors import HosimError, InfeasibleError, InputError, UnitError

HOSIM = [sys.executable, "-c", "from hosim.cli.main import main; main()"]


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make ``hosim schema`` fail from within."""

    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("hosim.io.schema", fail, raising=False)
    monkeypatch.setattr(sys, "argv", ["hosim", "schema", "plan"])


def exit_code() -> object:
    with pytest.raises(SystemExit) as ended:
        program.main()
    return ended.value.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HosimError("no"), 2),
        (InputError("no"), 2),
        (UnitError("no"), 2),
        (InfeasibleError("no"), 3),
    ],
    ids=repr,
)
def test_an_error_is_one_line_and_its_exit_code(
    error: HosimError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raising(monkeypatch, error)
    assert exit_code() == code
    assert capsys.readouterr() == ("", "error: no\n")


def test_ctrl_c_ends_it_with_the_code_of_the_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert exit_code() == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_bug_is_called_one_and_shows_its_traceback_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    monkeypatch.delenv("HOSIM_DEBUG", raising=False)
    assert exit_code() == program.BUG
    assert capsys.readouterr().err == (
        "error: internal error of hosim: ZeroDivisionError: division by zero; HOSIM_DEBUG=1 shows "
        "where, SECURITY.md says how to "
        "report it\n"
    )
    monkeypatch.setenv("HOSIM_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        program.main()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replai"], "replai: no command of that name; did you mean 'replay'?"),
        (["compare-policy", "x", "-H", "toy"], "did you mean 'compare-policies'?"),
        (["x"], "if it is a workload, name the machine as well: hosim x -H h100"),
        ([__file__], "if it is a workload, name the machine as well: hosim /"),
        (["-H", "toy"], "no such option: -H; see 'hosim --help'"),
        (["schema"], "missing argument 'NAME' (workload, hardware, plan"),
        (["compare-policies", "x"], "missing option '--hardware' / '-H' (A hardware profile: "),
        (["compare-policies", "x", "--hardwar", "toy"], "no such option: --hardwar"),
        (["plan", "x"], "; see 'hosim plan --help'"),
        (["hardware", "nonesuch"], "no such command 'nonesuch'"),
        (["fits", "x", "-H", "toy", "--batch", "two"], "invalid value for '--batch'"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], said: str) -> None:
    outcome = CliRunner().invoke(program.app, arguments)
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert (outcome.stderr.count("\n"), said in outcome.stderr) == (1, True)


def test_every_command_has_help_and_says_its_exit_codes() -> None:
    runner = CliRunner()
    top = runner.invoke(program.app, ["--help"]).stdout
    assert "Exit codes: 0 ok, 1 a gate found a regression, 2 wrong usage or bad input, 3" in top
    assert "..." not in top.partition("Plan and replay:")[2], "a summary is cut short"
    commands = re.findall(
        r"^  ([a-z][a-z-]+)  ", top[top.index("Plan and replay:") :], re.MULTILINE
    )
    assert {
        "compare-policies",
        "plan",
        "replay",
        "import",
        "workload",
        "hardware",
        "policies",
        "schema",
    } <= set(commands)
    for command in commands:
        shown = runner.invoke(program.app, [command, "--help"])
        assert shown.exit_code == 0
        assert shown.stdout.startswith(f"Usage: hosim {command}")
        listed = shown.stdout.partition("Commands:")[2]
        assert "..." not in listed, "a summary is cut short"


def test_version() -> None:
    assert CliRunner().invoke(program.app, ["--version"]).stdout == f"hosim {hosim.__version__}\n"


def test_json_on_stdout_is_nothing_but_json() -> None:
    printed = subprocess.run(
        [*HOSIM, "schema", "result"], capture_output=True, text=True, check=True
    )
    assert json.loads(printed.stdout)["$schema"].startswith("https://json-schema.org/")
    assert printed.stderr == ""


def test_a_closed_pipe_is_no_error_worth_words() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        ended = subprocess.run(
            [*HOSIM, "schema", "result"],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (ended.stderr, ended.returncode) == ("", 2)  # 1 would stand for a gate


def loaded(code: str) -> dict[str, bool]:
    """The modules that a process has imported after ``code``, and whether each is a package."""
    listing = (
        f"{code}\nimport json, sys; print(); print(json.dumps({{n: hasattr(m, '__path__') "
        f"for n, m in sys.modules.items()}}))"
    )
    lines = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return dict(json.loads(lines[-1]))


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_imports_its_argument_parser_and_no_other_package(option: str) -> None:
    own = f"from hosim.cli.main import app; app([{option!r}], standalone_mode=False)"
    bare = (
        "import typer; app = typer.Typer(rich_markup_mode=None); app.command()(lambda: None); "
        "app(['--help'], standalone_mode=False)"
    )
    packages = {name.partition(".")[0] for name in set(loaded(own)) - set(loaded(bare))}
    assert packages - sys.stdlib_module_names == {"hosim"}


def test_help_imports_the_commands_and_no_other_room() -> None:
    """It imports no module of another room; its façade is none. Of the rooms beside the core it
    imports what they add, and their commands.
    """
    found = {
        name: package
        for name, package in loaded("import hosim.cli.main").items()
        if name.partition(".")[0] == "hosim"
    }
    others = {"hosim.formats", "hosim.serving"}
    rooms = {name.rpartition(".")[0] for name, package in found.items() if not package}
    assert rooms - others == {"hosim", "hosim.base", "hosim.cli", "hosim.data", "hosim.io.options"}
    inside = [
        name
        for name, package in found.items()
        if not package and name.startswith(("hosim.formats.", "hosim.serving."))
    ]
    told = (".added", ".serve_options")
    assert [name for name in inside if not name.endswith(told) and ".cmd_" not in name] == []


def test_a_file_that_is_wrong_has_no_traceback_even_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = InputError("no")
    error.__cause__ = ValueError("inside")
    raising(monkeypatch, error)
    monkeypatch.setenv("HOSIM_DEBUG", "1")
    assert exit_code() == 2
    assert capsys.readouterr() == ("", "error: no\n")

"""What options are if they are not given, and what they may be; and commands that only list."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hosim.cli import main

NUMBERS = {
    "compare-policies --devices": (None, 1, None),
    "compare-policies --op-sigma": (0.0, 0, None),
    "compare-policies --transfer-sigma": (0.0, 0, None),
    "compare-policies --seed": (0, 0, None),
    "plan --top": (None, 1, None),
    "plan --devices": (None, 1, None),
    "replay --devices": (None, 1, None),
    "replay --op-sigma": (0.0, 0, None),
    "replay --transfer-sigma": (0.0, 0, None),
    "replay --seed": (0, 0, None),
    "robustness --runs": (20, 1, None),
    "robustness --op-sigma": (0.05, 0, None),
    "robustness --transfer-sigma": (0.1, 0, None),
    "robustness --seed": (0, 0, None),
    "robustness --devices": (None, 1, None),
    "sweep --jobs": (-1, None, None),
    "sweep --devices": (None, 1, None),
    "frontier --points": (9, 2, None),
    "frontier --refine": (4, 0, None),
    "frontier --devices": (None, 1, None),
    "fit --devices": (None, 1, None),
    "blame --top": (20, 1, None),
    "blame --devices": (None, 1, None),
    "diff --top": (40, 1, None),
    "check --jobs": (-1, None, None),
    "export --trials": (100, 1, None),
    "export --seed": (0, 0, None),
    "validate --device": (None, 0, None),
    "baseline write --jobs": (-1, None, None),
    "baseline update --jobs": (-1, None, None),
}
"""The default, the least and the most of every option that has one and is a number."""


def parameters(command: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every option and argument of a command and of those below it, with the command's name."""
    for below, inner in getattr(command, "commands", {}).items():
        yield from parameters(inner, f"{name} {below}".strip())
    if not hasattr(command, "commands"):
        yield from ((f"{name} {parameter.opts[0]}", vars(parameter)) for parameter in command.params)


@pytest.fixture(scope="module")
def every() -> dict[str, dict[str, Any]]:
    return dict(parameters(typer.main.get_command(main.app)))


def test_numbers(every: dict[str, dict[str, Any]]) -> None:
    found = {name: (p["default"], p.get("min"), p.get("max")) for name, p in every.items()}
    numbers = {name: given for name, given in found.items() if type(given[0]) in (int, float) or given[1:] != (None, None)}
    assert numbers == NUMBERS


def test_flags_are_off_and_what_says_its_default_itself_shows_no_other(every: dict[str, dict[str, Any]]) -> None:
    assert all(p["default"] is False for p in every.values() if p.get("is_flag"))
    silent = {
        "sweep --jobs",
        *(f"{name} {what}" for name in ("check", "baseline write", "baseline update") for what in ("cases", "--jobs")),
    }
    assert {name for name, p in every.items() if not p["show_default"]} == silent


def test_the_program_says_what_it_has_and_no_more() -> None:
    def shown(*arguments: str) -> str:
        return CliRunner().invoke(main.app, arguments, env={"COLUMNS": "300"}).output

    top = shown("--help")
    assert "--install-completion" not in top
    for group in ("", "baseline", "workload", "hardware"):
        assert shown(*group.split()) == shown(*group.split(), "--help")
    assert shown("blame", "-h") == shown("blame", "--help")
    assert typer.main.get_command(main.app).context_settings["max_content_width"] == 120
    examples = {name for name in ("sweep", "frontier", "fit", "blame", "diff", "export") if f"\n  hosim {name} " in shown(name, "--help")}
    assert examples == {"sweep", "frontier", "fit", "blame", "diff", "export"}


def test_what_ships_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hosim.io.shipped.hardware", lambda: ["toy", "h100-80gb-sxm"])
    listed = CliRunner().invoke(main.app, ["hardware", "list"]).stdout
    assert [name in listed for name in ("toy", "h100-80gb-sxm", "a100")] == [True, True, False]
    made = {"format": "hosim.workload/1", "name": "mine", "tensors": [], "ops": [{"name": "f", "kind": "any", "duration_ns": 1}]}
    (tmp_path / "mine.json").write_text(json.dumps(made))
    monkeypatch.setattr("hosim.io.shipped.workloads", lambda: [str(tmp_path / "mine.json")])
    assert "mine" in CliRunner().invoke(main.app, ["workload", "list"]).stdout


def test_what_a_recording_is_needed_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schemes").mkdir()

    def said(*arguments: str) -> str:
        done = CliRunner().invoke(main.app, arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        return done.stderr.splitlines()[-1]

    assert said("validate", "schemes", "--html", "x.html") == (
        "error: schemes: --html works for a single recording, not for a folder: leave it out"
    )

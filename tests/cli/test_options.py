"""What options are if they are not given, and what they may be; and commands that only list."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.core
import typer.main
from rendered import lines
from toy_files import write_toy
from typer.testing import CliRunner

from hosim.cli import main
from hosim.cli.commands import SECTIONS
from hosim.cli.main import EXAMPLES
from hosim.cli.progress import progress
from hosim.cli.terminal import NORMAL
from hosim.extensions import added
from hosim.io.models import PRESETS, ListedModel
from hosim.report.listed import models

NUMBERS = {
    "compare-policies --devices": (None, 1, None),
    "compare-policies --regret": (0, 0, 20),
    "compare-policies --op-sigma": (0.0, 0, None),
    "compare-policies --transfer-sigma": (0.0, 0, None),
    "compare-policies --seed": (0, 0, None),
    "compare-policies --work": (None, 1, None),
    "plan --top": (None, 1, None),
    "plan --devices": (None, 1, None),
    "plan --work": (None, 1, None),
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
    "fits --batch": (None, 1, None),
    "fits --devices": (None, 1, None),
    "fits --sequence": (None, 1, None),
    "serve --tensor": (1, 1, None),
    "serve --blocks": (None, 1, None),
    "serve --block-tokens": (16, 1, None),
    "serve --token-budget": (None, 1, None),
    "serve --max-sequences": (None, 1, None),
    "serve --memory-share": (0.9, None, None),
    "serve --fit-first": (None, 1, None),
    "serve --instances": (1, 1, None),
    "serve --prefill-instances": (0, 0, None),
    "serve --prefill-tensor": (None, 1, None),
    "serve --decode-instances": (0, 0, None),
    "serve --expert": (1, 1, None),
    "serve-frontier --seeds": (None, 1, None),
    "serve-frontier --jobs": (-1, None, None),
    "serve-sweep --seeds": (None, 1, None),
    "serve-sweep --jobs": (-1, None, None),
    "blame --top": (None, 1, None),
    "blame --devices": (None, 1, None),
    "diff --top": (None, 1, None),
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
        yield from (
            (f"{name} {parameter.opts[0]}", vars(parameter)) for parameter in command.params
        )


@pytest.fixture(scope="module")
def every() -> dict[str, dict[str, Any]]:
    return dict(parameters(typer.main.get_command(main.app)))


def test_numbers(every: dict[str, dict[str, Any]]) -> None:
    found = {name: (p["default"], p.get("min"), p.get("max")) for name, p in every.items()}
    numbers = {
        name: given
        for name, given in found.items()
        if type(given[0]) in (int, float) or given[1:] != (None, None)
    }
    assert numbers == NUMBERS


def test_flags_are_off_and_what_says_its_default_itself_shows_no_other(
    every: dict[str, dict[str, Any]],
) -> None:
    assert all(p["default"] is False for p in every.values() if p.get("is_flag"))
    silent = {
        "check --against",
        "ci init --install",
        "sweep --jobs",
        "serve-frontier --jobs",
        "serve-sweep --jobs",
        *(
            f"{name} {what}"
            for name in ("check", "baseline write", "baseline update")
            for what in ("cases", "--jobs")
        ),
    }
    assert {name for name, p in every.items() if not p["show_default"]} == silent


def test_the_program_says_what_it_has_and_no_more() -> None:
    def shown(*arguments: str) -> str:
        return CliRunner().invoke(main.app, arguments, env={"COLUMNS": "300"}).output

    assert "--install-completion" in shown("--help")
    for group in ("", "baseline", "workload", "hardware"):
        assert shown(*group.split()) == shown(*group.split(), "--help")
    assert shown("blame", "-h") == shown("blame", "--help")
    assert typer.main.get_command(main.app).context_settings["max_content_width"] == 120


def test_every_command_has_examples_that_it_takes() -> None:
    top = typer.main.get_command(main.app)
    assert isinstance(top, typer.core.TyperGroup)
    others = {
        name: row[2]
        for tables in added("commands")
        for table in tables.values()
        for name, row in table.items()
    }
    assert set(EXAMPLES) | set(others) == set(top.commands)
    for name, examples in {**EXAMPLES, **others}.items():
        told = CliRunner().invoke(main.app, [name, "--help"], env={"COLUMNS": "300"}).output
        for example in examples:
            assert f"\n    {example}\n" in told
            program, *words = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
            assert (program, words[0]) == ("hosim", name)
            with top.make_context("hosim", words, resilient_parsing=True) as context:
                command, below, rest = top.commands[name], context, words[1:]
                if isinstance(command, typer.core.TyperGroup):
                    command, rest = command.commands[rest[0]], rest[1:]
                command.make_context(
                    name, rest, parent=below, resilient_parsing=True
                )  # an unknown option is an error


def test_each_section_of_the_help_has_an_example_of_its_own() -> None:
    shown = CliRunner().invoke(main.app, ["--help"], env={"COLUMNS": "80"}).output
    for section, example in SECTIONS.items():
        listed = shown.partition(f"\n{section}:\n")[2].partition("$ ")
        assert re.search(rf"^  {example.split()[1]} ", listed[0], re.MULTILINE)
        assert listed[2].startswith(f"{example}\n")


@pytest.mark.parametrize(
    ("word", "found"),
    [("h1", "h100 h100-80gb-cxl h100-80gb-sxm h100-96gb"), ("rtx-4", "rtx-4090"), ("x", "")],
)
def test_names_of_machines_are_completed(word: str, found: str) -> None:
    line = {
        "_HOSIM_COMPLETE": "complete_bash",
        "COMP_WORDS": f"hosim plan w -H {word}",
        "COMP_CWORD": "4",
    }
    assert (
        " ".join(
            sorted(CliRunner().invoke(main.app, [], prog_name="hosim", env=line).output.split())
        )
        == found
    )


@pytest.mark.parametrize("options", [["-q"], [], ["-v"]])
def test_how_much_a_command_says(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing, the file that was written, and besides what began when."""
    monkeypatch.chdir(tmp_path)
    write_toy(tmp_path)
    asked = ["import", "workload.json", "-o", "x.json"]
    for words in ([*asked, *options], [*options, *asked]):
        said = CliRunner().invoke(main.app, words).stderr
        assert ("wrote x.json: toy" in said, " s  reading workload.json" in said) == (
            options != ["-q"],
            options == ["-v"],
        )
    refused = CliRunner().invoke(main.app, ["import", "no.json", "-o", "x.json", *options]).stderr
    assert "error: no.json" in refused


def test_a_log_gets_lines_until_the_work_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOSIM_PROGRESS")
    monkeypatch.setattr(
        "hosim.cli.progress.amount", lambda: NORMAL
    )  # another test may have asked for more
    monkeypatch.setattr("hosim.cli.progress.time.monotonic", lambda: 7.0)
    monkeypatch.setattr(
        "hosim.api.cell_progress.repeated", lambda do, every_s: nullcontext(written.append(do))
    )
    written: list[Callable[[], None]] = []
    with progress("a") as tell:
        written[0]()
        tell("b")
        written[0]()
    assert capsys.readouterr().err == "   0.0 s  a\n   0.0 s  b\n"


def test_every_listing_has_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_toy(tmp_path)
    monkeypatch.setattr("hosim.shipped.hardware", lambda: ["toy"])
    monkeypatch.setattr("hosim.shipped.workloads", lambda: [str(tmp_path / "workload.json")])

    def listed(*words: str) -> Any:
        return json.loads(CliRunner().invoke(main.app, [*words, "--json"]).stdout)

    assert listed("hardware", "list")["hardware"] == [listed("hardware", "show", "toy")]
    assert listed("hardware", "list")["aliases"]["h100"] == "h100-80gb-sxm"
    (workload,) = listed("workload", "list")["workloads"]
    assert workload == listed("workload", "show", str(tmp_path / "workload.json"))
    assert (workload["bytes"], workload["listed_order_peak_bytes"]) == (
        {"parameter": 40, "activation": 30},
        70,
    )
    monkeypatch.setattr("hosim.io.models.listing.PRESETS", {"gpt2": PRESETS["gpt2"]})
    figures = {"layers": 12, "parameters": 124439808, "weights_bytes": 2 * 124439808}
    gpt2 = {"name": "gpt2", **figures, "runs": ["train", "prefill", "decode"], "left_out": []}
    assert listed("workload", "models") == {"models": [gpt2]}
    assert "124 million" in CliRunner().invoke(main.app, ["workload", "models", "--detail"]).stdout
    quantised = ListedModel(
        "gpt-oss",
        1,
        10**9,
        ("decode",),
        ("the quantisation of the weights (mxfp4): all are in the dtype of the run",),
    )
    shown = lines(models([quantised, replace(quantised, name="other")]))
    assert any("gpt-oss, other: " in line and "(mxfp4)" in line for line in shown)
    policies = {policy["name"]: policy for policy in listed("policies")["policies"]}
    assert policies["lookahead"]["parameters"] == {"k": 4, "placement": "fastest"}


def test_what_ships_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hosim.shipped.hardware", lambda: ["toy", "h100-80gb-sxm"])
    listed = CliRunner().invoke(main.app, ["hardware", "list"]).stdout
    assert [name in listed for name in ("toy", "h100-80gb-sxm", "a100")] == [True, True, False]
    made = {
        "format": "hosim.workload/1",
        "name": "mine",
        "tensors": [],
        "ops": [{"name": "f", "kind": "any", "duration_ns": 1}],
    }
    (tmp_path / "mine.json").write_text(json.dumps(made))
    monkeypatch.setattr("hosim.shipped.workloads", lambda: [str(tmp_path / "mine.json")])
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

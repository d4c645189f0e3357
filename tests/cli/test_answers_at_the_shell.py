"""What commands answer first: a question without a command, rows as they end, and what to ask
next.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from toy_files import write_toy
from typer.testing import CliRunner, Result

from hosim.cli.main import app


@pytest.fixture(autouse=True)
def _toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_toy(tmp_path)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    return done


def test_a_workload_and_a_machine_are_a_question() -> None:
    """The answer is that of the three policies, and says what was chosen."""
    shown = run("workload.json", "-H", "hw.yaml").stdout
    assert "chosen: all 100 B (-b)" in shown
    named = run("workload.json", "--hardware=hw.yaml", "-p", "layerwise", "-b", "80B").stdout
    assert "layerwise takes 90 ns, 1.800x of that." in " ".join(named.split())
    assert "(-b)" not in named
    rows = json.loads(run("workload.json", "-H", "hw.yaml", "--json").stdout)["results"]
    assert {row["policy"] for row in rows} == {"resident", "static_split", "hyperoffload"}
    built = run("gpt2:layers=1:phase=decode:context=8", "-H", "h100", "-b", "1GiB").stdout
    assert "chosen: phase decode (gpt2:phase=...)" in " ".join(built.split())


def test_a_misspelt_command_is_still_one() -> None:
    done = run("compare-policis", "workload.json", code=2)
    assert "compare-policis: no command of that name; did you mean" in done.stderr
    assert run("no-such-model", "-H", "hw.yaml", code=2).stderr.startswith("error: no-such-model")


def test_what_to_ask_next_can_be_asked_and_is_of_the_same_question() -> None:
    asked = ("compare-policies", "workload.json", "-H", "hw.yaml", "-b", "80B", "-p", "layerwise")
    following = [
        line.removeprefix("next: hosim ").partition("  (")[0]
        for line in run(*asked).stdout.splitlines()
        if line.startswith("next: ")
    ]
    assert following == [
        "blame workload.json -H hw.yaml -b 80B -p layerwise",
        "frontier workload.json -H hw.yaml -b 80B",
    ]
    for line in following:
        run(*shlex.split(line))
    assert "next: " not in run(*asked, "--account", "program").stdout  # they have no such option


def test_without_a_budget_it_says_how_much_is_enough() -> None:
    """The toy needs 70 B, of which 40 B may come up in 40 ns, which is more than 5 % of 50 ns."""
    asked = ("compare-policies", "workload.json", "-H", "hw.yaml", "-p", "hyperoffload")
    assert " cost " not in run(*asked).stdout
    toy = json.loads(Path("workload.json").read_text())
    (w, a), (f,) = toy["tensors"], toy["ops"]
    toy["tensors"] = [w, {**w, "name": "v"}, {**a, "bytes": 10}, {**a, "name": "b", "bytes": 10}]
    toy["ops"] = [
        {**f, "duration_ns": 500},
        {**f, "name": "g", "inputs": ["a", "v"], "outputs": ["b"], "duration_ns": 500},
    ]
    Path("workload.json").write_text(json.dumps(toy))
    # at 90 B f has both weights, and w comes up in 40 ns of a step of 1000; at 60 B v comes up, too
    said = " ".join(run(*asked).stdout.split())
    assert " 90 B cost 4.0 %; " in said
    assert " cost " not in run(*asked, "-b", "100B").stdout


def test_rows_appear_as_they_end_rules_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (
        *("compare-policies", "workload.json", "-H", "hw.yaml", "-b", "80B"),
        *("-p", "hyperoffload,layerwise"),
    )
    assert "layerwise:" not in run(*asked).stderr  # a short command shows its answer alone
    monkeypatch.setattr("hosim.cli.answers.FIRST_S", -1.0)
    monkeypatch.setenv("HOSIM_PROGRESS", "on")
    shown = run(*asked).stderr
    assert 0 <= shown.find("layerwise: ") < shown.find("hyperoffload: ")
    assert "layerwise: " not in run("-q", *asked).stderr


@pytest.mark.parametrize(
    "command",
    [
        "compare-policies workload.json -H hw.yaml -b 80B",
        "frontier workload.json -H hw.yaml",
        "sweep workload.json -H hw.yaml --vary budget=50..100B:51 --jobs 1",
        "blame workload.json -H hw.yaml -b 80B -p layerwise",
        "robustness workload.json -H hw.yaml -b 80B -n 2",
        "workload.json -H hw.yaml",
    ],
)
def test_an_answer_has_at_most_25_lines_of_80_characters(command: str) -> None:
    shown = run(*command.split()).stdout.splitlines()
    assert len(shown) <= 25
    assert max(map(len, shown)) <= 80


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("all", "json", "give one of them"),
        ("detail", "json", "give one of them"),
        ("detail", "all", "--detail prints every row"),
    ],
)
def test_an_answer_has_one_form(one: str, other: str, why: str) -> None:
    asked = ("workload.json", "-H", "hw.yaml", f"--{one}", f"--{other}")
    assert run("compare-policies", *asked, code=2).stderr == (
        f"error: compare-policies: --{one} and --{other} exclude each other: {why}\n"
    )


def test_copies_that_are_timed_as_pinned_are_noted_where_some_move() -> None:
    step = ("compare-policies", "gpt2:layers=1:phase=decode:context=8", "-H", "h100", "--json")
    said = [
        [line for line in run(*step, "-p", policy).stderr.splitlines() if "note: pinned: " in line]
        for policy in ("resident", "layerwise")
    ]
    assert [len(lines) for lines in said] == [0, 1]
    assert "h2d" in said[1][0]

"""Notes on the figures of cases: in baselines, and in every report of a check."""

import json
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

import hosim
from hosim.cli.main import app
from hosim.io import save_workload

HEAD = "not modelled: a <head> and 5 % of | pipes"
GIVEN = "durations: times as given for its 1 op"


def run(*arguments: str) -> str:
    outcome = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200"})
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def test_baselines_and_reports_have_the_notes_of_their_cases(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOSIM_CACHE", str(tmp_path / "kept"))
    b = hosim.GraphBuilder("step", {"left_out": [HEAD.removeprefix("not modelled: ")]})
    _ = b.tensor("w", 40, "parameter"), b.op("f", "matmul", inputs=["w"], duration_ns=50)
    save_workload(b.build(), "noted.json")
    graph = b.build()
    save_workload(
        replace(
            graph, meta={}, ops=tuple(replace(op, duration_ns=None, flops=40) for op in graph.ops)
        ),
        "plain.json",
    )
    Path("hosim.toml").write_text(
        "".join(
            f'[cases.{name}]\nworkload = "{name}.json"\nhardware = "toy"\npolicy = "resident"\n'
            for name in ("noted", "plain")
        )
    )
    run("baseline", "write", "-j", "1")
    assert f'notes = ["{GIVEN}", "{HEAD}"]\n' in Path("hosim-baselines/noted.toml").read_text()
    assert "notes" not in Path("hosim-baselines/plain.toml").read_text()
    assert json.loads(run("baseline", "show", "noted", "--json"))["notes"] == [GIVEN, HEAD]
    assert HEAD in run("baseline", "show", "noted", "--detail")
    reports = ["--junit", "j.xml", "--summary", "s.md", "--html", "p.html"]
    noted, plain = json.loads(run("check", "-j", "1", "--json", *reports))["cases"]
    assert (noted["notes"], "notes" in plain) == ([GIVEN, HEAD], False)
    assert "not modelled: a &lt;head&gt; and 5 % of | pipes" in Path("j.xml").read_text()
    assert "noted: not modelled: a &lt;head&gt; and 5 % of | pipes" in Path("p.html").read_text()
    assert "- noted: not modelled: a \\<head\\> and 5 % of \\| pipes" in Path("s.md").read_text()
    assert f"noted: {HEAD}" in run("check", "-j", "1")

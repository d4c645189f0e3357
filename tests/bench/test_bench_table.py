"""The table of ``make bench``: one that fails is a row, and the others go on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import bench
import pytest
from bench import Row, table
from measures import measure

HERE = Path(bench.__file__).parent
MEASURE = re.compile(r"^@measure\([^)]*\)\ndef (\w+)", re.MULTILINE)
SUBJECT = """
import os
from measures import measure

@measure("held", most=5)
def first(): return 4.5

@measure("not held", most=5, unit="s")
def second(): return 5.5

@measure("raises", most=5)
def third(): raise ValueError("broken")

@measure("dies", most=5)
def fourth(): os._exit(9)

@measure("says nothing of use", most=5)
def fifth(): return "x"
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "toy_subject.py").write_text(SUBJECT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(bench, "SUBJECTS", ("no_such_subject", "toy_subject"))
    return tmp_path


def test_what_fails_is_a_row_and_the_table_goes_on(
    toy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--out", str(toy / "build")]) == 0
    assert bench.main(["--out", str(toy / "build"), "--strict"]) == 1
    written = json.loads((toy / "build" / "bench.json").read_text())
    found = [
        (figure["subject"], figure["what"], figure["figure"], figure["held"], figure["failure"])
        for figure in written["figures"]
    ]
    assert found == [
        (
            "no_such_subject",
            "all of it",
            None,
            False,
            "ModuleNotFoundError: No module named 'no_such_subject'",
        ),
        ("toy_subject", "held", 4.5, True, ""),
        ("toy_subject", "not held", 5.5, False, ""),
        ("toy_subject", "raises", None, False, "exit code 1"),
        ("toy_subject", "dies", None, False, "exit code 9"),
        ("toy_subject", "says nothing of use", None, False, "it printed no figure"),
    ]
    assert written["machine"]["cores"] >= 1
    text = (toy / "build" / "bench.md").read_text()
    assert text in capfd.readouterr().out
    assert "| toy_subject | not held | 5.5 s | 5 s | no |" in text
    assert "1 of 6 bounds held" in text


def test_strict_is_content_where_all_is_held(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SUBJECTS", ("toy_subject",))
    assert bench.main(["--out", str(toy / "build"), "--strict", "--only", "toy_subject.first"]) == 0
    assert (
        bench.main(["--out", str(toy / "build"), "--strict", "--only", "toy_subject.second"]) == 1
    )


def test_measures_are_chosen_by_name_or_by_what_they_say_and_there_has_to_be_one(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "SUBJECTS", ("toy_subject",))
    assert bench.main(["--out", str(toy / "build"), "--only", "not held"]) == 0
    assert [
        row["what"] for row in json.loads((toy / "build" / "bench.json").read_text())["figures"]
    ] == ["not held"]
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--out", str(toy / "build"), "--only", "nowhere"])
    assert "no measure has 'nowhere'" in capfd.readouterr().err


def test_every_subject_has_measures_with_names_of_their_own() -> None:
    named = [
        (subject, name)
        for subject in bench.SUBJECTS
        for name in MEASURE.findall((HERE / f"{subject}.py").read_text())
    ]
    assert len(named) == len(set(named)) >= 20
    assert {subject for subject, _ in named} == set(bench.SUBJECTS)


def test_a_figure_at_its_bound_is_held() -> None:
    made = measure("x", most=2)(lambda: 2.0)
    assert Row("s", made.what, made.unit, made.most, made.take()).held
    assert "2 times | 2 times | yes" in table(
        [Row("s", "x", "times", 2, 2.0)], {"cpu": "c", "cores": 1, "python": "3", "load": 0}
    )

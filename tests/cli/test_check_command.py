"""``hosim baseline`` and ``hosim check``, from nothing to a failing check, and their reports."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rendered import facts
from toy_files import write_toy
from typer.testing import CliRunner

from hosim.cli.main import app

WORKLOAD: dict[str, Any] = {
    "format": "hosim.workload/1",
    "name": "toy",
    "tensors": [
        {"name": "w", "bytes": 40, "kind": "parameter", "home": "hbm"},
        {"name": "a|b", "bytes": 30, "kind": "activation"},
        {"name": "c", "bytes": 20, "kind": "activation"},
    ],
    "ops": [
        {"name": "f", "kind": "matmul", "inputs": ["w"], "outputs": ["a|b"], "duration_ns": 50},
        {"name": "g", "kind": "matmul", "inputs": ["a|b"], "duration_ns": 50},
        {"name": "h", "kind": "matmul", "outputs": ["c"], "duration_ns": 50},
    ],
}

CASES = '[cases.toy]\nworkload = "toy.json"\nhardware = "toy"\npolicy = "resident"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOSIM_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "hosim.toml").write_text(CASES)
    (tmp_path / "toy.json").write_text(json.dumps(WORKLOAD))
    return tmp_path


def hosim(*arguments: str, code: int = 0) -> tuple[str, str]:
    outcome = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "120"})
    assert outcome.exit_code == code, outcome.output
    return outcome.stdout, outcome.stderr


def worsen(folder: Path) -> None:
    """``a|b`` lives to the end."""
    ops = [*WORKLOAD["ops"][:2], WORKLOAD["ops"][2] | {"inputs": ["a|b"]}]
    (folder / "toy.json").write_text(json.dumps(WORKLOAD | {"ops": ops}))


def test_from_nothing_to_a_failing_check(folder: Path) -> None:
    out, _ = hosim("check", code=1)
    assert "hosim baseline write" in out
    _, told = hosim("baseline", "write")
    assert "wrote hosim-baselines/toy.toml" in told
    assert "1 case: 1 same." in hosim("check")[0]
    worsen(folder)
    out, _ = hosim("check", code=1)
    assert "peak.hbm: 90 B, was 70 B (+20 B, +28.6 %) at op `h` (#2)" in out
    assert "a|b, resident, h, 2, g, 30 B" in facts(out, "resident")
    _, told = hosim("baseline", "write")
    assert "nothing to write" in told
    hosim("baseline", "update")
    hosim("check")
    (folder / "toy.json").write_text(json.dumps(WORKLOAD))
    hosim("check")
    hosim("check", "--strict", code=1)


def test_the_reports_say_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosim("baseline", "write")
    worsen(folder)
    step = folder / "step.md"
    step.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    files = (
        "--junit",
        "j.xml",
        "--sarif",
        "s.json",
        "--summary",
        "s.md",
        "--html",
        "p.html",
        "--github",
        "--json",
    )
    out, told = hosim("check", *files, code=1)
    said = json.loads(out)
    (case,) = said["cases"]
    assert (said["passed"], case["verdict"], case["fails"]) == (False, "regression", True)
    assert case["metrics"]["peak.hbm"] == {"verdict": "regression", "before": 70, "now": 90}
    explained = case["explanation"]
    suite = ET.parse("j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert (suite.findtext("testcase/failure") or "").splitlines() == explained
    (result,) = json.loads(Path("s.json").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "regression"
    assert result["message"]["text"].splitlines()[1:] == explained
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "hosim.toml"
    wrote, annotation = told.splitlines()
    assert wrote == "wrote p.html"
    page = re.sub("</?code>", "`", unescape(Path("p.html").read_text()))
    assert all(f"<li>{line}</li>" in page for line in explained)
    assert annotation.startswith("::error file=hosim.toml,line=1,title=toy%3A regression")
    assert (
        annotation.partition("::error")[2].partition("::")[2].replace("%25", "%").split("%0A")
        == explained
    )
    summary = Path("s.md").read_text()
    assert step.read_text() == "before\n" + summary
    assert all(line in summary for line in explained)
    assert "20 B, +28.6 %" in facts(summary.splitlines()[1])
    assert all(len(line) <= 61 for line in summary.splitlines() if line.startswith(("│", "└")))


def test_reports_of_a_check_that_passes_name_no_failure(folder: Path) -> None:
    hosim("baseline", "write")
    out, told = hosim(
        "check", "--junit", "j.xml", "--sarif", "s.json", "--summary", "s.md", "--github", "--json"
    )
    assert json.loads(out)["passed"]
    assert not told
    assert ET.parse("j.xml").getroot().get("failures") == "0"
    assert not json.loads(Path("s.json").read_text())["runs"][0]["results"]
    assert Path("s.md").read_text().startswith("<!-- hosim check -->\n### hosim: 1 same\n")


def test_what_no_longer_fits_is_exit_code_3_and_gets_no_baseline(folder: Path) -> None:
    hosim("baseline", "write")
    kept = Path("hosim-baselines/toy.toml").read_bytes()
    (folder / "hosim.toml").write_text(CASES + 'budget = "60 B"\n')
    out, _ = hosim("check", code=3)
    assert "infeasible" in out
    _, told = hosim("baseline", "update", code=3)
    assert "no baseline written, because the case does not fit: toy:" in told
    assert Path("hosim-baselines/toy.toml").read_bytes() == kept


def test_update_removes_what_has_no_case_and_show_shows(folder: Path) -> None:
    hosim("baseline", "write")
    Path("hosim-baselines/toy.toml").rename("hosim-baselines/gone.toml")
    out, _ = hosim("check", code=1)
    assert "no case with this name" in out
    hosim("baseline", "show", "toy", code=2)
    _, told = hosim("baseline", "update")
    assert told.splitlines() == [
        "wrote hosim-baselines/toy.toml",
        "removed hosim-baselines/gone.toml",
    ]
    out, _ = hosim("baseline", "show", "toy")
    assert "peak.hbm" in out
    assert json.loads(hosim("baseline", "show", "toy", "--json")[0])["metrics"]["peak.hbm"] == 70


def test_cases_in_pyproject_and_from_a_folder_below(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "hosim.toml").unlink()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "x"\n\n' + CASES.replace("[cases", "[tool.hosim.cases")
    )
    hosim("baseline", "write")
    assert (folder / "hosim-baselines/toy.toml").is_file()
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    hosim("check")


def test_two_processes_give_what_one_gives(folder: Path) -> None:
    (folder / "hosim.toml").write_text(CASES + CASES.replace("cases.toy", "cases.other"))
    hosim("baseline", "write", "--jobs", "2")
    other = [path.read_bytes() for path in sorted(Path("hosim-baselines").glob("*.toml"))]
    hosim("baseline", "update", "--jobs", "1", "--no-cache")
    assert [path.read_bytes() for path in sorted(Path("hosim-baselines").glob("*.toml"))] == other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "cases: expected at least one case, such as [cases.NAME]"),
        ("[cases]", "cases: expected"),
        (CASES.replace("[", "[["), "hosim.toml: "),
        ('[cases."../x"]\nhardware = "toy"\n', "cases.../x: expected a name of letters"),
        (
            CASES + 'colour = "red"\n',
            "cases.toy.colour: unknown key 'colour' (known: workload, entry,",
        ),
        (CASES + 'entry = "a:b"\n', "cases.toy: expected one of workload, entry and serve"),
        (CASES + 'plan = "p.json"\n', "cases.toy: plan and policy exclude each other"),
        (CASES + 'tolerance = {peak = "5"}\n', "tolerance.peak: expected a size"),
        (
            CASES.replace("toy.json", "none.json"),
            "case toy: none.json: no file and no shipped workload",
        ),
        (CASES.replace('"resident"', '"residen"'), "case toy: "),
        (
            CASES.replace('"toy"', '"toyy"'),
            "case toy: toyy: no file and no shipped hardware profile",
        ),
        (CASES + 'budget = "5"\n', "case toy: budget: expected a size"),
        (
            '[cases.e]\nentry = "no.such.module:f"\nhardware = "toy"\n',
            "case e: no.such.module:f: cannot be imported",
        ),
    ],
    ids=map(str, range(13)),
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, text: str, expected: str) -> None:
    (folder / "hosim.toml").write_text(text)
    out, told = hosim("check", code=2)
    assert bool(out) == expected.startswith("case ")  # else no case is known
    assert len(told.splitlines()) == 1
    assert expected in told


def test_without_a_file_of_cases_it_says_what_to_write(folder: Path) -> None:
    _, told = hosim("check", "--config", "none.toml", code=2)
    assert "none.toml: no such file" in told
    _, told = hosim("check", "nonesuch", code=2)
    assert "unknown case 'nonesuch' (known: toy)" in told


def test_an_entry_gives_a_graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "shop_models.py").write_text(
        "from hosim import GraphBuilder\n\n\ndef small():\n    b = GraphBuilder('small')\n    "
        "b.tensor('a', 30)\n"
        "    b.op('f', 'relu', outputs=['a'], duration_ns=5)\n    return b.build()\n\n\ndef "
        "wrong():\n    return 5\n\n\n"
        "def broken():\n    raise RuntimeError('no luck\\nat all')\n\n\ndef leaves():\n    "
        "print('bye')\n    raise SystemExit(0)\n"
    )
    (folder / "shop_raises.py").write_text("raise ValueError('not today')\n")
    (folder / "shop_leaves.py").write_text("raise SystemExit(0)\n")
    (folder / "shop_typo.py").write_text("def f(:\n")
    entry = '[cases.e]\nentry = "shop_models:small"\nhardware = "toy"\npolicy = "resident"\n'
    (folder / "hosim.toml").write_text(entry)
    hosim("baseline", "write", "--jobs", "1")
    hosim("check", "--jobs", "1")
    assert str(folder) not in sys.path
    for name, expected in (
        ("wrong", "expected the function to return a model"),
        ("broken", "raised RuntimeError: no luck"),
        ("leaves", "raised SystemExit: 0"),
        ("none", "has no 'none'"),
        ("shop_raises:f", "cannot be imported: raised ValueError: not today"),
        ("shop_leaves:f", "cannot be imported: raised SystemExit: 0"),
        ("shop_typo:f", "cannot be imported: raised SyntaxError: invalid syntax"),
        ("shop_models.py", "cases.e.entry: expected package.module:function"),
    ):
        (folder / "hosim.toml").write_text(
            entry.replace("small", name)
            if "shop" not in name
            else entry.replace("shop_models:small", name)
        )
        told = hosim("check", "--jobs", "1", code=2)[1]
        assert expected in told.splitlines()[-1]
    monkeypatch.delitem(sys.modules, "shop_models")


def test_a_case_of_a_matrix_is_shown(folder: Path) -> None:
    matrix = (
        '[matrix.m]\nworkloads = ["toy.json"]\nhardware = ["toy"]\npolicies = '
        '["resident"]\nbudgets = ["100 B", "60 B"]\n'
    )
    (folder / "hosim.toml").write_text(matrix)
    hosim("baseline", "show", "m/toy.json/toy/resident/100 B", code=2)
    hosim("baseline", "write")
    assert "2 cases: 2 same." in hosim("check")[0]
    assert "resident, 100 B, 3" in facts(hosim("check")[0], "resident")
    said = json.loads(hosim("baseline", "show", "m/toy.json/toy/resident/100 B", "--json")[0])
    assert said["metrics"]["peak.hbm"] == 70
    assert "70 B" in hosim("baseline", "show", "m/toy.json/toy/resident/100 B")[0]
    assert "does not fit" in hosim("baseline", "show", "m/toy.json/toy/resident/60 B", code=2)[1]
    assert "unknown case 'm/x'" in hosim("baseline", "show", "m/x", code=2)[1]


TABLES = {
    "case": '[cases.a]\nworkload = "workload.json"\nhardware = "hw.yaml"\npolicy = '
    '"layerwise"\nbudget = "90 B"\n',
    "matrix": '[matrix.a]\nworkloads = ["workload.json"]\nhardware = ["hw.yaml"]\npolicies = '
    '["layerwise"]\nbudgets = ["90 B"]\n',
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", ["d\nr = 1", "d\r\nr", "d d 5 d", "50%25", "d\u2028r"])
def test_baselines_keep_names_of_tiers_and_channels(name: str, table: str, folder: Path) -> None:
    write_toy(folder)
    for old in ('"ddr"', '"h2d"'):
        (folder / "hw.yaml").write_text(
            (folder / "hw.yaml").read_text().replace(old, json.dumps(name))
        )
    (folder / "hosim.toml").write_text(TABLES[table])
    hosim("baseline", "write")
    assert "1 case: 1 same." in hosim("check", "--no-cache")[0]


def test_a_plan_that_breaks_rules_is_one_line_with_the_count_of_the_rest(folder: Path) -> None:
    """51 detaches of one copy: the first is legal, and what follows drops nothing."""
    write_toy(folder)
    plan = json.loads((folder / "plan.json").read_text())
    plan["cache_ops"] += [{"op": "detach", "tensor": "w", "from": "hbm", "after": "f"}] * 50
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "hosim.toml").write_text(
        '[cases.a]\nworkload = "workload.json"\nhardware = "hw.yaml"\nplan = "plan.json"\n'
    )
    out, err = hosim("baseline", "write", code=2)
    assert (out, err.count("\n"), "and 49 more" in err) == ("", 1, True), err


def test_one_case_that_cannot_be_read_leaves_the_others_their_verdicts_and_reports(
    folder: Path,
) -> None:
    """For each way of not being read: a workload that is not there, a damaged baseline, a function
    that raises.
    """
    (folder / "shop_breaks.py").write_text("def broken():\n    raise RuntimeError('no luck')\n")
    other = CASES.replace("cases.toy", "cases.bad")
    breaks = '[cases.breaks]\nentry = "shop_breaks:broken"\nhardware = "toy"\n'
    (folder / "hosim.toml").write_text(
        CASES
        + other.replace("toy.json", "none.json")
        + breaks
        + CASES.replace("cases.toy", "cases.last")
    )
    told = hosim("baseline", "write", "-j", "1", code=2)[1]
    assert told.splitlines()[-1].startswith(
        "error: case bad: none.json: no file and no shipped workload"
    )
    assert told.endswith("(and 1 more)\n")
    assert sorted(path.name for path in Path("hosim-baselines").glob("*.toml")) == [
        "last.toml",
        "toy.toml",
    ]
    Path("hosim-baselines/last.toml").write_text("x")
    worsen(folder)
    reports = (
        "--junit",
        "j.xml",
        "--sarif",
        "s.json",
        "--summary",
        "s.md",
        "--html",
        "h.html",
        "--github",
    )
    for jobs in ("1", "2"):
        out, told = hosim("check", "-j", jobs, "--json", *reports, code=2)
        found = {case["case"]: case["verdict"] for case in json.loads(out)["cases"]}
        assert found == {"toy": "regression", "bad": "error", "breaks": "error", "last": "error"}
        assert told.splitlines()[-1].startswith("error: case bad: none.json")
    junit = ET.parse("j.xml").getroot()
    assert (junit.get("tests"), junit.get("failures"), junit.get("errors")) == ("4", "1", "3")
    assert [case.get("name") for case in junit if case.find("error") is not None] == [
        "bad",
        "breaks",
        "last",
    ]
    assert {
        result["ruleId"] for result in json.loads(Path("s.json").read_text())["runs"][0]["results"]
    } == {"regression", "error"}
    assert "| bad | **error** | none.json" in Path("s.md").read_text()
    assert "none.json" in Path("h.html").read_text()
    assert sum(line.startswith("::error") for line in told.splitlines()) == 4


def test_a_kind_with_spaces_is_written_and_read(folder: Path) -> None:
    ops = [op | {"kind": "layer norm"} for op in WORKLOAD["ops"]]
    (folder / "toy.json").write_text(json.dumps(WORKLOAD | {"ops": ops}))
    hosim("baseline", "write", "-j", "1")
    hosim("check", "-j", "1")
    assert "no baseline changed" in hosim("baseline", "update", "-j", "1")[1]


@pytest.mark.parametrize(
    "how", ["dots", "absolute", "a link", "the folder itself", "a link of a file"]
)
def test_baselines_lie_in_the_folder_of_the_cases(
    how: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    places = {"dots": f"../{outside.name}", "absolute": str(outside), "the folder itself": "."}
    given = places.get(how, "kept-here")
    (folder / "hosim.toml").write_text(f'baselines = "{given}"\n{CASES}')
    if how == "a link":
        (folder / "kept-here").symlink_to(outside)
    elif how == "a link of a file":
        (folder / "kept-here").mkdir()
        (folder / "kept-here" / "toy.toml").symlink_to(outside / "toy.toml")
    for command in ("write", "update"):
        told = hosim("baseline", command, "-j", "1", code=2)[1]
        assert f"expected a place inside {folder}" in told
        assert len(told.splitlines()) == 1
    assert list(outside.iterdir()) == []


def test_update_removes_no_file_that_is_no_baseline(folder: Path) -> None:
    (folder / "hosim.toml").write_text(f'baselines = "settings"\n{CASES}')
    (folder / "settings").mkdir()
    (folder / "settings" / "mine.toml").write_text("x = 1\n")
    hosim("baseline", "update", "-j", "1")
    assert sorted(path.name for path in (folder / "settings").glob("*.toml")) == [
        "mine.toml",
        "toy.toml",
    ]

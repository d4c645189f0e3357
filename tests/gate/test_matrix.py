"""A matrix: its cases, its baseline file of one line a case, and the same verdicts as of cases
written out.
"""

import json
from itertools import combinations
from pathlib import Path

import pytest
from gate_toys import edit, machine, put, step
from hypothesis import given
from hypothesis import strategies as st

from hosim.cache_plan import Plan
from hosim.errors import HosimError, InputError
from hosim.gate import Suite, check, load_suite, measure, pairs, write
from hosim.gate.judged_metrics import IMPROVEMENT, MISSING, REGRESSION, SAME
from hosim.gate.verdicts import ERROR, INFEASIBLE, exit_code
from hosim.io import save_workload

MATRIX = """
[matrix.all]
workloads = ["step.json", "twice.json"]
hardware = ["small.yaml", "toy"]
policies = ["resident", "on_demand", "belady"]
budgets = ["370 B", "90%"]
"""

SIZES = st.lists(st.integers(1, 7), min_size=3, max_size=3)


def axes(sizes: list[int]) -> list[list[str]]:
    return [[f"{axis}{k}" for k in range(size)] for axis, size in zip("abc", sizes, strict=True)]


@given(SIZES)
def test_every_two_meet_and_no_fewer_could(sizes: list[int]) -> None:
    given_axes = axes(sizes)
    found = pairs(given_axes)
    for one, other in combinations(range(3), 2):
        met = {(row[one], row[other]) for row in found}
        assert len(met) == sizes[one] * sizes[other]
    *_, second, first = sorted(sizes)
    assert len(found) == len(set(found)) == first * second


@given(SIZES)
def test_what_is_appended_to_the_longest_axis_changes_nothing_of_the_others(
    sizes: list[int],
) -> None:
    longest = sizes.index(max(sizes))
    longer = [size + (k == longest) for k, size in enumerate(sizes)]
    assert set(pairs(axes(sizes))) <= set(pairs(axes(longer)))


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    put(tmp_path, Plan(step()), machine(), offloads=False)
    save_workload(step(2), tmp_path / "twice.json")
    (tmp_path / "hosim.toml").write_text(MATRIX)
    return load_suite(tmp_path / "hosim.toml")


def lines(suite: Suite) -> dict[str, str]:
    """The lines of the baseline file by case."""
    text = suite.baseline("all").read_text().partition("[cases]\n")[2]
    return {line.partition(" = ")[0].strip('"'): line for line in text.splitlines()}


def verdicts(suite: Suite) -> dict[str, str]:
    return {found.case: found.verdict for found in check(suite)}


def test_a_line_says_what_a_case_measured_alone_says(suite: Suite) -> None:
    assert write(suite) == [suite.baseline("all")]
    found = lines(suite)
    assert list(found) == sorted(found)
    assert len(found) == 24
    unfit = 0
    for case in suite.cases:
        alone, line = measure(case).record, found[case.name.removeprefix("all/")]
        if alone is None:
            unfit += 1
            assert line.endswith('= "does not fit"')
            continue
        said = line.partition(' = "')[2].partition('"')[0].split()
        told = dict(zip(said[::2], said[1::2], strict=True))
        assert {m: int(told.get(m, 0)) for m in alone.metrics} == dict(alone.metrics)
        assert {key: told[key] for key in ("graph", "plan", "source")} == dict(alone.fingerprints)
    assert 0 < unfit < 24
    assert set(verdicts(suite).values()) == {SAME}
    assert write(suite) == []
    whole = suite.baseline("all").read_text()
    suite.baseline("all").write_text(older := whole.replace('hosim = "', 'hosim = "0.0.'))
    write(suite, only_new=True)
    assert suite.baseline("all").read_text() == older
    write(suite)
    assert suite.baseline("all").read_text() == whole
    again = load_suite(suite.source)
    assert write(again, jobs=2) == []


def test_it_fails_for_what_worsened_and_says_so(suite: Suite, tmp_path: Path) -> None:
    write(suite)
    edit(tmp_path / "step.json", lambda data: data["ops"][12].update(workspace_bytes=25))
    found = check(suite)
    for one in found:
        if "twice" in one.case or "does not fit" in lines(suite)[one.case.removeprefix("all/")]:
            assert one.verdict == SAME
    worse = [one for one in found if one.verdict == REGRESSION]
    assert worse
    assert all("step.json" in one.case and "graph" in one.explanation[0] for one in worse)
    assert any(
        "hbm" in line and "workspace 25 B" in line for one in worse for line in one.explanation
    )
    assert ({one.verdict for one in found}, exit_code(found)) == ({SAME, REGRESSION}, 1)
    edit(tmp_path / "step.json", lambda data: data["tensors"][0].update(bytes=5000))
    found = check(suite)
    assert ({one.verdict for one in found}, exit_code(found)) == ({SAME, INFEASIBLE}, 3)


def test_what_fits_again_is_an_improvement(suite: Suite, tmp_path: Path) -> None:
    edit(tmp_path / "step.json", lambda data: data["tensors"][0].update(bytes=5000))
    write(suite)
    put(tmp_path, Plan(step()), machine(), offloads=False)
    assert verdicts(suite)["all/step.json/small.yaml/on_demand/370 B"] == IMPROVEMENT


def test_lost_and_new_lines(suite: Suite, tmp_path: Path) -> None:
    write(suite)
    (tmp_path / "hosim.toml").write_text(MATRIX.replace('"toy"]', '"h100-80gb-sxm"]'))
    other = load_suite(suite.source)
    found = verdicts(other)
    assert len(found) == 36
    assert {case for case, verdict in found.items() if verdict in (MISSING, INFEASIBLE)} == {
        case for case in found if "/toy/" in case or "/h100-80gb-sxm/" in case
    }
    write(other, only_new=True)
    assert len(lines(other)) == 36
    assert {verdict for case, verdict in verdicts(other).items() if "/toy/" not in case} == {SAME}
    write(other, ["all/step.json/*"])
    assert len(lines(other)) == 36
    write(other)
    assert len(lines(other)) == 24
    other.baseline("gone").write_text('format = "hosim.baselines/1"')
    assert verdicts(other)["gone"] == MISSING


def test_cases_are_chosen_by_name_and_pattern(suite: Suite) -> None:
    name = "all/step.json/toy/belady/90%"
    assert [case.name for case in suite.named([name])] == [name]
    assert len(suite.named(["all"])) == len(suite.named([])) == 24
    assert len(suite.named(["*/toy/*", name])) == 12
    with pytest.raises(
        InputError, match=r"unknown case 'al' \(did you mean 'all'|unknown case 'al'"
    ):
        suite.named(["al"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('"twice.json"', '"step.json"'), "matrix.all: 'step.json' is listed twice"),
        (('["370 B", "90%"]', "[]"), "matrix.all.budgets: "),
        (("[matrix.all]", "[matrix.'a b']"), "matrix.a b: expected a name of letters"),
        (("budgets", "budget"), "unknown key 'budget'; did you mean 'budgets'"),
        (
            ("[matrix.all]", '[cases.all]\nhardware = "toy"\nworkload = "x"\n[matrix.all]'),
            "a case has this name too",
        ),
        (
            ("[matrix.all]", '[matrix.all]\ncover = "some"'),
            "matrix.all.cover: expected 'all' or 'pairs'",
        ),
    ],
    ids=map(str, range(6)),
)
def test_what_is_wrong_with_a_matrix_is_said(
    suite: Suite, change: tuple[str, str], expected: str
) -> None:
    Path(suite.source).write_text(MATRIX.replace(*change))
    with pytest.raises(InputError) as raised:
        load_suite(suite.source)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "damage",
    ['"x"', '"makespan five graph a machine b plan c"', '"makespan 5 graph a"', "5", '"', '""'],
)
def test_a_damaged_line_is_said_and_written_again(suite: Suite, damage: str) -> None:
    write(suite)
    file = suite.baseline("all")
    whole = file.read_text()
    (name, line), *_ = lines(suite).items()
    file.write_text(whole.replace(line, f"{json.dumps(name)} = {damage}"))
    for found in check(suite):
        assert found.verdict == ERROR
        assert found.note.startswith(str(file))
    write(suite)
    assert file.read_text() == whole


def test_an_error_names_its_case(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "hosim.toml").write_text(MATRIX.replace('"belady"', '"beladi"'))
    found = check(load_suite(suite.source))
    wrong = [v for v in found if v.verdict == ERROR]
    assert {v.case.split("/")[3] for v in wrong} == {"beladi"}
    assert all("unknown policy 'beladi'" in v.note for v in wrong)
    assert {v.verdict for v in found if v not in wrong} == {MISSING, INFEASIBLE}
    with pytest.raises(
        HosimError, match=r"case all/step.json/small.yaml/beladi/370 B: .* \(and \d more\)"
    ):
        write(load_suite(suite.source))
    (tmp_path / "hosim.toml").write_text(MATRIX)
    again = {(v.case.split("/")[3] == "belady", v.verdict) for v in check(suite)}
    assert again == {(False, SAME), (True, MISSING), (True, INFEASIBLE)}

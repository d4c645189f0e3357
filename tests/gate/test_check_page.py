"""The page of a check: what every other report says, memory before and now in one picture, and what
the plan does otherwise.
"""

import base64
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from gate_toys import figures, machine, offloading, put, step, suite, verdict

from hosim.cache_plan import Plan
from hosim.gate import check, check_page, measure, write
from hosim.gate.records import Record, save_record
from hosim.gate.verdicts import CaseVerdict, PlanChange, plan_changes
from hosim.graph import Graph
from hosim.report.drawn import Curve, change_figure


@pytest.fixture
def never_away(tmp_path: Path) -> CaseVerdict:
    """A plan that no longer moves the first layer's activation."""
    put(tmp_path, offloading(step()), machine(), offloads=True)
    cases = suite(tmp_path, offloads=True)
    made = measure(cases.cases[0]).record
    assert made is not None
    save_record(made, cases.baseline("step"), curve=True)
    put(tmp_path, Plan(step(), "manual"), machine(), offloads=True)
    return verdict(tmp_path, offloads=True)


def rows(page: str) -> list[list[str]]:
    """The cells of every row, as text."""
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", page)
    return [
        [unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)] for row in found
    ]


def test_it_says_what_the_verdict_says(never_away: CaseVerdict) -> None:
    page = check_page([never_away])
    grown = (
        figures(Plan(step(), "manual"), machine())["peak.hbm"]
        - figures(offloading(step()), machine())["peak.hbm"]
    )
    (peak,) = [row for row in rows(page) if row[0] == "peak.hbm"]
    assert peak[1] == "regression"
    assert peak[4] == f"+{grown} B"
    said = unescape(page).replace("<code>", "`").replace("</code>", "`")
    assert all(f"<li>{line}</li>" in said for line in never_away.explanation)
    assert ["layers.0.act (activation), over d2h", "30 B moved", "not moved"] in rows(page)
    assert ["layers.0.act (activation), over h2d", "30 B moved", "not moved"] in rows(page)
    assert page == check_page([never_away])
    (picture,) = re.findall(r'src="data:image/svg[+]xml;base64,([^"]*)"', page)
    assert b">Memory: hbm</text>" in base64.b64decode(picture)


def test_what_is_the_same_has_a_row_and_no_more(tmp_path: Path) -> None:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    cases = suite(tmp_path, offloads=True)
    write(cases)
    page = check_page(check(cases))
    assert rows(page)[1:] == [["step", "same", ""]]
    assert "<h2>" not in page
    assert "<img" not in page


def test_a_case_without_a_baseline_and_one_that_does_not_fit(never_away: CaseVerdict) -> None:
    assert never_away.before is not None
    missing = CaseVerdict("<b>", "missing", note="no baseline yet", measured=never_away.measured)
    lost = CaseVerdict("full", "infeasible", note="out of memory: 5 > 3", before=never_away.before)
    page = check_page([missing, lost])
    assert rows(page)[1:] == [
        ["<b>", "missing", "no baseline yet"],
        ["full", "infeasible", "out of memory: 5 > 3"],
    ]
    assert "<h2>&lt;b&gt;: missing</h2>" in page
    assert "<img" not in page


def test_a_changed_span_is_a_change_of_the_plan(tmp_path: Path) -> None:
    put(tmp_path, offloading(step(), "layers.3.relu"), machine(), offloads=True)
    write(suite(tmp_path, offloads=True))
    put(tmp_path, offloading(step(), "layers.3.norm"), machine(), offloads=True)
    found = verdict(tmp_path, offloads=True)
    assert found.before is not None
    assert found.measured is not None
    change = PlanChange(
        "layers.0.act (activation), at the peak",
        "from layers.3.relu to layers.0.back",
        "from layers.3.norm to layers.0.back",
        30,
    )
    assert plan_changes(found.before, found.measured) == [change]


def test_other_names_are_no_change(tmp_path: Path) -> None:
    put(tmp_path, offloading(step()), machine(), offloads=True)
    write(suite(tmp_path, offloads=True))
    plan = offloading(step())
    other = Graph(
        "step",
        tuple(replace(t, name=f"other.{t.name}") for t in plan.graph.tensors),
        plan.graph.ops,
    )
    put(tmp_path, replace(plan, graph=other), machine(), offloads=True)
    found = verdict(tmp_path, offloads=True)
    before, measured = found.before, found.measured
    assert isinstance(before, Record)
    assert measured is not None
    assert (
        plan_changes(replace(before, fingerprints={}), measured) == []
    )  # even if the fingerprints did not tell


def test_curves_are_as_long_as_their_steps_and_the_difference_is_filled() -> None:
    (axes,) = change_figure(Curve((4, 8), 200), Curve((4, 12, 6), 150), "hbm").axes
    before, now = axes.patches
    assert [list(values) for values in before.get_data()[:2]] == [[4, 8], [0, 100, 200]]  # type: ignore[attr-defined]
    assert [list(values) for values in now.get_data()[:2]] == [[4, 12, 6], [0, 50, 100, 150]]  # type: ignore[attr-defined]
    (filled,) = axes.collections
    (outline,) = filled.get_paths()
    high = {x: max(y for at, y in outline.vertices if at == x) for x in (50, 100)}
    assert high == {50: 12, 100: 12}  # at 100 the step goes down to 8 within the same x
    assert axes.get_xlim() == (0, 200)

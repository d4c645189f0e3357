"""What studies say of their findings, word by word, from findings made by hand; and what they say
of bad input.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rendered import facts
from sweeping import MACHINE, chain

from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InputError, PlanError
from hosim.result import Result
from hosim.study import Blame, ExplainedStall, blame, lines, side_of
from hosim.study.asked import Axis, parse_choice, read_points, read_vary
from hosim.study.runs import Question, check, unplanned
from hosim.study.searches import Fit, Frontier, Probe, frontier

GRAPH = chain(3)
QUESTION = Question(GRAPH, MACHINE, parse_choice("layerwise"), 100)
REPLAYED = replay(Plan(GRAPH), MACHINE)


def result(budget: int, makespan: int | None, peak: int = 0) -> Result:
    if makespan is None:
        return unplanned(GRAPH, MACHINE, QUESTION.choice, budget, "out of memory; and more")
    return replace(
        REPLAYED, budget_bytes=budget, makespan_ns=makespan, peak_bytes={"hbm": peak, "ddr": 3}
    )


def test_what_a_frontier_says() -> None:
    found = [
        result(50, None),
        result(60, 900, 60),
        result(70, 900, 58),
        result(80, 700, 77),
        result(90, 700, 77),
        result(95, 800, 95),
    ]
    curve = Frontier(QUESTION, found, 60, 50, ["95 B takes 800 ns, longer than 700 ns within 90 B"])
    assert [(r.budget_bytes, r.makespan_ns) for r in curve.pareto] == [(70, 900), (80, 700)]
    assert list(curve.frame["pareto"]) == [False, False, True, True, False, False]
    assert list(curve.frame["budget_bytes"]) == [50, 60, 70, 80, 90, 95]
    assert (
        facts(str(curve), "layerwise")
        == "layerwise, 60 B, 50 B, 900 ns, 58 B, 700 ns, 77 B, 95 B, 800 ns, 700 ns, 90 B"
    )
    assert (
        facts(str(replace(curve, too_small_bytes=None, contradictions=[])), "layerwise")
        == "layerwise, 60 B, 900 ns, 58 B, 700 ns, 77 B"
    )
    assert repr(curve) == str(curve)
    page = curve._repr_html_()
    verdict, _, tables = page.partition("</p>\n")
    assert verdict == f"<p>{curve}."
    title, _, rows = tables.partition("</h4>\n")
    assert (facts(title), rows[:7]) == ("60 ns", "<table>")
    none = str(Frontier(QUESTION, found[:1], None, None, []))
    assert facts(none, "layerwise") == "layerwise"
    for points, refine, said in (
        (1, 0, "frontier: expected at least 2 points, got 1"),
        (2, -1, "frontier: expected at least 0, got -1"),
    ):
        with pytest.raises(InputError) as refused:
            frontier(QUESTION, points, refine)
        assert str(refused.value) == said


def test_which_budgets_a_frontier_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs 40 B, and takes 700 ns from 60 B on. It may have 90 B; the largest op needs 32 B.

    No 32 B; bisected, 61, 46, 39 (does not fit), 42, 40 and no smaller: 40. Evenly: 40, 65 and 90.
    Then the step from 46 to 61 is the only one: its middle 53, the middle 57 of 53 and 61, the
    middle 59 of 57 and 61.
    """
    asked: list[int] = []

    def made(question: Question) -> Result:
        asked.append(question.budget_bytes)
        return result(
            asked[-1], None if asked[-1] < 40 else 1000 if asked[-1] < 60 else 700, asked[-1]
        )

    monkeypatch.setattr("hosim.study.searches.frontiers.attempt", made)
    told: list[str] = []
    found = frontier(replace(QUESTION, budget=90), 3, 3, told.append)
    assert asked == [90, 32, 61, 46, 39, 42, 40, 65, 53, 57, 59]
    assert [facts(line, "layerwise") for line in told] == [f"layerwise, {b} B" for b in asked]
    assert [r.budget_bytes for r in found.results] == sorted(asked)
    assert (found.smallest_bytes, found.too_small_bytes, found.contradictions) == (40, 39, [])
    assert [r.budget_bytes for r in found.pareto] == [40, 61]
    asked.clear()
    assert len(frontier(replace(QUESTION, budget=90), 3, 0).results) == 8
    none = frontier(replace(QUESTION, budget=30), 3, 3)
    assert (none.smallest_bytes, none.too_small_bytes, [r.budget_bytes for r in none.results]) == (
        None,
        None,
        [30],
    )


def test_what_a_fit_says() -> None:
    fits = Probe(4, True, "", 2, replace(result(100, 1234), ideal_ns=1000))
    slow = Probe(8, False, "takes 2.000 times as long", 3, replace(result(100, 1000), ideal_ns=500))
    over = Probe(16, False, "does not fit", 4, result(100, None))
    found = Fit(
        "largest",
        Axis(("a", "b"), (1, 2, 4, 8, 16)),
        [fits, slow, over],
        fits,
        slow,
        ["a contradiction"],
        QUESTION,
        1.5,
    )
    assert (found.value, found.exact, fits.slowdown, slow.slowdown, over.slowdown) == (
        4,
        True,
        1.234,
        2.0,
        None,
    )
    assert facts(str(found), "resident") == "4, 1.23 us, 1.234, resident, 8, 2.000"
    assert not replace(found, beyond=over).exact
    last = replace(
        found,
        beyond=None,
        contradictions=[],
        answer=replace(fits, result=replace(fits.result, ideal_ns=0)),
    )
    assert (last.exact, facts(str(last))) == (True, "4, 1.23 us")
    none = replace(found, answer=None, beyond=None, probes=[over])
    assert (none.value, none.exact) == (None, False)
    assert facts(str(none)) == "16"
    assert list(found.frame["a + b"]) == [4, 8, 16]
    assert list(found.frame["within"]) == [True, False, False]
    assert list(found.frame["why"]) == ["", "takes 2.000 times as long", "does not fit"]
    assert list(found.frame["feasible"]) == [True, True, False]
    assert "error" not in found.frame


PRICE = blame(QUESTION).prices[0]


def price(
    what: str,
    added: str,
    makespan_ns: int | None,
    saves_ns: int | None,
    together: tuple[str, ...] = (),
    note: str = "",
) -> Any:
    return replace(
        PRICE,
        what=what,
        added=added,
        makespan_ns=makespan_ns,
        saves_ns=saves_ns,
        together=together,
        note=note,
    )


def test_what_prices_say() -> None:
    assert facts(str(price("hbm", "1 GB", None, None)), "hbm") == "+1 GB, hbm"
    assert facts(str(price("hbm", "1 GB", 5, 0)), "hbm") == "+1 GB, hbm"
    assert (
        facts(str(price("h2d", "1.00 GB/s", 5, 7, ("link", "bus"))), "h2d", "link", "bus")
        == "+1.00 GB/s, h2d, link, bus, 7 ns"
    )
    assert str(price("h2d", "1.00 GB/s", 5, -7)) == "+1.00 GB/s of h2d costs 7 ns"
    partly = price("ddr", "twice the FLOP/s", 5, 0, note="the times of 1 of 2 of its ops are given")
    assert facts(str(partly), "ddr") == "ddr, 1, 2"
    unknown = price("ddr", "pageable memory", None, None, note="nobody knows")
    assert str(unknown) == "pageable memory of ddr: nobody knows"
    idle = [price("hbm", "1 GB", 5, 0), price("h2d", "1.00 GB/s", 5, 0, ("link",))]
    said = [
        "twice the FLOP/s of ddr: the times of 1 of 2 of its ops are given",
        str(unknown),
        "Nothing is saved by +1 GB of hbm; +1.00 GB/s of h2d (with link)",
    ]
    assert lines([partly, *idle, unknown]) == said


def test_what_a_blame_says() -> None:
    stalls = [
        ExplainedStall(
            "compute", "f0", "transfer", 5, 15, "x", tensor="w", channel="h2d", occupied=("a", "b")
        ),
        ExplainedStall("compute", "f1", "capacity", 20, 24, "y"),
        ExplainedStall("compute", "f2", "transfer", 30, 33, "z", tensor="w", channel="h2d"),
    ]
    link = price("h2d", "1.00 GB/s", 5, 7, ("link", "bus"))
    found = Blame("layerwise", result(100, 1000), stalls, [link], True, {"ops on hbm": 1000})
    assert dict(found.by_cause) == {("transfer", "h2d"): 13, ("capacity", ""): 4}
    assert facts(str(found), "layerwise", "h2d") == "layerwise, 1.00 us, 17 ns, 13 ns, h2d, 4 ns"
    drain = ExplainedStall("compute", "", "drain", 900, 1000, "z", processor="ddr")
    both = replace(found, stalls=[drain], path_ns={"ops on hbm": 900, "ops on ddr": 100})
    assert (
        facts(str(both), "layerwise", "ddr", "hbm")
        == "layerwise, 1.00 us, 100 ns, 100 ns, ddr, 900 ns, hbm, 100 ns, ddr"
    )
    assert facts(str(replace(found, stalls=[])), "layerwise") == "layerwise, 1.00 us"
    assert list(found.frame["occupied"]) == ["a, b", "", ""]
    assert found.price_frame.to_dict("records") == [
        {
            "what": "h2d",
            "added": "1.00 GB/s",
            "makespan_ns": 5,
            "saves_ns": 7,
            "together": "link, bus",
            "note": "",
        }
    ]
    page = found._repr_html_()
    assert page.startswith("<h4>Stalls (the longest 3 of 3)</h4>\n<table>")
    assert page.endswith(f"<p>{link}</p>\n<p>{found}.</p>")
    assert page.index("f0") < page.index("f1") < page.index("f2")


def test_a_result_is_a_side_by_itself() -> None:
    side = side_of(REPLAYED)
    assert (side.label, side.result, side.plan, side.device_tier) == (
        REPLAYED.policy,
        REPLAYED,
        None,
        "hbm",
    )


def test_a_policy_whose_plan_breaks_rules_says_how_many() -> None:
    def said(*moves: CacheOp) -> tuple[str, list[str]]:
        with pytest.raises(PlanError) as refused:
            check(Plan(GRAPH, "clumsy", moves), MACHINE, 10**9)
        return str(refused.value), list(refused.value.findings)

    w1, w2 = (CacheOp("detach", GRAPH.tensor_index[name], "hbm", None, 0) for name in ("w1", "w2"))
    both, each = said(w1, w2)
    assert len(each) > 1
    assert (
        both == "policy clumsy made a plan that breaks a rule, which is a bug of the policy: "
        f"{each[0]} (and {len(each) - 1} more)"
    )
    one, only = said(w1)
    assert len(only) == 1
    assert (
        one
        == f"policy clumsy made a plan that breaks a rule, which is a bug of the policy: {only[0]}"
    )


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        (5, "vary: expected a mapping from fields to values, or a list of points, got 5"),
        ([{"a": 1}, {}], "vary: expected points, each a mapping from fields to values"),
        ([{"a": 1}, "b=2"], "vary: expected points, each a mapping from fields to values"),
        ([{"a": 1}, {"b": 1}], "vary: expected every point of the list to set the same fields"),
        ({"a": [1, [2]]}, "a: expected a list of numbers or texts, got [1, [2]]"),
        ({"a": []}, "a: expected a list of numbers or texts, got []"),
    ],
)
def test_what_cannot_be_varied(vary: object, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_vary(vary)
    assert str(refused.value) == said


def test_points_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("a , policy.k\n\n1, 2 GB/s\n x,3\n")
    assert read_points(str(path)) == [{"a": 1, "policy.k": "2 GB/s"}, {"a": "x", "policy.k": 3}]
    assert [
        type(point["a"])
        for point in read_vary({"a": np.arange(2)}) + read_vary([{"a": np.float32(0.5)}])
    ] == [int, int, float]
    assert read_vary({"a + b": 7, "c": "1..2"}) == [
        {"a": 7, "b": 7, "c": 1},
        {"a": 7, "b": 7, "c": 2},
    ]
    for text, said in (
        ("a,b\n", ": expected a line of fields and lines of their values, separated by commas"),
        ("a,b\n1,2\n3\n", ": line 3: expected 2 values, got 1"),
    ):
        path.write_text(text)
        with pytest.raises(InputError) as refused:
            read_points(str(path))
        assert str(refused.value) == f"{path}{said}"

"""Every report of a check, and the table of a baseline, in full, for verdicts and records made by
hand.
"""

import re
from dataclasses import replace
from io import StringIO
from textwrap import dedent

import pytest
from rendered import facts
from rich.console import Console, RenderableType

from hosim import gate
from hosim.gate.judged_metrics import (
    DRIFT,
    IMPROVEMENT,
    MISSING,
    NEW,
    REGRESSION,
    SAME,
    MetricVerdict,
)
from hosim.gate.records import Item, Listing, Measured, PeakRecord, Record
from hosim.gate.verdicts import INFEASIBLE, CaseVerdict, exit_code, judge, summary
from hosim.version import __version__


def record(
    curve: tuple[int, ...] = (), hosim: str = "1", replay: int = 1, **metrics: int
) -> Record:
    named = {name.replace("_", "."): value for name, value in metrics.items()}
    return Record(
        "worse",
        {"policy": "p"},
        {},
        named,
        {"device_tier": "hbm"},
        {},
        {},
        Listing(),
        Listing(),
        curve,
        hosim,
        {"replay": replay},
    )


PEAK = MetricVerdict("peak.hbm", 1000, 1300, REGRESSION)
SLOWER = MetricVerdict("makespan", 100, 150, REGRESSION)
FASTER = MetricVerdict("makespan", 4000, 3000, IMPROVEMENT)
LESS = MetricVerdict("moved.h2d", 30, 20, DRIFT)
KEPT = MetricVerdict("peak.ddr", 7, 7, SAME)

WORSE = CaseVerdict(
    "wor|se: 50%, a",
    REGRESSION,
    (SLOWER, KEPT, PEAK),
    ("peak.hbm: more", "`a` 100%"),
    "by another hosim",
    "base/wor,se.toml",
    record((0, 24, 48)),
    Measured(record((48, 1, 47))),
)
BETTER = CaseVerdict("better", IMPROVEMENT, (FASTER, LESS), baseline="base/better.toml")
FIRST = CaseVerdict(
    "first",
    MISSING,
    (MetricVerdict("makespan", None, 5, NEW),),
    (),
    "no baseline",
    "base/first.toml",
)
UNFIT = CaseVerdict("unfit\x01", INFEASIBLE, note="out of\nmemory", baseline="base/unfit.toml")
EQUAL = CaseVerdict("equal", SAME, (KEPT,), baseline="base/equal.toml")
LINE = CaseVerdict("m/line", SAME, (KEPT,), note="as before: does not fit", baseline="base/m.toml")
WORSE, BETTER, FIRST, UNFIT = (
    replace(one, place=(one.baseline, 3)) for one in (WORSE, BETTER, FIRST, UNFIT)
)
ALL = (WORSE, BETTER, FIRST, UNFIT, EQUAL, LINE)


def shown(what: RenderableType) -> str:
    console = Console(width=120, file=StringIO(), color_system=None)
    console.print(what, crop=False)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def styles(what: RenderableType) -> dict[str, str]:
    """The style of each text."""
    console = Console(width=120, file=StringIO())
    return {s.text.strip(): str(s.style) for s in console.render(what) if s.text.strip()}


def test_json() -> None:
    assert gate.to_dict(ALL) == {
        "format": "hosim.check/1",
        "hosim": __version__,
        "passed": False,
        "cases": [
            {
                "case": "wor|se: 50%, a",
                "verdict": "regression",
                "fails": True,
                "note": "by another hosim",
                "baseline": "base/wor,se.toml",
                "metrics": {
                    "makespan": {"verdict": "regression", "before": 100, "now": 150},
                    "peak.ddr": {"verdict": "same", "before": 7, "now": 7},
                    "peak.hbm": {"verdict": "regression", "before": 1000, "now": 1300},
                },
                "explanation": ["peak.hbm: more", "`a` 100%"],
            },
            case(
                "better",
                "improvement",
                False,
                None,
                makespan=("improvement", 4000, 3000),
                moved_h2d=("drift", 30, 20),
            ),
            case("first", "missing", True, "no baseline", makespan=("new", None, 5)),
            case("unfit", "infeasible", True, "out of\nmemory") | {"case": "unfit\x01"},
            case("equal", "same", False, None, peak_ddr=("same", 7, 7)),
            case("m/line", "same", False, "as before: does not fit", peak_ddr=("same", 7, 7))
            | {"baseline": "base/m.toml"},
        ],
    }
    assert gate.to_dict([BETTER, EQUAL])["passed"]
    strict = gate.to_dict([BETTER, EQUAL], strict=True)
    assert (strict["passed"], [c["fails"] for c in strict["cases"]]) == (False, [True, False])


def case(
    name: str,
    verdict: str,
    fails: bool,
    note: str | None,
    **metrics: tuple[str, int | None, int | None],
) -> dict[str, object]:
    listed = {
        key.replace("_", "."): dict(zip(("verdict", "before", "now"), figures, strict=True))
        for key, figures in metrics.items()
    }
    said = {
        "case": name,
        "verdict": verdict,
        "fails": fails,
        "note": note,
        "baseline": f"base/{name}.toml",
    }
    return {**said, "metrics": listed, "explanation": []}


def test_junit() -> None:
    assert gate.junit(ALL) == dedent("""\
        <?xml version="1.0" encoding="utf-8"?>
        <testsuite name="hosim" tests="6" failures="3" errors="0" skipped="0">
          <testcase classname="hosim.check" name="wor|se: 50%, a">
            <failure type="regression" message="wor|se: 50%, a: regression: peak.hbm: 1.27 KiB, was 1000 B (+300 B, +30.0 %)">by another hosim
        peak.hbm: more
        `a` 100%</failure>
          </testcase>
          <testcase classname="hosim.check" name="better" />
          <testcase classname="hosim.check" name="first">
            <failure type="missing" message="first: missing: no baseline">no baseline</failure>
          </testcase>
          <testcase classname="hosim.check" name="unfit?">
            <failure type="infeasible" message="unfit?: infeasible: out of&#10;memory">out of
        memory</failure>
          </testcase>
          <testcase classname="hosim.check" name="equal" />
          <testcase classname="hosim.check" name="m/line" />
        </testsuite>
        """)  # noqa: E501
    strict = gate.junit([BETTER], strict=True).splitlines()
    assert strict[1] == '<testsuite name="hosim" tests="1" failures="1" errors="0" skipped="0">'
    faster = "makespan: 3.00 us, was 4.00 us (-1.00 us, -25.0 %)"
    assert strict[3:5] == [
        f'    <failure type="improvement" message="better: improvement: {faster}">{faster}',
        "moved.h2d: 20 B, was 30 B (-10 B, -33.3 %)</failure>",
    ]
    odd = CaseVerdict("\t\n\x1f \ud800\udfff\ue000\ufffd\ufffe\uffff", SAME)
    assert 'name="&#09;&#10;? ??\ue000\ufffd??"' in gate.junit([odd])


def test_sarif() -> None:
    def result(rule: str, text: str, uri: str) -> dict[str, object]:
        where = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 3}}}
        return {"ruleId": rule, "level": "error", "message": {"text": text}, "locations": [where]}

    rules = [
        {"id": rule, "shortDescription": {"text": f"simulated step: {rule}"}}
        for rule in ("improvement", "infeasible", "missing", "regression")
    ]
    headline = "wor|se: 50%, a: regression: peak.hbm: 1.27 KiB, was 1000 B (+300 B, +30.0 %)"
    faster = "makespan: 3.00 us, was 4.00 us (-1.00 us, -25.0 %)"
    assert gate.sarif(ALL, strict=True) == {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "hosim", "version": __version__, "rules": rules}},
                "results": [
                    result(
                        "regression",
                        f"{headline}\nby another hosim\npeak.hbm: more\n`a` 100%",
                        "base/wor,se.toml",
                    ),
                    result(
                        "improvement",
                        f"better: improvement: {faster}\n{faster}\nmoved.h2d: 20 B, was 30 B (-10 "
                        "B, -33.3 %)",
                        "base/better.toml",
                    ),
                    result(
                        "missing", "first: missing: no baseline\nno baseline", "base/first.toml"
                    ),
                    result(
                        "infeasible",
                        "unfit\x01: infeasible: out of\nmemory\nout of\nmemory",
                        "base/unfit.toml",
                    ),
                ],
            }
        ],
    }
    (run,) = gate.sarif([BETTER, EQUAL])["runs"]
    assert (run["results"], run["tool"]["driver"]["rules"]) == ([], [])


def test_annotations_of_github() -> None:
    assert gate.github(ALL) == [
        "::error file=base/wor%2Cse.toml,line=3,title=wor|se%3A 50%25%2C a%3A regression%3A "
        "peak.hbm%3A 1.27 KiB%2C was 1000 B "
        "(+300 B%2C +30.0 %25)::by another hosim%0Apeak.hbm: more%0A`a` 100%25",
        "::error file=base/first.toml,line=3,title=first%3A missing%3A no baseline::no baseline",
        "::error file=base/unfit.toml,line=3,title=unfit\\x01%3A infeasible%3A out "
        "of\\nmemory::out of\\nmemory",
    ]
    bare = CaseVerdict("a\rb", IMPROVEMENT)
    assert gate.github([bare], strict=True) == [
        "::error file=,line=1,title=a\\rb%3A improvement::a\\rb: improvement"
    ]


def test_the_summary_of_a_step_with_memory_before_and_now() -> None:
    """The levels 0, 24, 48 of 48 are 0, 3 and 6 full characters; 1 and 47 are an eighth of one, and
    all of six but an eighth.
    """
    peak = "peak.hbm: 1.27 KiB, was 1000 B (+300 B, +30.0 %)"
    assert gate.markdown(ALL) == dedent(f"""\
        <!-- hosim check -->
        ### hosim: 1 infeasible, 1 missing, 1 regression, 1 improvement, 2 same

        | case | verdict | what changed |
        |---|---|---|
        | wor\\|se: 50%, a | **regression** | makespan: 150 ns, was 100 ns (+50 ns, +50.0 %)<br>{peak} |
        | better | improvement | makespan: 3.00 us, was 4.00 us (-1.00 us, -25.0 %)<br>moved.h2d: 20 B, was 30 B (-10 B, -33.3 %) |
        | first | **missing** | no baseline |
        | unfit\\x01 | **infeasible** | out of memory |
        | equal | same |  |

        #### wor\\|se: 50%, a: regression

        ```
        by another hosim
        peak.hbm: more
        `a` 100%
        ```

        Device memory over time, before and now:

        ```
        before: 0 B to 48 B
        │  █
        │  █
        │  █
        │ ██
        │ ██
        │ ██
        └───
        now: 1 B to 48 B
        │█ ▇
        │█ █
        │█ █
        │█ █
        │█ █
        │█▁█
        └───
        ```

        #### first: missing

        ```
        no baseline
        ```

        #### unfit\\x01: infeasible

        ```
        out of\\nmemory
        ```
        """)
    assert "#### better: improvement" in gate.markdown([BETTER], strict=True)
    unknown = CaseVerdict(
        "x", REGRESSION, explanation=("e",), before=record((1, 2)), measured=Measured(record())
    )
    assert "Device memory" not in gate.markdown([unknown])


def test_cases_with_one_cause_are_one_sentence() -> None:
    cause = ("`a2` (activation) has 28.6 MiB, had 19.1 MiB", "peak.hbm: more")
    cases = [
        CaseVerdict(name, REGRESSION, (SLOWER, PEAK), cause, place=("shop/model.py", 5))
        for name in "abcde"
    ]
    other = CaseVerdict("x", REGRESSION, (SLOWER,), ("case: budget is 1 B, was 2 B",))
    lines = gate.markdown([*cases, other, WORSE]).splitlines()
    assert [facts(line) for line in lines[1:5:2]] == [
        "300 B, +30.0 %, 300 B, +30.0 %, 300 B, +30.0 %, 2, a2\\, 28.6 MiB, 19.1 MiB, 5",
        "50 ns, +50.0 %, 1 B, 2 B",
    ]
    assert lines[5].startswith("### hosim: 7 regressions")  # that a peak is worse is no cause


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x>",
        "[a](javascript:b)",
        "*a*_b_",
        "a|b",
        "a\\|b",
        "`a`",
        "&lt;b&gt;",
        "~~a~~",
        "![a](b)",
    ],
)
def test_a_name_is_no_markup(name) -> None:
    """Names of tiers, channels and cases come from files of others."""
    metric = MetricVerdict(f"peak.{name}", 1, 2, REGRESSION)
    text = gate.markdown(
        [CaseVerdict(name, REGRESSION, metrics=(metric,), explanation=(f"```{name}```", "````"))]
    )
    row = next(line for line in text.splitlines() if line.startswith("| ") and "regression" in line)
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 4
    assert not re.search(r"(?<!\\)[`<\[_~&]", row.replace("<br>", "").replace("**regression**", ""))
    assert f"`````\n```{name}```\n````\n`````" in text


def test_curves_of_one_level_are_full() -> None:
    assert list(gate.curves((5, 5), (5,)))[:3] == ["before: 5 B to 5 B", "│██", "│██"]
    assert list(gate.curves((10, 11), (13,)))[1:8] == [
        "│",
        "│",
        "│",
        "│",
        "│ █",
        "│ █",
        "└──",
    ]  # a third of six


def test_the_headline_is_a_peak_if_there_is_one() -> None:
    assert (
        gate.headline(BETTER)
        == "better: improvement: makespan: 3.00 us, was 4.00 us (-1.00 us, -25.0 %)"
    )
    assert gate.headline(EQUAL) == "equal: same: peak.ddr: 7 B, was 7 B (+0 B, +0.0 %)".replace(
        "+0 B", "0 B"
    )
    assert gate.headline(CaseVerdict("bare", SAME)) == "bare: same"


def test_the_table_of_a_check() -> None:
    added = CaseVerdict("added", DRIFT, (MetricVerdict("peak.[x]", None, 9, NEW), KEPT))
    assert (
        shown(gate.verdicts([*ALL, added]))
        == dedent("""\
        Check

         case            verdict      metric      before       now    change
         ───────────────────────────────────────────────────────────────────
         wor|se: 50%, a  regression   makespan    100 ns    150 ns    +50 ns
         wor|se: 50%, a  regression   peak.hbm    1000 B  1.27 KiB    +300 B
         better          improvement  makespan   4.00 us   3.00 us  -1.00 us
         better          drift        moved.h2d     30 B      20 B     -10 B
         first           missing      -                -         -         -
         unfit\\x01       infeasible   -                -         -         -
         equal           same         -                -         -         -
         added           new          peak.[x]         -       9 B      +9 B

        wor|se: 50%, a: regression
          by another hosim
          peak.hbm: more
          `a` 100%

        first: missing
          no baseline

        unfit\\x01: infeasible
          out of\\nmemory

        7 cases: 1 infeasible, 1 missing, 1 regression, 1 improvement, 1 drift, 2 same; 3 failing.""")
    )
    assert shown(gate.verdicts([LINE])) == "1 case: 1 same."
    assert shown(gate.verdicts([EQUAL, LINE])).splitlines()[-1] == "2 cases: 2 same."
    asked = replace(EQUAL, explanation=("case: budget is 2 GB, was 1 GB",))
    assert "\n\nequal: same\n  case: budget is 2 GB, was 1 GB\n" in shown(gate.verdicts([asked]))
    assert shown(gate.verdicts([BETTER])).endswith("\n1 case: 1 improvement.")
    assert shown(gate.verdicts([BETTER], strict=True)).endswith(
        "\n1 case: 1 improvement; 1 failing."
    )
    long = CaseVerdict("long", REGRESSION, explanation=("word " * 40 + "end",))
    assert "  " + "word " * 40 + "end" in shown(gate.verdicts([long])).splitlines()


def test_colours_of_a_check() -> None:
    table = gate.verdicts(
        [
            WORSE,
            BETTER,
            FIRST,
            EQUAL,
            CaseVerdict("added", DRIFT, (MetricVerdict("peak.x", None, 9, NEW), KEPT)),
        ]
    )
    found = styles(table)
    wanted = {
        "150 ns": "red",
        "3.00 us": "green",
        "20 B": "None",
        "first": "red",
        "equal": "None",
        "peak.x": "yellow",
    }
    assert {text: found[text] for text in wanted} == wanted
    assert (found["wor|se: 50%, a: regression"], found["first: missing\n  no baseline"]) == (
        "red",
        "None",
    )
    assert (
        found["5 cases: 1 missing, 1 regression, 1 improvement, 1 drift, 1 same; 2 failing."]
        == "bold red"
    )
    assert styles(gate.verdicts([EQUAL]))["1 case: 1 same."] == "bold"


def test_the_table_of_a_baseline() -> None:
    held = PeakRecord("f", {"a": 2, "optimizer_state": 2048}, Listing((Item("parameter", "w", 2),)))
    made = Record(
        "step", {"workload": "w.json", "policy": "p"}, {}, {"peak.[hbm]": 2050, "makespan": 1500}, {},
        {"hbm": held, "ddr": PeakRecord(None, {}, Listing())}, {}, Listing(), Listing(), (), "0.5", {"replay": 7, "planner": 3},
    )  # fmt: skip
    answer, tables = gate.baseline(made)
    assert answer.title == "step: workload w.json, policy p"
    assert facts(answer.verdict, "ddr", "hbm") == "ddr, 0 B, hbm, 2.00 KiB, 2.00 KiB, 2 B"
    assert answer.rows == (("makespan", "1.50 us"), ("peak.[hbm]", "2.00 KiB"))
    assert shown(tables) == dedent("""\
        step: workload w.json, policy p

         metric         value
         ────────────────────
         makespan     1.50 us
         peak.[hbm]  2.00 KiB

        ddr at its peak

         kind  bytes
         ───────────

        hbm at its peak, at op f

         kind                bytes
         ─────────────────────────
         optimizer state  2.00 KiB
         a                     2 B

        Written by hosim 0.5 (versions: replay 7, planner 3).""")
    assert styles(tables)["Written by hosim 0.5 (versions: replay 7, planner 3)."] == "dim"
    unasked = Record("step", {}, {}, {}, {}, {}, {}, Listing(), Listing(), (), "0.5", {})
    assert shown(gate.baseline(unasked)[1]).splitlines()[0] == "step"


def test_cells_of_a_metric() -> None:
    def cells(name: str, before: int | None, now: int | None) -> tuple[str, ...]:
        page = gate.check_page(
            [CaseVerdict("a", DRIFT, (MetricVerdict(name, before, now, DRIFT),))], "step"
        )
        return tuple(re.findall("<td[^>]*>(.*?)</td>", page))[-4:]

    assert cells("peak.hbm", 30, 20) == ("30 B", "20 B", "-10 B", "-33.3 %")
    assert cells("peak.hbm", 20, 30) == ("20 B", "30 B", "+10 B", "+50.0 %")
    assert cells("makespan", None, 20) == ("-", "20 ns", "+20 ns", "")
    assert cells("makespan", 20, None) == ("20 ns", "-", "-20 ns", "-100.0 %")
    assert cells("makespan", 5, 6) == ("5 ns", "6 ns", "+1 ns", "+20.0 %")
    assert cells("stall.transfer", 0, 0) == ("0 ns", "0 ns", "-", "")


def test_lines_of_metrics() -> None:
    assert MetricVerdict("peak.hbm", None, 5, NEW).line() == "peak.hbm: new (5 B)"
    assert MetricVerdict("peak.hbm", 6, None, MISSING).line() == "peak.hbm: missing (6 B)"
    assert MetricVerdict("peak.hbm", None, 0, NEW).line() == "peak.hbm: new (0 B)"
    assert MetricVerdict("makespan", 0, 1, REGRESSION).line() == "makespan: 1 ns, was 0 ns (+1 ns)"


def test_metrics_of_a_case_are_in_the_order_of_their_names() -> None:
    one, other = record(peak_hbm=1, makespan=2), record(peak_hbm=1, makespan=2, moved_h2d=0)
    names = ["makespan", "moved.h2d", "peak.hbm"]
    for known in (None, Measured(one)):
        assert [m.name for m in judge("c", known, Measured(other), {}).metrics] == names
    assert judge("c", Measured(record()), Measured(record()), {}).verdict == SAME
    bare = CaseVerdict("c", IMPROVEMENT)
    assert (bare.now, bare.curves, bare.fails(), bare.fails(strict=True)) == (
        None,
        ((), ()),
        False,
        True,
    )


def test_how_a_case_is_judged() -> None:
    old, new = record(makespan=100, hosim="0.1"), record(makespan=120, hosim="0.2")
    known, now = Measured(old), Measured(new)
    slower = (MetricVerdict("makespan", 100, 120, REGRESSION),)
    explained = (
        "graph, machine and plan are the same: the replay itself has changed",
        "makespan: 120 ns, was 100 ns (+20 ns, +20.0 %)",
    )
    note = "the baseline was written by hosim 0.1, this is 0.2"
    assert judge("c", known, now, {}, baseline="b") == CaseVerdict(
        "c", REGRESSION, slower, explained, note, "b", old, now
    )
    rules = judge("c", Measured(record(makespan=100, replay=2)), known, {})
    assert (rules.verdict, facts(rules.note, "replay", "hosim baseline update")) == (
        SAME,
        "replay, 2, 1, hosim baseline update",
    )
    assert judge("c", known, known, {}, baseline="b") == CaseVerdict(
        "c", SAME, (MetricVerdict("makespan", 100, 100, SAME),), (), "", "b", old, known
    )
    fresh = (MetricVerdict("makespan", None, 120, NEW),)
    assert judge("c", None, now, {}, baseline="b") == CaseVerdict(
        "c", MISSING, fresh, (), "no baseline; 'hosim baseline write' writes it", "b", None, now
    )
    unfit, silent = Measured(None, "too large"), Measured(None)
    fits = "it fits, but did not at the time of the baseline"
    assert judge("c", unfit, now, {}, baseline="b") == CaseVerdict(
        "c", IMPROVEMENT, fresh, (), fits, "b", None, now
    )
    assert judge("c", unfit, unfit, {}, baseline="b") == CaseVerdict(
        "c", SAME, (), (), "as before: too large", "b", None, unfit
    )
    assert judge("c", known, unfit, {}, baseline="b") == CaseVerdict(
        "c", INFEASIBLE, (), (), "too large", "b", old, unfit
    )
    assert judge("c", None, silent, {}) == CaseVerdict(
        "c", INFEASIBLE, (), (), "does not fit", "", None, silent
    )
    lost = "there is a baseline, but no case with this name"
    assert judge("c", known, None, {}, baseline="b") == CaseVerdict(
        "c", MISSING, (), (), lost, "b", old, None
    )


@pytest.mark.parametrize(
    ("verdicts", "code", "strict", "said"),
    [
        ((), 0, 0, "no case"),
        ((SAME, DRIFT), 0, 0, "1 drift, 1 same"),
        ((SAME, NEW), 0, 1, "1 new, 1 same"),
        ((IMPROVEMENT, SAME, SAME), 0, 1, "1 improvement, 2 same"),
        ((SAME, MISSING), 1, 1, "1 missing, 1 same"),
        ((REGRESSION,), 1, 1, "1 regression"),
        ((REGRESSION, REGRESSION, MISSING, MISSING), 1, 1, "2 missing, 2 regressions"),
        ((REGRESSION, INFEASIBLE), 3, 3, "1 infeasible, 1 regression"),
    ],
)
def test_exit_codes_and_counts(
    verdicts: tuple[str, ...], code: int, strict: int, said: str
) -> None:
    listed = [CaseVerdict("c", verdict) for verdict in verdicts]
    assert (exit_code(listed), exit_code(listed, strict=True), summary(listed)) == (
        code,
        strict,
        said,
    )

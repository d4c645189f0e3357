"""Diff: what differs is listed, what does not is left out, for plans, results, files and
policies.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rendered import facts
from sweeping import MACHINE, chain
from typer.testing import CliRunner

from hosim.cache_plan import CacheOp, Plan
from hosim.cli.main import app
from hosim.data.draws import Draws, LaterDraws
from hosim.engine import replay
from hosim.errors import InputError, PlanError
from hosim.graph import GraphBuilder
from hosim.io import save_hardware, save_plan, save_workload
from hosim.result import Result
from hosim.study import Diff, diff, side_of
from hosim.study.asked import parse_choice
from hosim.study.runs import make_plan

GRAPH = chain(3)
"""``x w0 a0 w1 a1 w2 a2``: weights are tensors 1, 3 and 5."""


def plan(*cache_ops: CacheOp, **initial: tuple[str, ...]) -> Plan:
    return Plan(
        GRAPH,
        "manual",
        cache_ops,
        {GRAPH.tensor_index[name]: where for name, where in initial.items()},
    )


def side(label: str, planned: Plan | None = None, result: Result | None = None) -> Any:
    """A side of a comparison that has this name: a plan, its replay, or both."""
    made = side_of(result if planned is None else planned)
    return replace(made, label=label, plan=planned, result=result)


UP = CacheOp("prefetch", 3, "ddr", "hbm", 0)
LATER = CacheOp("detach", 3, "hbm", None, 1)
A = plan(UP, LATER, w1=("ddr",))


def test_equal_plans_and_results_do_not_differ() -> None:
    result = replay(A, MACHINE, record=True)
    assert diff(side("a", A), side("b", A)).same
    assert diff(side("a", A, result), side("b", A, result)).same
    assert facts(str(diff(side("a", A), side("b", A))), *"ab") == "a, b"


def test_plans_tensor_by_tensor_and_op_by_op() -> None:
    b = plan(replace(UP, after=-1), LATER, CacheOp("store", 5, "hbm", "ddr", 2), w1=("ddr",))
    found = diff(side("a", A), side("b", b))
    assert found.figures == []
    assert found.tensors == [
        {
            "tensor": "w1",
            "kind": "parameter",
            "size_bytes": 30,
            "stores_a": 0,
            "stores_b": 0,
            "copied_bytes_a": 30,
            "copied_bytes_b": 30,
            "cache_ops_a": "prefetch after f0, detach after f1",
            "cache_ops_b": "prefetch after (start), detach after f1",
        },
        {
            "tensor": "w2",
            "kind": "parameter",
            "size_bytes": 30,
            "stores_a": 0,
            "stores_b": 1,
            "copied_bytes_a": 0,
            "copied_bytes_b": 30,
            "cache_ops_a": None,
            "cache_ops_b": "store after f2",
        },
    ]
    assert found.ops == [
        {"op": "(start)", "cache_ops_a": None, "cache_ops_b": "prefetch w1"},
        {"op": "f0", "cache_ops_a": "prefetch w1", "cache_ops_b": None},
        {"op": "f2", "cache_ops_a": None, "cache_ops_b": "store w2"},
    ]
    assert facts(str(found)) == "2, 3"


def test_results_figure_by_figure_and_op_by_op() -> None:
    b = plan(replace(UP, after=-1), LATER, w1=("ddr",))
    one, other = (replay(p, MACHINE, record=True) for p in (A, b))
    assert (one.makespan_ns, other.makespan_ns) == (
        90,
        70,
    )  # issued at 20 it ends at 50; issued at 0, at 30
    found = diff(side("a", A, one), side("b", b, other))
    figures = {row["figure"]: row for row in found.figures}
    assert figures["makespan_ns"] == {"figure": "makespan_ns", "a": 90, "b": 70, "change": -20}
    assert figures["transfer_stall_ns"]["change"] == -20
    ops = {row["op"]: row for row in found.ops}
    assert (ops["f1"]["start_ns_a"], ops["f1"]["start_ns_b"]) == (50, 30)
    assert (ops["f1"]["stall_ns_a"], ops["f1"]["stall_ns_b"]) == (30, 10)
    assert "took_ns_a" not in ops["f1"]  # as long on both sides, so left out
    (w1,) = [row for row in found.tensors if row["tensor"] == "w1"]
    assert (w1["resident_ns_a"], w1["resident_ns_b"]) == (50, 50)
    alone = diff(side("a", result=one), side("b", result=other))
    assert (alone.figures, alone.tensors, alone.ops) == (found.figures, [], [])
    assert str(found.frame("figures")["figure"].iloc[0]) in figures
    assert len(found.frame("ops")) == len(found.ops)
    assert "<table" in found._repr_html_()
    with pytest.raises(InputError, match="expected figures, tensors or ops"):
        found.frame("channels")


def test_parts_have_a_row_each_and_are_named() -> None:
    b = GraphBuilder("parts")
    for name, of in (("w[0]", "w"), ("w[1]", "w"), ("v", "")):
        b.tensor(name, 30, "parameter", home="ddr", of=of)
    b.op("f0", "any", inputs=["v"], duration_ns=10)
    b.op("f1", "any", inputs=["w[0]", "w[1]"], duration_ns=10)
    graph = b.build()
    early, late = (
        Plan(graph, "p", tuple(CacheOp("prefetch", t, "ddr", "hbm", after) for t in range(3)))
        for after in (-1, 0)
    )
    found = diff(side("a", early), side("b", late))
    assert [row["tensor"] for row in found.tensors] == ["v", "w[0]", "w[1]"]
    assert {name: tensor.of for name, tensor in found.parts.items()} == {"w[0]": "w", "w[1]": "w"}
    assert re.search(r"w\[0\.\.1\] \(2 parts\)</td>", found._repr_html_())
    assert not diff(side("a", A), side("b", A)).parts


def test_a_result_that_does_not_fit() -> None:
    found = diff(side("a", result=replay(A, MACHINE)), side("b", result=replay(A, MACHINE, 40)))
    figures = {row["figure"]: row for row in found.figures}
    assert (figures["feasible"]["a"], figures["feasible"]["b"], figures["feasible"]["change"]) == (
        True,
        False,
        None,
    )
    assert figures["makespan_ns"]["b"] is None
    assert "out of memory" in figures["error"]["b"]


def test_what_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="a and b are a plan and a result"):
        diff(side("a", A), side("b", result=replay(A, MACHINE)))
    with pytest.raises(
        InputError, match="manual is a plan for chain, manual one for other with other tensors"
    ):
        diff(side("a", A), side("b", Plan(chain(2, "other"))))
    for what, said in (
        ("nonesuch", "neither a file nor a policy"),
        ("belady", "a policy needs a workload and a machine to plan for"),
    ):
        with pytest.raises(InputError, match=said):
            side_of(what)


def test_a_policy_needs_a_workload_a_machine_and_a_budget() -> None:
    for given in (
        {"hardware": MACHINE, "budget_bytes": 90},
        {"graph": GRAPH, "budget_bytes": 90},
        {"graph": GRAPH, "hardware": MACHINE},
    ):
        with pytest.raises(InputError) as refused:
            side_of("belady", **given)
        assert (
            str(refused.value)
            == "belady: a policy needs a workload and a machine to plan for: name both"
        )
    asked = side_of("lookahead:k=2", GRAPH, MACHINE, 90)
    assert asked.plan is not None
    assert asked.result is not None
    assert (asked.label, asked.plan.policy, asked.device_tier, asked.result.budget_bytes) == (
        "lookahead:k=2",
        "lookahead:k=2",
        "hbm",
        90,
    )
    assert asked.result.timeline is not None
    again = side_of(asked.result)
    assert (again.label, again.plan, again.result, again.device_tier) == (
        "lookahead:k=2",
        None,
        asked.result,
        "hbm",
    )
    fast = replace(
        MACHINE,
        tiers=(replace(MACHINE.tiers[0], name="fast"), MACHINE.tiers[1]),
        channels=(),
        device_tier="fast",
    )
    assert side_of(asked.result, hardware=fast).device_tier == "fast"


def test_a_plan_that_breaks_a_rule_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules["hosim.study.diff"],
        "make_plan",
        lambda *given: plan(CacheOp("detach", 3, "hbm", None, 0)),
    )
    with pytest.raises(
        PlanError,
        match="policy belady made a plan that breaks a rule, which is a bug of the policy: "
        "last-copy: ",
    ):
        side_of("belady", GRAPH, MACHINE, 100)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_workload(GRAPH, "w.json")
    save_hardware(MACHINE, "hw.yaml")
    save_plan(A, "a.json")
    save_plan(plan(replace(UP, after=-1), LATER, w1=("ddr",)), "b.json")

    def call(*arguments: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "140"})
        return done.exit_code, done.stdout, done.stderr

    code, out, _ = call("diff", "a.json", "b.json", "-w", "w.json", "--json")
    data = json.loads(out)
    assert (code, data["format"], data["figures"], len(data["tensors"])) == (
        0,
        "hosim.diff/1",
        [],
        1,
    )
    code, out, _ = call("diff", "a.json", "b.json", "-w", "w.json", "-H", "hw.yaml", "--detail")
    assert code == 0
    assert "makespan" in out
    assert "-20 ns" in out
    assert "a.json and b.json differ in" in out
    (tmp_path / "r.json").write_text(
        call("replay", "a.json", "w.json", "-H", "hw.yaml", "--json")[1]
    )
    assert "are the same" in call("diff", "r.json", "r.json")[1]
    assert (
        call("diff", "layerwise", "belady", "-w", "w.json", "-H", "hw.yaml", "-b", "90 B")[0] == 0
    )
    for wrong in (
        ["a.json", "b.json"],
        ["a.json", "w.json", "-w", "w.json"],
        ["a.json", "nonesuch"],
        ["a.json", "r.json", "-w", "w.json"],
    ):
        code, out, err = call("diff", *wrong)
        assert (code, out, err.count("\n")) == (2, "", 1), (wrong, err)
    made = make_plan(GRAPH, MACHINE, parse_choice("layerwise"), 90)
    assert side_of(made, hardware=MACHINE, budget_bytes=90).result is not None


def test_where_a_tensor_starts_and_ops_that_start_at_once() -> None:
    """A weight of ``b`` starts in its home; the first op starts at 0 in ``b`` and waits 30 ns for
    its weight in ``a``.
    """
    up = CacheOp("prefetch", 1, "ddr", "hbm")
    sides = [
        side(name, p, replay(p, MACHINE, record=True))
        for name, p in (("a", plan(up, w0=("ddr",))), ("b", plan(w1=("hbm", "ddr"))))
    ]
    found = diff(*sides)
    starts = [
        (row["tensor"], row.get("starts_in_a"), row.get("starts_in_b")) for row in found.tensors
    ]
    # all that stays to the end is there for longer in a; the activations are not
    assert starts == [
        ("x", "hbm", "hbm"),
        ("w0", "ddr", "hbm"),
        ("w1", "hbm", "hbm+ddr"),
        ("w2", "hbm", "hbm"),
    ]
    first = next(row for row in found.ops if row["op"] == "f0")
    assert (first["start_ns_a"], first["start_ns_b"], first["stall_ns_a"], first["stall_ns_b"]) == (
        30,
        0,
        30,
        0,
    )


def test_a_difference_in_a_notebook_shows_twenty_rows() -> None:
    listed = [{"figure": f"f<{i}", "a": i, "b": 0, "change": -i} for i in range(21)]
    for count, more in ((20, ""), (21, " (the first 20 of 21)")):
        found = Diff("a<", "b", listed[:count], [], [{"op": "f", "start_ns_a": 1}])
        shown = found._repr_html_()
        assert shown.startswith(f"<h4>Figures{more}</h4>\n<table>")
        said = shown.rpartition("<p>")[2]
        assert facts(said, "a&lt;", "b") == f"a&lt;, b, {count}, 0, 1"
        assert (shown.count("<tr>"), "<h4>Tensors" in shown, "<h4>Ops</h4>" in shown) == (
            1 + 20 + 1 + 1,
            False,
            True,
        )


def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    save_plan(A, path)
    fast = replace(
        MACHINE,
        tiers=(replace(MACHINE.tiers[0], name="fast"), MACHINE.tiers[1]),
        channels=(),
        device_tier="fast",
    )
    for given, said in (
        ((), "name the workload that the plan is for (--workload)"),
        ((GRAPH, fast), "cache_ops[0].to: unknown tier 'hbm'"),
    ):
        with pytest.raises(InputError) as refused:
            side_of(path, *given)
        assert str(refused.value).startswith(f"{path}: {said}")
    with pytest.raises(InputError, match=r"^nonesuch: neither a file nor a policy "):
        side_of("nonesuch")
    path.write_text('{"format": "hosim.result/1"}')
    with pytest.raises(InputError) as refused:
        side_of(path)
    assert str(refused.value).startswith(f"{path}: ")
    for text, kind in (
        ('{"format": "hosim.workload/1"}', "hosim.workload/1"),
        ('{"format": 3}', "3"),
        ("[]", "another file"),
    ):
        path.write_text(text)
        with pytest.raises(InputError) as refused:
            side_of(path)
        assert str(refused.value) == f"{path}: expected a plan or a result of hosim, got {kind}"


def test_intervals_of_makespans_are_figures() -> None:
    sure = replay(A, MACHINE)
    unsure = replace(sure, draws=LaterDraws.of(Draws.of_ends(7, 9)))
    assert [
        row["figure"] for row in diff(side("a", result=sure), side("b", result=unsure)).figures
    ] == [
        "makespan_low_ns",
        "makespan_high_ns",
    ]

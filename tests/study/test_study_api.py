"""The questions from Python: names, paths, mappings and objects are all the same to them, and
frames are tidy.
"""

import functools
import inspect
import pickle
import re
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asked import questions
from pandas import DataFrame
from pandas.testing import assert_frame_equal
from rendered import facts
from sweeping import MACHINE, chain

import hosim
from hosim.api import machine
from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InputError, PlanError
from hosim.hardware import Fabric
from hosim.io import hardware_to_dict, save_hardware, save_workload, workload_to_dict
from hosim.io.models import build
from hosim.jitter import Jitter
from hosim.result import Result
from hosim.shipped import find_workload
from hosim.study import robustness
from hosim.study.asked import as_choice, parse_choice
from hosim.study.runs import Question, digest, make_plan, pack
from hosim.study.searches import frontier

GRAPH = chain(6)


def test_a_workload_by_name_path_spec_parameters_and_graph(tmp_path: Path) -> None:
    small = {"model": "gpt2-xl", "phase": "prefill", "sequence": 64, "layers": 1}
    wanted = build("gpt2-xl-prefill:layers=1:sequence=64", small)
    assert hosim.load(small) == wanted
    assert hosim.load({"name": wanted.name, "builder": small}) == wanted
    assert hosim.load(wanted) is wanted
    save_workload(wanted, tmp_path / "w.json")
    assert (
        hosim.load(tmp_path / "w.json")
        == hosim.load(str(tmp_path / "w.json"))
        == hosim.load(workload_to_dict(wanted))
        == wanted
    )
    assert hosim.load("gpt2-xl-train") == hosim.load(find_workload("gpt2-xl-train"))
    for wrong, said in (
        ("gpt2-xl-trai", "did you mean 'gpt2-xl-train'"),
        ({"model": "gpt2-xx"}, "workload: model: expected a model"),
        (
            {**small, "sequenc": 3},
            "workload: sequenc: unknown parameter 'sequenc'; did you mean 'sequence'?",
        ),
        ({"builder": small}, "workload: name: missing"),
    ):
        with pytest.raises(InputError) as refused:
            hosim.load(wrong)
        assert said in str(refused.value)


def test_a_machine_by_name_path_mapping_and_object(tmp_path: Path) -> None:
    save_hardware(MACHINE, tmp_path / "hw.yaml")
    assert machine(MACHINE) is MACHINE
    assert machine(tmp_path / "hw.yaml") == machine(hardware_to_dict(MACHINE)) == MACHINE
    assert machine("toy").name == "toy"
    with pytest.raises(InputError, match="did you mean 'toy'"):
        machine("toi")


def test_a_comparison_is_a_tidy_frame() -> None:
    table = hosim.compare(GRAPH, MACHINE, ["resident", "belady", "lookahead:k=2"], "60%")
    assert list(table["policy"]) == ["resident", "belady", "lookahead:k=2"]
    assert list(table["feasible"]) == [False, True, True]
    for column in table.columns:
        if column.endswith(("_ns", "_bytes")):
            assert str(table[column].dtype) == "Int64", column
    same = hosim.compare(
        GRAPH, MACHINE, "resident,belady,lookahead:k=2", int(table["budget_bytes"].iloc[0])
    )
    timed = ["planning_s", "replay_s"]
    assert_frame_equal(same.drop(columns=timed), table.drop(columns=timed))
    assert len(hosim.compare(GRAPH, MACHINE)) > 8


def stays(
    graph: hosim.Graph, hardware: hosim.Hardware, budget_bytes: int, *, calls: int = 1
) -> Plan:
    """Moves nothing."""
    return Plan(graph)


def test_policies_are_texts_objects_and_functions() -> None:
    table = hosim.compare(GRAPH, MACHINE, [stays, "lookahead:k=2", hosim.policies.belady])
    assert list(table["policy"]) == ["stays", "lookahead:k=2", "belady"]
    assert list(hosim.compare(GRAPH, MACHINE, stays)["makespan_ns"]) == [120]
    assert hosim.plan(GRAPH, MACHINE, hosim.policies.belady, 0.5) == hosim.plan(
        GRAPH, MACHINE, "belady", "50%"
    )
    assert hosim.plan(GRAPH, MACHINE, stays) == Plan(GRAPH, "stays")
    assert hosim.diff(stays, hosim.policies.layerwise, GRAPH, MACHINE).frame("figures") is not None
    assert str(hosim.blame(GRAPH, MACHINE, stays)).startswith("stays takes 120 ns")
    assert list(hosim.robustness(GRAPH, MACHINE, [stays], runs=1)["policy"]) == ["stays", "stays"]
    with pytest.raises(
        InputError,
        match=r"policy: expected a policy: its name, hosim.policies.NAME, or a function .*; got 3",
    ):
        hosim.compare(GRAPH, MACHINE, [3])

    def layerwise(graph: hosim.Graph, hardware: hosim.Hardware, budget_bytes: int) -> Plan:
        return Plan(graph)

    with pytest.raises(
        InputError, match="policy layerwise: hosim has a policy of that name; give yours another"
    ):
        hosim.compare(GRAPH, MACHINE, [layerwise])


def breaks_a_rule(graph: hosim.Graph, hardware: hosim.Hardware, budget_bytes: int) -> Plan:
    return Plan(graph, cache_ops=(CacheOp("detach", 1, "hbm", None, after=-1),))


def raises(graph: hosim.Graph, hardware: hosim.Hardware, budget_bytes: int) -> Plan:
    raise KeyError("w0")


def test_functions_of_one_name_are_told_apart() -> None:
    given = [
        lambda *taken: Plan(taken[0]),
        lambda *taken: None,
        stays,
        stays,
        "belady",
        hosim.policies.belady,
    ]
    assert list(hosim.compare(GRAPH, MACHINE, given)["policy"]) == [
        "lambda",
        "lambda 2",
        "stays",
        "stays",
        "belady",
        "belady",
    ]


def test_a_sweep_over_functions() -> None:
    """As policy, as in a grid or a list of points; one that fails fails alone, and two of one name
    are two.
    """
    grid = hosim.sweep(
        GRAPH,
        MACHINE,
        vary={
            "policy": [stays, hosim.policies.belady, "lookahead:k=2", raises, lambda *g: Plan(g[0])]
        },
        jobs=1,
    )
    assert list(grid["policy"]) == ["stays", "belady", "lookahead:k=2", "raises", "lambda"]
    assert list(grid["makespan_ns"].fillna(0) > 0) == [True, True, True, False, True]
    assert "policy raises has a bug: KeyError: 'w0'" in grid["error"][3]
    points = [{"policy": stays, "budget": 1.0}, {"policy": "belady", "budget": 0.75}]
    assert list(hosim.sweep(GRAPH, MACHINE, vary=points, jobs=1)["policy"]) == ["stays", "belady"]
    framed = hosim.sweep(GRAPH, MACHINE, vary=DataFrame(points), jobs=1)
    assert list(framed["policy"]) == ["stays", "belady"]
    asked = [
        Question(GRAPH, MACHINE, as_choice("belady"), None, (as_choice(function),))
        for function in (stays, raises)
    ]
    assert len({digest(question) for question in asked}) == 2
    assert (
        pickle.loads(zlib.decompress(pack(asked[0]).content))
        .with_settings({"policy": "stays"})
        .answer()
        .policy
        == "stays"
    )


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ({"policy": ["layerwize"]}, "unknown policy 'layerwize'; did you mean layerwise"),
        (
            {"policy": [3]},
            "policy: expected a policy: its name, hosim.policies.NAME, or a function (graph, "
            "hardware, budget_bytes); got 3",
        ),
        (
            {"budget": [0.5, 1]},
            "budget: 1 is one byte, beside shares such as 0.5; write 1.0 or '100%' for all of it",
        ),
        ({}, "vary: expected fields and their values"),
    ],
)
def test_what_no_point_of_a_sweep_can_mean(vary: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(said)}"):
        hosim.sweep(GRAPH, MACHINE, vary=vary, jobs=1)


def test_a_plan_for_another_graph_is_a_bug_of_its_policy() -> None:
    with pytest.raises(
        InputError,
        match=f"policy stays_there has a bug: its plan is for another graph \\({GRAPH.name}\\)",
    ):
        hosim.plan(chain(5), MACHINE, stays_there)
    assert hosim.plan(chain(6), MACHINE, stays_there).graph == GRAPH  # equal is the same


def stays_there(graph: hosim.Graph, hardware: hosim.Hardware, budget_bytes: int) -> Plan:
    return Plan(GRAPH)


def test_a_function_that_fails_fails_alone() -> None:
    table = hosim.compare(GRAPH, MACHINE, [breaks_a_rule, stays, raises])
    assert list(table["makespan_ns"].fillna(0)) == [0, 120, 0]
    assert table["error"][0].startswith(
        "policy breaks_a_rule made a plan that breaks a rule, which is a bug of the policy: "
        "last-copy: "
    )
    assert table["error"][2].startswith("policy raises has a bug: KeyError: 'w0' (")
    runs = hosim.robustness(GRAPH, MACHINE, [raises, stays, breaks_a_rule], runs=1)
    assert list(runs["feasible"]) == [False, False, True, True, False, False]
    assert list(hosim.compare(GRAPH, [MACHINE], [raises, stays])["feasible"]) == [False, True]
    with pytest.raises(InputError, match="policy raises has a bug") as refused:
        hosim.plan(GRAPH, MACHINE, raises)
    assert isinstance(refused.value.__cause__, KeyError)


def test_a_function_of_a_notebook_goes_to_other_processes() -> None:
    """They cannot import it, so it goes along whole; plain pickles refuse it."""
    mine = lambda graph, hardware, budget, k=1: hosim.Plan(graph)  # noqa: E731
    yours = lambda *given: None  # noqa: E731
    asked, other = (Question(GRAPH, MACHINE, as_choice(function)) for function in (mine, yours))
    there = pickle.loads(zlib.decompress(pack(asked).content))
    assert there.with_settings({"policy.k": 2, "budget": 1.0}).answer().policy == "lambda:k=2"
    assert digest(asked) != digest(other)
    made = [
        functools.partial(keeps, "a"),
        functools.partial(keeps, "b"),
        enclosing("a"),
        enclosing("b"),
    ]
    packed = [pack(Question(GRAPH, MACHINE, as_choice(function))) for function in made]
    assert len({one.digest for one in packed}) == len({one.key for one in packed}) == len(made)
    assert digest(Question(GRAPH, MACHINE, as_choice(enclosing("a")))) == packed[2].digest


def test_a_function_that_holds_what_cannot_go_along_is_refused() -> None:
    lock = threading.Lock()
    mine = lambda graph, hardware, budget: Plan(graph, str(lock))  # noqa: E731
    with pytest.raises(InputError, match="cannot go to another process"):
        pack(Question(GRAPH, MACHINE, as_choice(mine)))


def keeps(word: str, graph: hosim.Graph, hardware: hosim.Hardware, budget_bytes: int) -> Plan:
    return Plan(graph, word)


def enclosing(word: str) -> Callable[[hosim.Graph, hosim.Hardware, int], Plan]:
    def named(graph: hosim.Graph, hardware: hosim.Hardware, budget_bytes: int) -> Plan:
        return Plan(graph, word)

    return named


TIMES = "durations: times as given for all 6 ops"


def test_a_machine_with_less_than_the_budget_is_named() -> None:
    times, used = hosim.compare(GRAPH, MACHINE, "resident", "1 GB").attrs["notes"]
    assert (times, facts(used, "two tiers")) == (TIMES, "1000 B, two tiers")
    roomy = replace(
        MACHINE,
        name="roomy",
        tiers=(replace(MACHINE.tiers[0], capacity_bytes=10**10), *MACHINE.tiers[1:]),
    )
    times, using = hosim.compare(GRAPH, [roomy, MACHINE], "resident", "1 GB").attrs["notes"]
    assert (times, facts(using, "two tiers")) == (TIMES, "1000 B, two tiers")
    assert hosim.compare(GRAPH, MACHINE, "resident", "90%").attrs["notes"] == [TIMES]


def test_a_sweep_takes_grids_lists_and_a_file(tmp_path: Path) -> None:
    grid = hosim.sweep(
        GRAPH,
        MACHINE,
        "belady",
        100,
        vary=["channels.h2d.bandwidth=1..2GB/s:2", "budget=80B,90B"],
        jobs=1,
    )
    mapping = {"channels.h2d.bandwidth": "1..2GB/s:2", "budget": ["80 B", "90 B"]}
    assert list(
        hosim.sweep(GRAPH, MACHINE, "belady", 100, vary=mapping, jobs=1)["makespan_ns"]
    ) == list(grid["makespan_ns"])
    points = [
        {"channels.h2d.bandwidth": b, "budget": n} for b in ("1 GB/s", "2 GB/s") for n in (80, 90)
    ]
    seen = []
    listed = hosim.sweep(
        GRAPH,
        MACHINE,
        "belady",
        vary=points,
        output=tmp_path / "rows.csv",
        jobs=1,
        progress=lambda *figures: seen.append(figures),
    )
    assert list(listed["makespan_ns"]) == list(grid["makespan_ns"])
    assert seen[-1] == (4, 4, 0)
    assert_frame_equal(
        hosim.sweep(GRAPH, MACHINE, "belady", vary=points, output=tmp_path / "rows.csv", jobs=1),
        listed,
    )
    assert listed.attrs["notes"] == [TIMES]
    linked = replace(MACHINE, fabrics=(Fabric("link", 10**9, ("h2d",)),))
    held = hosim.sweep(
        GRAPH,
        linked,
        "belady",
        vary={"channels.h2d.bandwidth+fabrics.link.bandwidth": ["1 GB/s"]},
        jobs=1,
    )
    assert held.attrs["notes"] == [TIMES]
    held = hosim.sweep(
        GRAPH,
        linked,
        "belady",
        vary=[{"channels.h2d.bandwidth": "3 GB/s", "fabrics.link.bandwidth": "2 GB/s"}],
        jobs=1,
    )
    assert [note.partition(",")[0] for note in held.attrs["notes"]] == [
        TIMES,
        "channels.h2d.bandwidth exceeds that of fabrics.link",
    ]
    with pytest.raises(InputError, match="budget: 0 B leaves no memory at all"):
        hosim.sweep(GRAPH, MACHINE, "belady", "0 B", vary=points)
    with pytest.raises(InputError, match="expected points, each a mapping"):
        hosim.sweep(GRAPH, MACHINE, "belady", vary=[])


def test_blame_and_diff_take_plans_and_policies() -> None:
    plan = make_plan(GRAPH, MACHINE, parse_choice("layerwise"), 100)
    of_plan, of_policy = (
        hosim.blame(plan, MACHINE, budget=100),
        hosim.blame(GRAPH, MACHINE, "layerwise", 100),
    )
    assert_frame_equal(of_plan.frame, of_policy.frame)
    assert (of_plan.replanned, of_policy.replanned) == (False, True)
    assert list(of_plan.price_frame.columns) == [
        "what",
        "added",
        "makespan_ns",
        "saves_ns",
        "together",
        "note",
    ]
    other = make_plan(GRAPH, MACHINE, parse_choice("memory_peak"), 100)
    found = hosim.diff(plan, other, hardware=MACHINE, budget=100)
    assert str(found) == str(hosim.diff("layerwise", "memory_peak", GRAPH, MACHINE, 100))
    assert found.figures
    assert not hosim.diff(plan, other).figures


def test_fit_asks_one_question() -> None:
    with pytest.raises(InputError, match="requires largest or smallest"):
        hosim.fit(GRAPH, MACHINE)
    with pytest.raises(InputError, match="smallest and largest exclude each other"):
        hosim.fit(GRAPH, MACHINE, largest="a=1..2", smallest="a=1..2")


def test_robustness_is_that_of_the_study() -> None:
    table = hosim.robustness(GRAPH, MACHINE, ["belady", "resident"], "60%", runs=3, seed=4)
    assert list(table["run"]) == [0, 1, 2, 3] * 2
    assert list(table["feasible"]) == [True] * 4 + [False] * 4
    assert list(table["makespan_ns"][:1]) == list(
        hosim.compare(GRAPH, MACHINE, "belady", "60%")["makespan_ns"]
    )


def test_what_is_not_given() -> None:
    """The numbers that public functions take by default."""
    numbers = {
        f"{name} {key}": given.default
        for name in hosim.__all__
        if inspect.isfunction(function := getattr(hosim, name))
        for key, given in inspect.signature(function).parameters.items()
        if isinstance(given.default, int | float)
    }
    asked = ("blame", "compare", "fit", "frontier", "plan", "robustness", "sweep", "what_if")
    assert numbers == {
        **{f"{name} rescale": False for name in asked},
        "compare regret": 0,
        "offload check": False,
        "offload graphs": False,
        "offload_callback check": False,
        "offload_callback graphs": False,
        "sweep jobs": -1,
        "frontier points": 9,
        "frontier refine": 4,
        "replay record": False,
        "replay fold": True,
        "replay_stages record": False,
        "robustness runs": 20,
        "robustness op_sigma": 0.05,
        "robustness transfer_sigma": 0.1,
        "robustness seed": 0,
        "robustness order": False,
        "serve block_tokens": 16,
        "serve memory_share": 0.9,
        "serve ahead": True,
        "serve instances": 1,
        "serve prefill_instances": 0,
        "serve decode_instances": 0,
        "serve_sweep jobs": -1,
    }


def test_every_argument_of_a_replay_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    result = replay(make_plan(GRAPH, MACHINE, parse_choice("layerwise"), 100), MACHINE)

    def recorded(*given: object, **named: object) -> Result:
        asked.append((given, named))
        return result

    monkeypatch.setattr("hosim.engine.replay", recorded)
    plan = make_plan(GRAPH, MACHINE, parse_choice("layerwise"), 100)
    given = {
        "record": True,
        "allocator": "caching",
        "account": "program",
        "jitter": Jitter(3, 0.1),
        "fold": False,
    }
    more = {"reserve_bytes": 77, "compete": True, "engine": "reference"}
    hosim.replay(plan, MACHINE, "99 B", **given, **more)
    hosim.replay(plan, MACHINE, budget_bytes=98)
    usual = {
        "record": False,
        "allocator": "ledger",
        "account": "time",
        "jitter": None,
        "fold": True,
        "reserve_bytes": None,
        "compete": None,
        "engine": None,
    }
    asked = [
        one for one in asked if one[0][0] is plan
    ]  # the workload is also replayed with everything resident
    assert asked == [((plan, MACHINE, 99), {**given, **more}), ((plan, MACHINE, 98), usual)]


def test_every_argument_of_a_study_reaches_it() -> None:
    jittered = hosim.robustness(
        GRAPH, MACHINE, "belady", 100, runs=2, op_sigma=0.3, transfer_sigma=0.4, seed=5
    )
    assert_frame_equal(
        jittered,
        robustness(
            questions(GRAPH, MACHINE, [parse_choice("belady")], 100, jitter=Jitter(5, 0.3, 0.4)), 2
        ),
    )
    asked = Question(GRAPH, MACHINE, parse_choice("layerwise"), 130)
    curve = hosim.frontier(GRAPH, MACHINE, "layerwise", 130, points=3, refine=1)
    assert [r.budget_bytes for r in curve.results] == [
        r.budget_bytes for r in frontier(asked, 3, 1).results
    ]
    most = hosim.fit(
        GRAPH, MACHINE, "layerwise", 130, largest="channels.h2d.engines=1..3", slowdown=9.0
    )
    assert (most.wanted, most.axis.values, most.slowdown, most.question) == (
        "largest",
        (1, 2, 3),
        9.0,
        asked,
    )
    least = hosim.fit(GRAPH, MACHINE, "layerwise", 130, smallest="channels.h2d.engines=1..3")
    assert (least.wanted, least.slowdown) == ("smallest", None)
    priced = hosim.blame(
        GRAPH, MACHINE, "layerwise", 130, more_memory="3 B", more_bandwidth="7 GB/s"
    )
    assert {price.added for price in priced.prices} > {"3 B", "7.00 GB/s"}
    assert {price.added for price in hosim.blame(GRAPH, MACHINE, "layerwise", 130).prices} > {
        "1 GB",
        "10.0 GB/s",
    }


def test_what_is_refused_in_full() -> None:
    plan = make_plan(GRAPH, MACHINE, parse_choice("layerwise"), 100)

    def refused(call: Callable[[], object]) -> str:
        with pytest.raises(InputError) as raised:
            call()
        return str(raised.value)

    for empty, source in (
        ((GRAPH, MACHINE, []), "policies"),
        ((GRAPH, [MACHINE], []), "policies"),
        ((GRAPH, []), "hardware"),
    ):
        assert refused(lambda given=empty: hosim.compare(*given)).startswith(
            f"{source}: expected at least one "
        )
    twice = "policy lookahead: k: is given twice; keep one"
    assert refused(lambda: hosim.plan(GRAPH, MACHINE, "lookahead:k=1:k=2")) == twice
    said = "expected a name, a path, a mapping or an object of hosim, got NoneType"
    assert refused(lambda: hosim.load(None)) == f"workload: {said}"
    assert refused(lambda: hosim.plan(GRAPH, None)) == f"hardware: {said}"
    assert (
        refused(lambda: hosim.replay(plan, MACHINE, "9 B", budget_bytes=9))
        == "replay: budget_bytes and budget exclude each other: give one of them"
    )
    expected = (
        "plan: expected a plan, got Graph: hosim.plan makes one, hosim.load_plan(path, "
        "workload) reads one"
    )
    assert (
        refused(lambda: hosim.replay(GRAPH, MACHINE))
        == refused(lambda: hosim.explain(GRAPH, MACHINE))
        == expected
    )
    renamed = replace(
        MACHINE, tiers=(MACHINE.tiers[0], replace(MACHINE.tiers[1], name="dram")), channels=()
    )
    other = (
        "plan: initial.w0[0]: unknown tier 'ddr' (known: hbm, dram); the hardware is 'two tiers'"
    )
    assert (
        refused(lambda: hosim.replay(plan, renamed))
        == refused(lambda: hosim.explain(plan, renamed))
        == other
    )
    assert refused(lambda: hosim.plot(hosim.replay(plan, MACHINE))) == (
        "plot: the result has no timeline: replay the plan with hosim.replay(plan, hardware, "
        "record=True)"
    )


def test_what_is_assumed_of_arguments_that_are_left_out() -> None:
    """Of all functions: whoever writes an example relies on it."""
    found = {}
    for function in (
        hosim.blame,
        hosim.compare,
        hosim.diff,
        hosim.explain,
        hosim.fit,
        hosim.frontier,
        hosim.plan,
        hosim.robustness,
        hosim.sweep,
    ):
        given = {
            name: parameter.default
            for name, parameter in inspect.signature(function).parameters.items()
        }
        found[function.__name__] = {
            name: value
            for name, value in given.items()
            if value is not inspect.Parameter.empty and value is not None
        }
    rescale = {"rescale": False}
    policy = {"policy": "hyperoffload", **rescale}
    assert found == {
        "blame": {**policy, "more_memory": "1GB", "more_bandwidth": "10GB/s"},
        "compare": {**rescale, "regret": 0},
        "diff": {},
        "explain": {},
        "fit": policy,
        "frontier": {**policy, "points": 9, "refine": 4},
        "plan": policy,
        "robustness": {
            **rescale,
            "runs": 20,
            "op_sigma": 0.05,
            "transfer_sigma": 0.1,
            "seed": 0,
            "order": False,
        },
        "sweep": {**policy, "jobs": -1},
    }


def test_a_plan_that_breaks_a_rule_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = Plan(GRAPH, "sloppy", (CacheOp("detach", 1, "hbm", None),))
    monkeypatch.setattr("hosim.study.runs.run_policy.make_plan", lambda *given: dropped)
    with pytest.raises(PlanError, match="policy sloppy made a plan that breaks a rule"):
        hosim.plan(GRAPH, MACHINE)


def test_a_sweep_is_a_picture_and_has_its_fields_by_the_names_that_were_given() -> None:
    b = hosim.GraphBuilder("toy")
    for i in range(3):
        b.tensor(f"w{i}", 40, "parameter", home="ddr")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=50)
    field, column = "channels.h2d.bandwidth", "channels.h2d.bandwidth_bytes_per_s"
    vary = {field: ["2 GB/s", "1 GB/s"], "budget": ["80 B", "120 B"]}
    rows = hosim.sweep(b.build(), "toy", "layerwise", vary=vary, jobs=1)
    assert rows[field].tolist() == ["2 GB/s", "2 GB/s", "1 GB/s", "1 GB/s"]
    assert rows[column].tolist() == [2 * 10**9] * 2 + [10**9] * 2
    drawn = rows.pivot(index=field, columns="budget", values="makespan_ns")
    axes, _ = hosim.plot(rows).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("channels.h2d.bandwidth", "budget")
    cells = axes.collections[0].get_array()
    assert cells.shape == drawn.shape
    assert [int(ns) for ns in cells[:, 0]] == drawn.loc["1 GB/s", ["80 B", "120 B"]].tolist()
    for kept, varied in (("budget", field), (field, "budget")):
        one = rows[rows[kept] == rows[kept][0]]
        (axes,) = hosim.plot(one).axes
        assert axes.get_xlabel() == varied
        assert list(axes.lines[0].get_ydata()) == one["makespan_ns"].tolist()
    with pytest.raises(hosim.InputError, match="two fields have several values, got 0 such"):
        hosim.plot(one[:1])


def test_a_fit_and_varied_times_are_pictures() -> None:
    found = hosim.fit(
        GRAPH,
        MACHINE,
        "layerwise",
        smallest="channels.h2d.bandwidth=1..4GB/s:4",
        slowdown=1.5,
    )
    (axes,) = hosim.plot(found).axes
    makespan, limit = [list(line.get_ydata()) for line in axes.lines]
    assert makespan == [probe.result.makespan_ns for probe in found.probes if probe.result]
    assert limit == [probe.result.ideal_ns * 1.5 for probe in found.probes if probe.result]
    runs = hosim.robustness(GRAPH, MACHINE, "layerwise,belady", runs=2)
    (axes,) = hosim.plot(runs).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layerwise", "belady"]

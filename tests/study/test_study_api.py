"""The questions from Python: names, paths, mappings and objects are all the same to them, and frames are tidy."""

from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal
from sweeping import MACHINE, chain

import hosim
from hosim.api.inputs import machine
from hosim.errors import InputError
from hosim.io import find_workload, hardware_to_dict, save_hardware, save_workload, workload_to_dict
from hosim.models.build import build
from hosim.study.policy_choice import parse_choice
from hosim.study.run_policy import make_plan

GRAPH = chain(6)


def test_a_workload_by_name_path_spec_parameters_and_graph(tmp_path: Path) -> None:
    small = {"model": "gpt2-xl", "phase": "prefill", "sequence": 64, "layers": 1}
    wanted = build("gpt2-xl-prefill", small)
    assert hosim.load(small) == wanted
    assert hosim.load({"name": "gpt2-xl-prefill", "builder": small}) == wanted
    assert hosim.load(wanted) is wanted
    save_workload(wanted, tmp_path / "w.json")
    assert hosim.load(tmp_path / "w.json") == hosim.load(str(tmp_path / "w.json")) == hosim.load(workload_to_dict(wanted)) == wanted
    assert hosim.load("gpt2-xl-train") == hosim.load(find_workload("gpt2-xl-train"))
    for wrong, said in (
        ("gpt2-xl-trai", "did you mean 'gpt2-xl-train'"),
        ({"model": "gpt2-xx"}, "workload: model: expected a model"),
        ({**small, "sequenc": 3}, "workload: sequenc: unknown parameter 'sequenc'; did you mean 'sequence'?"),
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
    same = hosim.compare(GRAPH, MACHINE, "resident,belady,lookahead:k=2", int(table["budget_bytes"].iloc[0]))
    timed = ["planning_s", "replay_s"]
    assert_frame_equal(same.drop(columns=timed), table.drop(columns=timed))
    assert len(hosim.compare(GRAPH, MACHINE)) > 8


def test_a_sweep_takes_grids_lists_and_a_file(tmp_path: Path) -> None:
    grid = hosim.sweep(GRAPH, MACHINE, "belady", 100, vary=["channels.h2d.bandwidth=1..2GB/s:2", "budget=80B,90B"], jobs=1)
    mapping = {"channels.h2d.bandwidth": "1..2GB/s:2", "budget": ["80 B", "90 B"]}
    assert list(hosim.sweep(GRAPH, MACHINE, "belady", 100, vary=mapping, jobs=1)["makespan_ns"]) == list(grid["makespan_ns"])
    points = [{"channels.h2d.bandwidth": b, "budget": n} for b in ("1 GB/s", "2 GB/s") for n in (80, 90)]
    seen = []
    listed = hosim.sweep(
        GRAPH, MACHINE, "belady", vary=points, output=tmp_path / "rows.csv", jobs=1, progress=lambda *figures: seen.append(figures)
    )
    assert list(listed["makespan_ns"]) == list(grid["makespan_ns"])
    assert seen[-1] == (4, 4, 0)
    assert_frame_equal(hosim.sweep(GRAPH, MACHINE, "belady", vary=points, output=tmp_path / "rows.csv", jobs=1), listed)
    with pytest.raises(InputError, match="budget: 0 B leaves no memory at all"):
        hosim.sweep(GRAPH, MACHINE, "belady", "0 B", vary=points)
    with pytest.raises(InputError, match="expected points, each a mapping"):
        hosim.sweep(GRAPH, MACHINE, "belady", vary=[])


def test_blame_and_diff_take_plans_and_policies() -> None:
    plan = make_plan(GRAPH, MACHINE, parse_choice("layerwise"), 100)
    of_plan, of_policy = hosim.blame(plan, MACHINE, budget=100), hosim.blame(GRAPH, MACHINE, "layerwise", 100)
    assert_frame_equal(of_plan.frame, of_policy.frame)
    assert (of_plan.replanned, of_policy.replanned) == (False, True)
    assert list(of_plan.price_frame.columns) == ["what", "added", "makespan_ns", "saves_ns", "together"]
    other = make_plan(GRAPH, MACHINE, parse_choice("memory_peak"), 100)
    found = hosim.diff(plan, other, hardware=MACHINE, budget=100)
    assert str(found) == str(hosim.diff("layerwise", "memory_peak", GRAPH, MACHINE, 100))
    assert found.figures
    assert not hosim.diff(plan, other).figures


def test_fit_asks_one_question() -> None:
    for asked in ({}, {"largest": "a=1..2", "smallest": "a=1..2"}):
        with pytest.raises(InputError, match="give one of largest"):
            hosim.fit(GRAPH, MACHINE, **asked)


def test_robustness_is_that_of_the_study() -> None:
    table = hosim.robustness(GRAPH, MACHINE, ["belady", "resident"], "60%", runs=3, seed=4)
    assert list(table["run"]) == [0, 1, 2, 3] * 2
    assert list(table["feasible"]) == [True] * 4 + [False] * 4
    assert list(table["makespan_ns"][:1]) == list(hosim.compare(GRAPH, MACHINE, "belady", "60%")["makespan_ns"])

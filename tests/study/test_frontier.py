"""The frontier: points are answers within their budgets, the curve is what no other point beats, its lower end the smallest budget."""

import json
from pathlib import Path

import pytest
from quick_cases import one_in
from sweeping import MACHINE, chain
from typer.testing import CliRunner

from hosim.analysis import static_peak
from hosim.cli.main import app
from hosim.errors import InputError
from hosim.io import save_hardware, save_workload
from hosim.study.asked import parse_choice
from hosim.study.runs import Question
from hosim.study.searches import Frontier, attempt, frontier
from hosim.study.searches import frontiers as module


def question(policy: str, budget: int | None = None) -> Question:
    return Question(chain(12), MACHINE, parse_choice(policy), budget)


@pytest.mark.parametrize("policy", one_in(4, ["on_demand", "belady", "resident", "layerwise"]))
def test_the_curve(policy: str) -> None:
    found = frontier(question(policy), points=5, refine=3)
    peak = static_peak(chain(12)).bytes
    fitting = [r for r in found.results if r.feasible]
    assert fitting[-1].budget_bytes == peak
    assert [r.budget_bytes for r in found.results] == sorted({r.budget_bytes for r in found.results})
    # the smallest is where trying every byte finds it, to one part in 256 of the largest
    feasible = [budget for budget in range(1, peak + 1) if attempt(question(policy, budget)).feasible]
    assert feasible[0] <= found.smallest_bytes <= feasible[0] + 1
    assert found.too_small_bytes is None or found.too_small_bytes < feasible[0]
    for result in found.results:
        again = attempt(question(policy, result.budget_bytes))
        assert (again.makespan_ns, again.peak_bytes) == (result.makespan_ns, result.peak_bytes)
    curve = [(r.peak_bytes["hbm"], r.makespan_ns) for r in found.pareto]
    assert curve == sorted(curve)
    assert [ns for _, ns in curve] == sorted((ns for _, ns in curve), reverse=True)
    for r in fitting:
        assert any(p <= r.peak_bytes["hbm"] and ns <= r.makespan_ns for p, ns in curve)
    frame = found.frame
    assert frame["pareto"].sum() == len(curve)
    assert str(frame["makespan_ns"].dtype) == "Int64"
    assert len(frame) == len(found.results)
    assert policy in str(found)
    assert "<table" in found._repr_html_()
    assert repr(found) == str(found)


def test_a_budget_bounds_it() -> None:
    found = frontier(question("belady", 150), points=3, refine=0)
    assert max(r.budget_bytes for r in found.results) == 150


def test_nothing_fits() -> None:
    found = frontier(question("belady", 31), points=3)
    assert (found.smallest_bytes, len(found.results), list(found.pareto)) == (None, 1, [])
    assert str(found) == "belady does not fit within any budget probed"
    assert found.frame["makespan_ns"].isna().all()
    with pytest.raises(InputError, match="at least 2 points"):
        frontier(question("belady"), points=1)


def test_more_memory_that_does_harm_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # a policy that is slower within 100 to 199 bytes than below, and has no plan within 200 to 299
    answered = attempt(question("belady", 400))

    def strange(asked: Question) -> object:
        from dataclasses import replace

        n = asked.budget_bytes
        slow = {0: 50, 1: 70, 2: None, 3: 40}[min(n // 100, 3)]
        return replace(answered, budget_bytes=n, feasible=slow is not None and n >= 90, makespan_ns=slow, peak_bytes={"hbm": n, "ddr": 0})

    monkeypatch.setattr(module, "attempt", strange)
    found: Frontier = frontier(question("belady", 360), points=9, refine=0)
    said = " ".join(found.contradictions)
    assert "takes 70 ns, longer than 50 ns within" in said
    assert "does not fit although" in said
    assert {r.makespan_ns for r in found.pareto} == {50, 40}


@pytest.mark.long
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_workload(chain(12), "w.json")
    save_hardware(MACHINE, "hw.yaml")
    arguments = ["frontier", "w.json", "-H", "hw.yaml", "-p", "belady", "--points", "4"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["format"] == "hosim.frontier/1"
    assert (data["smallest_bytes"], data["too_small_bytes"]) == (32, None)  # a weight and two activations: no op can do with less
    assert {"pareto", "makespan_ns", "hbm_peak_bytes"} <= set(data["rows"][0])
    table = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"}).stdout
    assert "Peak memory against makespan" in table
    assert "belady needs" in table
    assert CliRunner().invoke(app, [*arguments, "-b", "31 B"]).exit_code == 3
    assert CliRunner().invoke(app, [*arguments, "--points", "1"]).exit_code == 2

"""The frontier: points are answers within their budgets, the curve is what no other point beats,
its lower end the smallest budget.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from quick_cases import one_in
from rendered import facts
from sweeping import MACHINE, chain
from typer.testing import CliRunner

from hosim.analysis import static_peak
from hosim.cache_plan import CacheOp, Plan
from hosim.cli.main import app
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.io import save_hardware, save_workload
from hosim.study.asked import as_choice, parse_choice
from hosim.study.runs import Question
from hosim.study.searches import attempt, frontier


def question(policy: str, budget: int | None = None) -> Question:
    return Question(chain(12), MACHINE, parse_choice(policy), budget)


@pytest.mark.parametrize("policy", one_in(4, ["on_demand", "belady", "resident", "layerwise"]))
def test_the_curve(policy: str) -> None:
    found = frontier(question(policy), points=5, refine=3)
    peak = static_peak(chain(12)).bytes
    fitting = [r for r in found.results if r.feasible]
    assert fitting[-1].budget_bytes == peak
    assert [r.budget_bytes for r in found.results] == sorted(
        {r.budget_bytes for r in found.results}
    )
    # the smallest is where trying every byte finds it, to one part in 256 of the largest
    least = next(
        budget for budget in range(1, peak + 1) if attempt(question(policy, budget)).feasible
    )
    assert least <= found.smallest_bytes <= least + 1
    assert found.too_small_bytes is None or found.too_small_bytes < least
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
    assert facts(str(found), "belady") == "belady"
    assert found.frame["makespan_ns"].isna().all()
    with pytest.raises(InputError, match="at least 2 points"):
        frontier(question("belady"), points=1)


def layers(*sizes: int) -> Graph:
    """Ops of 20 ns, each with a weight."""
    b = GraphBuilder("layers")
    for k, size in enumerate(sizes):
        b.op(f"f{k}", "any", inputs=[b.tensor(f"w{k}", size, "parameter")], duration_ns=20)
    return b.build()


def kept(graph: Graph, count: int, stored: int = 0) -> Plan:
    """The first weights stay; each of the others comes before its op and goes after it, of which
    some are copied back before.
    """
    moves = []
    for k in range(count, len(graph.ops)):
        back = [CacheOp("store", k, "hbm", "ddr", k)] * (k < count + stored)
        moves += [
            CacheOp("prefetch", k, "ddr", "hbm", k - 1),
            *back,
            CacheOp("detach", k, "hbm", None, k),
        ]
    return Plan(
        graph, cache_ops=tuple(moves), initial=dict.fromkeys(range(count, len(graph.ops)), ("ddr",))
    )


def test_more_memory_that_does_harm_is_said() -> None:
    """A policy that copies a weight back for nothing within 130 to 159 bytes, and has no plan
    within 160 to 189.
    """

    def strange(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
        if budget_bytes < 160:
            return kept(graph, 0, stored=budget_bytes >= 130)
        if budget_bytes < 190:
            raise InfeasibleError("no idea")
        return Plan(graph)

    found = frontier(Question(layers(100, 100), MACHINE, as_choice(strange)), points=9, refine=0)
    # copies of 100 ns each: 240 ns with two of them, 340 ns with a third
    assert [(r.budget_bytes, r.makespan_ns) for r in found.results] == [
        *(
            (100, 240),
            (112, 240),
            (125, 240),
            (137, 340),
            (150, 340),
            (162, None),
            (175, None),
            (187, None),
            (200, 40),
        )
    ]
    assert [facts(line) for line in found.contradictions] == [
        *(f"{budget} B, 340 ns, 240 ns, 125 B" for budget in (137, 150)),
        *(f"{budget} B, 125 B" for budget in (162, 175, 187)),
    ]
    assert [(r.makespan_ns, r.peak_bytes["hbm"]) for r in found.pareto] == [(240, 100), (40, 200)]


def probed(
    sizes: tuple[int, ...], kept_within: Callable[[int], int | None], refine: int = 0
) -> list[int]:
    """The budgets for which a policy is asked that keeps so many weights, or has no plan: both ends
    of the curve, and what refines it.
    """
    asked: list[int] = []

    def policy(graph: Graph, hardware: Hardware, budget_bytes: int) -> Plan:
        asked.append(budget_bytes)
        count = kept_within(budget_bytes)
        if count is None:
            raise InfeasibleError("too little")
        return kept(graph, count)

    machine = replace(
        MACHINE, tiers=(replace(MACHINE.tiers[0], capacity_bytes=2000), MACHINE.tiers[1])
    )
    frontier(Question(layers(*sizes), machine, as_choice(policy)), 2, refine, bounds=False)
    return asked


def test_the_smallest_budget_is_found_by_halving() -> None:
    """From what the largest op uses, to one part in 256 of the peak with everything resident."""
    sizes = (100,) * 10 + (24,)
    assert probed(sizes, lambda budget: 0 if budget >= 400 else None) == [
        1024,
        100,
        562,
        331,
        446,
        388,
        417,
        402,
        395,
        398,
        400,
        399,
    ]
    assert probed(sizes, lambda budget: 0 if budget >= 100 else None) == [1024, 100]
    assert probed(sizes, lambda budget: None) == [1024]


def test_a_curve_is_refined_where_its_step_is_largest() -> None:
    """By bytes times nanoseconds, between neighbours that fit. Each of ten weights that is not kept
    takes 100 ns more.
    """
    # of 450 B each: 300 ns below 550 B, 700 above; then 450 x 300 below is more than 225 x 500
    # above 775 B and 225 x 200 below it
    steps = {100: 0, 325: 0, 550: 3, 775: 5, 1000: 10}
    assert probed((100,) * 10, steps.get, 3) == [1000, 100, 550, 775, 325]
    assert probed((100,) * 10, lambda budget: 0, 3) == [1000, 100]  # nothing differs
    assert probed((100,) * 10, {100: 0, 1000: 10}.get, 2) == [
        1000,
        100,
        550,
    ]  # what does not fit is no neighbour: it would be 550 again


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
    assert (data["smallest_bytes"], data["too_small_bytes"]) == (
        32,
        None,
    )  # a weight and two activations: no op can do with less
    assert {"pareto", "makespan_ns", "hbm_peak_bytes"} <= set(data["rows"][0])
    table = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"}).stdout
    assert "belady needs" in table
    assert CliRunner().invoke(app, [*arguments, "-b", "31 B"]).exit_code == 3
    assert CliRunner().invoke(app, [*arguments, "--points", "1"]).exit_code == 2

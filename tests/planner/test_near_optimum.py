"""hyperoffload beside the exact optimum of small instances, some of those that the solver has solved."""

import sys
from pathlib import Path

import pytest
from instances import instance, instance_on_streams

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))

import optimality  # noqa: E402

from hosim.analysis import Gap  # noqa: E402
from hosim.engine import replay  # noqa: E402
from hosim.graph import GraphBuilder  # noqa: E402
from hosim.hardware import Channel, Compute, Hardware, Tier  # noqa: E402
from hosim.planner.hyperoffload import explain, refinement, search  # noqa: E402
from hosim.planner.hyperoffload.local_moves import FEW  # noqa: E402
from hosim.planner.hyperoffload.tensor_choices import analyse, with_gaps_between_neighbours  # noqa: E402
from hosim.policies import policy_named  # noqa: E402

OPTIMA = BENCH / "optima_seed_0.csv"
EVERY = 7
"""One instance in so many is planned (families come in turns of four); ``optimality.py --known``: all 200."""


@pytest.mark.long
def test_near_the_exact_optimum() -> None:
    # on average at most 0.6 %, at worst 7 % above what the solver has proved; feasible wherever something is. Each further instance that
    # is 5 % above moves the mean by 0.4 %, so that one may become a little worse, and two may not
    known = optimality.read_known(OPTIMA)
    rows = [optimality.measure(n, instance(n, 0), "hyperoffload", 0.0, True, known) for n in sorted(known)[::EVERY]]
    print(optimality.report(rows, "hyperoffload", 3))
    assert all(row.policy_ns is not None for row in rows)
    ratios = [row.ratio for row in rows if row.proved and row.ratio is not None]
    assert len(ratios) >= 20
    assert min(ratios) >= 1
    assert sum(ratios) / len(ratios) <= 1.006
    assert max(ratios) <= 1.07


def test_away_between_two_uses_that_follow_each_other_in_the_list() -> None:
    """On several streams ops of the others run meanwhile. The solver proves 152 ns; without such absences the search ends at 160."""
    case = instance_on_streams(47, 4)
    plan = policy_named("hyperoffload").plan(case.graph, case.hardware, case.budget_bytes, effort=0.5)
    assert replay(plan, case.hardware, case.budget_bytes).makespan_ns == 152
    assert explain(plan, case.hardware, case.budget_bytes)


def test_away_while_the_next_op_waits() -> None:
    """a makes o (30 B, stored in 60 ns) from w (20 B); b wants w and p (30 B, 30 ns); c wants o. 60 B hold w and o, or w and p.

    If w stays, p waits for o: o is stored from 10 to 70, p up at 100, b ends at 110, o is up again at 140, c ends at 150. If w has a
    copy below and leaves, p comes at once: it is up at 40, w comes when o is stored, from 70 to 90, b ends at 100, o is up at 130, and c
    ends at 140.
    """
    b = GraphBuilder("waits")
    b.tensor("w", 20, "parameter")
    b.tensor("p", 30, "parameter", "ddr")
    b.op("a", "op", inputs=["w"], outputs=[b.tensor("o", 30)], duration_ns=10)
    b.op("b", "op", inputs=["w", "p"], outputs=[b.tensor("s", 0)], duration_ns=10)
    b.op("c", "op", inputs=["o"], outputs=[b.tensor("r", 0, "output")], duration_ns=10)
    graph = b.build()
    tiers = (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 1000, 10**11))
    machine = Hardware("toy", tiers, (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 5 * 10**8)), Compute({}))
    plan = search(graph, machine, 60).plan
    assert replay(plan, machine, 60).makespan_ns == 140
    assert explain(plan, machine, 60)


@pytest.mark.parametrize(("wait_ns", "number"), [(0, 1), (5, 2)])
def test_no_further_search_where_the_lower_bound_is_reached(monkeypatch: pytest.MonkeyPatch, wait_ns: int, number: int) -> None:
    """On two streams and more ops than are searched from many starts. f waits 30 ns for p (30 B) and takes 10 ns, so 40 ns is the bound.

    The first search finds that, and there is no second one; but there is if the bound were less.
    """
    b = GraphBuilder("one")
    b.tensor("p", 30, "parameter", "ddr")
    b.op("f", "op", inputs=["p"], outputs=[b.tensor("r", 1, "output")], duration_ns=10)
    for k in range(FEW):
        b.op(f"aside{k}", "op", duration_ns=0, stream="aux")
    tiers = (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 1000, 10**11))
    machine = Hardware("toy", tiers, (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)), Compute({}))
    searches, improve = [], refinement.improve
    monkeypatch.setattr(refinement, "improve", lambda *given: searches.append(given) or improve(*given))
    monkeypatch.setattr(refinement, "bound_ns", lambda *_: 40 - wait_ns)
    assert search(b.build(), machine, 31, effort=0.1).cost.makespan_ns == 40
    assert len(searches) == number


def test_the_gaps_between_neighbours() -> None:
    case = instance_on_streams(47, 4)
    problem = analyse(case.graph, case.hardware)
    wider = with_gaps_between_neighbours(problem)
    added = [gap for gap in wider.gaps if gap not in problem.gaps]
    users = case.graph.users
    listed = {(t, u) for t in range(len(users)) for u, following in zip(users[t], users[t][1:], strict=False) if following == u + 1}
    assert {(gap.tensor, gap.after) for gap in added} == listed != set()
    assert set(problem.gaps) < set(wider.gaps)
    for gap in added:
        writers = [i for i in case.graph.writers[gap.tensor] if i <= gap.after]
        reads = gap.tensor in case.graph.ops[gap.before].reads
        assert gap == Gap(gap.tensor, gap.after, gap.after + 1, len(writers), reads, writers[-1] if writers else -1)

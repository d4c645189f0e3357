"""hyperoffload beside the exact optimum of small instances, some of those that the solver has
solved.
"""

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
from hosim.planner.hyperoffload import search  # noqa: E402
from hosim.planner.hyperoffload.explanations import explain  # noqa: E402
from hosim.planner.hyperoffload.tensor_choices import analyse, with_gaps_between_neighbours  # noqa: E402

pytestmark = pytest.mark.slow

OPTIMA = BENCH / "optima_seed_0.csv"
EVERY = 7
"""One instance in so many is planned (families come in turns of four); ``optimality.py --known``:
all 200.
"""


@pytest.mark.long
def test_near_the_exact_optimum() -> None:
    # on average at most 0.6 %, at worst 7 % above what the solver has proved; feasible wherever
    # something is. Each further instance that is 5 % above moves the mean by 0.4 %, so that one may
    # become a little worse, and two may not
    known = optimality.read_known(OPTIMA)
    rows = [
        optimality.measure(n, instance(n, 0), "hyperoffload", 0.0, True, known)
        for n in sorted(known)[::EVERY]
    ]
    print(optimality.report(rows, "hyperoffload", 3))
    assert all(row.policy_ns is not None for row in rows)
    ratios = [row.ratio for row in rows if row.proved and row.ratio is not None]
    assert len(ratios) >= 20
    assert min(ratios) >= 1
    assert sum(ratios) / len(ratios) <= 1.006
    assert max(ratios) <= 1.07


def test_away_while_the_next_op_waits() -> None:
    """a makes o (30 B, stored in 60 ns) from w (20 B); b wants w and p (30 B, 30 ns); c wants o. 60
    B hold w and o, or w and p.

    If w stays, p waits for o: o is stored from 10 to 70, p up at 100, b ends at 110, o is up again
    at 140, c ends at 150. If w has a copy below and leaves, p comes at once: it is up at 40, w
    comes when o is stored, from 70 to 90, b ends at 100, o is up at 130, and c ends at 140.
    """
    b = GraphBuilder("waits")
    b.tensor("w", 20, "parameter")
    b.tensor("p", 30, "parameter", "ddr")
    b.op("a", "op", inputs=["w"], outputs=[b.tensor("o", 30)], duration_ns=10)
    b.op("b", "op", inputs=["w", "p"], outputs=[b.tensor("s", 0)], duration_ns=10)
    b.op("c", "op", inputs=["o"], outputs=[b.tensor("r", 0, "output")], duration_ns=10)
    b.op("d", "op", duration_ns=0, stream="aux")
    graph = b.build()
    tiers = (Tier("hbm", 1000, 10**12, "device"), Tier("ddr", 1000, 10**11))
    machine = Hardware(
        "toy",
        tiers,
        (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 5 * 10**8)),
        Compute({}),
    )
    plan = search(graph, machine, 60).plan
    assert replay(plan, machine, 60).makespan_ns == 140
    assert explain(plan, machine, 60)


def test_the_gaps_between_neighbours() -> None:
    case = instance_on_streams(47, 4)
    problem = analyse(case.graph, case.hardware)
    wider = with_gaps_between_neighbours(problem)
    added = [gap for gap in wider.gaps if gap not in problem.gaps]
    users = case.graph.users
    listed = {
        (t, u)
        for t in range(len(users))
        for u, following in zip(users[t], users[t][1:], strict=False)
        if following == u + 1
    }
    assert {(gap.tensor, gap.after) for gap in added} == listed != set()
    assert set(problem.gaps) < set(wider.gaps)
    for gap in added:
        writers = [i for i in case.graph.writers[gap.tensor] if i <= gap.after]
        reads = gap.tensor in case.graph.ops[gap.before].reads
        assert gap == Gap(
            gap.tensor,
            gap.after,
            gap.after + 1,
            len(writers),
            reads,
            writers[-1] if writers else -1,
        )

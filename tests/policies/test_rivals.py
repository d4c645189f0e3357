"""What hyperoffload returns where its search finds nothing that fits: what another search finds, or
a plan decided while it runs.
"""

import pytest

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.hyperoffload.tensor_choices import Evaluation
from hosim.policies import own, policy_named
from hosim.policies.own import AT_RUNTIME

GB, BUDGET = 10**9, 95
MACHINE = Hardware(
    "96 bytes",
    (Tier("hbm", 96, 1000 * GB, "device"), Tier("ddr", 578, 100 * GB), Tier("nvme", 578, 10 * GB)),
    (
        Channel("h2d", "ddr", "hbm", GB),
        Channel("d2h", "hbm", "ddr", GB, engines=2),
        Channel("nvme_read", "nvme", "hbm", GB, engines=2),
        Channel("nvme_write", "hbm", "nvme", GB, engines=2),
    ),
    Compute({}),
)


def three_streams() -> Graph:
    """A drawn case: what is legal depends on when the streams free their bytes, which only the
    replay knows.
    """
    b = GraphBuilder("three streams")
    for name, size, kind, home in (
        ("p", 16, "parameter", None),
        ("q", 35, "parameter", "ddr"),
        ("r", 22, "parameter", "nvme"),
    ):
        b.tensor(name, size, kind, home=home)
    for name, size in {
        "a": 20,
        "b": 37,
        "c": 7,
        "d": 31,
        "e": 7,
        "f": 31,
        "g": 36,
        "h": 23,
    }.items():
        b.tensor(name, size)
    b.op("f5", "copy", outputs=["a", "b"], duration_ns=59, workspace_bytes=20)
    b.op("f4", "norm", outputs=["c", "d"], deps=["f5"], duration_ns=0)
    b.op(
        "f1",
        "norm",
        outputs=["e", "f"],
        deps=["f5", "f4"],
        stream="s2",
        duration_ns=45,
        workspace_bytes=7,
    )
    b.op("f3", "norm", inputs=["r"], outputs=["g"], duration_ns=0, workspace_bytes=20)
    b.op(
        "f0",
        "norm",
        inputs=["c", "d", "a"],
        outputs=["h"],
        deps=["f4", "f1"],
        stream="s1",
        duration_ns=15,
    )
    b.op("f2", "attention", inputs=["e", "q", "r"], duration_ns=34)
    return b.build()


def test_what_fits_within_less_memory_is_found_within_more() -> None:
    """No policy's plan is legal ahead of the run here, and with seed 1 the first search ends where
    nothing fits.
    """
    found = own.plan(
        three_streams(), MACHINE, BUDGET, effort=0.0, seed=1, reorder=False, recompute=False
    )
    assert found.runtime is None
    assert replay(found, MACHINE, BUDGET).feasible


def rival(name: str, graph: Graph) -> Plan | None:
    try:
        return policy_named(name).plan(graph, MACHINE, BUDGET)
    except InfeasibleError:
        return None


def test_the_fastest_plan_decided_while_it_runs_where_nothing_else_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(*_: object, **__: object) -> Evaluation:
        raise InfeasibleError("no plan found")

    monkeypatch.setattr("hosim.policies.own.hyperoffload.search", nothing)
    graph = three_streams()
    budget = BUDGET + 2  # where they differ
    plans = [policy_named(name).plan(graph, MACHINE, budget) for name in AT_RUNTIME]
    fitting = [
        result.makespan_ns for plan in plans if (result := replay(plan, MACHINE, budget)).feasible
    ]
    found = own.plan(graph, MACHINE, budget, effort=0.0, seed=1, reorder=False, recompute=False)
    assert found.policy == "hyperoffload"
    assert found.runtime is not None
    assert replay(found, MACHINE, budget).makespan_ns == min(fitting) < max(fitting)

"""A plan that fits in program order: what a policy is asked for in turn, and which of its plans is
taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hosim import policies
from hosim.cache_plan import DETACH, PREFETCH, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, PlanError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.on_torch.lower import planned
from hosim.result import Result

MACHINE = Hardware(
    "toy",
    (Tier("hbm", 10_000, 10**12, "device"), Tier("ddr", 10_000, 10**11)),
    (Channel("h2d", "ddr", "hbm", 10**9), Channel("d2h", "hbm", "ddr", 10**9)),
    Compute({}),
)


def toy() -> Graph:
    """Op f makes x, of 40 B, and op g reads it."""
    builder = GraphBuilder("toy")
    builder.tensor("x", 40)
    builder.op("f", "m", outputs=["x"], duration_ns=50)
    builder.op("g", "m", inputs=["x"], duration_ns=50)
    return builder.build()


@dataclass
class Scripted:
    """A policy whose plan for (budget, settings) is named, and what the replay of a plan so named
    gives: a makespan, or an error.
    """

    makespans: dict[str, int | str]
    names: dict[tuple[int, float | None], str]
    settings: dict[str, Any] = field(default_factory=lambda: {"effort": None})
    asked: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def plan(self, graph: Graph, hardware: Hardware, budget: int, **settings: Any) -> Plan:
        self.asked.append((budget, settings))
        name = self.names.get((budget, settings.get("effort")))
        if name is None:
            raise InfeasibleError(f"nothing for {budget} B with effort {settings.get('effort')}")
        return Plan(graph, name)

    def replayed(self, plan: Plan, hardware: Hardware, budget: int) -> Result:
        assert (hardware, budget) == (MACHINE, 1000)
        result, made = replay(plan, hardware), self.makespans[plan.policy]
        return (
            replace(result, feasible=False, error=made)
            if isinstance(made, str)
            else replace(result, makespan_ns=made)
        )


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def used(policy: Scripted) -> Scripted:
        monkeypatch.setattr(policies, "policy_named", {"scripted": policy}.__getitem__)
        return policy

    return used


def taken(policy: Scripted, **parameters: Any) -> tuple[str, int | None]:
    plan, result = planned(toy(), MACHINE, 1000, "scripted", parameters, replayed=policy.replayed)
    return plan.policy, result.makespan_ns


def test_the_first_share_at_which_a_plan_fits(use: Any) -> None:
    """At 1000 B the quick plan does not fit, at 970 there is none, at 930 it fits: then the asked
    effort is tried there, too.
    """
    names = {(1000, 0.0): "large", (930, 0.0): "quick", (930, 5.0): "thorough", (850, 0.0): "small"}
    policy = use(
        Scripted({"large": "too much", "quick": 200, "thorough": 150, "small": 100}, names)
    )
    assert taken(policy, effort=5.0, more=1) == ("thorough", 150)
    quick, asked = {"effort": 0.0, "more": 1}, {"effort": 5.0, "more": 1}
    assert policy.asked == [(1000, quick), (970, quick), (930, quick), (930, asked)]


def test_effort_that_makes_it_worse_or_finds_nothing(use: Any) -> None:
    names = {(1000, 0.0): "quick", (1000, 1.0): "thorough"}
    assert taken(use(Scripted({"quick": 150, "thorough": 200}, names)), effort=1.0) == (
        "quick",
        150,
    )
    assert taken(use(Scripted({"quick": 150, "thorough": 150}, names)), effort=1.0) == (
        "quick",
        150,
    )
    assert taken(use(Scripted({"quick": 150, "thorough": "too much"}, names)), effort=1.0) == (
        "quick",
        150,
    )
    assert taken(use(Scripted({"quick": 150}, {(1000, 0.0): "quick"})), effort=1.0) == (
        "quick",
        150,
    )


def test_effort_is_asked_for_only_where_there_is_such_a_parameter(use: Any) -> None:
    policy = use(Scripted({"only": 150}, {(1000, None): "only"}, {}))
    assert taken(policy) == ("only", 150)
    assert policy.asked == [(1000, {})]
    policy = use(Scripted({"only": 150}, {(1000, 0.0): "only"}))
    assert taken(policy, effort=0.0) == ("only", 150)
    assert policy.asked == [(1000, {"effort": 0.0})]  # which is what is tried first anyway


def test_all_shares_and_the_first_reason(use: Any) -> None:
    policy = use(Scripted({}, {}, {}))
    with pytest.raises(InfeasibleError) as caught:
        taken(policy)
    assert [budget for budget, _ in policy.asked] == [1000, 970, 930, 850, 700, 500, 300]
    where = "no plan of policy scripted stays within 1000 B in program order: "
    assert str(caught.value) == where + "nothing for 1000 B with effort None"
    policy = use(
        Scripted(
            {"large": "too much", "small": "still too much"},
            {(1000, None): "large", (300, None): "small"},
            {},
        )
    )
    with pytest.raises(InfeasibleError) as caught:
        taken(policy)
    assert str(caught.value) == where + "too much"


def test_a_plan_is_verified_and_replayed_in_program_order(use: Any) -> None:
    class Breaks(Scripted):
        def plan(self, graph: Graph, hardware: Hardware, budget: int, **settings: Any) -> Plan:
            return Plan(graph, "mine", (CacheOp(DETACH, 0, "hbm", None, 0),))

    use(Breaks({}, {}, {}))
    with pytest.raises(PlanError) as caught:
        planned(toy(), MACHINE, 1000, "scripted")
    (finding,) = caught.value.findings
    assert finding.startswith("last-copy: cache op 0 ")
    assert str(caught.value) == f"policy mine made a plan that breaks a rule: {finding}"
    policy = use(Scripted({}, {(1000, None): "fine"}, {}))
    plan, result = planned(toy(), MACHINE, 1000, "scripted")
    assert result == replay(plan, MACHINE, 1000, account="program")
    assert policy.asked == [(1000, {})]


@pytest.mark.parametrize(("budget", "places"), [(80, [-1, -1, 1, 2]), (79, [-1, 1, 1, 2])])
def test_prefetches_are_late_only_where_the_plan_does_not_fit(
    use: Any, budget: int, places: list[int]
) -> None:
    """Both weights of 40 B are prefetched at the start. The second one begins at 40 ns; within 79 B
    at 90, when the first has left.
    """
    builder = GraphBuilder("two")
    builder.op("f", "m", duration_ns=10)
    for i in range(2):
        builder.tensor(f"w{i}", 40, "parameter", "ddr")
        builder.op(f"f{i}", "m", inputs=[f"w{i}"], duration_ns=50)
    cache_ops = [CacheOp(PREFETCH, i, "ddr", "hbm") for i in range(2)] + [
        CacheOp(DETACH, i, "hbm", None, i + 1) for i in range(2)
    ]

    class Early(Scripted):
        def plan(self, graph: Graph, hardware: Hardware, budget: int, **settings: Any) -> Plan:
            return Plan(graph, "early", tuple(cache_ops))

    use(Early({}, {}, {}))
    plan, result = planned(builder.build(), MACHINE, budget, "scripted")
    assert [cache_op.after for cache_op in plan.cache_ops] == places
    assert result.makespan_ns == (140 if budget == 80 else 180)


def test_results_that_a_plan_leaves_below_are_brought_back() -> None:
    """x leaves while g makes y, as the budget holds one of them beside z; a call returns both."""
    builder = GraphBuilder("results")
    for name, kind in (("x", "output"), ("z", "activation"), ("y", "output")):
        builder.tensor(name, 40, kind)
    builder.op("f", "m", outputs=["x"], duration_ns=50)
    builder.op("g", "m", outputs=["z"], duration_ns=500)
    builder.op("h", "m", inputs=["z"], outputs=["y"], duration_ns=500)
    plan, result = planned(builder.build(), MACHINE, 100, "hyperoffload", {"effort": 0.0})
    assert [(c.op, c.after) for c in plan.cache_ops][-1] == (PREFETCH, 2)
    assert result.allocator is not None
    assert result.allocator.peak_allocated_bytes == 80

"""The cost of the HyperOffload description as a ranking: which of two tensors it moves, worked out
by hand.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import instance, instance_on_streams
from toys import machine

from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.planner.hyperoffload import Weights, select
from hosim.planner.hyperoffload.tensor_choices import analyse, insert
from hosim.policies import policy_named


def two(sizes: dict[str, int], used: dict[str, list[str]], idle_ns: int) -> Graph:
    """``f``, ``idle`` with 50 B of its own, then ``g`` and ``h``, 100 ns each but ``idle``;
    parameters and the ops that use them.
    """
    b = GraphBuilder("two")
    for name, size in sizes.items():
        b.tensor(name, size, "parameter")
    for op in ("f", "idle", "g", "h"):
        takes = idle_ns if op == "idle" else 100
        b.op(
            op,
            "op",
            inputs=[name for name in sizes if op in used[name]],
            duration_ns=takes,
            workspace_bytes=50 if op == "idle" else 0,
        )
    return b.build()


def moved(graph: Graph, budget: int, alpha: float) -> list[str]:
    selection = select(analyse(graph, machine()), budget, Weights(alpha=alpha))
    return [graph.tensors[t].name for t in sorted(selection.choices)]


@pytest.mark.parametrize("names", [("p", "q"), ("q", "p")])
def test_of_two_that_cost_the_same_the_one_used_less_moves(names: tuple[str, str]) -> None:
    """Both are 20 B, idle for 200 ns and back in 20: one has to be away while ``idle`` runs, as 20
    + 20 + 50 B exceed 75.
    """
    often, seldom = names
    graph = two({names[0]: 20, names[1]: 20}, {often: ["f", "g", "h"], seldom: ["f", "g"]}, 200)
    assert moved(graph, 75, 0.1) == [seldom]


@pytest.mark.parametrize("alpha", [0.0, 0.1, 10.0])
def test_what_a_transfer_takes_beyond_its_overlap_costs(alpha: float) -> None:
    """``idle`` takes 30 ns. What returns after it has 25 B: 25 ns are hidden by ``g``, which only
    the other tensor waits for.

    ``late``, needed by ``h``, costs no wait; ``soon``, needed by ``g``, waits for its whole return.
    """
    graph = two({"soon": 25, "late": 25}, {"soon": ["f", "g"], "late": ["f", "h"]}, 30)
    assert moved(graph, 75, alpha) == ["late"]
    plan = insert(
        analyse(graph, machine()),
        select(analyse(graph, machine()), 75, Weights(alpha=alpha)).choices,
        "test",
    )
    assert replay(plan, machine(), 75).makespan_ns == 330


@given(
    st.sampled_from((instance, instance_on_streams)),
    st.integers(0, 200),
    st.sampled_from((0.0, 0.1, 3.0)),
)
def test_a_sweep_by_it_is_a_sweep(draw, number: int, alpha: float) -> None:
    """What a sweep that is not short of room chooses takes legal plans, and no score leaves its
    range.
    """
    case = draw(number, 41)
    problem = analyse(case.graph, case.hardware.fair_share)
    selection = select(problem, case.budget_bytes, Weights(alpha=alpha))
    replay(insert(problem, selection.choices, "test"), case.hardware.fair_share, case.budget_bytes)
    assert selection == select(problem, case.budget_bytes, Weights(alpha=alpha))


def test_alpha_is_a_parameter() -> None:
    """With its sweeps the plan is as good as without, or better: they are one arm of the search."""
    case = instance(3, 31)
    policy = policy_named("hyperoffload")
    assert policy.settings["alpha"].read("0.5", "alpha") == 0.5
    plan = policy.plan(case.graph, case.hardware, case.budget_bytes, effort=0.1, alpha=0.5)
    assert plan.search is not None
    assert "alpha=0.5" in plan.search.again


def test_alpha_is_tried_under_a_placement_rule_as_well() -> None:
    """With its sweeps the search does other work, with a rule for the tiers below as without."""
    case = instance(3, 31)

    def work(**settings: object) -> int:
        plan = policy_named("hyperoffload").plan(
            case.graph, case.hardware, case.budget_bytes, **settings
        )
        assert plan.search is not None
        return plan.search.work

    for placement in ("planned", "nearest"):
        assert work(placement=placement, alpha=0.5) != work(placement=placement)

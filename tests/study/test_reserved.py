"""Planning against reserved bytes: what the allocator holds stays within the budget, which planning
by bytes alone does not see to.
"""

import random
from dataclasses import replace
from functools import cache

import pytest
from asked import questions
from quick_cases import one_in
from rendered import facts

from hosim.analysis.verifying import verify
from hosim.errors import InfeasibleError, InputError
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.jitter import Jitter
from hosim.policies import own
from hosim.study import compare, plan_against_reserved, reserved_line
from hosim.study.asked import as_choice, parse_choice
from hosim.study.runs import Counting, Question, make_plan, replay
from hosim.units import human_size

MIB = 1 << 20
MACHINE = Hardware(
    "two tiers",
    (Tier("hbm", 1000 * MIB, 10**12, "device"), Tier("ddr", 100_000 * MIB, 10**11)),
    (Channel("h2d", "ddr", "hbm", 20 * 10**9), Channel("d2h", "hbm", "ddr", 20 * 10**9)),
    Compute({}),
)


@cache
def chain(seed: int) -> Graph:
    """Twenty layers of a weight and an activation each, of sizes that leave holes in segments."""
    draw = random.Random(seed)
    b = GraphBuilder(f"chain {seed}")
    last = b.tensor("x", 3 * MIB, "input")
    for i in range(20):
        weight = b.tensor(f"w{i}", draw.randrange(MIB, 12 * MIB), "parameter")
        inputs, last = [last, weight], b.tensor(f"a{i}", draw.randrange(MIB // 2, 6 * MIB))
        b.op(
            f"f{i}",
            "matmul",
            inputs=inputs,
            outputs=[last],
            duration_ns=draw.randrange(100_000, 900_000),
        )
    return b.build()


@pytest.mark.parametrize("allocator", one_in(3, ["caching-expandable", "caching", "static"]))
@pytest.mark.parametrize("policy", ["memory_peak", "layerwise", "on_demand"])
def test_what_is_reserved_fits_where_planning_by_bytes_may_not(policy, allocator):
    choice, counting = parse_choice(policy), Counting(allocator)
    shrunk = 0
    for seed in range(3):
        graph = chain(seed)
        budget = 90 * MIB
        found = plan_against_reserved(Question(graph, MACHINE, choice, budget, counting=counting))
        figures, result = found.result.allocator, found.result
        assert result.feasible
        assert (figures.name, result.budget_bytes) == (allocator, budget)
        assert result.peak_bytes["hbm"] <= found.planned_bytes <= budget
        assert (
            result.peak_bytes["hbm"]
            <= figures.peak_allocated_bytes
            <= figures.peak_reserved_bytes
            <= budget
        )
        assert found.plan.runtime is not None or not verify(found.plan, MACHINE, budget)
        plain = replay(
            make_plan(graph, MACHINE, choice, budget),
            MACHINE,
            budget,
            counting=counting,
            bounds=False,
        )
        assert not plain.feasible or found.makespan_ns <= plain.makespan_ns
        shrunk += found.planned_bytes < budget
        assert (found.planned_bytes == budget) <= plain.feasible
    if (
        policy == "on_demand" and allocator != "static"
    ):  # the others use no more of a budget than their layers need; static has no holes
        assert shrunk


def by_trying_shares(graph: Graph, choice: str, budget: int) -> int:
    """What the docstrings say, step by step: the bytes that the best plan is made for."""

    def attempt(planned: int) -> tuple[int, bool] | None:
        try:
            plan = make_plan(graph, MACHINE, parse_choice(choice), planned)
        except InfeasibleError:
            return None
        counted = replay(
            plan, MACHINE, planned, counting=Counting("caching"), reserve_bytes=budget, bounds=False
        )
        freely = replay(plan, MACHINE, planned, bounds=False)
        return (
            (counted.makespan_ns, counted.makespan_ns > freely.makespan_ns)
            if counted.feasible
            else None
        )

    tried: list[tuple[int, int]] = []  # makespan, bytes
    failed = None
    for planned in (int(budget * share) for share in (1.0, 0.99, 0.97, 0.93, 0.85, 0.69, 0.37)):
        found = attempt(planned)
        if found is None:
            failed = planned if not tried else failed
            continue
        tried.append((found[0], planned))
        if not found[1] or len(tried) == 3:
            break
    best, low = min(tried, key=lambda pair: pair[0])
    if failed is None or len(tried) > 1:
        return low
    middle = low
    for _ in range(2):
        middle = (middle + failed) // 2
        found = attempt(middle)
        if found is None or found[0] > best:
            break
        best, low = found[0], middle
    return low


@pytest.mark.parametrize(
    ("policy", "budget"),
    one_in(4, [("on_demand", 60), ("on_demand", 90), ("memory_peak", 60), ("memory_peak", 45)]),
)
def test_the_share_is_that_of_trying_by_the_rule(policy, budget):
    shares = set()
    for seed in range(6):
        found = plan_against_reserved(
            Question(
                chain(seed),
                MACHINE,
                parse_choice(policy),
                budget * MIB,
                counting=Counting("caching"),
            )
        )
        assert found.planned_bytes == by_trying_shares(chain(seed), policy, budget * MIB)
        shares.add(found.planned_bytes)
    assert len(shares) > 1


@pytest.mark.parametrize(
    ("seed", "budget", "gain"), one_in(3, [(0, 45, 0.05), (3, 45, 0.03), (1, 60, 0.0)])
)
def test_plans_judged_by_the_allocator_are_never_worse_than_plans_for_less_memory(
    seed, budget, gain
):
    """Without its judgement only smaller budgets keep segments from growing; with it the planner
    sees which plan leaves no holes.
    """
    choice = parse_choice("hyperoffload:effort=0.0")
    found = plan_against_reserved(
        Question(chain(seed), MACHINE, choice, budget * MIB, counting=Counting("caching"))
    )

    def not_told(graph, hardware, budget_bytes):
        return make_plan(graph, hardware, choice, budget_bytes)

    by_shares = plan_against_reserved(
        Question(
            chain(seed), MACHINE, as_choice(not_told), budget * MIB, counting=Counting("caching")
        )
    )
    assert found.makespan_ns <= (1 - gain) * by_shares.makespan_ns
    again = replay(
        found.plan,
        MACHINE,
        found.planned_bytes,
        counting=Counting("caching"),
        reserve_bytes=budget * MIB,
        bounds=False,
    )
    assert (again.feasible, again.makespan_ns) == (True, found.makespan_ns)
    assert found.result.allocator.peak_reserved_bytes <= budget * MIB
    assert verify(found.plan, MACHINE, budget * MIB) == ()


def test_only_the_planner_that_can_be_told_so_and_only_plans_that_wait_are_judged(monkeypatch):
    efforts, plan = [], own.plan

    def told(*given, **settings):
        efforts.extend([settings["effort"]] if "judge" in settings else [])
        return plan(*given, **settings)

    monkeypatch.setattr(own, "plan", told)
    plan_against_reserved(
        Question(
            chain(0), MACHINE, parse_choice("memory_peak"), 45 * MIB, counting=Counting("caching")
        )
    )
    plan_against_reserved(
        Question(
            chain(0), MACHINE, parse_choice("hyperoffload"), 75 * MIB, counting=Counting("caching")
        )
    )
    assert efforts == []
    plan_against_reserved(
        Question(
            chain(0),
            MACHINE,
            parse_choice("hyperoffload:effort=0.01"),
            45 * MIB,
            counting=Counting("caching"),
        )
    )
    assert (efforts[-1], set(efforts[:-1]), len(efforts) > 2) == (0.01, {0.0}, True)


def test_the_line_has_both_peaks():
    found = plan_against_reserved(
        Question(
            chain(0), MACHINE, parse_choice("layerwise"), 90 * MIB, counting=Counting("caching")
        )
    )
    line = reserved_line(found)
    figures = found.result.allocator
    both = human_size(figures.peak_allocated_bytes), human_size(figures.peak_reserved_bytes)
    assert facts(line, "caching") == ", ".join(
        [both[0], "caching", both[1], "90.0 MiB", "90.0 MiB"]
    )


def test_a_budget_that_no_segment_fits_into_is_infeasible():
    with pytest.raises(
        InfeasibleError,
        match=r"found no plan for which the allocator caching reserves at most 21\.0 MiB; with "
        r"the whole budget",
    ):
        plan_against_reserved(
            Question(
                chain(0), MACHINE, parse_choice("layerwise"), 21 * MIB, counting=Counting("caching")
            )
        )


def test_a_ledger_reserves_nothing():
    with pytest.raises(InputError, match="ledger reserves nothing"):
        plan_against_reserved(
            Question(chain(0), MACHINE, parse_choice("layerwise"), 90 * MIB, counting=Counting())
        )


def test_a_comparison_plans_every_choice_so():
    choices = [parse_choice(name) for name in ("resident", "layerwise", "on_demand")]
    results = compare(
        questions(chain(1), MACHINE, choices, 90 * MIB, counting=Counting("caching"), reserved=True)
    )
    assert [(r.policy, r.feasible) for r in results] == [
        ("resident", False),
        ("layerwise", True),
        ("on_demand", True),
    ]
    assert all(
        r.allocator.peak_reserved_bytes <= 90 * MIB == r.budget_bytes and r.lower_bound_ns
        for r in results[1:]
    )
    assert all(
        r.planning_s > 0
        for r in (*results, *compare(questions(chain(1), MACHINE, choices, 90 * MIB)))
    )


def test_a_comparison_keeps_the_timelines_that_it_is_asked_for():
    """The replay that is recorded is the one whose figures are in the row: with the allocator,
    within what the policy planned with.
    """
    choices, counting = (
        [parse_choice(name) for name in ("on_demand", "layerwise")],
        Counting("caching"),
    )
    said, kept = [], []

    def keep(question, plan, result):
        kept.append((question.choice, plan.policy, result))

    plain = compare(
        questions(chain(3), MACHINE, choices, 90 * MIB, counting=counting, reserved=True),
        said.append,
        keep,
    )
    recorded = compare(
        questions(chain(3), MACHINE, choices, 90 * MIB, counting=counting, reserved=True),
        record=True,
    )
    assert said == ["on_demand: planning", "layerwise: planning"]
    assert kept == [
        (choice, choice.name, result) for choice, result in zip(choices, plain, strict=True)
    ]
    for choice, without, result in zip(choices, plain, recorded, strict=True):
        found = plan_against_reserved(
            Question(chain(3), MACHINE, choice, 90 * MIB, counting=counting)
        )
        again = replay(
            found.plan,
            MACHINE,
            found.planned_bytes,
            counting=counting,
            reserve_bytes=90 * MIB,
            record=True,
            bounds=False,
        )
        assert (without.timeline, result.timeline) == (None, again.timeline)
        assert result.timeline is not None
        assert replace(result, timeline=None, planning_s=None, replay_s=None) == replace(
            without, planning_s=None, replay_s=None
        )
        assert result.policy == choice.label
    drawn = compare(
        questions(
            chain(3),
            MACHINE,
            choices[:1],
            90 * MIB,
            counting=counting,
            reserved=True,
            jitter=Jitter(1, 0.2),
        ),
        said.append,
    )
    assert said[2:] == ["on_demand: planning", "on_demand: replaying"]
    assert drawn[0].jitter == Jitter(1, 0.2)
    (unfit,) = compare(
        questions(chain(3), MACHINE, choices[1:], MIB, counting=counting, reserved=True), keep=keep
    )
    assert (unfit.feasible, unfit.policy, unfit.planning_s > 0, len(kept)) == (
        False,
        "layerwise",
        True,
        2,
    )

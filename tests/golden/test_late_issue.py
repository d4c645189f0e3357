"""Plans that fail where times vary get their prefetches issued later, and take as long as
before.
"""

from dataclasses import replace

import pytest
from both_engines import replay
from by_hand import machine, plan, workload
from hypothesis import given
from strategies import cases

from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, PREFETCH
from hosim.jitter import Jitter
from hosim.planner.hyperoffload.choice_passes import issued_late, sturdier

JITTERS = [Jitter(seed, 0.05, 0.1) for seed in range(20)]


def overtaking():
    # A byte takes a nanosecond. v, 1005 B, is there at 1005; by then g, from 1000 to 1100, holds
    # 8000 B, and w, 4000 B, has no room before
    # 1100. If f takes longer than v, w comes before g, which then lacks room for good: only h,
    #       after g, lets go of w.
    graph = workload(
        {"v": (1005, "parameter", "ddr"), "w": (4000, "parameter", "ddr")},
        {
            "f": {"ns": 1000},
            "g": {"ns": 100, "workspace_bytes": 8000},
            "h": {"ns": 10, "inputs": ["v", "w"]},
        },
    )
    return plan(
        graph, ("prefetch v", None), ("prefetch w", None), ("detach v", "h"), ("detach w", "h")
    ), machine(hbm=10_000, ddr=100_000)


def failing(the_plan, hardware):
    return sum([not replay(the_plan, hardware, jitter=jitter).feasible for jitter in JITTERS])


def test_a_prefetch_that_may_overtake_an_op_is_issued_after_it():
    fragile, hardware = overtaking()
    assert failing(fragile, hardware) > 5
    made = sturdier(fragile, hardware, 10_000)
    assert [(c.tensor, c.after) for c in made.cache_ops if c.op == PREFETCH] == [
        (0, AT_START),
        (1, 1),
    ]
    assert failing(made, hardware) == 0
    assert (
        replay(made, hardware).makespan_ns
        == replay(fragile, hardware).makespan_ns
        == 1100 + 4000 + 10
    )


def test_a_plan_that_fits_however_long_things_take_stays():
    fragile, hardware = overtaking()
    roomy = replace(
        hardware, tiers=(replace(hardware.tiers[0], capacity_bytes=20_000), *hardware.tiers[1:])
    )
    made = sturdier(fragile, roomy, 20_000)
    assert made == fragile
    assert (made.search.draws, made.search.failed, made.notes) == (20, 0, ())
    taken = [
        replay(fragile, roomy, jitter=Jitter(2**40 + draw, 0.05, 0.1)).makespan_ns
        for draw in range(20)
    ]
    assert made.search.lost == pytest.approx(
        sum(taken) / 20 / replay(fragile, roomy).makespan_ns - 1
    )


def test_a_plan_that_another_judge_finds_slower_is_not_taken():
    fragile, hardware = overtaking()

    def judge(the_plan, machine, budget_bytes):
        result = replay(the_plan, machine, budget_bytes)
        return (
            result if the_plan == fragile else replace(result, makespan_ns=result.makespan_ns + 1)
        )

    made = sturdier(fragile, hardware, 10_000, judge)
    assert made == fragile
    assert 0 < made.search.failed <= made.search.draws == 20
    assert len(made.notes) == 1


@pytest.mark.parametrize("streams", [1, 3])
def test_any_plan_takes_as_long_as_before(streams):
    @given(cases(max_ops=6, max_streams=streams, roomy=None))
    def holds(case):
        _, hardware, the_plan = case
        budget = hardware.device.capacity_bytes
        before = replay(the_plan, hardware, budget)
        made = sturdier(the_plan, hardware, budget)
        after = replay(made, hardware, budget)
        assert (after.feasible, after.makespan_ns) == (before.feasible, before.makespan_ns)
        if streams == 1 and before.feasible:
            late = issued_late(the_plan, hardware, budget)
            assert verify(late, hardware) == ()
            again = replay(late, hardware, budget)
            assert (again.feasible, again.makespan_ns) == (True, before.makespan_ns)

    holds()

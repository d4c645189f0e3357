"""What mispredictions take, by replays that differ in the predictions alone; figures derived as in
``test_hybrid``.
"""

from __future__ import annotations

from dataclasses import replace

import moe_toy
import pytest
from moe_toy import EXPERT, INSPECT

from hosim.cache_plan import Plan
from hosim.data.expert_routing import realise
from hosim.errors import InputError
from hosim.io.models import generate
from hosim.policies import policy_named
from hosim.study import Mispredictions, mispredictions, predicts

MACHINE = moe_toy.machine()


def study(graph, budget=1000, **settings) -> Mispredictions:
    row = mispredictions(
        policy_named("hybrid").plan(graph, MACHINE, budget, **settings), MACHINE, budget
    )
    assert row is not None
    return row


def test_one_wrong_prefetch() -> None:
    row = study(realise(moe_toy.routing(1, 4, [((0,),), ((1,),)]), 1))
    assert (row.decisions, row.chosen, row.resident, row.prefetched) == (1, 1, 0, 0)
    assert (row.missed, row.missed_bytes) == (1, EXPERT)
    assert (row.wrong, row.wrong_bytes, row.wrong_ns) == (1, EXPERT, EXPERT)
    assert row.harm_ns == 0  # it was through long before the gate decided
    assert row.lost_ns == EXPERT
    assert row.gained_ns == -INSPECT  # looking ahead took an inspection, and brought nothing


def test_right_prefetches() -> None:
    row = study(realise(moe_toy.routing(1, 4, [((0, 1),), ((0, 1),)]), 1))
    assert (row.chosen, row.prefetched, row.missed, row.wrong, row.wrong_ns) == (2, 2, 0, 0, 0)
    assert (row.harm_ns, row.lost_ns) == (0, 0)
    assert (
        row.gained_ns == EXPERT - INSPECT
    )  # without it, one transfer is waited for; the other comes while the first expert computes


def test_wrong_prefetches_in_the_way_of_the_right_ones() -> None:
    # four wrong transfers end at 165, the decision is known at 120: 45 ns of queueing
    row = study(realise(moe_toy.routing(1, 5, [((0, 1, 2, 3),), ((4,),)]), 1))
    assert (row.wrong, row.wrong_bytes, row.wrong_ns) == (4, 4 * EXPERT, 4 * EXPERT)
    assert row.harm_ns == 45
    assert row.lost_ns == 45 + EXPERT
    assert row.gained_ns == -(45 + INSPECT)


def test_what_is_in_the_cache_since_an_earlier_decision() -> None:
    row = study(
        realise(moe_toy.routing(1, 4, [((0,),), ((0,),), ((2,),)]), range(3)), predictor="none"
    )
    assert (row.decisions, row.chosen, row.resident, row.prefetched, row.missed) == (3, 3, 1, 0, 2)


def test_the_accounts_agree_on_a_trace() -> None:
    routing = moe_toy.routing(4, 8)
    graph = realise(generate(routing.graph, routing.gates, steps=8, top=2, seed=5), range(8))
    for predictor in ("previous", "popular", "none", "perfect"):
        row = study(graph, 300, cache_bytes=200, predictor=predictor)
        assert row.chosen == row.resident + row.prefetched + row.missed == 8 * 4 * 2
        assert row.missed_bytes == EXPERT * row.missed
        assert row.wrong_bytes == row.wrong_ns == EXPERT * row.wrong
        assert row.lost_ns is not None
        assert row.lost_ns >= 0
        if predictor in ("none", "perfect"):
            assert row.wrong == row.harm_ns == 0
            assert row.makespan_ns == {"none": row.none_ns, "perfect": row.perfect_ns}[predictor]
        else:
            assert row.wrong > 0


def test_predictions_of_what_is_there_do_no_harm() -> None:
    # the cache holds all: what is predicted from the step before is there already, right or wrong
    row = study(realise(moe_toy.routing(1, 4, [((0,),), ((1,),), ((2,),)]), range(3)))
    assert (row.missed, row.prefetched, row.wrong, row.harm_ns) == (3, 0, 0, 0)


def test_a_plan_that_predicts_nothing() -> None:
    graph = moe_toy.graph(1, 2)
    assert not predicts(Plan(graph))
    with pytest.raises(InputError, match="the plan of manual predicts no routing"):
        mispredictions(Plan(graph), MACHINE)


def test_a_plan_that_does_not_fit() -> None:
    made = policy_named("hybrid").plan(realise(moe_toy.routing(1, 2, [((0,),)]), 0), MACHINE, 1000)
    assert predicts(made)
    assert mispredictions(replace(made, initial={}), MACHINE, 30) is None

"""Replays with jitter in one table, against one replay after another."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from strategies import cases

from hosim.engine import UncoveredError, jittered_makespans, replay
from hosim.errors import PlanError
from hosim.jitter import Jitter

JITTERS = (Jitter(3, 0.3, 0.2), Jitter(4, 0.0, 0.5), Jitter(5, 0.4))


@given(
    cases(max_ops=8, max_streams=2, fabrics=True, uneven=True, measured=False),
    st.sampled_from((60, 200, 10**6)),
)
def test_makespans_are_those_of_replays(case: Any, budget: int) -> None:
    _, machine, plan = case
    expected = []
    for jitter in JITTERS:
        try:
            expected.append(replay(plan, machine, budget, jitter=jitter).makespan_ns)
        except PlanError:
            expected.append(None)
    try:
        assert jittered_makespans(plan, machine, budget, JITTERS) == expected
    except UncoveredError:
        assert len(machine.channels) > 1

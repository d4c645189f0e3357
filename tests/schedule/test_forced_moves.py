"""The moves that ops on other processors force: legal, and enough, whatever the graph."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_strategies import machines, on_processors

from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError
from hosim.planner.schedule import forced_moves, forced_tensors


def check(data):
    machine = data.draw(machines())
    graph = data.draw(on_processors(machine, True))
    forced = set(forced_tensors(graph))
    initial = {t: (machine.device_tier,) for t in graph.initial if t not in forced}
    try:
        moves = forced_moves(graph, machine, initial, data.draw(st.integers(0, 4)))
    except InfeasibleError:
        return  # no channels lead there
    plan = Plan(graph, "forced", moves, initial)
    room = tuple(replace(tier, capacity_bytes=10**6) for tier in machine.tiers)
    machine = replace(machine, tiers=room)
    assert not verify(plan, machine)
    assert replay(plan, machine).error is None


@given(st.data())
def test_forced_moves_are_legal_and_enough(data):
    check(data)


@pytest.mark.long
@settings(max_examples=2000, deadline=None)
@given(st.data())
def test_forced_moves_are_legal_and_enough_at_length(data):
    check(data)

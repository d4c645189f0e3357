"""The sweep that takes gaps: compiled, interpreted and a naive one take the same."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import instance, instance_on_streams
from oracles.naive_sweep import NaiveSweep
from strategies import graphs, hardware, sized
from toys import hill, machine

from hosim.analysis import canonical
from hosim.planner.hyperoffload import Weights, select
from hosim.planner.hyperoffload.tensor_choices import Problem, TensorChoice, analyse

WEIGHTS = st.builds(
    Weights,
    waiting=st.sampled_from((0.0, 0.3, 1.0)),
    copies=st.booleans(),
    slow=st.sampled_from((1.0, 0.55, 1.2)),
)


@st.composite
def problems(draw) -> tuple[Problem, int]:
    """A problem, whose tiers below may be too small for all, and a budget that it may exceed."""
    drawn = draw(hardware())
    homes = [tier.name for tier in drawn.tiers]
    graph = canonical(draw(graphs(max_ops=14, max_streams=2, homes=homes)))
    sized_machine = sized(drawn, graph)
    room = draw(st.integers(1, sized_machine.device.capacity_bytes))
    tiers = [
        tier if tier is sized_machine.device else replace(tier, capacity_bytes=room)
        for tier in sized_machine.tiers
    ]
    problem = analyse(graph, replace(sized_machine, tiers=tuple(tiers)))
    return problem, draw(st.integers(0, max(1, *problem.held_bytes)))


def naive(problem: Problem, budget: int, weights: Weights) -> tuple[object, ...]:
    sweep = NaiveSweep(problem, budget, weights).run()
    names = [below.name for below in problem.below]
    choices = {
        t: TensorChoice(names[life.tier], life.start, life.away, life.stores)
        for t, life in sweep.lives.items()
    }
    return choices, list(choices), sweep.short, sweep.stall, sweep.judged


def found(problem: Problem, budget: int, weights: Weights) -> tuple[object, ...]:
    made = select(problem, budget, weights)
    stall = made.expected_stall_ns
    return made.choices, list(made.choices), made.short_bytes, stall, made.judged


@given(problems(), WEIGHTS)
def test_a_sweep_takes_what_a_naive_one_takes(drawn: tuple[Problem, int], weights: Weights) -> None:
    compiled = found(*drawn, weights)
    assert compiled == naive(*drawn, weights)
    with patch("hosim.planner.hyperoffload.selection.form_of", lambda kernel: kernel):
        assert found(*drawn, weights) == compiled


@given(
    st.sampled_from((instance, instance_on_streams)),
    st.integers(0, 400),
    st.floats(0, 0.9),
    WEIGHTS,
)
def test_so_it_does_on_models_in_small(draw, number: int, share: float, weights: Weights) -> None:
    case = draw(number, 23)
    problem = analyse(case.graph, case.hardware)
    least, most = max(problem.floor_bytes), max(problem.held_bytes)
    budget = least + int(share * (most - least))
    assert found(problem, budget, weights) == naive(problem, budget, weights)


@pytest.mark.parametrize("size", [2**40, 2**61])
def test_numbers_that_do_not_fit_in_64_bits_are_swept_as_well(size: int) -> None:
    """The way over a channel of a byte a nanosecond takes as many nanoseconds; scores are in
    thousandths of them.
    """
    problem = analyse(hill(6, size, 2 * size), machine(below=2**63 - 1))
    taken = found(problem, 4 * size, Weights())
    assert taken == naive(problem, 4 * size, Weights())
    assert taken[0]

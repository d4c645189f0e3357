"""Even spreads on plans made by hand, and that those in time take no longer with faster channels or
more memory.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from toys import NS, machine, plateau

from hosim.cache_plan import AT_START
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.planner.hyperoffload.choice_passes import (
    advance,
    evenly,
    hardly_late,
    in_time,
    usual_bytes,
)
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    Choices,
    Problem,
    TensorChoice,
    analyse,
    insert,
)


def below(problem: Problem, choices: Choices | None) -> list[str]:
    assert choices is not None
    return [problem.graph.tensors[t].name for t in choices]


def with_rate(eighths: int, *lower: str, latency: int = 0) -> Hardware:
    """The machine whose fastest channel up carries so many eighths of a byte in a nanosecond."""
    hw = machine(*lower, latency=latency)
    up = hw.channels[0].name
    return replace(
        hw,
        channels=tuple(
            replace(c, bandwidth_bytes_per_s=eighths * NS // 8) if c.name == up else c
            for c in hw.channels
        ),
    )


def takes(problem: Problem, choices: Choices | None, budget: int) -> int:
    assert choices is not None
    found = replay(
        insert(problem, advance(problem, choices, budget), "test"), problem.hardware, budget
    ).makespan_ns
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("budget", "ahead", "names"),
    [(60, 0, []), (30, 0, ["w0", "w2", "w4"]), (40, 10, ["w0", "w2", "w4"])],
)
def test_an_even_spread_keeps_what_fits(budget: int, ahead: int, names: list[str]) -> None:
    # 60 B of weights: all beyond the budget less what is to be on its way starts below, every other
    # one
    problem = analyse(plateau(6), machine())
    found = evenly(problem, budget, ahead, False, 1)
    assert below(problem, found) == names
    assert found is not None
    assert all(
        (c.below, c.start, c.away) == ("ddr", BELOW, {AT_START: t - 1}) for t, c in found.items()
    )


def test_what_the_step_writes_is_spread_if_asked_for() -> None:
    graph = plateau(4)
    written = replace(
        graph, ops=tuple(replace(op, inputs=(), mutates=op.inputs) for op in graph.ops)
    )
    problem = analyse(written, machine())
    assert evenly(problem, 20, 0, False, 1) is None
    assert below(problem, evenly(problem, 20, 0, True, 1)) == ["w0", "w2"]


def test_several_tiers_take_what_their_channels_bring_up_in_the_same_time() -> None:
    # the second tier has half the rate: of six weights it gets two, unless it or the first one is
    # full
    hw = machine("ddr", "pool")
    problem = analyse(plateau(6), hw)

    def tiers(hw: Hardware, count: int) -> list[str] | None:
        found = evenly(analyse(plateau(6), hw), 1, 0, False, count)
        return None if found is None else [choice.below for choice in found.values()]

    assert usual_bytes(problem) == 10
    assert tiers(hw, 1) == ["ddr"] * 6
    assert tiers(hw, 2) == ["ddr", "ddr", "pool", "ddr", "ddr", "pool"]
    small = replace(hw, tiers=(hw.tiers[0], replace(hw.tiers[1], capacity_bytes=20), hw.tiers[2]))
    assert tiers(small, 2) == ["ddr", "ddr", "pool", "pool", "pool", "pool"]
    assert tiers(small, 1) is None


def test_what_cannot_come_up_by_its_first_use_stays() -> None:
    # 12 weights of 10 B, an op of 20 ns each, 80 B: 40 B are below, and 10 B are on their way: 5 of
    # 12 are spread. w0 is used at 0 and stays, so 5 of the 11 after it are, the first one at once:
    # w1 is there at 10 and used at 20. Nothing waits in 12 x 20 ns, while an even spread, which
    # begins with w0, waits for it
    problem = analyse(plateau(12), machine())
    timely, even = in_time(problem, 80, 10, False, 1), evenly(problem, 80, 10, False, 1)
    assert below(problem, timely) == ["w1", "w3", "w5", "w7", "w9"]
    assert timely is not None
    assert timely[1] == TensorChoice("ddr", BELOW, {AT_START: 0})
    assert below(problem, even) == ["w0", "w2", "w4", "w7", "w9"]
    assert takes(problem, timely, 80) == 240 < takes(problem, even, 80)


def test_the_latency_of_a_channel_counts() -> None:
    # with 11 ns of latency w1 is there at 21, after its use at 20
    problem = analyse(plateau(12), machine(latency=11))
    assert below(problem, in_time(problem, 80, 10, False, 1))[0] == "w2"


def test_what_comes_up_again_takes_its_time_on_the_channel() -> None:
    # ops of 20 ns, weights of 36 B, 72 of 180 B below. a and b, used at 0 and 20, are late; c is
    # there at 36 and used at 40; d would be there at 72 and is used at 60. c leaves at 60 and is
    # there again at 96, so e would be there at 132 and is used at 100
    def step(*weights: str) -> Graph:
        b = GraphBuilder("again")
        for name in sorted(set(weights)):
            b.tensor(name, 36, "parameter")
        for i, name in enumerate(weights):
            b.op(f"f{i}", "matmul", inputs=[name], duration_ns=20)
        return b.build()

    once = analyse(step("a", "b", "c", "d", "d", "e"), machine())
    assert below(once, in_time(once, 108, 0, False, 1)) == ["c", "e"]
    assert in_time(analyse(step("a", "b", "c", "d", "c", "e"), machine()), 108, 0, False, 1) is None


def test_where_none_is_in_time_the_step_is_taken_to_be_longer() -> None:
    # 10 B take 80 ns: five of them take 400, and the last op begins at 220
    problem = analyse(plateau(12), with_rate(1))
    assert in_time(problem, 80, 10, False, 1) is None
    late = hardly_late(problem, 80, 10, False, 1)
    assert takes(problem, late, 80) < takes(problem, evenly(problem, 80, 10, False, 1), 80)
    assert (
        hardly_late(analyse(plateau(12), with_rate(1)), 0, None, False, 1) is None
    )  # twelve of them take 960, and twice the step is 480


@pytest.mark.parametrize("lower", [("ddr",), ("ddr", "pool")])
def test_a_spread_in_time_is_never_slower_with_faster_channels_or_more_memory(
    lower: tuple[str, ...],
) -> None:
    def best(rate: int, budget: int) -> int:
        problem = analyse(plateau(12), with_rate(rate, *lower))
        spread = (hardly_late(problem, budget, spare, False, len(lower)) for spare in (10, 20))
        return min(takes(problem, choices, budget) for choices in spread if choices is not None)

    along_rates = [best(rate, 80) for rate in range(1, 12)]
    along_budgets = [best(2, budget) for budget in range(70, 121, 5)]
    for found in (along_rates, along_budgets):
        assert all(more <= less for less, more in pairwise(found)), found
        assert found[-1] == 240
    assert along_rates[0] > 240

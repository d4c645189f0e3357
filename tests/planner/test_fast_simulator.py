"""The fast simulator answers what the engine answers, in a few lists: makespan, whether the plan fits, bytes moved."""

from dataclasses import replace

from drawn_choices import choices
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, hardware, sized
from toys import hill, machine, plateau

from hosim.cache_plan import DETACH
from hosim.engine import replay
from hosim.hardware import Fabric, Hardware
from hosim.planner.hyperoffload.choices import HOME, TensorChoice, insert
from hosim.planner.hyperoffload.fast_simulator import FastSimulator
from hosim.planner.hyperoffload.problem import analyse


def plain(drawn: Hardware) -> Hardware:
    """The machine without what channels share, and without pinning."""
    return replace(
        drawn,
        devices=1,
        fabrics=(),
        channels=tuple(replace(c, engines=1, beside=()) for c in drawn.channels),
        tiers=tuple(replace(t, pin_ns=0, pageable=()) for t in drawn.tiers),
    )


@given(data=st.data())
def test_a_rehearsal_ends_when_the_replay_does(data: st.DataObject) -> None:
    drawn = data.draw(hardware())
    machine_ = plain(drawn)
    graph = data.draw(graphs(max_ops=10, homes=[tier.name for tier in machine_.tiers]))
    machine_ = sized(machine_, graph)
    problem = analyse(graph, machine_)
    if any(tier not in {b.name for b in problem.below} for tier in problem.starts_below.values()):
        return
    least, most = max(problem.floor_bytes), max(problem.held_bytes)
    budget = data.draw(st.integers(least, max(least, most)))
    simulate = FastSimulator(problem, budget)
    device, joined = machine_.device_tier, machine_.channel_between
    assert simulate.exact == all((b.name, device) in joined and (device, b.name) in joined for b in problem.below)
    if not simulate.exact:
        return  # along routes
    for _ in range(2):  # the second time with what the first has kept
        drawn_choices = data.draw(choices(problem))
        plan = insert(problem, drawn_choices, "test")
        result = replay(plan, machine_, budget)
        left, makespan, moved = simulate(drawn_choices)
        assert (left == 0) == result.feasible
        if result.feasible:
            assert makespan == result.makespan_ns
        assert moved == sum(graph.tensors[c.tensor].size_bytes for c in plan.cache_ops if c.op != DETACH)


def test_a_hill_by_hand() -> None:
    # as in test_evaluation: a0 leaves after f1 and is back before b0, nothing waits in 8 ops of 20 ns; a return issued at b1's end waits 10
    # ns
    simulate = FastSimulator(analyse(hill(4), machine()), 30)
    assert simulate({0: TensorChoice("ddr", HOME, {1: 5})}) == (0, 160, 20)
    assert simulate({0: TensorChoice("ddr", HOME, {1: 6})}) == (0, 170, 20)


def test_what_does_not_fit_says_how_far_it_got() -> None:
    # nothing moves: 40 B are wanted at f3, the fourth of 8 ops; 5 of them never start, and one more than that says so
    left, _, _ = FastSimulator(analyse(hill(4), machine()), 30)({})
    assert left == 6


def test_what_shares_bandwidth_is_left_to_the_engine() -> None:
    shared = machine(fabrics=(Fabric("pcie", 10**9, ("up_ddr", "down_ddr")),))
    assert not FastSimulator(analyse(plateau(4), shared), 100).exact
    assert FastSimulator(analyse(plateau(4), machine()), 100).exact

"""The plan simulator answers what the engine answers, from scratch and from where a change matters:
does it fit, makespan, bytes.
"""

from dataclasses import replace
from random import Random

import pytest
from changed_plans import ChangedPlans, difference
from drawn_choices import choices
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import instance
from strategies import graphs, hardware, several, sized
from toys import graph, hill, machine, plateau

from hosim.cache_plan import AT_START, DETACH
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Fabric
from hosim.planner.hyperoffload import Weights, select
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    HOME,
    Choices,
    Problem,
    TensorChoice,
    analyse,
    insert,
)

pytestmark = pytest.mark.slow


def agrees(problem: Problem, budget: int, cost: tuple[int, int, int], made: Choices) -> bool:
    """Holds a cost against the engine; says whether it could be told."""
    plan = insert(problem, made, "test")
    result = replay(plan, problem.hardware, budget)
    left, makespan, moved = cost
    assert moved == sum(
        problem.graph.tensors[c.tensor].size_bytes for c in plan.cache_ops if c.op != DETACH
    )
    if left > len(problem.graph.ops) and problem.hardware.devices > 1:
        return False  # from where devices do no longer the same
    assert (left == 0) == result.feasible, result.error
    assert not result.feasible or makespan == result.makespan_ns
    return True


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("of", ["alone", "shared", "modelled", "uneven", "devices", "without dma"])
@settings(max_examples=20)
@given(data=st.data())
def test_every_figure_is_the_engines(of: str, streams: int, data: st.DataObject) -> None:
    drawn = data.draw(hardware(fabrics=of != "alone", uneven=of == "uneven"))
    drawn = replace(drawn, chunk_bytes=2**26)
    measured = data.draw(st.booleans()) if of == "without dma" else of in ("alone", "shared")
    graph = data.draw(
        graphs(
            max_ops=10, max_streams=streams, homes=[t.name for t in drawn.tiers], measured=measured
        )
    )
    drawn = sized(drawn, graph)
    if of == "without dma":
        drawn = replace(
            drawn, tiers=tuple(replace(tier, dma=tier.name != "ddr") for tier in drawn.tiers)
        )
    problem = analyse(graph, data.draw(several(drawn)) if of == "devices" else drawn)
    if any(tier not in {b.name for b in problem.below} for tier in problem.starts_below.values()):
        return
    least, most = max(problem.floor_bytes), max(problem.held_bytes)
    budget = data.draw(st.integers(least, max(least, most)))
    simulate = ChangedPlans(problem, budget, stride=data.draw(st.sampled_from((1, 2, 4))))
    first, second = data.draw(choices(problem)), data.draw(choices(problem))
    if not (simulate.covers(first) and simulate.covers(second)):
        return  # along routes, or on devices that are not alike
    agrees(problem, budget, simulate.begin(first), first)
    some = data.draw(st.sets(st.sampled_from(sorted({*first, *second}) or [0]), max_size=3))
    mixed = {
        t: c
        for t in sorted({*first, *second})
        if (c := (second if t in some else first).get(t)) is not None
    }
    for made in (second, mixed, first):
        changes = difference(simulate.choices, made)
        cost = simulate.judge(changes)
        if agrees(problem, budget, cost, made) and data.draw(st.booleans()):
            assert simulate.accept(changes) == cost
            assert simulate.choices == made
            assert (
                ChangedPlans(problem, budget).begin(made)[:: 1 if cost[0] == 0 else 2]
                == cost[:: 1 if cost[0] == 0 else 2]
            )


def test_a_hill_by_hand() -> None:
    # a0 leaves after f1 and is back before b0, nothing waits in 8 ops of 20 ns; a return issued at
    # b1's end waits 10 ns
    simulate = ChangedPlans(analyse(hill(4), machine()), 30)
    assert simulate.begin({0: TensorChoice("ddr", HOME, {1: 5})}) == (0, 160, 20)
    assert simulate.stalls() == []
    late = {0: TensorChoice("ddr", HOME, {1: 6})}
    assert simulate.judge(late) == (0, 170, 20)
    assert simulate.cost == (0, 160, 20)  # judged, not taken
    assert simulate.accept(late) == (0, 170, 20)
    assert simulate.stalls() == [(7, 10, 0)]  # b0 waits for a0


def test_what_the_step_waits_for_after_its_last_op_is_a_wait() -> None:
    # 40 B that live below come up, the only op writes them in 10 ns, and they go back: 40 ns that
    # no op waits for
    def build(b: GraphBuilder) -> None:
        b.tensor("w", 40, "parameter", "ddr")
        b.op("update", "op", inputs=["w"], outputs=["w"], duration_ns=10)

    simulate = ChangedPlans(analyse(graph(build), machine()), 100)
    assert simulate.begin({0: TensorChoice("ddr", HOME, {-1: -1})}) == (0, 90, 80)
    assert simulate.stalls() == [(0, 40, 0), (1, 40, 0)]


def test_a_move_under_way_that_goes_elsewhere_is_not_as_before() -> None:
    # Each byte takes 1 ns to and from ddr, 2 ns to and from nvme. After f0, s keeps the way down to
    # ddr busy until 510, r that to nvme until 2010, and t waits behind one of them from 20 on:
    # behind s it is back at 530, before the 60th op ends at 600; behind r at 2050, when "use"
    # starts. r comes up after "use", 2,000 ns, for the last op.
    def build(b: GraphBuilder) -> None:
        for name, size in (("s", 500), ("r", 1000), ("t", 10)):
            b.tensor(name, size, "parameter")
        b.op("f0", "op", inputs=["s", "r"], duration_ns=10)
        b.op("f1", "op", inputs=["t"], duration_ns=10)
        for i in range(2, 60):
            b.op(f"f{i}", "op", duration_ns=10)
        b.op("use", "op", inputs=["t"], duration_ns=10)
        b.op("last", "op", inputs=["s", "r"], duration_ns=10)

    problem, budget = analyse(graph(build), machine("ddr", "nvme")), 10**4
    others = {0: TensorChoice("ddr", HOME, {0: 60}), 1: TensorChoice("nvme", HOME, {0: 60})}
    simulate = ChangedPlans(problem, budget, stride=1)
    near, far = ({2: TensorChoice(tier, HOME, {1: 2})} for tier in ("ddr", "nvme"))
    begun = simulate.begin({**others, **near})
    assert begun == (0, 4020, 3020)
    assert simulate.judge(far) == (0, 4070, 3020)
    for made, cost in ((near, begun), (far, simulate.judge(far))):
        assert agrees(problem, budget, cost, {**others, **made})


def test_what_does_not_fit_says_how_far_it_got() -> None:
    # nothing moves: 40 B are wanted at f3, the fourth of 8 ops; 5 of them never start, and one more
    # than that says so
    simulate = ChangedPlans(analyse(hill(4), machine()), 30)
    assert simulate.begin({})[0] == 6
    assert simulate.judge({0: TensorChoice("ddr", HOME, {1: 5})}) == (0, 160, 20)


def test_what_does_not_even_fit_at_time_0_may_do_so_after_a_change() -> None:
    # 6 weights of 10 B within 50 B; one of them starts below and comes up before its op, when
    # another one has left
    simulate = ChangedPlans(analyse(plateau(6), machine()), 50)
    assert simulate.begin({}) == (7, 0, 0)
    below = {5: TensorChoice("ddr", BELOW, {AT_START: 1})}
    assert (
        simulate.judge(below)[0] == 2
    )  # no room for w5: f5 alone never starts, and one more than that says so
    assert simulate.accept({0: TensorChoice("ddr", BELOW, {AT_START: AT_START}), **below}) == (
        0,
        130,
        20,
    )
    assert simulate.accept({0: None, 5: None}) == (7, 0, 0)
    assert simulate.judge({0: TensorChoice("ddr", BELOW, {AT_START: AT_START}), **below}) == (
        0,
        130,
        20,
    )


def test_a_change_far_from_the_end_is_judged_without_the_rest() -> None:
    # 400 layers: a return issued one op later, whose transfer ends long before its use, makes no
    # difference a few ops on
    b = GraphBuilder("long")
    for i in range(400):
        b.tensor(f"w{i}", 10, "parameter", "ddr")
        b.op(f"f{i}", "matmul", inputs=[f"w{i}"], duration_ns=20)
    problem = analyse(b.build(), machine())
    simulate = ChangedPlans(problem, 60)
    simulate.begin(
        {t: TensorChoice("ddr", HOME, {AT_START: max(AT_START, t - 4)}) for t in range(400)}
    )
    judged = 150  # the work of a change and its judgement, whatever follows from it
    before = simulate.work
    assert simulate.judge({50: TensorChoice("ddr", HOME, {AT_START: 47})}) == simulate.cost
    assert simulate.work - before < judged + 100
    before = simulate.work
    simulate.judge(
        {50: TensorChoice("ddr", HOME, {AT_START: 49})}, simulate.cost[1]
    )  # late for good: not followed to the end
    assert simulate.work - before < judged + 100


def test_a_long_absence_costs_what_waits_for_its_end() -> None:
    # w0 is used first and last; while it lies below or not, 10 B make no difference to the 300 ops
    # between
    b = GraphBuilder("bow")
    b.tensor("w", 10, "parameter")
    b.op("first", "matmul", inputs=["w"], duration_ns=20)
    for i in range(300):
        b.op(f"f{i}", "matmul", duration_ns=20)
    b.op("last", "matmul", inputs=["w"], duration_ns=20)
    problem = analyse(b.build(), machine())
    simulate = ChangedPlans(problem, 30)
    assert simulate.begin({}) == (0, 302 * 20, 0)
    changes = {0: TensorChoice("ddr", HOME, {0: 299})}
    assert simulate.judge(changes) == (0, 302 * 20, 20)
    assert simulate.accept(changes) == simulate.cost
    assert simulate.judge({0: TensorChoice("ddr", HOME, {0: 300})}) == (0, 302 * 20 + 10, 20)
    assert simulate.judge({0: None}) == (0, 302 * 20, 0)


def test_more_flows_than_are_exact_are_not_judged() -> None:
    # 17 parts of 10^12 bytes a second are no whole part of what 62 bits hold: such choices count as
    # no plan, and nothing ends in an error
    b = GraphBuilder("wide")
    for i in range(17):
        b.tensor(f"w{i}", 10**6, "parameter", "ddr")
    b.op("all", "matmul", inputs=[f"w{i}" for i in range(17)], duration_ns=20)
    wide = machine()
    wide = replace(
        wide,
        channels=tuple(replace(c, engines=17, bandwidth_bytes_per_s=10**12) for c in wide.channels),
    )
    wide = replace(wide, tiers=tuple(replace(tier, capacity_bytes=10**9) for tier in wide.tiers))
    simulate = ChangedPlans(analyse(b.build(), wide), 10**9)
    assert (
        simulate.begin({t: TensorChoice("ddr", HOME, {AT_START: AT_START}) for t in range(17)})[0]
        == 2
    )


def test_it_covers_what_shares_bandwidth_but_no_routes() -> None:
    shared = machine(fabrics=(Fabric("pcie", 10**9, ("up_ddr", "down_ddr")),))
    moved = {0: TensorChoice("ddr", HOME, {1: 5})}
    assert ChangedPlans(analyse(plateau(4), shared), 100).covers(moved)
    chain = machine("ddr", "nvme")
    far = replace(
        chain,
        channels=tuple(
            replace(c, source="ddr") if c.name == "down_nvme" else c for c in chain.channels
        ),
    )
    simulate = ChangedPlans(analyse(plateau(4), far), 100)
    assert list(simulate.tiers) == ["ddr"]
    assert simulate.covers(moved)
    assert not simulate.covers({0: TensorChoice("nvme", HOME, {1: 5})})


def test_it_covers_no_times_beyond_those_of_the_loop() -> None:
    moved = {0: TensorChoice("ddr", HOME, {1: 5})}
    found = [
        ChangedPlans(analyse(plateau(4, duration=1 << bits), machine()), 100).covers(moved)
        for bits in (40, 61)
    ]
    assert found == [True, False]


@pytest.mark.parametrize("number", range(4))
def test_a_sweeps_choices_on_an_instance_of_each_family(number: int) -> None:
    drawn = instance(number, 5)
    problem = analyse(drawn.graph, drawn.hardware)
    made = select(problem, drawn.budget_bytes, Weights()).choices
    assert agrees(
        problem, drawn.budget_bytes, ChangedPlans(problem, drawn.budget_bytes).begin(made), made
    )


def two_streams(graph: Graph) -> Graph:
    """The graph with every third op on a stream of its own."""
    ops = [replace(op, stream="other") if i % 3 == 1 else op for i, op in enumerate(graph.ops)]
    return Graph(graph.name, graph.tensors, tuple(ops))


def modelled(graph: Graph) -> Graph:
    """The graph with ops that use the memory's bandwidth, by the cost model."""
    ops = [
        replace(op, duration_ns=None, bytes_accessed=(op.duration_ns or 0) * 8 // 10)
        for op in graph.ops
    ]
    return Graph(graph.name, graph.tensors, tuple(ops))


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("of", ["alone", "shared", "streams", "modelled"])
def test_a_walk_of_changes_comes_to_what_whole_runs_do(of: str, number: int) -> None:
    # every judgement against a run from scratch, and one in five against the engine; snapshots are
    # two ops apart
    drawn = instance(number, 7)
    graph = (
        two_streams(drawn.graph)
        if of == "streams"
        else modelled(drawn.graph)
        if of == "modelled"
        else drawn.graph
    )
    hw = drawn.hardware
    if of != "alone":
        hw = replace(
            hw, fabrics=(Fabric("half duplex", 11 * 10**8, tuple(c.name for c in hw.channels)),)
        )
    problem = analyse(graph, hw)
    budget = max(max(problem.floor_bytes), (drawn.budget_bytes + max(problem.held_bytes)) // 2)
    simulate, whole = ChangedPlans(problem, budget, stride=2), ChangedPlans(problem, budget)
    simulate.begin(select(problem, budget, Weights()).choices)
    kernel, draw = simulate.kernel, Random(number)
    kernel.begin(number, 0, 1)
    for k in range(60):
        kernel.look()
        kernel.draw()
        made = simulate.choices
        kernel.judge(-1)
        cost, expected = kernel.found(), whole.begin(made)
        assert (cost[0], cost[2]) == (expected[0], expected[2])
        assert cost[0] or cost == expected
        if not k % 5:
            agrees(problem, budget, cost, made)
        if not cost[0] and draw.random() < 0.5:
            kernel.accept()
            assert simulate.cost == cost
        else:
            kernel.take_back()
        if not k % 10:
            assert kernel.cost() == whole.begin(simulate.choices) == simulate.judge({})

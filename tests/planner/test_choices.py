"""What choices can say, each worked out by hand, and that the moves reach it: turns, tiers by
absence, late write-backs, late leaves.
"""

from collections.abc import Mapping

from drawn_choices import reached
from toys import graph, machine

from hosim.analysis.verifying import verify
from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE
from hosim.engine import replay
from hosim.graph import GraphBuilder
from hosim.planner.hyperoffload.local_moves import PlanSimulator
from hosim.planner.hyperoffload.tensor_choices import (
    BELOW,
    COPY,
    HOME,
    Problem,
    TensorChoice,
    analyse,
    choices_of,
    insert,
)


def cost(problem: Problem, budget: int, choices: Mapping[int, TensorChoice]) -> int | None:
    """The makespan by the engine, which the simulator has to agree with, of a plan that breaks no
    rule.
    """
    plan = insert(problem, choices, "test")
    assert not verify(plan, problem.hardware, budget)
    result = replay(plan, problem.hardware, budget)
    assert PlanSimulator(problem, budget).begin(choices)[1] == result.makespan_ns
    return result.makespan_ns


def two_leave(b: GraphBuilder) -> None:
    """``make`` writes ``small`` of 10 B and ``large`` of 40 B; the 10 B that ``next`` writes have
    room once ``small`` has left.
    """
    b.tensor("large", 40)
    b.tensor("small", 10)
    b.tensor("new", 10)
    b.op("make", "op", outputs=["large", "small"], duration_ns=10)
    b.op("next", "op", outputs=["new"], duration_ns=60)
    b.op("last", "op", inputs=["new"], duration_ns=100)
    b.op("use", "op", inputs=["large", "small"], duration_ns=10)


def test_a_store_goes_ahead_of_another_that_is_issued_after_the_same_op() -> None:
    # within 60 B next waits neither way; within 50 B it waits for the first store: 40 ns for large,
    # 10 ns for small
    problem = analyse(graph(two_leave), machine())
    both = {0: TensorChoice("ddr", HOME, {0: 1}), 1: TensorChoice("ddr", HOME, {0: 1})}
    late = cost(problem, 50, both)
    early = cost(problem, 50, {**both, 1: both[1]._replace(store_turns={0: -1})})
    assert late is not None
    assert early is not None
    assert late - early == 30
    ahead = [c for c in reached(problem, both, 1) if c is not None and c.store_turns]
    assert [cost(problem, 50, {**both, 1: choice}) for choice in ahead] == [early]


def test_a_store_in_the_gap_lets_another_go_first_and_the_tensor_leave_later() -> None:
    # next waits for small alone, as large is stored when it has ended; small returns when last has
    # freed new
    problem = analyse(graph(two_leave), machine())
    large, small = (TensorChoice("ddr", HOME, {0: 1}) for _ in range(2))
    late = {0: large.with_store(0, 1), 1: small}
    assert cost(problem, 50, late) == 10 + 10 + 60 + 100 + 10 + 10
    plan = insert(problem, late, "test")
    moved = [(c.op, c.after) for c in plan.cache_ops if c.tensor == 0]
    assert moved == [(STORE, 1), (DETACH, 1), (PREFETCH, 1)]
    assert choices_of(problem, plan)[0] == late[0]
    assert late[0] in reached(problem, {0: large, 1: small}, 0)


def test_what_lives_below_leaves_once_it_is_stored_after_its_last_use() -> None:
    def build(b: GraphBuilder) -> None:
        b.tensor("state", 10, persistent=True)
        b.tensor("x", 1)
        b.tensor("y", 1)
        b.op("update", "op", mutates=["state"], outputs=["x"], duration_ns=10)
        b.op("next", "op", inputs=["x"], outputs=["y"], duration_ns=10)
        b.op("last", "op", inputs=["y"], duration_ns=10)

    problem = analyse(graph(build), machine())
    begun = TensorChoice("ddr", BELOW, {AT_START: AT_START})
    for position in (0, 1):
        plan = insert(problem, {0: begun.with_store(3, position)}, "test")
        moved = [(c.op, c.after) for c in plan.cache_ops if c.op != PREFETCH]
        assert moved == [(STORE, position), (DETACH, position)]


def test_what_is_written_first_and_has_its_home_below_is_stored_whatever_its_absences() -> None:
    def build(b: GraphBuilder) -> None:
        b.tensor("cache", 10, "kv_cache", "ddr", persistent=True)
        b.op("fill", "op", outputs=["cache"], duration_ns=10)
        b.op("other", "op", duration_ns=50)
        b.op("read", "op", inputs=["cache"], duration_ns=10)

    problem = analyse(graph(build), machine())
    away = TensorChoice("ddr", HOME, {0: 1})
    stays = TensorChoice("ddr", HOME)
    assert stays in reached(problem, {0: away}, 0)
    for choice in (stays, *reached(problem, {0: away}, 0)):
        assert choice is not None
        assert cost(problem, 50, {0: choice}) is not None


def test_a_return_goes_ahead_of_another_that_is_issued_after_the_same_op() -> None:
    # the queue is by the ops that wait, use and then again; a turn before use's puts what again
    # waits for first
    def build(b: GraphBuilder) -> None:
        b.tensor("one", 20, "parameter")
        b.tensor("other", 30, "parameter")
        b.op("first", "op", duration_ns=10)
        b.op("use", "op", inputs=["one"], duration_ns=10)
        b.op("again", "op", inputs=["other"], duration_ns=10)

    problem = analyse(graph(build), machine())
    choices = {t: TensorChoice("ddr", BELOW, {AT_START: AT_START}) for t in (0, 1)}
    assert cost(problem, 50, choices) == 60  # one is there at 20, other at 50
    turned = {**choices, 1: choices[1].with_turn(AT_START, 1)}
    assert cost(problem, 50, turned) == 70  # other at 30, one at 50: use until 60, again until 70
    assert turned[1] in reached(problem, choices, 1)
    assert [c.tensor for c in insert(problem, turned, "test").cache_ops if c.op == PREFETCH] == [
        1,
        0,
    ]


def test_absences_of_one_tensor_are_in_tiers_of_their_own() -> None:
    # nobody writes w: it has copies in both tiers at time 0, and comes back from ddr first, from
    # pool, half as fast, then
    def build(b: GraphBuilder) -> None:
        b.tensor("w", 10, "parameter")
        for name in ("first", "middle", "last"):
            b.op(name, "op", inputs=["w"] if name != "middle" else [], duration_ns=10)

    problem = analyse(graph(build), machine("ddr", "pool"))
    below = {0: TensorChoice("ddr", BELOW, {AT_START: AT_START, 0: 0})}
    assert cost(problem, 10, below) == 40  # until 10, first until 20, back at 30 beside middle
    apart = {0: below[0].with_tier(0, "pool")}
    assert cost(problem, 10, apart) == 50  # back at 40
    assert insert(problem, apart, "test").initial[0] == ("ddr", "pool")
    assert apart[0] in reached(problem, below, 0)


def test_what_was_written_is_stored_later_than_the_last_write() -> None:
    # state lies below and is written by the first op, whose output of 10 B has to leave before the
    # next one
    def build(b: GraphBuilder) -> None:
        b.tensor("state", 40, "parameter", "ddr")
        b.tensor("out", 10)
        b.tensor("new", 10)
        b.op("write", "op", inputs=["state"], mutates=["state"], outputs=["out"], duration_ns=10)
        b.op("next", "op", inputs=["state"], outputs=["new"], duration_ns=50)
        b.op("other", "op", inputs=["new"], duration_ns=50)
        b.op("last", "op", inputs=["new", "out"], duration_ns=10)

    problem = analyse(graph(build), machine())
    begun = {
        0: TensorChoice("ddr", HOME, {AT_START: AT_START}),
        1: TensorChoice("ddr", HOME, {0: 2}),
    }
    assert (
        cost(problem, 50, begun) == 220
    )  # up at 40, write until 50, stores until 90 and 100, next 150, other 200, out is back at 210
    later = {**begun, 0: begun[0].with_store(4, 1)}
    stores = [
        (c.tensor, c.after) for c in insert(problem, later, "test").cache_ops if c.op == STORE
    ]
    assert stores == [(1, 0), (0, 1)]
    assert (
        cost(problem, 50, later) == 180
    )  # out is stored at 60: next until 110, other 160, out is back at 170
    assert later[0] in reached(problem, begun, 0)


def test_on_several_streams_what_leaves_later_may_return_later() -> None:
    """x is used by a on aux and by b on compute, and to be there again at the end; e on compute has
    room for its 20 B when x has left.

    c on aux is the first op listed by whose end both uses are over, at 30. x then returns before or
    after e for all that compute knows, so it is issued right there: e runs first, until 40, and x
    is there at 50. d on compute knows of both uses, too, and ends at 20: e runs until 30, and x,
    issued after e, is there at 40.
    """

    def build(b: GraphBuilder) -> None:
        b.tensor("x", 10, "input")
        for name in ("ya", "yb", "yd"):
            b.tensor(name, 0)
        b.tensor("big", 20)
        b.op("a", "op", inputs=["x"], outputs=["ya"], duration_ns=10, stream="aux")
        b.op("b", "op", inputs=["x"], outputs=["yb"], duration_ns=10)
        b.op("c", "op", inputs=["yb"], duration_ns=20, stream="aux")
        b.op("d", "op", inputs=["ya"], outputs=["yd"], duration_ns=10)
        b.op("e", "op", inputs=["yd"], outputs=["big"], duration_ns=10)

    problem = analyse(graph(build), machine())
    begun = {0: TensorChoice("ddr", COPY, {1: 4})}
    later = {0: begun[0].with_leave(1, 3)}
    assert [(c.op, c.after) for c in insert(problem, begun, "test").cache_ops] == [
        (DETACH, 2),
        (PREFETCH, 2),
    ]
    assert [(c.op, c.after) for c in insert(problem, later, "test").cache_ops] == [
        (DETACH, 3),
        (PREFETCH, 4),
    ]
    assert [cost(problem, 20, choices) for choices in (begun, later)] == [50, 40]
    assert later[0] in reached(problem, begun, 0)
    assert begun[0] in reached(problem, later, 0)
    assert choices_of(problem, insert(problem, later, "test")) == later


def test_an_op_that_waits_for_a_tensor_to_return_ends_after_all_uses_before() -> None:
    """x leaves after c, which knows of a and b, and returns for d on aux: when d ends, so have a
    and b, though d knows of a alone.
    """

    def build(b: GraphBuilder) -> None:
        b.tensor("x", 10, "input")
        b.tensor("ya", 0)
        b.op("a", "op", inputs=["x"], outputs=["ya"], duration_ns=10, stream="aux")
        b.op("b", "op", inputs=["x"], duration_ns=10)
        b.op("c", "op", inputs=["ya"], duration_ns=10)
        b.op("d", "op", inputs=["x"], duration_ns=10, stream="aux")
        b.op("e", "op", duration_ns=10)

    problem = analyse(graph(build), machine())
    twice = {0: TensorChoice("ddr", COPY, {1: 2, 3: 4})}
    moved = insert(problem, twice, "test").cache_ops
    assert [(c.op, c.after) for c in moved] == [
        (DETACH, 2),
        (PREFETCH, 2),
        (DETACH, 3),
        (PREFETCH, 3),
    ]
    assert (
        cost(problem, 20, twice) == 50
    )  # a and b until 10, c until 20, x is up at 30, d until 40, x is up at 50


def test_what_a_plan_decides_is_read_off_it() -> None:
    """On two streams and two tiers: where a tensor leaves before its first use, its turn, its
    tiers, and a late write-back.
    """

    def build(b: GraphBuilder) -> None:
        b.tensor("x", 10, "input")
        b.tensor("w", 10, "parameter")
        b.tensor("state", 10, "optimizer_state")
        b.op("aside", "op", duration_ns=10, stream="aux")
        b.op("first", "op", inputs=["w"], duration_ns=10)
        b.op("update", "op", mutates=["state"], duration_ns=10)
        b.op("between", "op", duration_ns=10)
        b.op("last", "op", inputs=["x", "w"], duration_ns=10)
        b.op("rest", "op", duration_ns=10)

    problem = analyse(graph(build), machine("ddr", "pool"))
    decided = {
        0: TensorChoice("ddr", HOME, {AT_START: 3}).with_leave(AT_START, 1),
        1: TensorChoice("ddr", BELOW, {AT_START: AT_START, 1: 3})
        .with_tier(1, "pool")
        .with_turn(1, 9),
        2: TensorChoice("pool", BELOW, {AT_START: 1}).with_store(6, 4).with_leave(2, 5),
    }
    plan = insert(problem, decided, "test")
    placed = [(c.op, c.tensor, c.after, c.source) for c in plan.cache_ops]
    assert placed == [
        (STORE, 0, AT_START, "hbm"),
        (PREFETCH, 1, AT_START, "ddr"),
        (DETACH, 0, 1, "hbm"),
        (DETACH, 1, 1, "hbm"),
        (PREFETCH, 2, 1, "pool"),
        (PREFETCH, 0, 3, "ddr"),
        (PREFETCH, 1, 3, "pool"),
        (STORE, 2, 4, "hbm"),
        (DETACH, 1, 4, "hbm"),
        (DETACH, 2, 5, "hbm"),
    ]
    assert insert(problem, choices_of(problem, plan), "test") == plan
    turned = insert(problem, {**decided, 1: decided[1].with_turn(1, 7)}, "test")
    assert [(c.tensor, c.after) for c in turned.cache_ops if c.op == PREFETCH] == [
        (1, AT_START),
        (2, 1),
        (1, 3),
        (0, 3),
    ]
    assert insert(problem, choices_of(problem, turned), "test") == turned
    assert cost(problem, 1000, decided) is not None

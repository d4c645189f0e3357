"""Reactive policies on toys: what comes up, what goes, and what stays."""

from __future__ import annotations

import pytest
from toy_machine import MACHINE

from hosim import engine
from hosim.analysis.verifying import verify
from hosim.cache_plan import STORE
from hosim.graph import Graph, GraphBuilder
from hosim.policies import policy_named
from hosim.policies.own import FetchedThenLast, FirstArrived, MemoryBlocks
from hosim.result import Result


def weights(*uses: int, home: str | None = None) -> Graph:
    """Weights of 10 B, and an op of 20 ns for each use of one."""
    b = GraphBuilder("weights")
    for i in sorted(set(uses)):
        b.tensor(f"w{i}", 10, "parameter", home)
    for n, i in enumerate(uses):
        b.op(f"f{n}", "m", inputs=[f"w{i}"], duration_ns=20)
    return b.build()


def run(policy: str, graph: Graph, budget: int, **parameters: int) -> Result:
    plan = policy_named(policy).plan(graph, MACHINE, budget, **parameters)
    assert verify(plan, MACHINE, budget) == ()
    return engine.replay(plan, MACHINE, budget)


@pytest.mark.parametrize(
    ("policy", "fetched"),
    [
        ("on_demand", 8),  # of a sweep over eight that do not fit, each comes up
        ("unified_memory", 8),
        ("keep_first", 3),  # five stay beside a place for the other three in turn
    ],
)
def test_a_sweep_over_more_than_fits(policy: str, fetched: int) -> None:
    result = run(
        policy, weights(*range(8)), 60, **({"block": 0} if policy == "unified_memory" else {})
    )
    assert result.channels["h2d"].transfers == fetched
    assert result.makespan_ns == 8 * 20 + 10 * fetched


def test_what_shares_a_block_of_memory_comes_up_together() -> None:
    # w0, w1 and w2 lie in the first 30 B, w3 to w5 in the next ones: while f0 and f3 run, the other
    # two of a block come
    assert (
        run("unified_memory", weights(*range(6), home="ddr"), 1000, block=30).makespan_ns
        == 6 * 20 + 2 * 10
    )
    assert (
        run("unified_memory", weights(*range(6), home="ddr"), 1000, block=0).makespan_ns
        == 6 * 20 + 6 * 10
    )


def test_a_tensor_is_beside_those_of_its_first_and_its_last_block() -> None:
    blocks = MemoryBlocks(
        weights(*range(6)), 15
    )  # w0 and half of w1 lie in the first one, the rest of w1 and w2 in the second
    assert [blocks.beside(t) for t in range(3)] == [[1], [0, 2], [1]]


def test_victims_of_unified_memory_are_those_that_came_first_whatever_is_used() -> None:
    victims = FirstArrived()
    for tensor in (3, 5, 3, 7, 5):
        victims.touch(tensor, 0)
    assert victims.pick(lambda tensor: tensor == 3) == 5
    victims.touch(5, 0)  # it comes up again
    victims.discard(3)
    assert [victims.pick(lambda tensor: False) for _ in range(3)] == [7, 5, None]


def test_what_was_fetched_goes_before_what_was_there() -> None:
    victims = FetchedThenLast(frozenset({5, 6}))
    for tensor in (1, 5, 2, 6, 5, 1):
        victims.touch(tensor, 0)
    assert [victims.pick(lambda tensor: False) for _ in range(5)] == [6, 5, 2, 1, None]


class View:
    """A device tier in which everything that was ever there still is, with so much room."""

    def __init__(self, free_bytes: int, *resident: int) -> None:
        self.free_bytes = free_bytes
        self.resident = set(resident)

    def is_resident(self, t: int) -> bool:
        return t in self.resident

    def is_busy(self, t: int) -> bool:
        return False


@pytest.mark.parametrize("policy", ["belady", "on_demand", "lookahead"])
def test_a_victim_whose_store_is_not_issued_yet_is_not_detached_with_it(policy: str) -> None:
    """f2 asks twice for more room than there is, and gets room by other ops; f3 may start while
    ``a`` is stored, so nothing detaches it.
    """
    b = GraphBuilder("held back")
    for name, size in (("a", 30), ("b", 50), ("c", 10)):
        b.tensor(name, size)
    b.op("f0", "matmul", outputs=["a"], duration_ns=1)
    b.op("f1", "matmul", inputs=["a"], outputs=["b"], duration_ns=1)
    b.op("f2", "matmul", inputs=["b"], outputs=["c"], duration_ns=1)
    b.op("f3", "matmul", inputs=["a", "c"], duration_ns=1)
    graph = b.build()
    runtime = policy_named(policy).plan(graph, MACHINE, 100).runtime
    assert runtime is not None
    deciding = runtime()
    view = View(100)
    for op, made in ((0, 0), (1, 1)):
        assert not list(deciding.before_op(op, view))
        view.resident.add(made)
        view.free_bytes -= (30, 50)[op]
    assert not list(deciding.before_op(2, view))
    for _ in range(2):
        assert not list(deciding.make_room(2, 200, view))  # not even all victims are enough
    issued = [(d.op, d.tensor) for d in deciding.before_op(3, view)]
    assert issued == [(STORE, 0)]
    assert [
        (d.op, d.tensor) for d in deciding.make_room(3, 40, View(20, 0, 1, 2))
    ] == []  # what f3 uses stays

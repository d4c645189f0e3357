"""``static_split`` on toys, with the plans that its rule gives derived by hand."""

from __future__ import annotations

from typing import Any

import pytest
from toy_machine import MACHINE

from hosim import engine
from hosim.analysis.verifying import verify
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.planner.schedule.tiers_below import tensors_below
from hosim.policies import policy_named


def weights(*sizes: int, kind: str = "parameter", home: str | None = None) -> Graph:
    """An op of 20 ns for each weight."""
    b = GraphBuilder("weights")
    for i, size in enumerate(sizes):
        b.tensor(f"w{i}", size, kind, home)
        b.op(f"f{i}", "m", inputs=[f"w{i}"], duration_ns=20)
    return b.build()


def split(graph: Graph, budget: int, **parameters: Any) -> tuple[list[tuple[str, int]], int | None]:
    """The fetches of the plan, each with the op after which it is issued, and the makespan."""
    plan = policy_named("static_split").plan(graph, MACHINE, budget, **parameters)
    assert verify(plan, MACHINE, budget) == ()
    fetches = [
        (graph.tensors[c.tensor].name, c.after) for c in plan.cache_ops if c.op == "prefetch"
    ]
    return fetches, engine.replay(plan, MACHINE, budget).makespan_ns


EIGHT = weights(*[10] * 8)


@pytest.mark.parametrize(
    ("parameters", "fetches", "makespan_ns"),
    [
        # beside two buffers of 10 B, 40 of 60 B are left: every other weight is below; a buffer is
        # free when the weight in it is dropped
        ({}, [("w0", -1), ("w2", -1), ("w4", 0), ("w6", 2)], 170),
        # one buffer leaves 50 B: three weights are below, each fetched when the one before is
        # dropped, so all but the first are hidden
        ({"buffers": 1}, [("w0", -1), ("w2", 0), ("w5", 2)], 170),
        # fetched where it is used: two weights would do, but so does no third at 60 B; what is not
        # there stalls the op for 10 ns
        ({"ahead": 0}, [("w0", -1), ("w4", 3)], 180),
        ({"ahead": 0, "spread": "last"}, [("w6", 5), ("w7", 6)], 180),
        ({"ahead": 0, "spread": "first"}, [("w0", -1), ("w1", 0)], 180),
        (
            {"ahead": 1, "buffers": 0, "weights": 0.5},
            [("w0", -1), ("w2", 0), ("w4", 2), ("w6", 4)],
            170,
        ),
    ],
)
def test_the_smallest_share_that_fits_evenly_spread(
    parameters: dict[str, Any], fetches: list[tuple[str, int]], makespan_ns: int
) -> None:
    assert split(EIGHT, 70 if "ahead" in parameters else 60, **parameters) == (fetches, makespan_ns)


def test_what_fits_stays() -> None:
    assert split(EIGHT, 80) == ([], 160)


def test_what_is_much_larger_than_usual_goes_below_last() -> None:
    graph = weights(50, *[10] * 12)  # 170 B
    assert not [name for name, _ in split(graph, 110)[0] if name == "w0"]
    assert [name for name, _ in split(graph, 55)[0] if name == "w0"]


def test_what_lives_below_is_fetched_for_its_uses_and_dropped() -> None:
    assert split(weights(*[10] * 4, kind="kv_cache", home="ddr"), 20) == (
        [("w0", -1), ("w1", -1), ("w2", 0), ("w3", 1)],
        90,
    )


def test_the_cache_follows_the_weights_only_where_these_are_not_enough() -> None:
    b = GraphBuilder("decode")
    for i in range(4):
        b.tensor(f"w{i}", 10, "parameter")
        b.tensor(f"c{i}", 10, "kv_cache")
        b.op(f"f{i}", "m", inputs=[f"w{i}"], mutates=[f"c{i}"], duration_ns=20)
    graph = b.build()
    assert {name[0] for name, _ in split(graph, 60)[0]} == {"w"}
    assert {name[0] for name, _ in split(graph, 40)[0]} == {"w", "c"}
    assert {name[0] for name, _ in split(graph, 80, cache=0.5)[0]} == {"c"}


def test_what_is_stored_back_has_a_third_buffer() -> None:
    b = GraphBuilder("updates")
    for i in range(6):
        b.tensor(f"m{i}", 10, "optimizer_state", home="ddr")
        b.op(f"u{i}", "m", mutates=[f"m{i}"], duration_ns=20)
    graph = b.build()
    assert [after for _, after in split(graph, 60)[0]] == [-1, -1, -1, 0, 1, 2]
    assert [after for _, after in split(graph, 60, buffers=2)[0]] == [-1, -1, 0, 1, 2, 3]


def test_activations_leave_between_uses_that_leave_time_for_it() -> None:
    b = GraphBuilder("training")
    for i in range(4):
        b.tensor(f"a{i}", 10)
        b.op(f"f{i}", "m", inputs=[f"a{i - 1}"] if i else [], outputs=[f"a{i}"], duration_ns=20)
    for i in reversed(range(4)):
        b.op(f"b{i}", "m", inputs=[f"a{i}"], duration_ns=20)
    # a3 is used again at once; a2 has the 20 ns of b3 between its uses, no more than 10 ns there
    # and 10 ns back
    assert [name for name, _ in split(b.build(), 40, activations=1.0, ahead=1)[0]] == ["a1", "a0"]


@pytest.mark.parametrize(
    ("shares", "spread"), [({"weights": 1.5}, "even"), ({"weights": None}, "odd")]
)
def test_shares_and_spreads_that_mean_nothing_are_refused(
    shares: dict[str, float | None], spread: str
) -> None:
    with pytest.raises(InputError, match="expected"):
        tensors_below(EIGHT, shares, spread, 1, lambda tensors, way: 0)

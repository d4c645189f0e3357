"""``deepcompile`` on the toy of ``saved_activations``, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from test_saved_activations import three_layers
from toy_machine import MACHINE

from hosim import engine
from hosim.analysis.verifying import verify
from hosim.errors import InputError
from hosim.graph import GraphBuilder
from hosim.policies import policy_named

AWAY = {
    "a0": [("store", "a0", 1), ("detach", "a0", 1)],
    "a1": [("store", "a1", 2), ("detach", "a1", 2)],
}


def moved(budget: int, **parameters: Any) -> set[tuple[str, str, int]]:
    graph = three_layers()
    asked = {"margin": 0.0, "smallest": 1, **parameters}
    plan = policy_named("deepcompile").plan(graph, MACHINE, budget, **asked)
    assert verify(plan, MACHINE, budget) == ()
    assert engine.replay(plan, MACHINE, budget).feasible
    return {(c.op, graph.tensors[c.tensor].name, c.after) for c in plan.cache_ops}


@pytest.mark.parametrize(
    ("budget", "parameters", "expected"),
    [
        # f2 (op 2) holds 30 B of weights, a0, a1, a2 and skip, 20 B each, also while a0 is copied
        # down: the floor is 110 B, as with everything resident. a2 is never idle. 40 B are left of
        # 150: all stay
        (150, {}, []),
        # nothing is left: both go. While b2 (op 3) runs, 110 B are there, so a1 cannot come up
        # beside it; a0 neither beside b1, of 90 B, as a1 is counted again: each at the end of the
        # op before its own
        (110, {}, [*AWAY["a0"], *AWAY["a1"], ("prefetch", "a1", 3), ("prefetch", "a0", 4)]),
        # 20 B are left, for the first of two of one size. a1 comes up beside b2, whose 100 ns hide
        # its 20: 110 and 20 B fit
        (130, {}, [*AWAY["a1"], ("prefetch", "a1", 2)]),
        # of 150 B a margin of 20 % leaves 120: 10 B beyond the floor are too few for either
        (150, {"margin": 0.2}, [*AWAY["a0"], *AWAY["a1"], ("prefetch", "a1", 3), ("prefetch", "a0", 4)]),
        (110, {"smallest": 21}, []),
    ],
)  # fmt: skip
def test_the_largest_stays_where_the_floor_leaves_room(
    budget: int, parameters: dict[str, Any], expected: list[tuple[str, str, int]]
) -> None:
    assert moved(budget, **parameters) == set(expected)


def test_a_backward_pass_that_no_name_tells_is_refused() -> None:
    b = GraphBuilder("unnamed")
    b.tensor("g", 1, "gradient")
    b.op("f", "m", outputs=["g"], duration_ns=1)
    with pytest.raises(InputError, match="unnamed"):
        policy_named("deepcompile").plan(b.build(), MACHINE, 100)


@pytest.mark.parametrize(("workspace", "after"), [(0, 5), (100, 7)])
def test_a_copy_goes_back_by_as_many_ops_as_hide_it(workspace: int, after: int) -> None:
    """20 B take 20 ns, which two ops hide before the fifth, which reads them. Where the backward
    pass with everything resident takes 120 B, there are no peaks by which a copy could go back.
    """
    b = GraphBuilder("long")
    b.op("f0", "m", outputs=[b.tensor("a", 20)], duration_ns=10)
    b.op("f1", "m", inputs=["a"], duration_ns=10)
    b.op("f2", "m", duration_ns=30)
    b.op("f3", "m", duration_ns=30, workspace_bytes=100)
    for i in range(5):
        reads = ["a"] if i == 4 else []
        held = workspace if i == 0 else 0
        b.op(f"backward.{i}", "m", inputs=reads, duration_ns=10, workspace_bytes=held)
    asked = {"margin": 0.0, "smallest": 1}
    plan = policy_named("deepcompile").plan(b.build(), MACHINE, 110, **asked)
    found = [(c.op, c.after) for c in plan.cache_ops]
    assert found == [("store", 1), ("detach", 1), ("prefetch", after)]

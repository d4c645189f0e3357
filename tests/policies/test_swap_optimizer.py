"""``swap_optimizer`` on four updates, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from toy_machine import MACHINE

from hosim import engine
from hosim.analysis.verifying import verify
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.policies import policy_named


def updates() -> Graph:
    """A pass of 100 ns, then updates of 100 ns of four weights, with states of 40, 40, 40 and 5 B."""
    b = GraphBuilder("updates")
    for i, size in enumerate((40, 40, 40, 5)):
        b.tensor(f"layers.{i}.w", 10, "parameter")
        b.tensor(f"layers.{i}.m", size, "optimizer_state")
    weights = [f"layers.{i}.w" for i in range(4)]
    b.op("pass", "m", inputs=weights, duration_ns=100)
    for i in range(4):
        names = [f"layers.{i}.w", f"layers.{i}.m"]
        b.op(f"update{i}", "optimizer", mutates=names, duration_ns=100)
    return b.build()


def moved(**parameters: Any) -> tuple[dict[str, tuple[int, int]], int | None]:
    """Where each state that moves comes up and goes back, and the makespan."""
    graph = updates()
    asked = {"smallest": 1, **parameters}
    plan = policy_named("swap_optimizer").plan(graph, MACHINE, 1000, **asked)
    assert verify(plan, MACHINE, 1000) == ()
    places: dict[str, dict[str, int]] = {}
    for c in plan.cache_ops:
        places.setdefault(graph.tensors[c.tensor].name, {})[c.op] = c.after
    assert all(place["store"] == place["detach"] for place in places.values())
    found = {name[7]: (place["prefetch"], place["store"]) for name, place in places.items()}
    return found, engine.replay(plan, MACHINE).makespan_ns


@pytest.mark.parametrize(
    ("parameters", "places", "makespan_ns"),
    [
        # of 125 B batches begin at 0, 31.25, 62.5 and 93.75 B: m0 (0), m1 (40), m2 (80) and m3
        # (120). m0 comes up at the end of the pass, with m1, whose batch may come while m0's is
        # updated: 100..140 and 140..180. m2 comes when m1's batch begins, at op 1's end. Only m0 is
        # waited for, 40 ns; the last to go back is m3, 5 ns after the last update
        ({"swap_times": 4}, {"0": (0, 1), "1": (0, 2), "2": (1, 3), "3": (2, 4)}, 545),
        # two batches, of 0 and 62.5 B on: m0 and m1, then m2 and m3. The second comes up when the
        # first begins; m1 is there at 180, before its update at 240, m3 at 225
        ({"swap_times": 2}, {"0": (0, 1), "1": (0, 2), "2": (0, 3), "3": (0, 4)}, 545),
        # m3 stays: the last to go back is m2, under the last update
        ({"swap_times": 4, "smallest": 6}, {"0": (0, 1), "1": (0, 2), "2": (1, 3)}, 540),
    ],
)
def test_the_next_batch_comes_up_while_one_is_updated(
    parameters: dict[str, Any], places: dict[str, tuple[int, int]], makespan_ns: int
) -> None:
    assert moved(**parameters) == (places, makespan_ns)


def test_no_batches() -> None:
    with pytest.raises(InputError, match="swap_optimizer: swap_times"):
        moved(swap_times=0)

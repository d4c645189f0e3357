"""The errors of plans that break a rule during a replay (docs/contract.md, rules 2 and 5), in the
words of every replay.
"""

from __future__ import annotations

from collections.abc import Sequence

from hosim.errors import PlanError
from hosim.graph import Graph
from hosim.units import human_time


def holds_nothing(graph: Graph, t: int, now: int) -> PlanError:
    """A detach of what is not there."""
    return PlanError(f"{_detach(graph, t, now)}: it holds no bytes there")


def in_use(graph: Graph, t: int, now: int, i: int) -> PlanError:
    """A detach from under a running op."""
    return PlanError(f"{_detach(graph, t, now)}: op {graph.ops[i].name!r} is using it")


def last_copy(graph: Graph, t: int, now: int) -> PlanError:
    """A detach of the only copy of what is still needed."""
    return PlanError(f"{_detach(graph, t, now)} would drop its last valid copy")


def awaited(graph: Graph, t: int, now: int, i: int) -> PlanError:
    """A detach of a copy that an op waits for."""
    return PlanError(
        f"{_detach(graph, t, now)}: op {graph.ops[i].name!r} awaits it, and no prefetch brings it "
        "back before"
    )


def not_restored(
    graph: Graph, missing: Sequence[tuple[int, int]], tier_names: Sequence[str]
) -> PlanError:
    """A step that does not end as it began: the first tensor that is ``missing``, as (tensor,
    position of a tier).
    """
    t, tier = min(missing)
    return PlanError(
        f"tensor {graph.tensors[t].name!r} has no valid copy in {tier_names[tier]} at the end of "
        "the step, "
        "where it was at its start: store it back, or change the plan's initial residency"
    )


def _detach(graph: Graph, t: int, now: int) -> str:
    return f"detach of tensor {graph.tensors[t].name!r} at {human_time(now)}"

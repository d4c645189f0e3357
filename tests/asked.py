"""Questions that differ in their machines and policies, from what they have in common."""

from collections.abc import Sequence
from typing import Any

from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.study.asked import PolicyChoice
from hosim.study.runs import Question


def questions(
    graph: Graph,
    machines: Hardware | Sequence[Hardware],
    choices: Sequence[PolicyChoice],
    budget: int | float | str | None = None,
    **more: Any,
) -> list[Question]:
    """A question for each machine and policy."""
    listed = [machines] if isinstance(machines, Hardware) else machines
    return [Question(graph, one, choice, budget, **more) for one in listed for choice in choices]

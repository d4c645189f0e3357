"""A plan's decisions on each tensor that it moves; cache ops follow from them
(:mod:`hosim.planner.hyperoffload.tensor_choices.lowering`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.tensor_choices.problem import Problem

T = TypeVar("T")

HOME, COPY, BELOW = "home", "copy", "below"
"""Where a persistent tensor starts: in the device tier; there, with a second valid copy below; or
below only.
"""


class TensorChoice(NamedTuple):
    """One tensor's life: the tier ``below`` that it moves to, how it starts, and its absences.

    ``away`` has, by the op that a gap comes after, the op after which the prefetch back is issued
    (:data:`AT_START` for time 0), or None if the tensor never returns; ``stores`` the op after
    which its store is issued where that is before the gap (the tensor is copied while it is still
    used) or, in the gap before the first use, after time 0; by the number of all ops, the op after
    which what the step has written is stored where it is to be at the end, if not right after the
    last write. ``leaves`` has the op after which it leaves the device tier, where that is not as
    soon as can be: on several streams an op that is known to be over by the time of more of what
    follows. ``tiers`` has, by the same ops, the tier of an absence where that is not ``below``.

    What is issued after the same op queues by the ops that are waiting for it. ``turns`` and
    ``store_turns`` put a return and a store elsewhere in that queue: as if twice that number were
    the op's, so that odd numbers lie between two ops.
    """

    below: str
    start: str = HOME
    away: Mapping[int, int | None] = {}
    stores: Mapping[int, int] = {}
    tiers: Mapping[int, str] = {}
    turns: Mapping[int, int] = {}
    store_turns: Mapping[int, int] = {}
    leaves: Mapping[int, int] = {}

    def tier(self, after: int) -> str:
        """The tier below of one absence."""
        return self.tiers.get(after, self.below)

    def with_return(self, after: int, position: int | None) -> TensorChoice:
        """The choice with one absence set to return after ``position``."""
        return self._replace(away=_set(self.away, after, position))

    def with_store(self, after: int, position: int) -> TensorChoice:
        """The choice with the store before one absence issued after ``position``."""
        return self._replace(stores=_set(self.stores, after, position))

    def with_tier(self, after: int, tier: str) -> TensorChoice:
        """The choice with one absence in a tier."""
        others = {a: other for a, other in self.tiers.items() if a != after}
        return self._replace(tiers=others if tier == self.below else _set(others, after, tier))

    def below_in(self, tier: str) -> TensorChoice:
        """The choice with all absences in a tier."""
        return self._replace(below=tier, tiers={})

    def with_turn(self, after: int, turn: int) -> TensorChoice:
        """The choice with the return of one absence elsewhere in its queue."""
        return self._replace(turns=_set(self.turns, after, turn))

    def with_leave(self, after: int, position: int) -> TensorChoice:
        """The choice with the tensor leaving for one absence after ``position``."""
        others = {a: other for a, other in self.leaves.items() if a != after}
        return self._replace(leaves=others if position == after else _set(others, after, position))


def _set(given: Mapping[int, T], key: int, value: T) -> Mapping[int, T]:
    """The mapping with one more value, keys ascending."""
    found = {**given, key: value}
    return found if key in given or len(found) == 1 else dict(sorted(found.items()))


Choices = Mapping[int, TensorChoice]
"""By tensor position; tensors that stay have none."""


def everything(problem: Problem) -> Choices:
    """Every gap used, every return as late as can be: the least memory at every op, at the price of
    every wait.
    """
    choices: dict[int, TensorChoice] = {}
    count = len(problem.graph.ops)
    for t, tier in problem.starts_below.items():
        first = min(problem.graph.users[t], default=0)
        choices[t] = TensorChoice(tier, HOME, {AT_START: first - 1})
    for gap in problem.gaps:
        if not problem.below:
            break
        t = gap.tensor
        begins = gap.after == AT_START and problem.graph.tensors[t].persistent
        choice = choices.get(t) or TensorChoice(problem.below[0].name, BELOW if begins else HOME)
        if choice.start == BELOW and gap.before == count and gap.after != AT_START:
            continue  # what starts below is there again at the end
        choices[t] = choice.with_return(gap.after, gap.before - 1 if gap.returns else None)
    return choices

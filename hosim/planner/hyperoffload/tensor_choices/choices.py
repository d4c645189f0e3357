"""A plan's decisions on each tensor that it moves;
:mod:`hosim.planner.hyperoffload.tensor_choices.lowering` makes cache ops of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.tensor_choices.problem import Problem

T = TypeVar("T")

HOME, COPY, BELOW = "home", "copy", "below"
"""The starts of a persistent tensor: at home, in the device tier with a second valid copy below, or
only below.
"""


class TensorChoice(NamedTuple):
    """The decisions on one tensor: the lower tier ``below``, its start, and its absences.

    The mappings have a key for each absence: the op before its gap (:data:`AT_START` for the gap
    before the first use). Positions of ops say after which op something is issued.

    - ``away``: the prefetch back (:data:`AT_START` for time 0); None if the tensor never returns.
    - ``stores``: the store, if it is issued before the gap, while the tensor is still used, or in
      the gap before the first use after time 0. The key that is the number of ops has the final
      store of written contents, if that is not right after the last write.
    - ``leaves``: the detach, if it is not as early as possible, for plans on several streams.
    - ``tiers``: the tier of an absence, if it is not ``below``.

    Transfers issued after the same op queue in the order of the ops that need them. ``turns`` and
    ``store_turns`` give a return and a store another place in that queue, in half positions: an
    even number 2 i stands for op i, and odd numbers lie between two ops.
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
        """Return the lower tier of one absence."""
        return self.tiers.get(after, self.below)

    def with_return(self, after: int, position: int | None) -> TensorChoice:
        """Return the choice with the return of one absence issued after ``position``."""
        return self._replace(away=_set(self.away, after, position))

    def with_store(self, after: int, position: int) -> TensorChoice:
        """Return the choice with the store of one absence issued after ``position``."""
        return self._replace(stores=_set(self.stores, after, position))

    def with_tier(self, after: int, tier: str) -> TensorChoice:
        """Return the choice with one absence in another tier."""
        others = {a: other for a, other in self.tiers.items() if a != after}
        return self._replace(tiers=others if tier == self.below else _set(others, after, tier))

    def below_in(self, tier: str) -> TensorChoice:
        """Return the choice with all absences in one tier."""
        return self._replace(below=tier, tiers={})

    def with_turn(self, after: int, turn: int) -> TensorChoice:
        """Return the choice with another place of one return in its queue."""
        return self._replace(turns=_set(self.turns, after, turn))

    def with_leave(self, after: int, position: int) -> TensorChoice:
        """Return the choice with the detach of one absence issued after ``position``."""
        others = {a: other for a, other in self.leaves.items() if a != after}
        return self._replace(leaves=others if position == after else _set(others, after, position))


def _set(given: Mapping[int, T], key: int, value: T) -> Mapping[int, T]:
    """Return the mapping with ``key`` set to ``value``, keys ascending."""
    found = {**given, key: value}
    return found if key in given or len(found) == 1 else dict(sorted(found.items()))


Choices = Mapping[int, TensorChoice]
"""Choices by tensor position; tensors that stay have none."""


def everything(problem: Problem) -> Choices:
    """Return choices that use every gap and return as late as possible: the least memory at every
    op, and the most waits.
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
            continue  # a tensor that starts below also ends there, without a choice
        choices[t] = choice.with_return(gap.after, gap.before - 1 if gap.returns else None)
    return choices

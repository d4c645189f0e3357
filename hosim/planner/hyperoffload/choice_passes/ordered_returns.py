"""Returns in a given order, each as early as there is room: how a search over orders turns them
into plans.

A channel brings up one tensor after the other, so that what matters about returns is their order.
Where each is issued follows: as early as the device tier has room from there to the use, and not
before the one ahead of it. The order is that of the ops after which choices have them return, and
among those of one op that of their turns.
"""

from __future__ import annotations

import numpy as np

from hosim.cache_plan import AT_START
from hosim.planner.hyperoffload.tensor_choices import BELOW, Choices, Problem, TensorChoice
from hosim.schedule import Levels, fits_from

_Return = tuple[int, int, int, int, int, str]
"""The op after which a tensor is to return, its turn among those, the tensor, the ops that its gap
comes after and before, and the tier that it comes from.
"""


class OrderedReturns:
    """Moves all returns of choices for a problem within ``budget_bytes``; what a choice of a tensor
    frees is worked out once.
    """

    def __init__(self, problem: Problem, budget_bytes: int) -> None:
        self._problem, self._budget = problem, budget_bytes
        graph = problem.graph
        self._sizes = [tensor.size_bytes for tensor in graph.tensors]
        self._gaps = {t: {gap.after: gap for gap in gaps} for t, gaps in problem.gaps_of.items()}
        self._held = np.array(problem.held_bytes, dtype=np.int64)
        for t in (
            problem.starts_below
        ):  # the account of the problem has what starts below from its first use on
            self._held[: min(graph.users[t], default=0)] += self._sizes[t]

    def __call__(self, choices: Choices) -> dict[int, TensorChoice]:
        """The same absences, with returns in the same order, as early as can be."""
        level, returns = self._account(choices)
        budget, last = self._budget, dict[str, int]()
        moved: dict[int, dict[int, int | None]] = {}
        for back, _, t, after, before, tier in sorted(returns):
            size = self._sizes[t]
            first = max(after, last.get(tier, AT_START))
            ahead = min(fits_from(level, size, budget, first + 1, before), before) - 1
            level[ahead + 1 : before] += size
            last[tier] = ahead
            if ahead != back:
                moved.setdefault(t, dict(choices[t].away))[after] = ahead
        found = dict(choices)
        for t, away in moved.items():
            found[t] = choices[t].having(away=away)
        return found

    def _account(self, choices: Choices) -> tuple[Levels, list[_Return]]:
        """Return the bytes of the device tier by position if everything returns at its use, and the
        returns.
        """
        count = len(self._problem.graph.ops)
        change = np.zeros(count + 2, dtype=np.int64)
        returns: list[_Return] = []
        for t, choice in choices.items():
            size, gaps = self._sizes[t], self._gaps.get(t, {})
            home = self._problem.starts_below.get(t)
            for after, back in choice.away.items():
                gap = gaps.get(after)
                if gap is None:
                    continue
                change[after + 1] -= size
                change[
                    max(after + 1, gap.before if gap.returns or gap.before < count else count + 1)
                ] += size
                if back is not None:
                    turn = choice.turns.get(after, 2 * gap.before)
                    returns.append((back, turn, t, after, gap.before, home or choice.tier(after)))
            if choice.start == BELOW:
                for after, gap in gaps.items():
                    if gap.before == count and after not in choice.away and after != AT_START:
                        change[after + 1] -= size
                        change[count + 1] += size
        return self._held + np.cumsum(change)[: count + 1], returns

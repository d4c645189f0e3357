"""Returns as early as there is room, the first one needed first
(:mod:`hosim.planner.hyperoffload.choice_passes.early_returns`).
"""

from __future__ import annotations

from typing import Any

from hosim.engine.cells import Int, Ints, Longs, made


class ReturnsAhead:
    """Moves returns ahead, in their order: of each the op ``after`` which its gap comes, the op at
    whose end it is issued, ``back``, its bytes and its channel. ``level`` has what the device tier
    holds by position.
    """

    returns: Int
    channels: Int

    level: Longs
    after: Ints
    back: Ints
    size: Longs
    channel: Ints
    last: Ints = made("channels", -1)

    def __init__(self, cells: Any, budget: int) -> None:
        for name in ReturnsAhead.__annotations__:
            setattr(self, name, cells[name])
        self.budget = budget

    def run(self) -> None:
        """Move all of them; none goes before the one before it on its channel."""
        for k in range(self.returns):
            c = self.channel[k]
            first = self.after[k] if self.after[k] > self.last[c] else self.last[c]
            ahead = self.back[k]
            while ahead > first and self.level[ahead] <= self.budget - self.size[k]:
                ahead -= 1
            for i in range(ahead + 1, self.back[k] + 1):
                self.level[i] += self.size[k]
            self.back[k] = ahead
            self.last[c] = first if first > ahead else ahead

"""Conversations that are drawn: turns whose prompts begin with all that was said before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from hosim.limits import Budget
from hosim.serving.requests.request import Request

_PART = 16
"""Tokens that an id of a prefix stands for."""


@dataclass(frozen=True)
class Conversation:
    """What conversations are drawn from: the ``system`` tokens that all begin with, the number of
    ``turns``, the mean time in nanoseconds that a user ``think_ns`` after an answer, the share of
    answers that call a tool instead (``tools``), and what a ``tool_ns`` call takes on average.

    Times are exponential.
    """

    system: range
    turns: range
    think_ns: int
    tools: float
    tool_ns: int

    def requests(
        self,
        begins_ns: int,
        draw: Random,
        lengths: Callable[[Random], tuple[int, int]],
        ids: int,
        numbers: tuple[int, int],
        budget: Budget,
    ) -> list[Request]:
        """The turns of one that begins at a time; its own ids of prefixes are from ``ids`` on,
        ``numbers`` are those of its first turn and of its second, and turns and ids are drawn from
        the ``budget``.
        """
        first, second = numbers
        count = _one_of(self.turns, draw)
        budget.draw(count, source="requests conversations", where="turns")
        told = [lengths(draw) for _ in range(count)]
        alike = _one_of(self.system, draw) // _PART
        said = list(accumulate((sum(turn) for turn in told), initial=alike * _PART))
        found = []
        for turn, (asked, answer) in enumerate(told):
            prompt = said[turn] + asked
            parts = -(-(prompt + answer) // _PART)
            budget.draw(parts, source="requests conversations", where="prefixes")
            prefix = (*range(alike), *range(ids + alike, ids + parts))
            mean = self.tool_ns if draw.random() < self.tools else self.think_ns
            wait = round(draw.expovariate(1) * mean)
            before = None if not turn else first if turn == 1 else second + turn - 2
            arrival = wait if turn else begins_ns
            found.append(Request(arrival, prompt, answer, prefix, _PART, follows=before))
        return found


def _one_of(numbers: range, draw: Random) -> int:
    return numbers[int(draw.random() * len(numbers))]

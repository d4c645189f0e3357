"""Conversations that are drawn: turns whose prompts begin with all that was said before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from random import Random

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
    ) -> list[Request]:
        """The turns of one that begins at a time; its own ids of prefixes are from ``ids`` on, and
        ``numbers`` are those of its first turn and of its second.
        """
        first, second = numbers
        told = [lengths(draw) for _ in range(_one_of(self.turns, draw))]
        alike = _one_of(self.system, draw) // _PART
        said = list(accumulate((sum(turn) for turn in told), initial=alike * _PART))
        found = []
        for turn, (asked, answer) in enumerate(told):
            prompt = said[turn] + asked
            parts = -(-(prompt + answer) // _PART)
            prefix = (*range(alike), *range(ids + alike, ids + parts))
            mean = self.tool_ns if draw.random() < self.tools else self.think_ns
            wait = round(draw.expovariate(1) * mean)
            before = None if not turn else first if turn == 1 else second + turn - 2
            arrival = wait if turn else begins_ns
            found.append(Request(arrival, prompt, answer, prefix, _PART, follows=before))
        return found


def _one_of(numbers: range, draw: Random) -> int:
    return numbers[int(draw.random() * len(numbers))]

"""Blocks go first that are least expected to be used again, by how often and how lately they were
used.

Each use counts half as much after ``half_life`` seconds (LRFU; Lee et al., IEEE TC 2001). The order
of two blocks does not change while neither is used, so a rank holds until then.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf, log2

from hosim.serving.eviction_order import Rank
from hosim.serving.kv_policies.kv_rules import KvRules


def rules(half_life: float) -> KvRules:
    """A use counts half as much after so many seconds."""
    return _ExpectedReuse(max(half_life, 1e-9) * 1e9)


class _ExpectedReuse(KvRules):
    through = True

    def __init__(self, half_life_ns: float) -> None:
        self._half_life_ns = half_life_ns
        self._score: dict[Hashable, float] = {}

    def used(self, key: Hashable, now_ns: int) -> None:
        now = now_ns / self._half_life_ns
        before = self._score.get(key)
        # the logarithm of the sum of 2 ** (time of use), which grows for ever
        self._score[key] = (
            now if before is None else now + log2(1 + 2 ** max(before - now, -1000.0))
        )

    def rank(self, key: Hashable | None, tick: int, now_ns: int) -> Rank:
        return (self._score.get(key, -inf), tick)

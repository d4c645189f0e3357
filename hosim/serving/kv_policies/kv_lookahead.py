"""HyperOffload's idea on the known queue: evict what waiting requests need last, and bring up what
they need next.

Blocks that no waiting request needs go first, the least recently used of them first; then those
that are needed last. Full blocks are copied below at once, so that evictions wait for no copy.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import inf

from hosim.serving.eviction_order import Rank
from hosim.serving.kv_policies.kv_rules import KvRules


def rules(requests: int) -> KvRules:
    """Blocks of so many requests come up."""
    return _Lookahead(requests)


class _Lookahead(KvRules):
    through = True
    watches_queue = True

    def __init__(self, requests: int) -> None:
        self.prefetches = requests
        self._needed_by: dict[Hashable, dict[int, None]] = {}  # in the order of arrival

    def rank(self, key: Hashable | None, tick: int, now_ns: int) -> Rank:
        needed = self._needed_by.get(key)
        return (-next(iter(needed)) if needed else -inf, tick)

    def queued(self, number: int, keys: Sequence[Hashable]) -> Iterable[Hashable]:
        first = [key for key in keys if key not in self._needed_by]
        for key in keys:
            self._needed_by.setdefault(key, {})[number] = None
        return first

    def admitted(self, number: int, keys: Sequence[Hashable]) -> Iterable[Hashable]:
        for key in keys:
            needed = self._needed_by.get(key)
            if needed is not None:
                needed.pop(number, None)
                if not needed:
                    del self._needed_by[key]
        return keys

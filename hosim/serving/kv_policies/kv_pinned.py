"""The first tokens of prompts are pinned: their blocks go last, and of each kind the least recently
used first.

A system prompt and the documents that many prompts begin with stay in the device that way, whatever
else goes through it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from hosim.serving.eviction_order import Rank
from hosim.serving.kv_policies.kv_rules import KvRules


def rules(blocks: int) -> KvRules:
    """Of each prompt so many blocks are pinned, from its first."""
    return _Pinned(blocks)


class _Pinned(KvRules):
    watches_queue = True

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._pinned: set[Hashable] = set()

    def rank(self, key: Hashable | None, tick: int, now_ns: int) -> Rank:
        return (key in self._pinned, tick)

    def queued(self, number: int, keys: Sequence[Hashable]) -> Iterable[Hashable]:
        self._pinned.update(keys[: self._blocks])
        return ()

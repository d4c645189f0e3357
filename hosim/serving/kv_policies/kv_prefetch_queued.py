"""Least recently used, written through; and the blocks of the requests at the head of the queue
come up while these wait.
"""

from __future__ import annotations

from hosim.serving.kv_policies.kv_rules import KvRules


def rules(requests: int) -> KvRules:
    """Blocks of so many requests come up."""
    return _PrefetchQueued(requests)


class _PrefetchQueued(KvRules):
    through = True

    def __init__(self, requests: int) -> None:
        self.prefetches = requests

"""Nothing goes below but the blocks of sequences that are preempted by swapping."""

from __future__ import annotations

from hosim.serving.kv_policies.kv_rules import KvRules


def rules() -> KvRules:
    """The rules."""
    return _SwapOnly()


class _SwapOnly(KvRules):
    keeps = False

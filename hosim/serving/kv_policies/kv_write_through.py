"""Each full block is copied below at once, as vLLM and LMCache do: an eviction waits for no
copy.
"""

from __future__ import annotations

from hosim.serving.kv_policies.kv_rules import KvRules


def rules() -> KvRules:
    """The rules."""
    return _WriteThrough()


class _WriteThrough(KvRules):
    through = True

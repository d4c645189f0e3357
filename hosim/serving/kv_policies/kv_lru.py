"""Least recently used: what is evicted from the device goes to the tier below, and comes back when
a prompt begins with it.
"""

from __future__ import annotations

from hosim.serving.kv_policies.kv_rules import KvRules


def rules() -> KvRules:
    """The rules."""
    return KvRules()

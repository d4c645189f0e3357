"""Policies for the cache of keys and values in several tiers:
:mod:`hosim.serving.kv_policies.kv_registry` knows them by name.

A policy's parameters make its :class:`~hosim.serving.kv_policies.kv_rules.KvRules`.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.kv_policies.kv_registry import KV_POLICIES, LOADING, KvPolicy, kv_policy
    from hosim.serving.kv_policies.kv_rules import KvRules
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "kv_registry": "KV_POLICIES LOADING KvPolicy kv_policy",
            "kv_rules": "KvRules",
        },
    )

__all__ = ["KV_POLICIES", "LOADING", "KvPolicy", "KvRules", "kv_policy"]

"""Policies for the cache of keys and values in several tiers: :mod:`hosim.serving.kv_policies.kv_registry` knows them by name.

One file has one policy: a function of its parameters that returns :class:`~hosim.serving.kv_policies.kv_rules.KvRules`.
"""

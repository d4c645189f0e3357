"""The policies for the cache, by name; ``name:parameter=value`` chooses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hosim.base.files import did_you_mean
from hosim.errors import InputError
from hosim.policies import Parameter, unknown_policy, written_settings
from hosim.serving.kv_policies import (
    kv_expected_reuse,
    kv_lookahead,
    kv_lru,
    kv_pinned,
    kv_prefetch_queued,
    kv_sparse,
    kv_swap_only,
    kv_write_through,
)
from hosim.serving.kv_policies.kv_rules import KvRules

_TIERS = Parameter(
    None,
    "str",
    "tiers below, from the first: ddr/nvme, with sizes ddr=500GiB/nvme; none: the device's "
    "neighbour and on while channels lead",
)
LOADING = ("requests", "layers")
"""What waits for blocks to come up: a request until it is taken into an iteration, or each layer of
the iteration.
"""

_LOADING = Parameter(
    "requests",
    "str",
    "what waits for blocks to come up: requests, or layers of the iteration that reads them",
)
_TTL = Parameter(
    None,
    "float",
    "seconds without use after which blocks are gone from tiers below; none: they stay",
)
_REQUESTS = Parameter(8, "int", "how many requests at the head of the queue blocks come up for")


@dataclass(frozen=True)
class KvPolicy:
    """A policy for the cache: its name, a line, what makes its rules, and its parameters beside
    ``tiers``, ``loading`` and ``ttl``.
    """

    name: str
    summary: str
    made_by: Callable[..., KvRules]
    own: Mapping[str, Parameter] = field(default_factory=dict)
    models: str = ""
    leaves_out: str = ""

    @property
    def settings(self) -> Mapping[str, Parameter]:
        """Its parameters by name."""
        return {"tiers": _TIERS, "loading": _LOADING, "ttl": _TTL, **self.own}

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The default of each parameter."""
        return MappingProxyType(
            {key: parameter.default for key, parameter in self.settings.items()}
        )

    def rules(self, parameters: Mapping[str, Any]) -> KvRules:
        """Return the rules that it decides by with these parameters."""
        return self.made_by(**{key: parameters[key] for key in self.own})


KV_POLICIES = (
    KvPolicy(
        "lru",
        "what is evicted goes to the tier below and comes back on a hit",
        kv_lru.rules,
        models="a cache of several levels",
    ),
    KvPolicy(
        "pinned",
        "lru, and the first blocks of prompts go last",
        kv_pinned.rules,
        {
            "blocks": Parameter(
                2, "int", "how many blocks of each prompt are pinned, from its first"
            )
        },
        models="retention by priority, as TensorRT-LLM has it",
        leaves_out="priorities that requests ask for",
    ),
    KvPolicy(
        "write_through",
        "full blocks are copied below at once, so that evictions wait for no copy",
        kv_write_through.rules,
        models="vLLM's OffloadingConnector, LMCache, Mooncake's store",
        leaves_out="chunks of 256 tokens",
    ),
    KvPolicy(
        "prefetch_queued",
        "write_through, and blocks come up while requests wait",
        kv_prefetch_queued.rules,
        {"requests": _REQUESTS},
        models="SGLang's hierarchical cache, which prefetches for what is queued",
        leaves_out="prefetching from storage to host memory alone",
    ),
    KvPolicy(
        "lookahead",
        "prefetch_queued, and what the known queue needs last is evicted first (HyperOffload's "
        "idea)",
        kv_lookahead.rules,
        {"requests": _REQUESTS},
        models="HyperOffload (arXiv 2602.00748) with the queue as the known schedule",
        leaves_out="its own way with serving is not published",
    ),
    KvPolicy(
        "expected_reuse",
        "write_through, and what was used least often and lately is evicted first",
        kv_expected_reuse.rules,
        {"half_life": Parameter(600.0, "float", "seconds after which a use counts half")},
        models="LRFU (IEEE TC 2001)",
    ),
    KvPolicy(
        "sparse",
        "write_through, and blocks that attention does not choose are below alone where blocks of "
        "the device lack",
        kv_sparse.rules,
        {
            "hit": Parameter(
                None,
                "float",
                "assumed share of the chosen blocks that is in the device; none: by change",
            ),
            "change": Parameter(
                None,
                "float",
                "assumed share of the chosen blocks that was not chosen in the step before, "
                "evenly drawn",
            ),
            "resident": Parameter(
                None,
                "int",
                "tokens of each sequence that the device has room for; none: those that a step "
                "reads",
            ),
            "predicted": Parameter(
                False,
                "bool",
                "whether a layer's blocks are known before the iteration, and come up meanwhile",
            ),
        },
        models="ESS (arXiv 2512.10576) and SGLang's hierarchical sparse attention, for models "
        "that read few blocks (kv_block)",
        leaves_out="selecting tokens by an indexer of its own (DeepSeek-V3.2); copies of single "
        "tokens",
    ),
    KvPolicy(
        "swap_only",
        "nothing goes below but sequences that are preempted",
        kv_swap_only.rules,
        models="vLLM's swap space (version 0)",
    ),
)
"""Every policy for the cache, in display order."""


def kv_policy(text: str) -> tuple[KvPolicy, dict[str, Any]]:
    """The policy and all of its parameters, from ``name`` or
    ``name:parameter=value:parameter=value``. Raises :class:`InputError`.

    >>> kv_policy("prefetch_queued:requests=4")[1]
    {'tiers': None, 'loading': 'requests', 'ttl': None, 'requests': 4}
    """
    name, *settings = text.strip().split(":")
    names = [policy.name for policy in KV_POLICIES]
    if name not in names:
        raise InputError(unknown_policy(name, names), source="kv")
    policy = KV_POLICIES[names.index(name)]
    given: dict[str, Any] = {}
    for key, value in written_settings(settings, f"kv {name}"):
        if key not in policy.settings:
            known = ", ".join(policy.settings)
            raise InputError(
                f"no parameter {key!r}{did_you_mean(key, policy.settings)} (parameters: {known})",
                source=f"kv {name}",
            )
        given[key] = policy.settings[key].read(value, f"kv {name}: {key}")
    return policy, {**policy.parameters, **given}

"""Policies: each is a function (graph, hardware, budget) -> plan;
:mod:`hosim.policies.registry` finds them by name.

They are also attributes of this package, for functions that take policies as objects:

>>> import hosim
>>> hosim.policies.layerwise.parameters["layers_ahead"]
1

hosim's own are in :mod:`hosim.policies.own`, one file for each family.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.policies.catalogue import BUILT_IN
    from hosim.policies.policy import Parameter, Policy, unknown_policy, written_settings
    from hosim.policies.registry import (
        GROUP,
        package_of,
        policy_named,
        policy_names,
        policy_of,
    )
    from hosim.policies.strangers import PolicyError

    def __getattr__(name: str) -> Policy: ...
else:
    _exported, _listed = lazy_names(
        __name__,
        {
            "catalogue": "BUILT_IN",
            "policy": "Parameter Policy unknown_policy written_settings",
            "registry": "GROUP package_of policy_named policy_names policy_of",
            "strangers": "PolicyError",
        },
    )

    def __getattr__(name):
        if name in __all__ or name.startswith("_"):
            return _exported(name)
        from hosim.policies.registry import attribute

        return attribute(name)

    def __dir__():
        from hosim.policies.registry import policy_names

        return sorted([*_listed(), *policy_names()])


__all__ = [
    "BUILT_IN", "GROUP", "Parameter", "Policy", "PolicyError", "package_of", "policy_named",
    "policy_names", "policy_of", "unknown_policy", "written_settings",
]  # fmt: skip

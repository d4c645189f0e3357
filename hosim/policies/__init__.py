"""Policies: each a function (graph, hardware, budget) -> plan; :mod:`hosim.policies.registry` knows them by name.

They are attributes of this package too, for functions that take policies as objects:

>>> import hosim
>>> hosim.policies.layerwise.parameters["layers_ahead"]
1

hosim's own are in :mod:`hosim.policies.own`, one a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosim.policies.policy import Policy


def __getattr__(name: str) -> Policy:
    if not name.startswith("_"):
        from difflib import get_close_matches

        from hosim.policies.registry import get, names

        if name in names():
            return get(name)
        near = get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the policies are {', '.join(names())}"
        raise AttributeError(f"module 'hosim.policies' has no policy {name!r}; {hint}")
    raise AttributeError(f"module 'hosim.policies' has no attribute {name!r}")


def __dir__() -> list[str]:
    from hosim.policies.registry import names

    return sorted({*globals(), *names()})

"""hosim's own policies, a family a file; :mod:`hosim.policies.catalogue` lists them."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.policies.own.g10 import Slots, by_relief
    from hosim.policies.own.hybrid import Deciding, as_started
    from hosim.policies.own.hyperoffload import plan
    from hosim.policies.own.layerwise import WEIGHTS, layers_of, visits
    from hosim.policies.own.llama_cpp import layer_of_ops, layers_with_experts
    from hosim.policies.own.on_demand import (
        FarthestNextUse,
        FetchedThenLast,
        FirstArrived,
        LeastRecentlyUsed,
        MemoryBlocks,
    )
    from hosim.policies.own.rivals import (
        AT_HOME_IF_THEY_FIT,
        AT_RUNTIME,
        RIVALS,
        PolicyFloors,
        forced_ns,
        freeze_runtime,
        static_rivals,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "g10": "Slots by_relief",
            "hybrid": "Deciding as_started",
            "hyperoffload": "plan",
            "layerwise": "WEIGHTS layers_of visits",
            "llama_cpp": "layer_of_ops layers_with_experts",
            "on_demand": "FarthestNextUse FetchedThenLast FirstArrived LeastRecentlyUsed "
            "MemoryBlocks",
            "rivals": "AT_HOME_IF_THEY_FIT AT_RUNTIME PolicyFloors RIVALS forced_ns "
            "freeze_runtime static_rivals",
        },
    )

__all__ = [
    "AT_HOME_IF_THEY_FIT", "AT_RUNTIME", "RIVALS", "WEIGHTS", "Deciding", "FarthestNextUse",
    "FetchedThenLast", "FirstArrived", "LeastRecentlyUsed", "MemoryBlocks",
    "PolicyFloors", "Slots", "as_started", "by_relief", "forced_ns", "freeze_runtime", "layer_of_ops",
    "layers_of", "layers_with_experts", "plan", "static_rivals", "visits",
]  # fmt: skip

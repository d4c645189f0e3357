"""The choice of the tier below that takes a tensor."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.schedule.tiers_below.lower_tiers import (
        LowerTier,
        Route,
        copies_along,
        fastest_tiers,
        has_hops,
        known_routes,
        nearest_tiers,
        route,
        space_below,
        starts,
    )
    from hosim.planner.schedule.tiers_below.placement import (
        BALANCED,
        BY_KIND,
        FASTEST,
        NEAREST,
        PLACEMENTS,
        PLANNED,
        Placement,
        TierSpace,
        check_kind,
        planned_placement,
        read_placement,
    )
    from hosim.planner.schedule.tiers_below.shares_below import (
        EVEN,
        LARGE,
        LAST,
        Choose,
        evenly_spread,
        part,
        tensors_below,
        usual_size,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lower_tiers": "LowerTier Route copies_along fastest_tiers has_hops known_routes "
            "nearest_tiers route space_below starts",
            "placement": "BALANCED BY_KIND FASTEST NEAREST PLACEMENTS PLANNED Placement TierSpace "
            "check_kind planned_placement "
            "read_placement",
            "shares_below": "Choose EVEN LARGE LAST evenly_spread part tensors_below usual_size",
        },
    )

__all__ = [
    "BALANCED", "BY_KIND", "EVEN", "FASTEST", "LARGE", "LAST", "NEAREST", "PLACEMENTS", "PLANNED",
    "Choose", "LowerTier", "Placement", "Route", "TierSpace", "check_kind", "copies_along",
    "evenly_spread", "fastest_tiers", "has_hops", "known_routes", "nearest_tiers", "part",
    "planned_placement", "read_placement", "route", "space_below", "starts", "tensors_below",
    "usual_size",
]  # fmt: skip

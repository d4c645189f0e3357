"""The common parts of all planners and policies: idle intervals, lower tiers, placement, bandwidth,
and the insertion of cache ops.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.schedule.forced_moves import (
        forced_moves,
        forced_tensors,
        planned_around,
        starts_elsewhere,
    )
    from hosim.planner.schedule.idle_intervals import (
        Levels,
        below_at_ends,
        between_uses,
        fits_from,
        held_bytes,
        take_away,
    )
    from hosim.planner.schedule.idle_parts import as_asked, idle_parts_below
    from hosim.planner.schedule.insertion import (
        Absence,
        insert,
    )
    from hosim.planner.schedule.late_prefetches import late_prefetches
    from hosim.planner.schedule.order_of_uses import plan_for, planned_in_order_of_uses
    from hosim.planner.schedule.paging import Paging, paging_plan
    from hosim.planner.schedule.stays import (
        DeviceStays,
        Stays,
        kept_from_the_start,
        starts_below,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "forced_moves": "forced_moves forced_tensors planned_around starts_elsewhere",
            "idle_intervals": "Levels below_at_ends between_uses fits_from held_bytes take_away",
            "idle_parts": "as_asked idle_parts_below",
            "insertion": "Absence insert",
            "late_prefetches": "late_prefetches",
            "order_of_uses": "plan_for planned_in_order_of_uses",
            "paging": "Paging paging_plan",
            "stays": "DeviceStays Stays kept_from_the_start starts_below",
        },
    )

__all__ = [
    "Absence", "DeviceStays", "Levels", "Paging", "Stays", "as_asked", "below_at_ends",
    "between_uses", "fits_from", "forced_moves", "forced_tensors", "held_bytes", "idle_parts_below",
    "insert", "kept_from_the_start", "late_prefetches", "paging_plan", "plan_for", "planned_around",
    "planned_in_order_of_uses", "starts_below", "starts_elsewhere", "take_away",
]  # fmt: skip

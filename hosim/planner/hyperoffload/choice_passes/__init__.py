"""Passes over choices that are made: returns earlier or spread evenly, and the tier that
each tensor waits in.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.planner.hyperoffload.choice_passes.early_returns import (
        absences,
        account,
        advance,
        ops_away,
    )
    from hosim.planner.hyperoffload.choice_passes.even_spreads import (
        Spread,
        evenly,
        hardly_late,
        in_time,
        usual_bytes,
    )
    from hosim.planner.hyperoffload.choice_passes.late_issue import (
        in_draws,
        issued_late,
        mended,
        prefetches,
        sturdier,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "early_returns": "absences account advance ops_away",
            "even_spreads": "Spread evenly hardly_late in_time usual_bytes",
            "late_issue": "in_draws issued_late mended prefetches sturdier",
        },
    )

__all__ = [
    "Spread", "absences", "account", "advance", "evenly",
    "hardly_late", "in_draws", "in_time", "issued_late", "mended", "ops_away", "prefetches",
    "sturdier", "usual_bytes",
]  # fmt: skip

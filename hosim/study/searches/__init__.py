"""Searches over values and budgets: fit, frontier, and their common parts."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.study.searches.bisection import (
        Probed,
        Sought,
        Wanted,
        bisected,
        ends_of,
        ends_shown,
        last_in_draws,
        shown,
    )
    from hosim.study.searches.cost import (
        priced,
        prices_of,
        step_cost,
        step_costs,
        tokens_of,
    )
    from hosim.study.searches.enough import (
        NEAR,
        enough_memory,
        smallest_enough,
    )
    from hosim.study.searches.fits import (
        STEPS,
        Fit,
        Probe,
        ascending,
        fit,
        fit_rows,
        sought,
    )
    from hosim.study.searches.frontiers import (
        Frontier,
        attempt,
        frontier,
        frontier_rows,
        pareto,
    )
    from hosim.study.searches.memory_fits import memory_fit, module_of
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "bisection": "Probed Sought Wanted bisected ends_of ends_shown last_in_draws shown",
            "cost": "priced prices_of step_cost step_costs tokens_of",
            "enough": "NEAR enough_memory smallest_enough",
            "fits": "Fit Probe STEPS ascending fit fit_rows sought",
            "frontiers": "Frontier attempt frontier frontier_rows pareto",
            "memory_fits": "memory_fit module_of",
        },
    )

__all__ = [
    "NEAR", "STEPS", "Fit", "Frontier", "Probe", "Probed", "Sought", "Wanted", "ascending",
    "attempt", "bisected", "ends_of", "ends_shown", "enough_memory", "fit", "fit_rows",
    "frontier", "frontier_rows", "last_in_draws", "memory_fit", "module_of", "pareto", "priced",
    "prices_of", "shown", "smallest_enough", "sought", "step_cost", "step_costs", "tokens_of",
]  # fmt: skip

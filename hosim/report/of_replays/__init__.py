"""Tables of replays."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.of_replays.draws_table import in_draws, regrets, without_runtime
    from hosim.report.of_replays.tables import (
        NOTHING,
        above,
        allocators,
        channels,
        comparison,
        composition,
        effort,
        enumerated,
        failures,
        header,
        least_bound,
        multiple,
        ordered,
        peaks,
        percent,
        replay,
        strongest,
        time_or_nothing,
        timing,
        unproved,
        verdict,
    )
    from hosim.report.of_replays.transfer_table import transfers
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "draws_table": "in_draws regrets without_runtime",
            "tables": "NOTHING above allocators channels comparison composition effort enumerated "
            "failures "
            "header "
            "least_bound multiple ordered peaks percent replay strongest time_or_nothing timing "
            "unproved verdict",
            "transfer_table": "transfers",
        },
    )

__all__ = [
    "NOTHING", "above", "allocators", "channels", "comparison", "composition", "effort",
    "enumerated", "failures", "header", "in_draws", "least_bound", "multiple", "ordered", "peaks",
    "percent", "regrets", "replay", "strongest", "time_or_nothing", "timing", "transfers",
    "unproved", "verdict", "without_runtime",
]  # fmt: skip

"""Tables of replays."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.of_replays.draws_table import (
        in_draws,
        regrets,
        without_runtime,
    )
    from hosim.report.of_replays.tables import (
        allocators,
        channels,
        comparison,
        composition,
        devices,
        effort,
        enumerated,
        failures,
        header,
        least_bound,
        ordered,
        peaks,
        replay,
        strongest,
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
            "tables": "allocators channels comparison composition devices effort enumerated "
            "failures header least_bound ordered peaks replay strongest timing unproved "
            "verdict",
            "transfer_table": "transfers",
        },
    )

__all__ = [
    "allocators", "channels", "comparison", "composition", "devices", "effort", "enumerated",
    "failures", "header", "in_draws", "least_bound", "ordered", "peaks", "regrets", "replay",
    "strongest", "timing", "transfers", "unproved", "verdict", "without_runtime",
]  # fmt: skip

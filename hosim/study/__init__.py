"""Studies: questions that take more than one replay."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.study.atlas import atlas
    from hosim.study.blame import ExplainedStall, stall_rows, stalls_of
    from hosim.study.compare import compare
    from hosim.study.diff import Diff, Side, diff, side_of
    from hosim.study.machines import compare_machines
    from hosim.study.prediction_quality import Mispredictions, mispredictions, predicts
    from hosim.study.prices import lines, steps_of
    from hosim.study.regret import regret
    from hosim.study.reserved_budget import plan_against_reserved, reserved_line
    from hosim.study.robustness import failures, percentiles, robustness
    from hosim.study.same_rows import capped, notes_on_rows
    from hosim.study.stall_report import Blame, blame, price_rows
    from hosim.study.sweeping import misfits, sweep, swept, under_way
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "atlas": "atlas",
            "blame": "ExplainedStall stall_rows stalls_of",
            "compare": "compare",
            "diff": "Diff Side diff side_of",
            "machines": "compare_machines",
            "prediction_quality": "Mispredictions mispredictions predicts",
            "regret": "regret",
            "prices": "lines steps_of",
            "reserved_budget": "plan_against_reserved reserved_line",
            "robustness": "failures percentiles robustness",
            "same_rows": "capped notes_on_rows",
            "stall_report": "Blame blame price_rows",
            "sweeping": "misfits sweep swept under_way",
        },
    )

__all__ = [
    "Blame", "Diff", "ExplainedStall", "Mispredictions", "Side", "atlas", "blame", "capped",
    "compare", "compare_machines", "diff", "failures", "lines", "misfits", "mispredictions",
    "notes_on_rows", "percentiles", "plan_against_reserved", "predicts", "price_rows", "regret",
    "reserved_line", "robustness", "side_of", "stall_rows", "stalls_of", "steps_of", "sweep",
    "swept", "under_way",
]  # fmt: skip

"""The remarks beside an answer's figures: the best alternative, what a plan was made for, and the
tensors that it moves whole.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.remarks.no_offload import NoOffload, no_offload
    from hosim.analysis.remarks.paired_draws import (
        TIE,
        PairedDraws,
        beside_fastest,
        beside_next,
        by,
        draws_notes,
        in_both,
        often,
        paired,
        ranks,
        share_faster,
        uncertainty_line,
    )
    from hosim.analysis.remarks.plan_origin import changed_line, check_made_for, origin_of
    from hosim.analysis.remarks.strongest_rival import (
        NO_RIVALS,
        OPTIMUM,
        OURS,
        StrongestRival,
        fastest_with_ours,
        least_in_parts,
        strongest_rival,
    )
    from hosim.analysis.remarks.whole_moves import WholeMoves, whole_move_lines, whole_moves
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "no_offload": "NoOffload no_offload",
            "paired_draws": "TIE PairedDraws beside_fastest beside_next by draws_notes in_both "
            "often paired ranks share_faster uncertainty_line",
            "plan_origin": "changed_line check_made_for origin_of",
            "strongest_rival": "NO_RIVALS OPTIMUM OURS StrongestRival fastest_with_ours "
            "least_in_parts strongest_rival",
            "whole_moves": "WholeMoves whole_move_lines whole_moves",
        },
    )

__all__ = [
    "NO_RIVALS", "OPTIMUM", "OURS", "TIE", "NoOffload", "PairedDraws", "StrongestRival",
    "WholeMoves", "beside_fastest", "beside_next", "by", "changed_line", "check_made_for",
    "draws_notes", "fastest_with_ours", "in_both", "least_in_parts", "no_offload", "often",
    "origin_of", "paired", "ranks", "share_faster", "strongest_rival", "uncertainty_line",
    "whole_move_lines", "whole_moves",
]  # fmt: skip

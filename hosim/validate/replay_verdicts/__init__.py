"""Verdicts on replays of recorded steps, compared with trivial predictions, and the causes of their
unexplained delays.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.replay_verdicts.causes_of_delay import UnexplainedSpan
    from hosim.validate.replay_verdicts.replay_verdict import (
        Verdict,
        behind,
        best_structure,
        beyond,
        by_held_host,
        by_launches,
        complaint,
        errors_to_dict,
        explains,
        judge,
        replay_and_judge,
        starts_given,
        verdict_to_dict,
        within,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "causes_of_delay": "UnexplainedSpan",
            "replay_verdict": "Verdict behind best_structure beyond by_held_host by_launches complaint "
            "errors_to_dict explains judge replay_and_judge starts_given verdict_to_dict "
            "within",
        },
    )

__all__ = [
    "UnexplainedSpan", "Verdict", "behind", "best_structure", "beyond", "by_held_host",
    "by_launches", "complaint", "errors_to_dict", "explains", "judge", "replay_and_judge",
    "starts_given", "verdict_to_dict", "within",
]  # fmt: skip

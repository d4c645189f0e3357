"""Comparison of replays with recordings: times of ops and transfers, makespan, memory. It also
replays recorded allocators.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.calibrated_profile import calibrated_profile, host_channel
    from hosim.validate.calibration import (
        Calibration,
        base_with_figures,
        calibrate,
        likely_base,
    )
    from hosim.validate.damage import refuse_damage
    from hosim.validate.held_out import (
        HeldOut,
        hold_out,
        learn_before,
        learn_from,
        learned_part,
        predict_trace,
    )
    from hosim.validate.measurements import (
        Measurements,
        Sweep,
        read_measurements,
    )
    from hosim.validate.modelled_times import ModelledOps, modelled
    from hosim.validate.rank_replay import (
        rank_complaint,
        ranks_to_dict,
        replay_ranks,
    )
    from hosim.validate.scheme_report import plan_rows, validate_schemes
    from hosim.validate.validation import (
        Validation,
        beside,
        read_trace,
        validate,
        validation_to_dict,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "calibrated_profile": "calibrated_profile host_channel",
            "calibration": "Calibration base_with_figures calibrate likely_base",
            "damage": "refuse_damage",
            "held_out": "HeldOut hold_out learn_before learn_from learned_part predict_trace",
            "measurements": "Measurements Sweep read_measurements",
            "modelled_times": "ModelledOps modelled",
            "rank_replay": "rank_complaint ranks_to_dict replay_ranks",
            "scheme_report": "plan_rows validate_schemes",
            "validation": "Validation beside read_trace validate validation_to_dict",
        },
    )

__all__ = [
    "Calibration", "HeldOut", "Measurements", "ModelledOps", "Sweep", "Validation",
    "base_with_figures", "beside", "calibrate", "calibrated_profile", "hold_out", "host_channel",
    "learn_before", "learn_from", "learned_part", "likely_base", "modelled", "plan_rows",
    "predict_trace", "rank_complaint", "ranks_to_dict", "read_measurements", "read_trace",
    "refuse_damage", "replay_ranks", "validate", "validate_schemes", "validation_to_dict",
]  # fmt: skip

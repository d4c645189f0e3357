"""Replays against recordings: times of ops and transfers, makespan, memory; and recordings of allocators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.calibrated_kernels import fit_kernels, kernels_report, profile_with_kernels
    from hosim.validate.calibrated_profile import calibrated_profile
    from hosim.validate.calibration import base_with_figures, calibrate, likely_base
    from hosim.validate.damage import refuse_damage
    from hosim.validate.held_out import hold_out, learn_from, learned_part, predict_trace
    from hosim.validate.measurements import Measurements, read_measurements
    from hosim.validate.modelled_times import modelled
    from hosim.validate.plan_rows import plan_rows
    from hosim.validate.rank_replay import rank_complaint, ranks_to_dict, replay_ranks
    from hosim.validate.replay_verdict import complaint
    from hosim.validate.scheme_report import validate_schemes
    from hosim.validate.validation import Validation, read_trace, validate, validation_to_dict
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "calibrated_kernels": "fit_kernels kernels_report profile_with_kernels",
            "calibrated_profile": "calibrated_profile",
            "calibration": "base_with_figures calibrate likely_base",
            "damage": "refuse_damage",
            "held_out": "hold_out learn_from learned_part predict_trace",
            "measurements": "Measurements read_measurements",
            "modelled_times": "modelled",
            "plan_rows": "plan_rows",
            "rank_replay": "rank_complaint ranks_to_dict replay_ranks",
            "replay_verdict": "complaint",
            "scheme_report": "validate_schemes",
            "validation": "Validation read_trace validate validation_to_dict",
        },
    )

__all__ = [
    "Measurements",
    "Validation",
    "base_with_figures",
    "calibrate",
    "calibrated_profile",
    "complaint",
    "fit_kernels",
    "hold_out",
    "kernels_report",
    "learn_from",
    "learned_part",
    "likely_base",
    "modelled",
    "plan_rows",
    "predict_trace",
    "profile_with_kernels",
    "rank_complaint",
    "ranks_to_dict",
    "read_measurements",
    "read_trace",
    "refuse_damage",
    "replay_ranks",
    "validate",
    "validate_schemes",
    "validation_to_dict",
]

"""Recorded offload schemes, and their predictions by the replay."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.offloads.offload_prediction import (
        Prediction,
        Sizes,
        last_step,
        machine_of,
        plan_of,
        predict,
        predict_recording,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "offload_prediction": "Prediction Sizes last_step machine_of plan_of predict predict_recording",
        },
    )

__all__ = [
    "Prediction", "Sizes", "last_step", "machine_of", "plan_of", "predict", "predict_recording",
]  # fmt: skip

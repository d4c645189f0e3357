"""Weights that stream from a tier below while an engine serves."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.weights.weight_program import weight_program
    from hosim.serving.weights.weight_setups import (
        check_beside_cache,
        joined_tiers,
        usual_iteration,
        weight_layers,
        weight_setup,
    )
    from hosim.serving.weights.weight_stream import (
        WeightFigures,
        WeightSetup,
        WeightStream,
        weight_figures,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "weight_program": "weight_program",
            "weight_setups": "check_beside_cache joined_tiers usual_iteration weight_layers "
            "weight_setup",
            "weight_stream": "WeightFigures WeightSetup WeightStream weight_figures",
        },
    )

__all__ = [
    "WeightFigures", "WeightSetup", "WeightStream", "check_beside_cache", "joined_tiers",
    "usual_iteration", "weight_figures", "weight_layers", "weight_program", "weight_setup",
]  # fmt: skip

"""Recorded steps, replayed by their structure of launches, streams and waits, with the errors of
the predicted starts.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.recorded_steps.filling_kernels import (
        is_collective,
        kernels_wait_for_room,
        placed_ns,
    )
    from hosim.validate.recorded_steps.latencies import (
        FEWEST,
        PLAUSIBLE,
        Latencies,
        centre,
        fit_latencies,
        label,
    )
    from hosim.validate.recorded_steps.one_step import EndsOfOps, OneStep, one_step
    from hosim.validate.recorded_steps.recurrences import recurring_structure
    from hosim.validate.recorded_steps.repetitions import (
        Repetitions,
        before,
        issued_from,
        repetitions,
    )
    from hosim.validate.recorded_steps.start_errors import StartErrors, percentile95, start_errors
    from hosim.validate.recorded_steps.step_structure import (
        GivenNumbers,
        GivenTimes,
        Structure,
        structure,
    )
    from hosim.validate.recorded_steps.structural_replay import (
        RECORDING,
        ReplayedOp,
        StructuralReplay,
        span_ns,
        structural_replay,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "filling_kernels": "is_collective kernels_wait_for_room placed_ns",
            "latencies": "FEWEST Latencies PLAUSIBLE centre fit_latencies label",
            "one_step": "EndsOfOps OneStep one_step",
            "recurrences": "recurring_structure",
            "repetitions": "Repetitions before issued_from repetitions",
            "start_errors": "StartErrors percentile95 start_errors",
            "step_structure": "GivenNumbers GivenTimes Structure structure",
            "structural_replay": "RECORDING ReplayedOp StructuralReplay span_ns structural_replay",
        },
    )

__all__ = [
    "FEWEST", "PLAUSIBLE", "RECORDING", "EndsOfOps", "GivenNumbers", "GivenTimes", "Latencies",
    "OneStep", "Repetitions", "ReplayedOp", "StartErrors", "StructuralReplay", "Structure",
    "before", "centre", "fit_latencies", "is_collective", "issued_from", "kernels_wait_for_room",
    "label", "one_step", "percentile95", "placed_ns", "recurring_structure", "repetitions",
    "span_ns", "start_errors", "structural_replay", "structure",
]  # fmt: skip

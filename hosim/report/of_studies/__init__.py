"""Tables and figures of studies, validation and calibration."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.report.of_studies.calibration_tables import calibration, kernels
    from hosim.report.of_studies.robustness_table import robustness, to_dict
    from hosim.report.of_studies.studies import (
        blame,
        diff,
        errors,
        fit,
        frontier,
        machine_comparison,
        predictions,
        stages,
        stages_to_dict,
        sweep,
        varied_columns,
    )
    from hosim.report.of_studies.validation_table import (
        CONSTANTS,
        RIVALS,
        constant_rows,
        ranks_table,
        rival_rows,
        rows,
        schemes,
        short_name,
        signed_time,
        taken_from_recording,
        time_and_share,
        validation,
        verdict_lines,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "calibration_tables": "calibration kernels",
            "robustness_table": "robustness to_dict",
            "studies": "blame diff errors fit frontier machine_comparison predictions stages stages_to_dict sweep varied_columns",
            "validation_table": "CONSTANTS RIVALS constant_rows ranks_table rival_rows rows schemes "
            "short_name signed_time taken_from_recording time_and_share validation "
            "verdict_lines",
        },
    )

__all__ = [
    "CONSTANTS", "RIVALS", "blame", "calibration", "constant_rows", "diff", "errors", "fit",
    "frontier", "kernels", "machine_comparison", "predictions", "ranks_table", "rival_rows",
    "robustness", "rows", "schemes", "short_name", "signed_time", "stages", "stages_to_dict",
    "sweep", "taken_from_recording", "time_and_share", "to_dict", "validation", "varied_columns",
    "verdict_lines",
]  # fmt: skip

"""Files of the gate: cases and baselines."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.gate_files.baseline_file import (
        BaselineModel,
        GraphModel,
        ListingModel,
        load_baseline,
        load_baselines,
        load_machine,
    )
    from hosim.io.gate_files.cases_file import CASE, MatrixModel, load_cases, read_toml
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "baseline_file": "BaselineModel GraphModel ListingModel load_baseline "
            "load_baselines load_machine",
            "cases_file": "CASE MatrixModel load_cases read_toml",
        },
    )

__all__ = [
    "CASE", "BaselineModel", "GraphModel", "ListingModel", "MatrixModel", "load_baseline",
    "load_baselines", "load_cases", "load_machine", "read_toml",
]  # fmt: skip

"""What is recorded of a case: its metrics, and the files that keep them."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.records.baselines import HEADER, LINES, SUFFIX, confined, is_baseline, read_record, record_text, save_record
    from hosim.gate.records.folding import absolute, fold, relative, unfold
    from hosim.gate.records.matrix_file import brief, read_matrix, save_matrix
    from hosim.gate.records.record import REQUESTS, SHIPPED, SOURCE, Item, Listing, Measured, PeakRecord, Record, Stay
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "baselines": "HEADER LINES SUFFIX confined is_baseline read_record record_text save_record",
            "folding": "absolute fold relative unfold",
            "matrix_file": "brief read_matrix save_matrix",
            "record": "Item Listing Measured PeakRecord REQUESTS Record SHIPPED SOURCE Stay",
        },
    )

__all__ = [
    "HEADER", "LINES", "REQUESTS", "SHIPPED", "SOURCE", "SUFFIX", "Item", "Listing", "Measured", "PeakRecord", "Record", "Stay",
    "absolute", "brief", "confined", "fold", "is_baseline", "read_matrix", "read_record", "record_text", "relative", "save_matrix",
    "save_record", "unfold",
]  # fmt: skip

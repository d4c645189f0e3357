"""What is recorded of a case: its metrics, and the files that keep them."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.records.baselines import (
        HEADER,
        LINES,
        SUFFIX,
        as_word,
        confined,
        is_baseline,
        of_word,
        read_record,
        record_text,
        save_record,
    )
    from hosim.gate.records.folding import absolute, fold, relative, unfold
    from hosim.gate.records.graph_record import graph_record, reads_of, role_of, shapes_of
    from hosim.gate.records.matrix_file import brief, read_matrix, save_matrix
    from hosim.gate.records.record import REQUESTS, SHIPPED, SOURCE, GraphRecord, Item, Listing, Measured, PeakRecord, Record, Stay
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "baselines": "HEADER LINES SUFFIX as_word confined is_baseline of_word read_record record_text save_record",
            "folding": "absolute fold relative unfold",
            "graph_record": "graph_record reads_of role_of shapes_of",
            "matrix_file": "brief read_matrix save_matrix",
            "record": "GraphRecord Item Listing Measured PeakRecord REQUESTS Record SHIPPED SOURCE Stay",
        },
    )

__all__ = [
    "HEADER", "LINES", "REQUESTS", "SHIPPED", "SOURCE", "SUFFIX", "GraphRecord", "Item", "Listing", "Measured", "PeakRecord", "Record",
    "Stay", "absolute", "as_word", "brief", "confined", "fold", "graph_record", "is_baseline", "of_word", "read_matrix", "read_record",
    "reads_of", "record_text", "relative", "role_of", "save_matrix", "save_record", "shapes_of", "unfold",
]  # fmt: skip

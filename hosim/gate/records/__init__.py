"""The records of a case: its metrics, and the files that keep them."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.gate.records.baselines import (
        LINES,
        confined,
        is_baseline,
        of_word,
        read_record,
        record_text,
        save_record,
    )
    from hosim.gate.records.folding import (
        absolute,
        fold,
        relative,
        unfold,
    )
    from hosim.gate.records.graph_record import graph_record, role_of
    from hosim.gate.records.machine_file import (
        SUFFIX,
        flat_profile,
        machine_files,
    )
    from hosim.gate.records.matrix_file import (
        brief,
        read_matrix,
        save_matrix,
    )
    from hosim.gate.records.record import (
        REQUESTS,
        SHIPPED,
        SOURCE,
        GraphRecord,
        Item,
        Listing,
        Measured,
        PeakRecord,
        Record,
        Stay,
        source_digest,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "baselines": "LINES confined is_baseline of_word read_record record_text save_record",
            "folding": "absolute fold relative unfold",
            "graph_record": "graph_record role_of",
            "machine_file": "SUFFIX flat_profile machine_files",
            "matrix_file": "brief read_matrix save_matrix",
            "record": "GraphRecord Item Listing Measured PeakRecord REQUESTS Record SHIPPED SOURCE "
            "Stay source_digest",
        },
    )

__all__ = [
    "LINES", "REQUESTS", "SHIPPED", "SOURCE", "SUFFIX", "GraphRecord", "Item", "Listing",
    "Measured", "PeakRecord", "Record", "Stay", "absolute", "brief", "confined", "flat_profile",
    "fold", "graph_record", "is_baseline", "machine_files", "of_word", "read_matrix",
    "read_record", "record_text", "relative", "role_of", "save_matrix", "save_record",
    "source_digest", "unfold",
]  # fmt: skip

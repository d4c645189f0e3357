"""Storages of programs: the parts that ops use, values that are known, and files stored
in a zip.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.importers.stored.static_tensors import (
        ELEMENTS,
        LARGEST,
        Recording,
        StaticTensor,
        UsedPart,
    )
    from hosim.io.importers.stored.storage_parts import (
        ALL,
        COPIED,
        GROUPED,
        MANY,
        MASKED,
        NO_BLOCKS,
        OVERLAP,
        Cut,
        Part,
        Roles,
        Use,
        ViewedBytes,
        add_parts,
        cut,
        cut_all,
        region,
        used_by,
        whole,
    )
    from hosim.io.importers.stored.stored_zip import (
        StoredRecord,
        ZipWindow,
        records_of,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "static_tensors": "ELEMENTS LARGEST Recording StaticTensor UsedPart",
            "storage_parts": "ALL COPIED Cut GROUPED MANY MASKED NO_BLOCKS OVERLAP Part Roles Use "
            "ViewedBytes add_parts cut cut_all region used_by whole",
            "stored_zip": "StoredRecord ZipWindow records_of",
        },
    )

__all__ = [
    "ALL", "COPIED", "ELEMENTS", "GROUPED", "LARGEST", "MANY", "MASKED", "NO_BLOCKS", "OVERLAP",
    "Cut", "Part", "Recording", "Roles", "StaticTensor", "StoredRecord", "Use", "UsedPart",
    "ViewedBytes", "ZipWindow", "add_parts", "cut", "cut_all", "records_of", "region", "used_by",
    "whole",
]  # fmt: skip

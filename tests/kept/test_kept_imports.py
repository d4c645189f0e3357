"""What importers make of a file stays what it was: see kept_imports.py for what to do when it is
meant to change.
"""

import pytest
from kept_imports import FILES, TABLE, row

KEPT = TABLE.kept()


@pytest.mark.parametrize("file", FILES)
def test_an_import_stays_what_it_was(file: str) -> None:
    if file.startswith("onnx"):
        pytest.importorskip("onnx")
    assert [row(file)] == KEPT[file], (
        "if meant: python tests/kept/write.py kept_imports, and look at what changed"
    )

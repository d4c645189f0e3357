"""What importers make of the files in ``tests/importers/data``, a row each.

After a change that is meant to alter a graph::

    python tests/kept/write.py kept_imports

writes the table anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from kept_builds import figures
from kept_table import KeptTable, Row

from hosim.graph import Graph
from hosim.io import load_any, workload_to_dict

COLUMNS = (
    "file",
    "ops",
    "tensors",
    "bytes",
    "flops",
    "accessed_bytes",
    "workspace_bytes",
    "checksum",
    "meta",
)
DATA = Path(__file__).parents[1] / "importers/data"
FILES = sorted(path.name for path in DATA.iterdir() if "truth" not in path.name)
DIMS = {
    "onnx_conv": {"batch": 3},
    "onnx_genai_llama": {
        "batch_size": 2,
        "sequence_length": 3,
        "total_sequence_length": 5,
        "past_sequence_length": 2,
        "kv_cache_dim": 16,
    },
    "onnx_magika": {"unk__214": 1},
    "onnx_mlp": {"batch": 2},
    "onnx_ocr": {"x[0]": 1, "x[2]": 48, "x[3]": 64},
    "onnx_silero": {"batch": 1, "sequence": 576},
}


def load(file: str) -> Graph:
    """The graph of a file."""
    return load_any(DATA / file, DIMS.get(file.partition(".")[0]))


def row(file: str) -> Row:
    """The row of one file. The version of onnx that read it is left out."""
    graph = load(file)
    meta = {key: value for key, value in graph.meta.items() if key != "onnx"}
    checksum = crc32(json.dumps({**workload_to_dict(graph), "meta": None}).encode())
    return (
        file,
        *figures(graph)[:-1],
        str(checksum),
        str(crc32(json.dumps(meta, sort_keys=True).encode())),
    )


def rows() -> Iterator[Row]:
    """The rows of all files."""
    return map(row, FILES)


TABLE = KeptTable("kept_imports", COLUMNS, rows)

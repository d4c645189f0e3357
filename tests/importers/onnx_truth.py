"""hosim's graphs of ONNX models beside what others say of the same models; see ``make_onnx.py``,
which wrote it down.
"""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hosim.analysis import static_peak
from hosim.graph import Graph
from hosim.io import load_any

DATA = Path(__file__).parent / "data"
TRUTH: dict[str, Any] = json.loads(gzip.decompress((DATA / "onnx_truth.json.gz").read_bytes()))[
    "models"
]
FROM_TORCH = [name for name, truth in TRUTH.items() if "parameters" in truth]
PUBLIC = [name for name in TRUTH if name not in FROM_TORCH]


@cache
def load(name: str) -> Graph:
    return load_any(DATA / f"onnx_{name}.onnx.gz", TRUTH[name]["dims"])


def comparison(name: str) -> Iterator[tuple[str, int, int]]:
    """Rows (quantity, the others' figure, hosim's).

    ``weights`` are bytes of constants in the file as its maker wrote it. Of models from torch:
    ``parameters`` by torch, and FLOP counted by torch's counter while the model ran. Of public
    models: FLOP and peak from a run.
    """
    graph = load(name)
    parameters = sum(t.size_bytes for t in graph.tensors if t.kind == "parameter")
    flops, peak = sum(op.flops for op in graph.ops), static_peak(graph).bytes
    for quantity, ours in {
        "weights": parameters,
        "parameters": parameters,
        "flops": flops,
        "peak": peak,
    }.items():
        if quantity in TRUTH[name]:
            yield quantity, TRUTH[name][quantity], ours


def made_at_peak(graph: Graph) -> int:
    """Bytes at the peak that are no constants."""
    peak = static_peak(graph)
    return peak.bytes - sum(
        peak.breakdown.get(kind, 0) for kind in ("parameter", "expert", "buffer")
    )

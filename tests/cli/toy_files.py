"""The toy of docs/formats.md: a workload, a machine and a plan, as data and as files."""

import json
from pathlib import Path
from typing import Any

GOOD: dict[str, Any] = {
    "workload.json": {
        "format": "hosim.workload/1",
        "name": "toy",
        "tensors": [
            {"name": "w", "bytes": 40, "kind": "parameter"},
            {"name": "a", "bytes": 30, "kind": "activation"},
        ],
        "ops": [
            {"name": "f", "kind": "matmul", "inputs": ["w"], "outputs": ["a"], "duration_ns": 50}
        ],
    },
    "hw.yaml": {
        "format": "hosim.hardware/1",
        "name": "toy",
        "compute": {"peak": {"bf16": "1 TFLOP/s"}},
        "tiers": {
            "hbm": {"capacity": "100 B", "bandwidth": "1 TB/s"},
            "ddr": {"capacity": "1 kB", "bandwidth": "100 GB/s"},
        },
        "channels": {
            "h2d": {"from": "ddr", "to": "hbm", "bandwidth": "1 GB/s"},
            "d2h": {"from": "hbm", "to": "ddr", "bandwidth": "1 GB/s"},
        },
    },
    "plan.json": {
        "format": "hosim.plan/1",
        "workload": "toy",
        "policy": "manual",
        "initial": {"w": ["ddr"]},
        "cache_ops": [
            {"op": "prefetch", "tensor": "w", "from": "ddr", "to": "hbm", "after": None},
            {"op": "detach", "tensor": "w", "from": "hbm", "after": "f"},
        ],
    },
}


NOTE = "note: durations: times as given for its 1 op\n"
"""What a command says of the toy on stderr, unless its tables do: the one duration names no
machine.
"""


def write_toy(folder: Path) -> None:
    """The three files, as JSON, which YAML includes."""
    for name, data in GOOD.items():
        (folder / name).write_text(json.dumps(data))

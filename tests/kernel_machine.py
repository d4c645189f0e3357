"""A machine whose kernels have times that are worked out by hand: a cycle is a microsecond, and
hardly anything else counts.
"""

from typing import Any

from hosim.analysis.costmodel.kernels import CLASSES
from hosim.graph import GraphBuilder
from hosim.hardware import Hardware
from hosim.io import hardware_from_dict

GATHER = {
    "fixed_cycles": 7.0, "rank_cycles": 2.0, "large_cycles": 1e9, "small_share": 1.0, "large_share": 1.0, "few_ranks": 0.0, "switched": 1.0,
}  # fmt: skip
"""An all-gather takes 7 cycles, 2 for each rank, and its bytes at the links' bandwidth."""

PROFILE: dict[str, Any] = {
    "format": "hosim.hardware/1",
    "name": "machine",
    "compute": {
        "peak": {"bf16": "10 TFLOP/s"},
        "launch": "5 us",
        "processor": {"multiprocessors": 10, "clock": "1 MHz", "links": "1 TB/s"},
        "kernels": {"all_gather": {"fp16": GATHER}},
    },
    "tiers": {"hbm": {"capacity": "1 GB", "bandwidth": "1 TB/s"}},
}


def kernel_machine(**compute: Any) -> Hardware:
    """The machine, with some of its ``compute`` changed."""
    return hardware_from_dict({**PROFILE, "compute": {**PROFILE["compute"], **compute}})


def gathers(
    *sizes: tuple[int, ...],
    kernel: str = "all_gather",
    dtype: str = "bf16",
    duration_ns: int | None = None,
):
    """A graph of such kernels, and an op that says of no kernel that it is one."""
    builder = GraphBuilder("gathers")
    for i, size in enumerate(sizes):
        builder.op(
            f"g{i}", "all_gather", dtype=dtype, kernel=kernel, sizes=size, duration_ns=duration_ns
        )
    builder.op("other", "norm", bytes_accessed=1_000_000)
    return builder.build()


assert set(GATHER) == set(CLASSES["all_gather"].constant_names)

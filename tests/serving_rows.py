"""Kernels of Llama-3.1-8B that others timed in an inference server, on two processors whose constants nobody fitted."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "serving"

# NVIDIA Ada and Blackwell GeForce / RTX PRO whitepapers: dense 16-bit peak with fp32 accumulation, memory, multiprocessors, boost clock, L2
PROCESSORS = {
    "rtx4090": (165.2e12, 1.008e12, 128, 2.52e9, 72 * 2**20),
    "rtxpro6000": (503.8e12, 1.792e12, 188, 2.617e9, 128 * 2**20),
}
_BYTES = {"layernorm": 4 * 4096 * 2, "final_layernorm": 4 * 4096 * 2, "act_fn": 3 * 14336 * 2, "rotary_emb": 2 * 40 * 128 * 2}
"""Bytes of memory for each token: a norm adds what the layer before adds."""


def small_kernels(card: str) -> Iterator[tuple[int, float]]:
    """Bytes and microseconds of norms, gates and rotary positions.

    Without those whose bytes fit into the cache: measured again and again on the same data, they never read memory. Unless they are so
    small that the launch is what counts.
    """
    _, bandwidth, _, _, cache = PROCESSORS[card]
    with gzip.open(FOLDER / f"{card}_llama-3.1-8b" / "kernels_dense.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            size = _BYTES.get(row["layer"], 0) * int(row["tokens"])
            if size and (size > cache or size / bandwidth < 1e-6):
                yield size, float(row["time_us"])

"""Kernels of Llama-3.1-8B that others timed in an inference server, on two processors whose
constants nobody fitted.
"""

import csv
import gzip
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hosim.hardware import Hardware
from hosim.io import hardware_from_dict

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "serving"

# NVIDIA Ada and Blackwell GeForce / RTX PRO whitepapers: dense 16-bit peak with fp32 accumulation,
# and of int8, memory, multiprocessors, boost clock, L2
PROCESSORS = {
    "rtx4090": (165.2e12, 660.6e12, 1.008e12, 128, 2.52e9, 72 * 2**20),
    "rtxpro6000": (503.8e12, 1007.6e12, 1.792e12, 188, 2.617e9, 128 * 2**20),
}
_BYTES = {
    "layernorm": 4 * 4096 * 2,
    "final_layernorm": 4 * 4096 * 2,
    "act_fn": 3 * 14336 * 2,
    "rotary_emb": 2 * 40 * 128 * 2,
}
"""Bytes of memory for each token: a norm adds what the layer before adds."""


def small_kernels(card: str) -> Iterator[tuple[int, float]]:
    """Bytes and microseconds of norms, gates and rotary positions.

    Without those whose bytes fit into the cache: measured again and again on the same data, they
    never read memory. Unless they are so small that the launch is what counts.
    """
    bandwidth, held = PROCESSORS[card][2], PROCESSORS[card][-1]
    for row in _rows(card, "dense"):
        size = _BYTES.get(row["layer"], 0) * int(row["tokens"])
        if size and (size > held or size / bandwidth < 1e-6):
            yield size, float(row["time_us"])


_PROMPTS = (256, 512, 1024, 2048)
_CACHES = (
    (1, 1024),
    (4, 2048),
    (16, 2048),
    (16, 8192),
    (64, 1024),
    (64, 4096),
    (128, 1024),
    (256, 1024),
)
_LAYER = (
    "layernorm",
    "layernorm",
    "qkv_proj",
    "rotary_emb",
    "o_proj",
    "gate_up_proj",
    "act_fn",
    "down_proj",
)


def served_steps(card: str) -> Iterator[tuple[dict[str, Any], float]]:
    """The parameters of prefills and of decoding steps, and the nanoseconds of all of their
    kernels.
    """
    dense = {
        (row["layer"], int(row["tokens"])): float(row["time_us"]) for row in _rows(card, "dense")
    }
    heads = {
        (row["layer"], int(row["sequences"])): float(row["time_us"])
        for row in _rows(card, "per_sequence")
    }
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    attention = {
        tuple(int(row[name]) for name in columns): float(row["time_us"])
        for row in _rows(card, "attention")
    }
    prompts = [
        ({"phase": "prefill", "batch": 1, "sequence": n}, n, 1, attention[n, 0, 0, 0])
        for n in _PROMPTS
    ]
    caches = [
        ({"phase": "decode", "batch": n, "context": keys + 1}, n, n, attention[0, 0, n, keys])
        for n, keys in _CACHES
    ]
    for run, tokens, sequences, us in prompts + caches:
        layer = us + sum(dense[name, tokens] for name in _LAYER)
        whole = (
            32 * layer
            + dense["embedding", tokens]
            + dense["final_layernorm", tokens]
            + heads["lm_head", sequences]
        )
        yield {"model": "llama-3.1-8b", "fused": True, "merged": True} | run, 1000 * whole


def card_hardware(card: str) -> Hardware:
    """A profile of its vendor's figures alone."""
    peak, whole, bandwidth, multiprocessors, clock_hz, _ = PROCESSORS[card]
    compute = {
        "peak": {
            name: f"{flops / 1e12:g} TFLOP/s"
            for name, flops in (("bf16", peak), ("fp32", peak / 2), ("int8", whole))
        },
        "efficiency": 0.75,
        "launch": "3 us",
        "processor": {"multiprocessors": multiprocessors, "clock": f"{clock_hz / 1e9:g} GHz"},
    }
    tier = {"capacity": "96 GB", "bandwidth": f"{bandwidth / 1e9:g} GB/s"}
    return hardware_from_dict(
        {"format": "hosim.hardware/1", "name": card, "compute": compute, "tiers": {"hbm": tier}}
    )


@cache
def _rows(card: str, kind: str) -> list[dict[str, str]]:
    with gzip.open(FOLDER / f"{card}_llama-3.1-8b" / f"kernels_{kind}.csv.gz", "rt") as file:
        return list(csv.DictReader(file))

"""Steps composed of measured kernels: what each class of kernels takes in them, by the tables
beside the project and by hosim.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kernel_rows import MACHINES, kernel_tables

from hosim.analysis.costmodel import TABLE, op_durations
from hosim.analysis.costmodel.kernels import CLASSES, FITTED, kernel_times
from hosim.graph import Graph
from hosim.hardware import Hardware, MeasuredTimes
from hosim.io import hardware_from_dict
from hosim.io.models import build

FILES = ("gemm", "attention", "mla", "moe", "collectives")

_70B = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}
_8X7B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "moe_intermediate_size": 14336,
    "num_experts": 8, "num_experts_per_tok": 2, "qk_norm": False,
}  # fmt: skip
_DEVICES: tuple[tuple[str, Mapping[str, Any], tuple[int, ...]], ...] = (
    ("llama-3.1-8b", {}, (1, 2, 8)),
    ("llama-3.1-8b", _70B, (1, 2, 4, 8)),
    ("qwen3-30b-a3b", _8X7B, (1, 8)),
    ("deepseek-v3", {}, (8,)),
)
_PROMPTS = ((1, 512), (1, 2048), (1, 16384), (4, 4096), (16, 1024))
_CACHES = ((1, 129), (1, 1025), (4, 2049), (16, 2049), (64, 4097), (256, 1025))
_LAYERS = 4
_SKEWED = {"routing_distribution": "power_law_1.01"}
"""As the tables of mixtures were measured."""

GUESSED = "guess"

Which = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class ComposedStep:
    """The nanoseconds of a step's kernels of each class and size, all of equal sizes together:
    measured, and as somebody predicts them.
    """

    measured: Mapping[Which, int]
    predicted: Mapping[Which, int]


@cache
def graphs() -> tuple[Graph, ...]:
    """Prefill and decoding of models of several kinds, on one device and on several."""
    found = []
    for model, config, devices in _DEVICES:
        for tensor in devices:
            merged = model != "deepseek-v3"
            fixed = {
                "model": model,
                "config": dict(config),
                "tensor": tensor,
                "layers": _LAYERS,
                "fused": True,
                "merged": merged,
            }
            runs = [
                {"phase": "prefill", "batch": batch, "sequence": sequence}
                for batch, sequence in _PROMPTS
            ]
            runs += [
                {"phase": "decode", "batch": batch, "context": context}
                for batch, context in _CACHES
            ]
            found += [
                replace(graph, meta={**graph.meta, **_SKEWED})
                for graph in (build("step", fixed | run) for run in runs)
            ]
    return tuple(found)


def steps(machine: str, by: str) -> Iterator[ComposedStep]:
    """All of them on a machine, as the constants of the machine ``by`` predict them, or as hosim
    guesses where nobody says the kernel.

    Kernels whose sizes lie beyond the tables are left out.
    """
    exact, model = (
        _hardware(machine, machine if machine in FITTED else "a100_sxm", measured=True),
        _hardware(machine, by),
    )
    for graph in graphs():
        times = kernel_times(graph, exact)
        said = op_durations(graph, model)
        measured: defaultdict[Which, int] = defaultdict(int)
        predicted: defaultdict[Which, int] = defaultdict(int)
        for i, (ns, origin) in times.items():
            if origin == TABLE:
                which = graph.ops[i].kernel, graph.ops[i].sizes
                measured[which] += ns
                predicted[which] += said[i]
        yield ComposedStep(measured, predicted)


@cache
def _hardware(machine: str, by: str, measured: bool = False) -> Hardware:
    peaks, bandwidth, multiprocessors, clock_hz, links = MACHINES[machine]
    peak = {dtype: f"{flops / 1e12:g} TFLOP/s" for dtype, flops in peaks.items()}
    peak |= {"bf16": peak["fp16"], "fp32": peak["fp16"]}
    compute: dict[str, Any] = {"peak": peak, "efficiency": 0.75, "launch": "3 us"}
    if by != GUESSED:
        processor = {
            "multiprocessors": multiprocessors,
            "clock": f"{clock_hz / 1e9:g} GHz",
            "links": f"{links / 1e9:g} GB/s",
        }
        compute |= {
            "processor": processor,
            "kernels": {name: dict(dtypes) for name, dtypes in FITTED[by].items()},
        }
    tier = {"capacity": "80 GB", "bandwidth": f"{bandwidth / 1e9:g} GB/s"}
    found = hardware_from_dict(
        {"format": "hosim.hardware/1", "name": machine, "compute": compute, "tiers": {"hbm": tier}}
    )
    return (
        replace(found, compute=replace(found.compute, tables=_tables(machine)))
        if measured
        else found
    )


@cache
def _tables(machine: str) -> tuple[MeasuredTimes, ...]:
    found = []
    for table in (table for file in FILES for table in kernel_tables(file)):
        if table.machine == machine and table.dtype == "fp16":
            sizes = zip(
                *(table.sizes[name].astype(int).tolist() for name in CLASSES[table.kernel].sizes),
                strict=True,
            )
            found.append(
                MeasuredTimes(
                    table.kernel,
                    table.kernel,
                    "fp16",
                    table.distribution,
                    tuple(sizes),
                    tuple(table.latency_us.tolist()),
                )
            )
    return tuple(found)

"""Figures that people reported, beside the project: which runtime each is of, and what hosim says
of it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

import hosim
from hosim.analysis.costmodel import machine_under, op_durations, share_beside
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.data.seen_peaks import seen_peaks
from hosim.edits import CROSSING_KINDS
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io import load_named
from hosim.io.runtimes import runtime_named, under_runtime

FILE = Path(__file__).parents[2] / "shared" / "data" / "practitioners" / "figures.csv"

CPU_SHARE = 0.43
"""What an optimizer on the CPU reaches of the bandwidth of host memory by all shipped profiles."""

_SURE = RuntimeFigure(1.0, 1e-9)
"""A speed that is known: a runtime that says none is drawn as one that nobody named."""

_SOFTWARE = (
    ("torchtitan.*eager", "torchtitan-eager"),
    ("torchtitan.*2025|torchtitan.*H200", "torchtitan-compiled-2025"),
    ("torchtitan", "torchtitan-compiled"),
    ("DeepSpeed", "hf-deepspeed"),
    ("prime-rl", "prime-rl"),
    ("Megatron-Bridge", "megatron-te"),
    ("torchtune", "torchtune"),
    ("llama.cpp", "llama-cpp"),
    ("gpt-fast|torchao, compile: decode", "gpt-fast"),
    ("vLLM", "vllm"),
)
"""The words of a question that name its software, and the runtime of that."""

_SAID = (
    ("without Liger", ""),
    ("Liger", "fused=true:loss=chunked"),
    ("eager, no AC", "fused=false"),
)
"""What a question says beside that its row's command could not when it was written."""


@dataclass(frozen=True)
class Row:
    """A row: what it asks, the runtime of its software (``""``: of none that hosim has), what its
    source is, and the true figure.
    """

    id: str
    kind: str
    source: str
    workload: str
    hardware: str
    policy: str
    runtime: str
    unit: str
    truth: float
    trivial: float
    before: float | None

    @property
    def tokens(self) -> float:
        """Tokens of one device in a step."""
        given = dict(re.findall(r":(\w+)=(\w+)", self.workload))
        batch = int(given.get("batch", 1)) * int(given.get("micro_batches", 1))
        return (
            batch
            if given.get("phase") == "decode"
            else batch
            * int(given["sequence"])
            / (int(given.get("context_parallel", 1)) * int(given.get("tensor", 1)))
        )

    @property
    def true_s(self) -> float:
        """Seconds of a step, or GiB."""
        return self.in_s(self.truth)

    def in_s(self, figure: float) -> float:
        """A figure of the row's unit in seconds of a step, or in GiB."""
        return (
            self.tokens / figure
            if self.unit.startswith("tokens")
            else figure * {"ms": 1e-3}.get(self.unit, 1.0)
        )


_NOW_SAID = {"tt-70b-256gpu-tp8-bf16": "c time"}
"""The kind of a row that could not be asked of hosim when the file was written."""


def rows() -> Iterator[Row]:
    """The rows that compare-policies is asked."""
    for row in csv.DictReader(FILE.read_text().splitlines()):
        found = re.match(r"hosim compare-policies (\S+) -H (\S+) -p (\S+)", row["hosim_command"])
        kind = _NOW_SAID.get(row["id"], row["kind"])
        if found and not kind.startswith("x"):
            workload, hardware, policy = found.groups()
            asked = f"{row['question']} {row['machine']}"
            runtime = next((name for words, name in _SOFTWARE if re.search(words, asked)), "")
            said = next((text for words, text in _SAID if words in row["question"]), "")
            if "without Liger" in row["question"] or "fused=" in said:
                workload = workload.replace(":fused=true", "")
            workload = f"{workload.replace(':fused=true', '')}:{said}" if said else workload
            before = float(row["at_0775890d_value"]) if row["at_0775890d_value"] else None
            figures = float(row["truth"]), float(row["trivial"] or "nan"), before
            source = re.split("[@#:(]", row["source"])[0].strip()
            yield Row(
                row["id"],
                kind,
                source,
                workload,
                hardware,
                policy,
                runtime,
                row["unit"],
                *figures,
            )


@dataclass(frozen=True)
class Answer:
    """What hosim says of a row under its runtime at the speed of kernels alone: seconds on the
    device and after it, of collectives beside its ops, and bytes. ``logs`` are those of each draw over what is said, without what
    a runtime's speed adds. ``unlimited_s``: on the device without ``row_rate``.
    """

    device_s: float
    after_s: float
    beside_s: float
    logs: tuple[float, ...]
    peak_bytes: int
    machine: Hardware
    unlimited_s: float

    def on_device(self, exposed: float) -> float:
        """Seconds on the device where so many times the time of collectives is exposed."""
        return self.device_s + exposed * self.beside_s

    def seconds(self, runtime: Runtime) -> float:
        """Seconds of the step under a runtime whose figures are other ones."""
        share = runtime.cpu_optimizer.value
        return self.on_device(runtime.exposed.value) / runtime.speed.value + self.after_s * (
            CPU_SHARE / share if share else 1
        )

    def gib(self, runtime: Runtime, unit: str) -> tuple[float, float, float]:
        """GiB that a source shows, and the ends of the interval: most of them show what torch has
        reserved.
        """
        seen = seen_peaks(machine_under(self.machine, runtime), self.peak_bytes)
        assert seen is not None
        peak = seen.allocated if unit == "allocated" else seen.reserved
        return peak.bytes / 2**30, peak.low_bytes / 2**30, peak.high_bytes / 2**30


def _beside_s(graph: Graph, machine: Hardware) -> float:
    """Seconds of collectives beside the ops of the device."""
    times = op_durations(graph, machine)
    alone = sum(
        [
            ns
            for op, ns in zip(graph.ops, times, strict=True)
            if op.stream == graph.main_stream
            if not op.processor and op.duration_ns is None and op.kind not in CROSSING_KINDS
        ]
    )
    return float(share_beside(graph, times)) * alone / 1e9


def answer(row: Row, named: bool = True) -> Answer | None:
    """The answer of a row, under its runtime or, unless ``named``, without; ``None`` if it does not
    fit, or is refused.
    """
    try:
        graph = load_named(row.workload)
        runtime = Runtime("kernels alone", speed=_SURE)
        if row.runtime and named:
            runtime = replace(
                runtime_named(row.runtime),
                speed=_SURE,
                exposed=RuntimeFigure(0.0),
                cpu_optimizer=RuntimeFigure(0.0),
            )
        built, graph = graph, under_runtime(graph, runtime)
        machine = (
            hosim.load_hardware(hosim.find_hardware(row.hardware))
            if "/" not in row.hardware
            else None
        )
        assert machine is not None
        result = hosim.replay(hosim.plan(graph, machine, row.policy), machine)
        bare = result
        if runtime.row_rate.value:
            unlimited = under_runtime(built, replace(runtime, row_rate=RuntimeFigure(0.0)))
            bare = hosim.replay(hosim.plan(unlimited, machine, row.policy), machine)
    except (hosim.HosimError, AssertionError):
        return None
    if not result.feasible or result.makespan_ns is None or result.drain_ns is None:
        return None
    drawn = () if result.drawn is None else result.drawn.makespan_ns
    logs = tuple([log(ns / result.makespan_ns) for ns in drawn if ns])
    after = result.drain_ns if row.policy == "zero_offload" else 0
    return Answer(
        (result.makespan_ns - after) / 1e9,
        after / 1e9,
        _beside_s(graph, machine),
        logs,
        result.peak_bytes[machine.device_tier],
        machine,
        ((bare.makespan_ns or 0) - after) / 1e9,
    )

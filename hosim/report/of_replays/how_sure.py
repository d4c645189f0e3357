"""How sure the makespans of results are: their intervals, and what software would make of them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from hosim.costmodel import op_durations
from hosim.data.runtime import Runtime
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.io.runtimes import runtimes_for
from hosim.report.printing import paragraph
from hosim.result import Result
from hosim.units import human_time


def intervals(results: Sequence[Result]) -> Text:
    """The 90 % interval of each makespan; nothing where all op times are measured."""
    unsure = [
        r
        for r in results
        if r.feasible and r.makespan_low_ns is not None and r.makespan_high_ns is not None
    ]
    texts = [
        f"{human_time(r.makespan_low_ns or 0)} to {human_time(r.makespan_high_ns or 0)}"
        for r in unsure
    ]
    if len(results) > 1:
        texts = [f"{result.policy} {text}" for result, text in zip(unsure, texts, strict=True)]
    return paragraph(
        *([f"90 % interval of the makespan: {', '.join(texts)}."] if texts else []), space=True
    )


def without_runtime(graph: Graph, hardware: Hardware, results: Sequence[Result]) -> Text:
    """What the fastest plan takes under the runtimes that run such steps, where none is named and
    its times are modelled: their kernels' speed in a whole step, and their optimizers on the CPU.
    """
    found = runtimes_for(graph)
    timed = [r for r in results if r.feasible and r.makespan_low_ns is not None]
    if not found or not timed:
        return paragraph()
    best = min(timed, key=lambda r: r.makespan_ns or 0)
    slow, fast = found[0], found[-1]
    shares = sorted([(r.cpu_optimizer.value, r.name) for r in found if r.cpu_optimizer.value])
    after = _optimizer_ns(graph, hardware, best)
    said = (
        f"software that runs such steps sustains {slow.speed.value:.2f} ({slow.name}) to "
        f"{fast.speed.value:.2f} ({fast.name}) of the speed that kernels have alone"
    )
    ends = [_device_ns(best, each) for each in (fast, slow)]
    if after and shares:
        (least, slower), (most, faster) = shares[0], shares[-1]
        said += (
            f", and {least:.2f} ({slower}) to {most:.2f} ({faster}) of the bandwidth of host memory "
            "in an optimizer on the CPU"
        )
        ends = [
            end + after * (_share(hardware) / of - 1)
            for end, of in zip(ends, (most, least), strict=True)
        ]
    first, last = [human_time(round(end)) for end in ends]
    return paragraph(
        f"No runtime is named (hosim runtime list): {said}, with which {best.policy} takes {first} "
        f"to {last}.",
        space=True,
    )


def _device_ns(result: Result, runtime: Runtime) -> float:
    """The makespan where kernels have a runtime's speed, and what they hide is as it was."""
    busy = result.busy_ns or 0
    return (result.makespan_ns or 0) + busy * (1 / runtime.speed.value - 1)


def _optimizer_ns(graph: Graph, hardware: Hardware, result: Result) -> int:
    """What an optimizer on another processor takes after all else."""
    durations = graph.derived_on(hardware, op_durations)
    there = [durations[i] for i in graph.elsewhere if graph.ops[i].kind == "optimizer"]
    return min(sum(there), result.drain_ns or 0)


def _share(hardware: Hardware) -> float:
    """The share of host memory's bandwidth that the profile gives an optimizer."""
    computes = [tier.compute for tier in hardware.tiers if tier.compute is not None]
    return float(computes[0].efficiency_for("optimizer", "fp32"))

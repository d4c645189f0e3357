"""Durations of one machine on another: scaled by the ratio of the cost model's times of each op on
the two.

An op that says neither FLOP nor bytes, as a recorded kernel, is scaled by the geometric mean of the
ratios of compute and of memory bandwidth. The interval of a makespan says how unsure that is
(:mod:`hosim.analysis.costmodel.spreads.time_spread`).
"""

from dataclasses import replace
from fractions import Fraction
from math import sqrt

from hosim.analysis.costmodel.op_time import op_durations
from hosim.analysis.costmodel.peaks import peak_for
from hosim.graph import Graph, Op
from hosim.hardware import Hardware
from hosim.measured_on import MEASURED_ON, RESCALED_FROM, measured_on


def rescaled_from(graph: Graph, base: Hardware, hardware: Hardware) -> Graph:
    """The graph with the durations that it has on ``base`` scaled to ``hardware``."""
    bare = Graph(
        graph.name, graph.tensors, tuple([_without_times(op) for op in graph.ops]), graph.meta
    )
    before, after = op_durations(bare, base), op_durations(bare, hardware)
    ops = []
    for op, old, new in zip(graph.ops, before, after, strict=True):
        ratio = Fraction(new, old) if is_counted(op) and old else _by_rates(op, base, hardware)
        others = tuple(
            [(name, None if ns is None else round(ns * ratio)) for name, ns in op.also_on]
        )
        scaled = None if op.duration_ns is None else round(op.duration_ns * ratio)
        ops.append(replace(op, duration_ns=scaled, also_on=others))
    meta = {
        **graph.meta,
        MEASURED_ON: hardware.name,
        RESCALED_FROM: graph.meta.get(RESCALED_FROM, measured_on(graph) or base.name),
    }
    return Graph(graph.name, graph.tensors, tuple(ops), meta)


def is_counted(op: Op) -> bool:
    """Return whether an op says what its time follows from."""
    return bool(op.flops or op.bytes_accessed or op.kernel)


def _without_times(op: Op) -> Op:
    return replace(op, duration_ns=None, also_on=tuple([(name, None) for name, _ in op.also_on]))


def _by_rates(op: Op, base: Hardware, hardware: Hardware) -> Fraction:
    memory = base.device.bandwidth_bytes_per_s / hardware.device.bandwidth_bytes_per_s
    peaks = peak_for(base, op.dtype), peak_for(hardware, op.dtype)
    compute = peaks[0] / peaks[1] if peaks[0] and peaks[1] else memory
    return Fraction(sqrt(memory * compute)).limit_denominator(10**6)

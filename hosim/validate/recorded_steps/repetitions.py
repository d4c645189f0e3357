"""Iterations of a recording, and the part before one of them.

Iterations are the ``ProfilerStep`` ranges, if there are any. Otherwise they are repetitions of the
sequence of ops in program order: the period that covers most of the recording, counted back from
its end, and the shortest of several. Ops before them, such as a first iteration that tries kernels,
belong to the first one. Only names decide, so that no time on the device moves a boundary.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hosim.io.importers.recordings import KinetoTrace, program_order

_STEP = re.compile(r"ProfilerStep#\d+")
_KEPT = 0.9
"""The share of an iteration's ops that must equal those of the next one."""

_COVERED = 0.5
"""The share of the recording that the iterations must cover."""

_SHORTEST = 8
"""The number of ops of the shortest period."""


@dataclass(frozen=True, slots=True)
class Repetitions:
    """The iterations of a recording: the way in which they were found, and the instants at which
    the host began them (nanoseconds of the recording's clock).
    """

    found_by: str
    starts_ns: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of iterations; 1 if the recording does not repeat."""
        return len(self.starts_ns)


def repetitions(trace: KinetoTrace) -> Repetitions:
    """Return the iterations of a recording, at least one."""
    steps = sorted({a.start_ns for a in trace.annotations if _STEP.fullmatch(a.name)})
    if len(steps) > 1:
        return Repetitions("ProfilerStep", tuple(steps))
    order = program_order(trace)
    starts = _repeated([trace.ops[i].name for i in order.order])
    return Repetitions(
        "repeated ops" if len(starts) > 1 else "nothing",
        tuple(order.issued_ns[order.order[at]] for at in starts),
    )


def before(trace: KinetoTrace, instant_ns: int) -> KinetoTrace:
    """Return the part of a trace that the host began before that instant, with the device's work
    for it, even if that ran later.
    """
    calls = bisect_left(trace.calls, instant_ns, key=lambda call: call.start_ns)
    kept = {call.correlation for call in trace.calls[:calls]}
    return replace(
        trace,
        ops=tuple(
            op
            for op in trace.ops
            if (op.call < calls if op.call is not None else op.start_ns < instant_ns)
        ),
        calls=trace.calls[:calls],
        cpu_ops=tuple(op for op in trace.cpu_ops if op.start_ns < instant_ns),
        syncs=tuple(
            s
            for s in trace.syncs
            if (s.correlation in kept if s.correlation is not None else s.start_ns < instant_ns)
        ),
        memory=tuple(event for event in trace.memory if event.time_ns < instant_ns),
        annotations=tuple(a for a in trace.annotations if a.start_ns < instant_ns),
    )


def issued_from(trace: KinetoTrace, instant_ns: int) -> tuple[int, ...]:
    """The positions of the ops that are not in :func:`before`."""
    calls = bisect_left(trace.calls, instant_ns, key=lambda call: call.start_ns)
    return tuple(
        i
        for i, op in enumerate(trace.ops)
        if (op.call >= calls if op.call is not None else op.start_ns >= instant_ns)
    )


def numbered(names: Sequence[str]) -> Any:
    """Return an array with a number for each name; equal names have equal numbers."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names])


def _repeated(names: Sequence[str]) -> list[int]:
    """Return the start of each repetition."""
    sequence = numbered(names)
    size = len(sequence)
    found: list[list[int]] = []
    for period in range(_SHORTEST, size // 2 + 1):
        starts = [size - period]
        while (at := starts[-1]) >= period:
            if np.mean(sequence[at - period : at] == sequence[at : at + period]) < _KEPT:
                break
            starts.append(at - period)
        if len(starts) > 1 and size - starts[-1] >= _COVERED * size:
            found.append(starts[::-1])
    longest = max((size - starts[0] for starts in found), default=0)
    return next((starts for starts in found if size - starts[0] >= _KEPT * longest), [0])

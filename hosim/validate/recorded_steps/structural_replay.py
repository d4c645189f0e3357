"""Structural replay: hosim's engine replays the graph of a recording, and its times are compared
with the recorded ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.hardware import Compute, Hardware, Tier
from hosim.io.importers.recordings import DeviceOp
from hosim.validate.recorded_steps.latencies import Latencies
from hosim.validate.recorded_steps.start_errors import percentile95
from hosim.validate.recorded_steps.step_structure import (
    WHOLE_DEVICE,
    GivenNumbers,
    RecurringDelay,
    Structure,
)

RECORDING = Hardware(
    "recording", (Tier("hbm", WHOLE_DEVICE, 1, "device"),), (), Compute({"bf16": 1})
)
"""Every duration is measured, and the device tier stands for the room on the device: see
:mod:`hosim.validate.recorded_steps.step_structure`."""

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ReplayedOp:
    """A kernel, copy or memset: as recorded, and its simulated start and end (in nanoseconds of the
    recording's clock).
    """

    op: DeviceOp
    simulated_start_ns: int
    simulated_end_ns: int

    @property
    def start_error_ns(self) -> int:
        """The simulated start minus the recorded one."""
        return self.simulated_start_ns - self.op.start_ns


@dataclass(frozen=True)
class StructuralReplay:
    """Recorded and simulated times of every op, in the order of ``trace.ops``, and their totals in
    nanoseconds.

    A makespan runs from the first start of an op to the last end. ``*_overlap_ns`` is the part of
    ``copy_ns``, the total time of copies, during which a kernel ran. ``*_wait_ns`` is the time that
    ops waited for other streams beyond their launch and their own stream. ``given`` counts the
    numbers taken from the recording, ``constants`` lists the fitted ones, and ``inferred_waits``
    counts the stream waits that the recording only suggests.
    """

    trace: str
    device: str | None
    ops: tuple[ReplayedOp, ...]
    copy_ns: int
    measured_overlap_ns: int
    simulated_overlap_ns: int
    measured_wait_ns: int
    simulated_wait_ns: int
    stream_waits: int
    inferred_waits: int
    contradicted_waits: int
    given: GivenNumbers
    constants: Latencies
    recurring: tuple[RecurringDelay, ...]
    end_ns: int
    """The end of the whole replay, including the host's last call."""

    @property
    def kernels(self) -> tuple[ReplayedOp, ...]:
        """The kernels."""
        return tuple(op for op in self.ops if op.op.kind == "kernel")

    @property
    def measured_ns(self) -> int:
        """Recorded makespan."""
        return span_ns((op.op.start_ns, op.op.end_ns) for op in self.ops)

    @property
    def simulated_ns(self) -> int:
        """Simulated makespan."""
        return span_ns((op.simulated_start_ns, op.simulated_end_ns) for op in self.ops)

    @property
    def makespan_error(self) -> float:
        """The signed relative error: 0.01 is one per cent too long."""
        return self.simulated_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    @property
    def mean_start_error_ns(self) -> int:
        """The mean absolute error of the kernels' simulated starts (of all ops, if there are no
        kernels).
        """
        errors = self._start_errors()
        return round(sum(errors) / len(errors))

    @property
    def p95_start_error_ns(self) -> int:
        """The 95th percentile of these errors."""
        return percentile95(self._start_errors())

    def worst(self, count: int = 10) -> tuple[ReplayedOp, ...]:
        """Return the ops with the largest errors of their starts."""
        return tuple(
            sorted(self.ops, key=lambda op: (-abs(op.start_error_ns), op.op.start_ns))[:count]
        )

    def _start_errors(self) -> Sequence[int]:
        return [abs(op.start_error_ns) for op in self.kernels or self.ops]


def structural_replay(built: Structure) -> StructuralReplay:
    """Replay a structure (:func:`hosim.validate.recorded_steps.step_structure.structure`), and
    compare it with the recording.

    Raises :class:`InputError` if the replay does not end.
    """
    trace = built.trace
    timeline = replay(Plan(built.graph), RECORDING, record=True).timeline
    if timeline is None:
        raise InputError("the replay of the recording's structure did not end", source=trace.name)
    starts = [timeline.op_start_ns[head] for head in built.heads]
    ends = [start + duration for start, duration in zip(starts, built.durations_ns, strict=True)]
    ops = tuple(map(ReplayedOp, trace.ops, starts, ends))
    released = [
        timeline.op_end_ns[max(built.graph.ops[head].deps, default=head)] for head in built.heads
    ]
    recorded = [(op.start_ns, op.end_ns) for op in trace.ops]
    simulated = list(zip(starts, ends, strict=True))
    return StructuralReplay(
        trace.name,
        trace.device_name,
        ops,
        sum(op.duration_ns for op in trace.copies),
        _overlap(trace.ops, recorded),
        _overlap(trace.ops, simulated),
        _waited(built, recorded, [_recorded_release(built, i) for i in range(len(ops))]),
        _waited(built, simulated, released),
        built.waits.recorded + built.waits.inferred,
        built.waits.inferred,
        built.waits.contradicted,
        built.given,
        built.latencies,
        built.known.recurring,
        max(timeline.op_end_ns),
    )


def span_ns(intervals: Iterable[Interval]) -> int:
    """The time from the first start to the last end."""
    listed = list(intervals)
    return max(end for _, end in listed) - min(start for start, _ in listed)


def _recorded_release(built: Structure, i: int) -> int:
    """Return the instant from which the host would have let an op start."""
    op = built.trace.ops[i]
    return (
        op.start_ns
        if op.call is None
        else built.trace.calls[op.call].end_ns + built.latencies.launch_of(op)
    )


def _waited(built: Structure, times: Sequence[Interval], released: Sequence[int]) -> int:
    """Return the time that ops waited only for other streams: from when their own stream and their
    launch were ready, to when the others were.
    """
    total = 0
    for queue in built.streams:
        for before, i in pairwise((-1, *queue)):
            awaited = built.waits.of_ops.get(i, ())
            if awaited:
                ready = max(released[i], times[before][1] if before >= 0 else 0)
                total += max(0, max(times[a][1] for a in awaited) - ready)
    return total


def _overlap(ops: Sequence[DeviceOp], times: Sequence[Interval]) -> int:
    """The time of copies during which a kernel ran."""
    busy: list[list[int]] = []
    for start, end in sorted(times[i] for i, op in enumerate(ops) if op.kind == "kernel"):
        if busy and start <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], end)
        else:
            busy.append([start, end])
    total = at = 0
    for start, end in sorted(times[i] for i, op in enumerate(ops) if op.kind == "copy"):
        while at and busy[at - 1][1] > start:  # copies may overlap each other
            at -= 1
        while at < len(busy) and busy[at][1] <= start:
            at += 1
        k = at
        while k < len(busy) and busy[k][0] < end:
            total += min(end, busy[k][1]) - max(start, busy[k][0])
            k += 1
    return total

"""A step that the recording kit recorded with everything resident: its ops by phase, and the blocks
of memory that cross phases.

The kit marks where the host enters each phase (``hosim.layer.3.forward``). An op belongs to the
phase in which it was launched. Its duration here runs from the end of the previous op to its own
end, so that the device's wait for the host belongs to the late op.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from hosim.errors import InputError
from hosim.io.importers.recordings import (
    KinetoTrace,
    MemoryEvent,
    RecordedBlock,
    blocks_of,
    device_of_blocks,
)

_PREFIX = "hosim."
_STEP = "hosim.step"


@dataclass(frozen=True, slots=True)
class Phase:
    """``name`` such as ``layer.3.forward``; when the host entered it, and the ops launched in it:
    positions ``[first, stop)``.
    """

    name: str
    begin_ns: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step: phases in program order, ops with their durations and the instants of their launch,
    and memory events (program order).
    """

    phases: tuple[Phase, ...]
    op_names: tuple[str, ...]
    issued_ns: tuple[int, ...]
    durations_ns: tuple[int, ...]
    memory: tuple[MemoryEvent, ...]
    start_bytes: int | None

    @property
    def makespan_ns(self) -> int:
        """The time from the start of the first op to the end of the last."""
        return sum(self.durations_ns)

    @property
    def phase_index(self) -> Mapping[str, int]:
        """Position of each phase by name."""
        return {phase.name: i for i, phase in enumerate(self.phases)}

    @property
    def layers(self) -> int:
        """Number of layers."""
        return sum(
            phase.name.startswith("layer.") and phase.name.endswith(".forward")
            for phase in self.phases
        )

    def begin_of(self, name: str) -> int:
        """Return the instant when the host entered the phase."""
        return self.phases[self.phase_index[name]].begin_ns

    @property
    def trains(self) -> bool:
        """Return whether it is a training step, and not a prefill."""
        return "layer.0.update" in self.phase_index

    def kept_blocks(self, layer: int, smallest: int) -> tuple[RecordedBlock, ...]:
        """Blocks allocated in the forward phase of a layer that live on when the host enters the
        head, of at least ``smallest`` bytes.
        """
        phase = self.phase_index[f"layer.{layer}.forward"]
        begin, end, head = (
            self.phases[phase].begin_ns,
            self.phases[phase + 1].begin_ns,
            self.begin_of("head.forward"),
        )
        blocks = (
            b
            for b in blocks_of(self.memory).listed
            if b.allocated_ns is not None and b.size_bytes >= smallest
        )
        return tuple(
            b
            for b in blocks
            if begin <= (b.allocated_ns or 0) < end and (b.freed_ns is None or b.freed_ns >= head)
        )

    def producer_of(self, block: RecordedBlock) -> int:
        """The first op launched after the block was allocated."""
        assert block.allocated_ns is not None
        return min(bisect_left(self.issued_ns, block.allocated_ns), len(self.issued_ns) - 1)


def last_step(trace: KinetoTrace) -> RecordedStep:
    """The last step of a recording on one stream. Raises `InputError` for a recording that the kit
    did not make.
    """
    marks = [(a.start_ns, a.name) for a in trace.annotations if a.name.startswith(_PREFIX)]
    starts = [time for time, name in marks if name == _STEP]
    if not starts:
        raise InputError(
            f"expected a recording of hosim.gpu, with its annotations ({_STEP})", source=trace.name
        )
    marks = [(time, name.removeprefix(_PREFIX)) for time, name in marks if time > starts[-1]]
    ops = sorted(
        (trace.calls[op.call].start_ns, op.start_ns, op.end_ns, op.name, op.stream)
        for op in trace.ops
        if op.call is not None
    )
    ops = [op for op in ops if op[0] >= starts[-1]]
    if not ops or len({op[4] for op in ops}) > 1:
        raise InputError(
            "expected a step with everything resident, on one stream; it has "
            f"{len({op[4] for op in ops})}",
            source=trace.name,
        )
    ends = [ops[0][1]]
    for _, start, end, _, _ in ops:
        ends.append(max(ends[-1], start, end))
    issued = [op[0] for op in ops]
    bounds = [0, *(bisect_left(issued, time) for time, _ in marks[1:]), len(ops)]
    device = device_of_blocks(trace)
    memory = (
        tuple(e for e in trace.device_memory(device) if e.time_ns >= starts[-1] and e.size_bytes)
        if device is not None
        else ()
    )
    total = memory[0].total_allocated if memory else None
    return RecordedStep(
        tuple(
            Phase(name, time, first, stop)
            for (time, name), first, stop in zip(marks, bounds, bounds[1:], strict=False)
        ),
        tuple(op[3] for op in ops),
        tuple(issued),
        tuple(end - begin for begin, end in pairwise(ends)),
        memory,
        None if total is None else total - memory[0].size_bytes,
    )

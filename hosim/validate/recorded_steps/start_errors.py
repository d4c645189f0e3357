"""The errors of predicted starts against recorded ones, in forms that neither a late beginning nor
an idle device hides.

Besides the errors on the recording's clock, they are: the errors after aligning the first op, the
errors of the gaps between successive ops of a stream, and both as a share of the time in which the
device idles or streams wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hosim.base.groups import grouped
from hosim.io.importers.recordings import DeviceOp, stream_of


@dataclass(frozen=True, slots=True)
class StartErrors:
    """Errors in nanoseconds, of kernels (of all ops, if there are no kernels); gaps are those
    before any op.

    ``aligned_p95_ns`` is the 95th percentile after all predicted starts are shifted by the error of
    the first op. ``idle_ns`` is the time in which no op ran, from the first start to the last end.
    ``waiting_ns`` is the sum of all gaps of streams, and ``gaps_ns`` the total error of the
    predicted gaps.
    """

    span_ns: int
    makespan_ns: int
    p95_ns: int
    aligned_p95_ns: int
    gap_p95_ns: int
    gaps_ns: int
    waiting_ns: int
    idle_ns: int

    @property
    def makespan_error(self) -> float:
        """The signed relative error."""
        return self.makespan_ns / self.span_ns - 1 if self.span_ns else 0.0

    @property
    def worst_ns(self) -> int:
        """The largest of the errors of makespan and starts."""
        return max(abs(self.makespan_ns - self.span_ns), self.p95_ns, self.aligned_p95_ns)

    @property
    def of_span(self) -> float:
        """``worst_ns`` as a share of the span."""
        return self.worst_ns / self.span_ns if self.span_ns else 0.0

    @property
    def of_idle(self) -> float | None:
        """``aligned_p95_ns`` as a share of the time in which no op ran; None if there is none."""
        return self.aligned_p95_ns / self.idle_ns if self.idle_ns else None

    @property
    def of_waiting(self) -> float | None:
        """``gaps_ns`` as a share of the gaps; None if there are none."""
        return self.gaps_ns / self.waiting_ns if self.waiting_ns else None


def percentile95(errors: Sequence[int]) -> int:
    """Return the value that 95 % of the absolute errors do not exceed; 0 without errors."""
    ordered = sorted(abs(error) for error in errors)
    return ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)] if ordered else 0


def start_errors(
    ops: Sequence[DeviceOp], starts_ns: Sequence[int], ends_ns: Sequence[int] | None = None
) -> StartErrors:
    """Return the errors of predicted starts of a recording's ops. Durations are as recorded, unless
    ends are predicted, too.
    """
    if not ops:
        return StartErrors(0, 0, 0, 0, 0, 0, 0, 0)
    ends = (
        ends_ns
        if ends_ns is not None
        else [start + op.duration_ns for start, op in zip(starts_ns, ops, strict=True)]
    )
    first = min(range(len(ops)), key=lambda i: (ops[i].start_ns, i))
    moved = starts_ns[first] - ops[first].start_ns
    chosen = [i for i, op in enumerate(ops) if op.kind == "kernel"] or list(range(len(ops)))
    errors = [starts_ns[i] - ops[i].start_ns for i in chosen]
    streams = grouped(
        (stream_of(ops[i]), i)
        for i in sorted(range(len(ops)), key=lambda i: (ops[i].start_ns, ops[i].end_ns, i))
    )
    gaps = [
        (ops[b].start_ns - ops[a].end_ns, starts_ns[b] - ends[a])
        for listed in streams.values()
        for a, b in pairwise(listed)
    ]
    off = [simulated - recorded for recorded, simulated in gaps]
    return StartErrors(
        max(op.end_ns for op in ops) - ops[first].start_ns,
        max(ends) - min(starts_ns),
        percentile95(errors),
        percentile95([error - moved for error in errors]),
        percentile95(off),
        sum(map(abs, off)),
        sum(max(0, recorded) for recorded, _ in gaps),
        _idle(ops),
    )


def _idle(ops: Sequence[DeviceOp]) -> int:
    idle, busy_until = 0, min(op.start_ns for op in ops)
    for start, end in sorted((op.start_ns, op.end_ns) for op in ops):
        idle += max(0, start - busy_until)
        busy_until = max(busy_until, end)
    return idle

"""The causes of delays: reasons that an op of a recording started, or a call returned, at a time
that the recording's structure does not explain.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hosim.io.importers.recordings import KinetoTrace
from hosim.validate.recorded_steps import (
    FEWEST,
    PLAUSIBLE,
    EndsOfOps,
    OneStep,
    Structure,
    is_collective,
    label,
)

Cause = Literal[
    "launched before the recording began",
    "migrations of managed memory by page faults, which no call launches",
    "edges inside a CUDA graph unknown",
    "a collective that waits for other ranks",
    "a host gap without cause",
    "a wait on the device without cause",
    "contradicting waits",
    "a constant with too few samples",
    "damaged",
]

_JUST_NS = 50_000
"""The longest time before an op's start at which something that it waited for may have ended."""

_CLOCKS_NS = 1_000
"""The longest such time after the op's start, because clocks differ."""


@dataclass(frozen=True, slots=True)
class UnexplainedSpan:
    """A part of a recording that the replay does not explain, with its cause.

    ``ops`` and ``calls`` are positions in the recording: those whose starts and returns the
    structure misses, by ``off_ns`` in total.
    """

    cause: Cause
    start_ns: int
    end_ns: int
    ops: tuple[int, ...]
    calls: tuple[int, ...]
    off_ns: int


def unexplained_spans(
    built: Structure, found: OneStep, ops: Sequence[int], calls: Sequence[int]
) -> tuple[UnexplainedSpan, ...]:
    """Return these ops and calls as spans. Neighbours with the same cause are one span if they are
    within a hundredth of the recording.
    """
    trace = built.trace
    asked = _Causes(built, found)
    single = []
    for i in ops:
        at, late = trace.ops[i].start_ns, found.ops[i]
        single.append(
            UnexplainedSpan(
                asked.of_op(i), min(at, at - late), max(at, at - late), (i,), (), abs(late)
            )
        )
    for c in calls:
        at, late = trace.calls[c].end_ns, found.calls[c]
        cause: Cause = "contradicting waits" if late < 0 else "a host gap without cause"
        single.append(
            UnexplainedSpan(cause, min(at, at - late), max(at, at - late), (), (c,), abs(late))
        )
    near = trace.span_ns // 100
    merged: list[UnexplainedSpan] = []
    last: dict[Cause, int] = {}
    for span in sorted(single, key=lambda span: (span.start_ns, span.end_ns)):
        at = last.get(span.cause, -1)
        if at >= 0 and span.start_ns <= merged[at].end_ns + near:
            before = merged[at]
            end = max(before.end_ns, span.end_ns)
            both = before.ops + span.ops, before.calls + span.calls
            merged[at] = UnexplainedSpan(
                span.cause, before.start_ns, end, *both, before.off_ns + span.off_ns
            )
        else:
            last[span.cause] = len(merged)
            merged.append(span)
    return tuple(merged)


class _Causes:
    def __init__(self, built: Structure, found: OneStep) -> None:
        self._built, self._found = built, found
        trace = built.trace
        self._ends = EndsOfOps(trace.ops)
        self._launches: dict[str, list[int]] = {}
        self._waits: dict[str, list[int]] = {}
        launching = {op.call for op in trace.ops if op.call is not None}
        for c, call in enumerate(trace.calls):
            if c in launching:
                self._launches.setdefault(call.thread, []).append(call.start_ns)
            elif call.role == "wait":
                self._waits.setdefault(call.thread, []).append(call.start_ns)
        self._first: dict[int, int] = {}
        for i, op in enumerate(trace.ops):
            self._first.setdefault(op.device, i)
        self._together = Counter(op.call for op in trace.ops if op.call is not None)

    def of_op(self, i: int) -> Cause:
        """Return the cause of an op's delay."""
        trace, late = self._built.trace, self._found.ops[i]
        op = trace.ops[i]
        if op.migration:
            return "migrations of managed memory by page faults, which no call launches"
        if op.call is None:
            return "launched before the recording began"
        call = trace.calls[op.call]
        if op.start_ns < call.start_ns - _JUST_NS:
            return "damaged"
        if late < 0:
            return (
                "contradicting waits"
                if i in self._built.waits.of_ops
                else "a constant with too few samples"
            )
        if late <= max(high for _, high in PLAUSIBLE.values()) and self._few_samples(i):
            return "a constant with too few samples"
        if "GraphLaunch" in call.name and self._together[op.call] > 1:
            return "edges inside a CUDA graph unknown"
        ended = [trace.ops[k] for k in self._ends.around_start(i, _JUST_NS, _CLOCKS_NS)]
        if is_collective(op.name) or any(is_collective(other.name) for other in ended):
            return "a collective that waits for other ranks"
        if not ended and (self._waited(trace, op.call) or self._first[op.device] == i):
            return "launched before the recording began"
        return "a wait on the device without cause"

    def _few_samples(self, i: int) -> bool:
        """Return whether a constant that an op's start depends on has too few samples to be
        unusual.
        """
        built = self._built
        kind = label(built.trace.ops[i])
        names = [f"launch {kind}", f"entry {kind}"] if i not in built.waits.of_ops else ["wait"]
        return any(0 < built.latencies.samples.get(name, 0) < FEWEST for name in names)

    def _waited(self, trace: KinetoTrace, c: int) -> bool:
        """Return whether the thread called a wait between its previous launch and this one."""
        call = trace.calls[c]
        launches, asked = self._launches[call.thread], self._waits.get(call.thread, [])
        at = bisect_left(launches, call.start_ns)
        before = launches[at - 1] if at else -1
        k = bisect_left(asked, call.start_ns)
        return bool(k) and asked[k - 1] > before

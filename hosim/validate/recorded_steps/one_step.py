"""The error of each op and each call of a recording against its structure, given the recorded times
of everything before it.

In a replay, unexplained delays add up: once an op is late, all later ones are. Here every op starts
from recorded times, so that the error is its own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hosim.io.importers.recordings import DeviceOp, stream_of
from hosim.validate.recorded_steps.step_structure import WHOLE_DEVICE, Structure


class EndsOfOps:
    """Finds the ops that ended around the start of another one."""

    def __init__(self, ops: Sequence[DeviceOp]) -> None:
        self._ops = ops
        self._ended = sorted((op.end_ns, i) for i, op in enumerate(ops))

    def around_start(self, i: int, before_ns: int, after_ns: int) -> list[int]:
        """Return the ops of other streams that ended at most ``before_ns`` before op ``i`` started,
        or at most ``after_ns`` after.
        """
        op = self._ops[i]
        first = bisect_left(self._ended, (op.start_ns - before_ns, -1))
        stop = bisect_right(self._ended, (op.start_ns + after_ns, len(self._ended)))
        return [k for _, k in self._ended[first:stop] if stream_of(self._ops[k]) != stream_of(op)]


@dataclass(frozen=True, slots=True)
class OneStep:
    """The nanoseconds between the expected and the recorded instant: of the start of each op, and
    of the end of each call that waited.

    Values above 0 mean that the recording is later than expected.
    """

    ops: tuple[int, ...]
    calls: Mapping[int, int]


def one_step(built: Structure) -> OneStep:
    """Return the error of every op and of every waiting call by itself."""
    ops = built.graph.ops
    positions = {head: i for i, head in enumerate(built.heads)}
    fillers = sorted(
        (op.start_ns, op.start_ns + (ops[head].duration_ns or 0), head)
        for op, head in zip(built.trace.ops, built.heads, strict=True)
        if ops[head].workspace_bytes == WHOLE_DEVICE and ops[head].duration_ns
    )
    began = [start for start, _, _ in fillers]
    ends: list[int] = []
    last: dict[str, int] = {}
    late = [0] * len(built.heads)
    calls = {}
    for at, op in enumerate(ops):
        expected = max((ends[d] for d in op.deps), default=0)
        if op.stream in last:
            expected = max(expected, ends[last[op.stream]])
        last[op.stream] = at
        duration = op.duration_ns or 0
        if at in positions:
            i = positions[at]
            start = built.trace.ops[i].start_ns
            if op.workspace_bytes == WHOLE_DEVICE and (before := bisect_right(began, start)):
                _, placed, head = fillers[before - 1]
                if head != at:
                    expected = max(expected, min(placed, start))
            late[i] = start - expected
        known = built.known_ns[at]
        ends.append(expected + duration if known is None else known)
        if at in built.returns:
            calls[built.returns[at]] = ends[at] - expected - duration
    return OneStep(tuple(late), calls)

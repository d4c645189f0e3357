"""Two predictions of a recording's times that need no model: what a structural replay has to be
ahead of.

:func:`by_launches`: an op starts when its recorded launch call has ended, or when the op before it
on its stream ends. :func:`by_held_host`: the same, with waits and synchronisations: a stream that
waits, or a host that is held, goes on when what it waits for has ended, and everything after on
that thread is as much later or earlier.

Neither has a latency. An op without a recorded launch follows the op before it, the first one of a
stream has its recorded start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hosim.io.importers.recordings import (
    KinetoTrace,
    ProgramOrder,
    StreamId,
    Waits,
    blocks,
    stream_of,
)


def by_launches(trace: KinetoTrace, order: ProgramOrder) -> tuple[int, ...]:
    """The start of each op, in nanoseconds of the recording's clock."""
    starts = [op.start_ns for op in trace.ops]
    for queue in order.streams.values():
        free: int | None = None
        for i in queue:
            op = trace.ops[i]
            ready = (
                op.start_ns
                if op.call is None and free is None
                else trace.calls[op.call].end_ns
                if op.call is not None
                else 0
            )
            starts[i] = ready if free is None else max(ready, free)
            free = starts[i] + op.duration_ns
    return tuple(starts)


def by_held_host(trace: KinetoTrace, order: ProgramOrder, waits: Waits) -> tuple[int, ...]:
    """The start of each op, in nanoseconds of the recording's clock."""
    return _HeldHost(trace, waits).run(order)


class _HeldHost:
    """The clocks of streams and threads while the calls are gone through in order."""

    def __init__(self, trace: KinetoTrace, waits: Waits) -> None:
        self._trace, self._waits = trace, waits
        self._starts = [op.start_ns for op in trace.ops]
        self._free: dict[StreamId, int] = {}
        self._later: defaultdict[str, int] = defaultdict(int)

    def run(self, order: ProgramOrder) -> tuple[int, ...]:
        trace = self._trace
        launched: defaultdict[int, list[int]] = defaultdict(list)
        unlaunched = []
        for i in order.order:
            call = trace.ops[i].call
            if call is not None:
                launched[call].append(i)
            else:
                unlaunched.append(i)
        unlaunched.reverse()
        for c in sorted(
            {*launched, *self._waits.of_calls}, key=lambda c: (trace.calls[c].start_ns, c)
        ):
            while unlaunched and order.issued_ns[unlaunched[-1]] <= trace.calls[c].start_ns:
                self._start(unlaunched.pop(), 0)
            self._call(c, launched)
        for i in reversed(unlaunched):
            self._start(i, 0)
        return tuple(self._starts)

    def _call(self, c: int, launched: Mapping[int, Sequence[int]]) -> None:
        trace = self._trace
        call = trace.calls[c]
        begin = call.start_ns + self._later[call.thread]
        ops = launched.get(c, ())
        if ops and blocks(trace.ops[ops[0]], call):
            self._later[call.thread] = max(self._start(i, begin) for i in ops) - call.end_ns
        elif ops:
            for i in ops:
                self._start(i, call.end_ns + self._later[call.thread])
        else:
            awaited = self._waits.of_calls[c]
            held = max((trace.ops[i].end_ns for i in awaited), default=0) > call.start_ns
            own = call.duration_ns if not held else 0
            ended = max((self._starts[i] + trace.ops[i].duration_ns for i in awaited), default=0)
            self._later[call.thread] = max(begin + own, ended) - call.end_ns

    def _start(self, i: int, ready: int) -> int:
        """Start an op; when it ends."""
        op = self._trace.ops[i]
        stream = stream_of(op)
        if op.call is None and stream not in self._free:
            ready = op.start_ns
        awaited = (
            self._starts[a] + self._trace.ops[a].duration_ns for a in self._waits.of_ops.get(i, ())
        )
        self._starts[i] = max(ready, self._free.get(stream, 0), *awaited, 0)
        self._free[stream] = self._starts[i] + op.duration_ns
        return self._free[stream]

"""The ops of a recording by when they ended."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from hosim.importers.recordings import DeviceOp, stream_of


class EndsOfOps:
    """Finds what ended about when an op started."""

    def __init__(self, ops: Sequence[DeviceOp]) -> None:
        self._ops = ops
        self._ended = sorted((op.end_ns, i) for i, op in enumerate(ops))

    def around_start(self, i: int, before_ns: int, after_ns: int) -> list[int]:
        """The ops of other streams that ended at most so long before op ``i`` started, or so long
        after that.
        """
        op = self._ops[i]
        first = bisect_left(self._ended, (op.start_ns - before_ns, -1))
        stop = bisect_right(self._ended, (op.start_ns + after_ns, len(self._ended)))
        return [k for _, k in self._ended[first:stop] if stream_of(self._ops[k]) != stream_of(op)]

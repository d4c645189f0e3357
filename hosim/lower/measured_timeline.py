"""What an executor measured, as the timeline of a replay: for the same tables, pictures and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hosim.cache_plan import Plan
from hosim.lower.transfers import Done
from hosim.result import STALL_CAUSES, Result, Timeline, Transfer


def timeline_of(plan: Plan, record: Sequence[Done]) -> Timeline:
    """The timeline of a run, in nanoseconds since the first thing that happened in it.

    Waits before ops are all of cause ``transfer``: nothing else holds back the queue that computes. Of a copy over several channels there
    is a transfer for each chunk and channel. There are no residencies: memory is for an account outside to see.
    """
    first = min((done.start_ns for done in record), default=0)
    starts, ends = [-1] * len(plan.graph.ops), [-1] * len(plan.graph.ops)
    stalls = []
    transfers = []
    for done in sorted(record, key=lambda done: done.start_ns):
        label = done.label
        start, end = done.start_ns - first, done.end_ns - first
        if label.op >= 0:
            starts[label.op], ends[label.op] = start, end
            waited = done.start_ns - max(done.free_ns, first)
            if waited > 0:
                stalls.append((label.op, "transfer", start - waited, start))
        elif label.cache_op >= 0:
            tensor = plan.cache_ops[label.cache_op].tensor
            issued = min(max(done.issue_ns - first, 0), start)
            transfers.append(Transfer(label.cache_op, tensor, done.queue, label.size_bytes, issued, start, end, 0))
    return Timeline(tuple(starts), tuple(ends), tuple(stalls), tuple(transfers), ())


def makespan_ns(timeline: Timeline) -> int:
    """Nanoseconds from the first to the last thing that happened."""
    return max((*timeline.op_end_ns, *(transfer.end_ns for transfer in timeline.transfers)), default=0)


def measured(replayed: Result, timeline: Timeline) -> Result:
    """The replay's result with the times that were measured instead: for a trace or a picture beside the replay's own.

    Peaks and the figures of channels stay those of the replay.
    """
    stalls = dict.fromkeys(STALL_CAUSES, 0)
    for _, cause, start, end in timeline.stalls:
        stalls[cause] += end - start
    busy = sum(end - start for start, end in zip(timeline.op_start_ns, timeline.op_end_ns, strict=True))
    span = makespan_ns(timeline)
    drain = span - max(timeline.op_end_ns, default=0)
    return replace(replayed, makespan_ns=span, busy_ns=busy, stall_ns=stalls, drain_ns=drain, timeline=timeline, by_device=(), devices=None)

"""An executor's measurements as the timeline of a replay, for the same tables, pictures and
comparisons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hosim.cache_plan import PREFETCH, Plan
from hosim.on_torch.lower.tiers.transfers import Done
from hosim.result import STALL_CAUSES, Result, Stall, Timeline, Transfer
from hosim.timeline import last_ns


def timeline_of(plan: Plan, record: Sequence[Done]) -> Timeline:
    """The timeline of a run, in nanoseconds since its first event.

    All waits before ops have the cause ``transfer``, because nothing else holds back the compute
    queue. A copy over several channels has one transfer for each chunk and channel. There are no
    residencies, because memory is measured elsewhere.
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
                stalls.append(Stall(label.op, "transfer", start - waited, start))
        elif label.cache_op >= 0:
            tensor = plan.cache_ops[label.cache_op].tensor
            issued = min(max(done.issue_ns - first, 0), start)
            transfers.append(
                Transfer(
                    label.cache_op, tensor, done.queue, label.size_bytes, issued, start, end, 0
                )
            )
    moved: dict[int, list[int]] = {}
    for k, x in enumerate(transfers):
        moved.setdefault(x.tensor, []).append(k)
    blamed = [replace(stall, transfer=_awaited(plan, transfers, moved, stall)) for stall in stalls]
    return Timeline(tuple(starts), tuple(ends), tuple(blamed), tuple(transfers), ())


def _awaited(
    plan: Plan, transfers: Sequence[Transfer], moved: Mapping[int, Sequence[int]], stall: Stall
) -> int | None:
    """The transfer that ended last during a wait, of those that its op waits for; ``None`` if none
    did, as where a signal came late.

    These are the prefetches of what the op reads and all transfers of what it writes; ``moved`` has
    the transfers of each tensor.
    """
    op = plan.graph.ops[stall.op]
    ended = []
    for t in op.uses:
        for k in moved.get(t, ()):
            x = transfers[k]
            if stall.start_ns < x.end_ns <= stall.end_ns and (
                t in op.writes or plan.cache_ops[x.cache_op].op == PREFETCH
            ):
                ended.append((x.end_ns, k))
    return max(ended)[1] if ended else None


def measured(replayed: Result, timeline: Timeline) -> Result:
    """The replay's result with measured times, for a trace or a picture beside the replay's own.

    Peaks and the figures of channels stay those of the replay.
    """
    stalls = dict.fromkeys(STALL_CAUSES, 0)
    for stall in timeline.stalls:
        stalls[stall.cause] += stall.stall_ns
    busy = sum(
        end - start for start, end in zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)
    )
    span = last_ns(timeline)
    return replace(
        replayed,
        makespan_ns=span,
        busy_ns=busy,
        stall_ns=stalls,
        drain_ns=span - max(timeline.op_end_ns, default=0),
        timeline=timeline,
        by_device=(),
        devices=None,
    )

"""Prefetches issued no sooner than their copies begin: the same step, and less memory in program
order.

A prefetch that is issued early waits for its channel or for room. That costs nothing in time, but
in program order (docs/contract.md, rule 10) its bytes count from where it is issued.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, count

from hosim.analysis import HappensBefore
from hosim.cache_plan import AT_START, PREFETCH, CacheOp, Plan
from hosim.graph import Graph
from hosim.result import Timeline


def late_prefetches(plan: Plan, device_tier: str, timeline: Timeline) -> Plan:
    """The plan with its prefetches into ``device_tier`` as late as is free, by the ``timeline`` of
    its replay.

    Each is issued where all ops listed before have ended when its copy begins, but before its
    tensor is used or moved again. Among the cache ops of one place the prefetches come last, behind
    the detaches that make room for them. On one stream the plan then holds no more bytes in program
    order than in time. The makespan stays the same, except perhaps where a tensor moves twice at
    one place.
    """
    begins: dict[int, int] = {}
    for transfer in timeline.transfers:
        begins[transfer.cache_op] = min(
            transfer.start_ns, begins.get(transfer.cache_op, transfer.start_ns)
        )
    last = [
        op for _, op in accumulate(zip(timeline.op_end_ns, count()), max)
    ]  # of the ops listed so far, the one that ends last
    cache_ops = list(plan.cache_ops)
    for k, (before, after) in enumerate(_neighbours(plan)):
        if k in begins and _comes(cache_ops[k], device_tier):
            ended = bisect_right(last, begins[k], key=timeline.op_end_ns.__getitem__)
            listed = min(ended, _next_use(plan.graph, cache_ops[k]))
            if listed and _is_safe(plan.graph, cache_ops[k].after, before, last[listed - 1], after):
                cache_ops[k] = replace(cache_ops[k], after=last[listed - 1])
    return replace(plan, cache_ops=_prefetches_last(cache_ops, device_tier))


def _comes(cache_op: CacheOp, device_tier: str) -> bool:
    return cache_op.op == PREFETCH and cache_op.destination == device_tier


def _prefetches_last(cache_ops: Sequence[CacheOp], device_tier: str) -> tuple[CacheOp, ...]:
    """By place, and at each place the prefetches last, with what their tensors do there after them;
    else in the order given.
    """
    came: set[tuple[int, int]] = set()
    entries: list[tuple[int, bool, CacheOp]] = []
    for cache_op in cache_ops:
        here = cache_op.tensor, cache_op.after
        if _comes(cache_op, device_tier):
            came.add(here)
        entries.append((cache_op.after, here in came, cache_op))
    return tuple([cache_op for _, _, cache_op in sorted(entries, key=lambda entry: entry[:2])])


def _neighbours(plan: Plan) -> Sequence[tuple[int, int | None]]:
    """For each cache op, the places of its tensor's cache ops before and after it: :data:`AT_START`
    and ``None`` where there are none.
    """
    found: list[tuple[int, int | None]] = [(AT_START, None)] * len(plan.cache_ops)
    last: dict[int, int] = {}
    for k in sorted(range(len(plan.cache_ops)), key=lambda k: plan.cache_ops[k].after):
        cache_op = plan.cache_ops[k]
        if cache_op.tensor in last:
            earlier = last[cache_op.tensor]
            found[k] = plan.cache_ops[earlier].after, None
            found[earlier] = found[earlier][0], cache_op.after
        last[cache_op.tensor] = k
    return found


def _next_use(graph: Graph, cache_op: CacheOp) -> int:
    """The next op listed that uses the tensor; the number of ops if there is none."""
    users = graph.users[cache_op.tensor]
    used = bisect_right(users, cache_op.after)
    return users[used] if used < len(users) else len(graph.ops)


def _is_safe(graph: Graph, now: int, before: int, place: int, after: int | None) -> bool:
    """Return whether ``place`` is later than ``now``, and surely between the places of the tensor's
    cache ops ``before`` and ``after``.
    """
    order = graph.derived(HappensBefore)
    return (
        place > now
        and order.ended_by(before, place)
        and (after is None or order.ended_by(place, after))
    )

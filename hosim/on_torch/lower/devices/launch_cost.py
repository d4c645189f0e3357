"""The cost of launching ops and copies one after the other from the host; in a replay the device
waits for none of them.
"""

from __future__ import annotations

from collections import Counter

from hosim.cache_plan import AT_START, Plan
from hosim.result import Timeline


def late_launch_ns(plan: Plan, timeline: Timeline, op_ns: int, cache_op_ns: int) -> int:
    """Return the most by which a step ends later if the host takes ``op_ns`` for each op and
    ``cache_op_ns`` for each cache op.

    No op begins before it is launched. The schedule of the ``timeline``, as much later as the op
    that is launched latest beside its start, keeps to that.
    """
    cache_ops = Counter(cache_op.after for cache_op in plan.cache_ops)
    launched, late = cache_ops[AT_START] * cache_op_ns, 0
    for i, start in enumerate(timeline.op_start_ns):
        launched += op_ns
        late = max(late, launched - start)
        launched += cache_ops[i] * cache_op_ns
    return late

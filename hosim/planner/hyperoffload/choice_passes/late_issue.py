"""Plans that still fit when times vary: prefetches are issued no sooner than they start.

A plan may issue a prefetch long before there is room for it, since it waits in its channel's queue
until then. Where ops or transfers take other times than planned, it may find room that an op before
its reader needs. If nothing leaves before that op, the step ends out of memory. Issued at the end
of the last op that has ended when it starts, a prefetch moves as planned, and cannot overtake the
ops before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean

from hosim.base.search_control import SearchRecord
from hosim.cache_plan import PREFETCH, Plan
from hosim.data.draws import DRAWS, FEW_DRAWS
from hosim.engine import (
    UncoveredError,
    jittered_makespans,
    later_draws,
    replay,
    times_of,
    verdict,
)
from hosim.errors import PlanError
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.notes import Note
from hosim.planner.hyperoffload.tensor_choices import (
    Judge,
    PlanCost,
    of_all_devices,
    plan_cost,
)
from hosim.result import Result

_OPS = 10_000
"""Ops in all replays with jitter but the first."""
_SIGMAS = 0.05, 0.1
"""Relative standard deviations of op and transfer times: the defaults of ``hosim robustness``."""
_SEEDS = 2**40
"""From where seeds count: those of ``hosim robustness`` by default are others, so that it does not
try what the plan was made for.
"""


def sturdier(plan: Plan, hardware: Hardware, budget_bytes: int, judge: Judge = verdict) -> Plan:
    """``plan``, or if it fails where times vary, the same one with prefetches issued later, if that
    fails less often.

    It is kept only where it takes the time of ``plan`` by ``judge``, on the whole machine, too. The
    plan says in how many draws of times it was tried, and how it did (``Plan.search``). O(ops) for
    each replay; of graphs above 500 ops there are fewer.
    """
    if not prefetches(plan):
        return plan
    if plan.search is None or not plan.search.draws:
        plan = _drawn(plan, hardware, budget_bytes)
    tried = plan.search is not None and plan.search.draws == DRAWS  # and mended, by the search
    kept = plan if tried else mended(plan, hardware, budget_bytes, judge)
    if kept.search is None or not kept.search.failed:
        return kept
    said = f"does not fit in {kept.search.failed} of {kept.search.draws} draws of op and copy times"
    return replace(kept, notes=(*kept.notes, str(Note("search", said))))


def prefetches(plan: Plan) -> bool:
    """Return whether a plan says ahead of the run when something is prefetched."""
    return plan.runtime is None and any([c.op == PREFETCH for c in plan.cache_ops])


def mended(plan: Plan, hardware: Hardware, budget_bytes: int, judge: Judge = verdict) -> Plan:
    """``plan``, which was tried in draws, or if it fails in some of them, the same one with
    prefetches issued later, if that takes the same time and fails in fewer.
    """
    if plan.search is None or not plan.search.failed:
        return plan
    late = issued_late(plan, hardware, budget_bytes)
    judges: list[Callable[[Plan, Hardware, int], Result | None]] = [judge]
    if hardware.whole is not hardware:
        judges.append(partial(of_all_devices, judge))
    try:
        alike = all(
            [
                _cost(late, verdict(late, hardware, budget_bytes))
                == _cost(plan, verdict(plan, hardware, budget_bytes))
                for verdict in judges
            ]
        )
    except PlanError:
        alike = False
    late = _drawn(late, hardware, budget_bytes, plan.search.draws) if alike else plan
    assert late.search is not None
    return late if late.search.failed < plan.search.failed else plan


def issued_late(plan: Plan, hardware: Hardware, budget_bytes: int) -> Plan:
    """``plan`` with each prefetch issued after the last op that has ended when it starts.

    One that would come after another cache op of its tensor, or not before the next op that uses
    it, stays.
    """
    times = times_of(plan, hardware, budget_bytes)
    if times is None:
        return plan
    ended = sorted([(end, i) for i, end in enumerate(times.op_end_ns)])
    instants = [end for end, _ in ended]
    starts: dict[int, int] = {}
    for transfer in times.transfers:
        starts[transfer.cache_op] = min(
            transfer.start_ns, starts.get(transfer.cache_op, transfer.start_ns)
        )
    users, count = plan.graph.users, len(plan.graph.ops)
    following: dict[int, int] = {}  # by tensor, after which op its next cache op is issued
    cache_ops = list(plan.cache_ops)
    for k in sorted(range(len(cache_ops)), key=lambda k: (cache_ops[k].after, k), reverse=True):
        c = cache_ops[k]
        passed = bisect_right(instants, starts[k]) if c.op == PREFETCH and k in starts else 0
        use = next(iter(users[c.tensor][bisect_right(users[c.tensor], c.after) :]), count)
        if passed and c.after < (after := ended[passed - 1][1]) < min(
            use, following.get(c.tensor, count)
        ):
            c = cache_ops[k] = replace(c, after=after)
        following[c.tensor] = c.after
    return replace(plan, cache_ops=tuple(sorted(cache_ops, key=lambda c: c.after)))


def in_draws(
    plan: Plan, hardware: Hardware, budget_bytes: int, most: int = FEW_DRAWS
) -> SearchRecord | None:
    """The figures of a plan in the first draws, or in all where more are asked for (``most``);
    ``None`` where all times are measured, or where the plan cannot be replayed in each draw.
    """
    later = later_draws(plan, hardware, budget_bytes, None, None, lambda: None)
    draws = None if later is None else (later if most > FEW_DRAWS else later.few)()
    if draws is None:
        return None
    taken = [takes_ns for takes_ns in draws.makespan_ns if takes_ns is not None]
    return _record(plan, hardware, budget_bytes, taken, draws.count)


def _record(
    plan: Plan, hardware: Hardware, budget_bytes: int, taken: Sequence[int], draws: int
) -> SearchRecord:
    planned_ns = verdict(plan, hardware, budget_bytes).makespan_ns
    lost = mean(taken) / planned_ns - 1 if taken and planned_ns else None
    return replace(plan.search or SearchRecord(), draws=draws, failed=draws - len(taken), lost=lost)


def _drawn(plan: Plan, hardware: Hardware, budget_bytes: int, most: int = FEW_DRAWS) -> Plan:
    """The plan, which says how it does in draws of what is uncertain, or where all times are
    measured in so many replays with jitter, of which some may break a rule, as streams overtake one
    another.
    """
    found = in_draws(plan, hardware, budget_bytes, most)
    if found is not None:
        return replace(plan, search=found)
    runs = min(FEW_DRAWS, 1 + _OPS // max(1, len(plan.graph.ops)))
    jitters = [Jitter(_SEEDS + run, *_SIGMAS) for run in range(runs)]
    try:
        makespans = jittered_makespans(plan, hardware, budget_bytes, jitters)
    except UncoveredError:
        makespans = [_jittered(plan, hardware, budget_bytes, jitter) for jitter in jitters]
    taken = [takes_ns for takes_ns in makespans if takes_ns is not None]
    return replace(plan, search=_record(plan, hardware, budget_bytes, taken, runs))


def _jittered(plan: Plan, hardware: Hardware, budget_bytes: int, jitter: Jitter) -> int | None:
    try:
        return replay(plan, hardware, budget_bytes, jitter=jitter).makespan_ns
    except PlanError:
        return None


def _cost(plan: Plan, result: Result | None) -> PlanCost | None:
    return None if result is None else plan_cost(plan, result)

"""A residency schedule of hyper-parallel from a plan of hosim: the copies and releases before and
after each op, in program order.

hosim plans in time: a prefetch waits for room, and so does an op. The plan is therefore replayed,
and each action gets a place in the program at which the device holds no more than it held when the
op began. Then copies up are moved earlier to where the plan issues them, as far as the limit
allows. As in the runtime's own account (:mod:`hosim.formats.bridges.hyper_parallel_planner`),
released memory counts as free while a copy down still reads it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hosim.cache_plan import DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.formats import ActivationTrace, TracedOp, graph_of
from hosim.graph import Graph
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.policies import policy_named
from hosim.result import Result

DEVICE, HOST = "hbm", "ddr"
COPY_D2H, COPY_H2D, RELEASE_DEVICE, RELEASE_HOST = (
    "COPY_D2H",
    "COPY_H2D",
    "RELEASE_DEVICE",
    "RELEASE_HOST",
)

HOST_BYTES = 64 * 2**30
"""Pinned host memory for copies, the default of ``OffloadConfig.max_offload_activation_mb``."""

_AMPLE = 10**18
_OURS, _OTHERS = "hyperoffload", ("longest_gap", "g10", "memory_peak")
AHEAD = f"a schedule needs a policy that plans ahead and keeps the order, such as {_OURS}"
"""The error message for any other policy."""


@dataclass(frozen=True, slots=True)
class Action:
    """One residency action: ``kind`` is its name in hyper-parallel; it comes before or after the op
    at position ``op``.
    """

    op: int
    before: bool
    kind: str
    storage: int


@dataclass(frozen=True)
class Planned:
    """A schedule: its actions in order, the equivalent plan, and the replay of that plan (``None``
    without a limit).
    """

    actions: tuple[Action, ...]
    plan: Plan
    result: Result | None


def hardware_of(trace: ActivationTrace, host_bytes: int = HOST_BYTES) -> Hardware:
    """Return the machine that a trace was recorded on, as far as the trace describes it: its
    bandwidths, and the limit as the device's capacity.

    One stream copies in both directions, one copy after the other: the channels share one queue.
    """
    limit = _AMPLE if trace.limit_bytes is None else max(trace.limit_bytes, 1)
    channels = (
        Channel("h2d", HOST, DEVICE, trace.h2d_bytes_per_s, queue="copy stream"),
        Channel("d2h", DEVICE, HOST, trace.d2h_bytes_per_s, queue="copy stream"),
    )
    tiers = (
        Tier(DEVICE, limit, _AMPLE, "device"),
        Tier(HOST, max(host_bytes, 1), _AMPLE, "device"),
    )
    return Hardware(
        "hyper-parallel",
        tiers,
        channels,
        Compute({}),
        DEVICE,
        source="an activation trace",
    )


def plan_trace(
    trace: ActivationTrace,
    policy: str = "hyperoffload",
    host_bytes: int = HOST_BYTES,
    **parameters: Any,
) -> Planned:
    """Return the schedule of a policy for a trace: actions in program order that keep the device
    within the trace's limit.

    Storages that no op of the trace produced do not belong to the runtime, and are not moved.
    Raises :class:`InfeasibleError` if nothing fits within the trace's limit, and
    :class:`InputError` for a policy that does not plan ahead.
    """
    trace = _produced(trace)
    graph = graph_of(trace, "activations", retained_to_the_end=True)
    if trace.limit_bytes is None:
        return Planned(_actions(graph, trace, (), ()), Plan(graph, policy), None)
    hardware = hardware_of(trace, host_bytes)
    refused: list[InfeasibleError] = []
    found: list[Planned] = []
    tries: list[tuple[str, Mapping[str, Any]]] = [(policy, parameters)]
    tries += [(name, {}) for name in _OTHERS] if policy == _OURS else []
    for name, settings in tries:
        try:
            plan = policy_named(name).plan(graph, hardware, trace.limit_bytes, **settings)
            if policy == _OURS and plan.runtime is not None:
                raise InfeasibleError(
                    f"no policy that plans ahead fits within {trace.limit_bytes:,} B; give "
                    "activations more of the device"
                )
            _check_ahead(plan)
            found.append(_planned(replace(plan, policy=policy), trace, hardware))
        except InfeasibleError as error:
            refused.append(error)
        if found and not _waits(found[-1]):
            break
    if not found:
        raise refused[0]
    return min(found, key=_makespan_ns)


def _check_ahead(plan: Plan) -> None:
    """Raise :class:`InputError` unless the plan consists only of cache ops."""
    if plan.runtime is not None or plan.edits is not None:
        what = (
            "changes the order of the ops" if plan.edits is not None else "decides during the run"
        )
        raise InputError(f"{plan.policy} {what}; {AHEAD}", source="policy")


def _planned(plan: Plan, trace: ActivationTrace, hardware: Hardware) -> Planned:
    """Return the schedule of one plan."""
    assert trace.limit_bytes is not None
    aways = _aways(plan, hardware, trace.limit_bytes)
    actions = _actions(
        plan.graph, trace, aways, [(c.after, c.tensor) for c in plan.cache_ops if c.op == STORE]
    )
    amounts = plan_of(actions, plan.graph, plan.policy)
    return Planned(actions, amounts, replay(amounts, hardware, trace.limit_bytes))


def _makespan_ns(planned: Planned) -> int:
    result = planned.result
    return _AMPLE if result is None or result.makespan_ns is None else result.makespan_ns


def _waits(planned: Planned) -> bool:
    return (
        planned.result is None
        or not planned.result.feasible
        or sum(planned.result.stall_ns.values()) > 0
    )


def plan_of(actions: Sequence[Action], graph: Graph, policy: str = "manual") -> Plan:
    """Return the plan of a schedule on a graph of :func:`hosim.formats.activation_trace.graph_of`:
    its copies and releases as cache ops.

    It omits the releases that the replay makes by itself: of a storage at its last use, and of its
    host copy at a write.
    """
    storages = {
        int(tensor.name.removeprefix("storage")): t for t, tensor in enumerate(graph.tensors)
    }
    cache_ops = []
    for action in actions:
        t = storages[action.storage]
        after = action.op - 1 if action.before else action.op
        last = graph.users[t][-1]
        if action.kind == COPY_H2D:
            cache_ops.append(CacheOp(PREFETCH, t, HOST, DEVICE, after))
        elif action.kind == COPY_D2H:
            cache_ops.append(CacheOp(STORE, t, DEVICE, HOST, after))
        elif after < last and not (action.kind == RELEASE_HOST and t in graph.ops[after].writes):
            cache_ops.append(
                CacheOp(DETACH, t, DEVICE if action.kind == RELEASE_DEVICE else HOST, None, after)
            )
    return Plan(graph, policy, tuple(cache_ops))


def _produced(trace: ActivationTrace) -> ActivationTrace:
    """Return the trace without the storages whose first access is a read."""
    first: dict[int, bool] = {}
    for op in trace.ops:
        for sid in (*op.reads, *op.writes):
            first.setdefault(sid, sid in op.reads)
    foreign = {sid for sid, read in first.items() if read}
    if not foreign:
        return trace

    def own(sids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sid for sid in sids if sid not in foreign)

    return replace(
        trace,
        ops=tuple(
            TracedOp(op.name, op.duration_ns, own(op.reads), own(op.writes)) for op in trace.ops
        ),
    )


@dataclass(slots=True)
class _Away:
    """A tensor away from the device between its uses by the ops ``last`` and ``next``.

    It is released after the op ``release`` and copied up before the op ``fetch``. The plan issues
    that copy before the op ``wanted``, and its replay started it at ``start_ns``.
    """

    tensor: int
    last: int
    next: int
    release: int
    fetch: int
    wanted: int
    start_ns: int


def _aways(plan: Plan, hardware: Hardware, limit: int) -> list[_Away]:
    """Return the absences of tensors, in program order and within the limit, sorted by the start of
    their copies up.
    """
    graph = plan.graph
    result = replay(plan, hardware, limit, record=True)
    if result.timeline is None or not result.feasible:
        raise InfeasibleError(f"{plan.policy}: {result.error}")
    starts, ends = result.timeline.op_start_ns, result.timeline.op_end_ns
    copies = {transfer.cache_op: transfer for transfer in result.timeline.transfers}
    aways: list[_Away] = []
    ended: dict[int, int] = {}  # the end of each tensor's last copy
    leaving: dict[
        int, tuple[int, int]
    ] = {}  # each tensor's last use, and the op after which it is released
    for c in sorted(range(len(plan.cache_ops)), key=lambda c: (plan.cache_ops[c].after, c)):
        cache_op = plan.cache_ops[c]
        t, after, users = cache_op.tensor, cache_op.after, graph.users[cache_op.tensor]
        use = bisect_right(users, after)
        if cache_op.op == DETACH and cache_op.source == DEVICE and use < len(users):
            gone_ns = max(ends[after], ended.get(t, 0))
            begins = max(
                after + 1, bisect_left(starts, gone_ns)
            )  # the first op that begins without it
            leaving[t] = users[use - 1], min(begins, users[use]) - 1
        elif cache_op.op == PREFETCH and t in leaving:
            last, release = leaving.pop(t)
            fetch = min(max(release + 1, bisect_left(starts, copies[c].start_ns)), users[use])
            aways.append(
                _Away(
                    t, last, users[use], release, fetch, max(after, release) + 1, copies[c].start_ns
                )
            )
        if c in copies:
            ended[t] = copies[c].end_ns
    aways.sort(key=lambda away: (away.start_ns, away.next))
    held = _held(graph, aways)
    _shrink(graph, aways, held, limit)
    _advance(graph, aways, held, limit)
    return aways


def _held(graph: Graph, aways: Sequence[_Away]) -> list[int]:
    """Return the bytes that the device holds in program order, by op: produced by then and not
    released.
    """
    change = [0] * (len(graph.ops) + 1)
    for tensor, users in zip(graph.tensors, graph.users, strict=True):
        change[users[0]] += tensor.size_bytes
        change[users[-1] + 1] -= tensor.size_bytes
    for away in aways:
        change[away.release + 1] -= graph.tensors[away.tensor].size_bytes
        change[away.fetch] += graph.tensors[away.tensor].size_bytes
    held = []
    present = 0
    for bytes_ in change[:-1]:
        present += bytes_
        held.append(present)
    return held


def _shrink(graph: Graph, aways: Sequence[_Away], held: list[int], limit: int) -> None:
    """Delay copies up, those needed last first, then advance releases, if ops that begin at one
    instant leave their order open.

    With the latest copies and the earliest releases, an op holds only the tensors that it and its
    neighbours need. The replay held these, too, so they fit.
    """
    for i in range(len(held)):
        for away in sorted(aways, key=lambda a: -a.next) if held[i] > limit else ():
            if held[i] > limit and away.fetch <= i < away.next:
                _take(held, graph, away, range(away.fetch, i + 1))
                away.fetch = i + 1
        for away in aways if held[i] > limit else ():
            if held[i] > limit and away.last < i <= away.release:
                _take(held, graph, away, range(i, away.release + 1))
                away.release = i - 1


def _take(held: list[int], graph: Graph, away: _Away, ops: range) -> None:
    for i in ops:
        held[i] -= graph.tensors[away.tensor].size_bytes


def _advance(graph: Graph, aways: Sequence[_Away], held: list[int], limit: int) -> None:
    """Move copies up to where the plan issues them, or as near as the limit allows, in the order of
    the plan.
    """
    earliest = 0
    for away in aways:
        size = graph.tensors[away.tensor].size_bytes
        while away.fetch > max(away.wanted, earliest) and held[away.fetch - 1] + size <= limit:
            away.fetch -= 1
            held[away.fetch] += size
        earliest = max(earliest, away.fetch)


def _actions(
    graph: Graph, trace: ActivationTrace, aways: Sequence[_Away], stores: Sequence[tuple[int, int]]
) -> tuple[Action, ...]:
    """Return all actions in program order; ``stores`` are copies down as (after, tensor).

    After an op, stale host copies are released first, then copies down begin, then device memory is
    released, then host memory. A valid host copy is kept until the last use, even if the plan
    releases it, because the runtime would copy again if it were stored once more.
    """
    storage = [int(tensor.name.removeprefix("storage")) for tensor in graph.tensors]
    placed: list[tuple[int, int, Action]] = []  # op, place among the actions around it, action

    def put(op: int, place: int, kind: str, t: int) -> None:
        placed.append((op, place, Action(op, place == 0, kind, storage[t])))

    for away in aways:
        put(away.fetch, 0, COPY_H2D, away.tensor)
        put(away.release, 3, RELEASE_DEVICE, away.tensor)
    copied: dict[int, list[int]] = {}
    for after, t in stores:
        put(after, 2, COPY_D2H, t)
        copied.setdefault(t, []).append(after)
    for t, (users, writes) in enumerate(zip(graph.users, graph.writers, strict=True)):
        stale = {bisect_right(writes, after) for after in copied.get(t, ())}
        for n in sorted(stale):
            if n < len(writes):
                put(writes[n], 1, RELEASE_HOST, t)
        if storage[t] not in trace.retained:
            put(users[-1], 3, RELEASE_DEVICE, t)
            if len(writes) in stale:
                put(users[-1], 4, RELEASE_HOST, t)
    placed.sort(key=lambda entry: entry[:2])
    return tuple([action for _, _, action in placed])

"""The decisions of a runtime policy in one replay, as a plan: the same cache ops, in the graph from
the start.

Each is issued where the op that it was decided for comes next on its stream. The time that the
runtime spent deciding is gone, and with it the waiting until nothing else was under way, so the
plan is as fast at least, as a rule; its replay says.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace

from hosim.analysis import stream_predecessors
from hosim.analysis.verifying import verify
from hosim.cache_plan import CacheOp, MemoryView, Plan, RuntimePolicy
from hosim.costmodel import op_durations
from hosim.engine import replay
from hosim.errors import PlanError
from hosim.graph import Graph
from hosim.hardware import Hardware


def freeze_runtime(
    plan: Plan,
    hardware: Hardware,
    budget_bytes: int,
    to_beat_ns: int | None = None,
    legal: Callable[[Plan], Plan | None] = lambda _: None,
) -> Plan | None:
    """The plan without a runtime that decides as ``plan``'s does; none if it does not fit there, or
    takes longer than ``to_beat_ns``.

    Where its decisions are no legal plan, it is what ``legal`` makes of them. A plan that has no
    runtime is returned as it is. With several devices the decisions of the first one count.
    """
    runtime = plan.runtime
    if runtime is None:
        return plan
    previous = plan.graph.derived(stream_predecessors)
    latest = (
        None
        if to_beat_ns is None
        else [to_beat_ns - left for left in plan.graph.derived_on(hardware, _left_ns)]
    )
    notes: list[list[CacheOp]] = []

    def noted() -> RuntimePolicy:
        notes.append([])
        return _RecordingPolicy(runtime(), previous, notes[-1], latest)

    try:
        makespan_ns = replay(replace(plan, runtime=noted), hardware, budget_bytes).makespan_ns
    except _TooLateError:
        return None
    if makespan_ns is None or (to_beat_ns is not None and makespan_ns > to_beat_ns):
        return None
    cache_ops = sorted((*plan.cache_ops, *notes[0]), key=lambda cache_op: cache_op.after)
    static = replace(plan, cache_ops=tuple(cache_ops), runtime=None)
    try:
        return legal(static) if verify(static, hardware, budget_bytes) else static
    except PlanError:
        return None


def _left_ns(graph: Graph, hardware: Hardware) -> list[int]:
    """By op the nanoseconds that it and those after it on its stream take."""
    left = dict.fromkeys(graph.streams, 0)
    found = []
    for op, duration in zip(
        reversed(graph.ops), reversed(op_durations(graph, hardware)), strict=True
    ):
        left[op.stream] += duration
        found.append(left[op.stream])
    return found[::-1]


class _TooLateError(Exception):
    """The replay cannot end as early as it would have to."""


class _RecordingPolicy:
    """A runtime policy whose decisions are noted; the replay ends where an op comes later than its
    ``latest`` instant.
    """

    def __init__(
        self,
        policy: RuntimePolicy,
        previous: Sequence[int],
        notes: list[CacheOp],
        latest: Sequence[int] | None,
    ) -> None:
        self._policy = policy
        self._previous = previous
        self._notes = notes
        self._latest = latest

    @property
    def inspected(self) -> Container[int] | None:
        """The ops before which the policy decides something; none if before each."""
        inspected: Container[int] | None = getattr(self._policy, "inspected", None)
        return inspected

    def before_op(self, op: int, view: MemoryView) -> Iterable[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.before_op`."""
        if self._latest is not None and view.now_ns > self._latest[op]:
            raise _TooLateError
        return self._note(op, self._policy.before_op(op, view))

    def make_room(self, op: int, wanted_bytes: int, view: MemoryView) -> Iterable[CacheOp]:
        """As :meth:`hosim.cache_plan.RuntimePolicy.make_room`."""
        return self._note(op, self._policy.make_room(op, wanted_bytes, view))

    def _note(self, op: int, decisions: Iterable[CacheOp]) -> Iterable[CacheOp]:
        found = list(decisions)
        self._notes += [replace(cache_op, after=self._previous[op]) for cache_op in found]
        return found

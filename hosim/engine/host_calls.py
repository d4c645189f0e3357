"""The calls that a host thread makes for a plan, under a runtime whose host is a process
(docs/contract.md, rule 23).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel.transfers import NS_PER_S
from hosim.cache_plan import AT_START, DETACH, STORE, Plan, begin_segments, launched_alone
from hosim.data.runtime import COPIES, Runtime
from hosim.engine.cells import flags, ints, longs
from hosim.engine.flow_table import TOO_LARGE, UncoveredError
from hosim.engine.program_base import LONGEST_NS
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.units import human_size, human_time

GATHERS = frozenset(("all_gather", "all_gather_into_tensor"))
"""Kinds of ops of which the host lets only some be in use (``gathers`` of a runtime)."""


@dataclass(frozen=True, slots=True)
class HostCalls:
    """The calls, in the order in which the host makes them: at each place of the program its op,
    then the cache ops after it.

    A place is the position of an op, or ``AT_START``; lists have it at its place + 1. ``op_ns`` is
    what the call of each op takes (0 for one that the call of an earlier one launches), and
    ``copy_ns`` what those of the cache ops there take together, pinning included. The call of an
    op begins once ``awaits`` have ended. After it the host waits for the op's end if it is one of
    ``blocking``, and after the calls of the cache ops for the end of those in ``waits``.
    """

    op_ns: tuple[int, ...]
    copy_ns: tuple[int, ...]
    awaits: tuple[tuple[int, ...], ...]
    blocking: frozenset[int]
    waits: tuple[tuple[int, ...], ...]


def host_calls(plan: Plan, hardware: Hardware) -> HostCalls | None:
    """Those of a plan on a machine; ``None`` where its runtime has no host, so that calls take no
    time and wait for nothing.
    """
    runtime = hardware.software
    if runtime is None or not runtime.has_host:
        return None
    copies = [0] * (len(plan.graph.ops) + 1)
    waits: list[list[int]] = [[] for _ in copies]
    for k, cache_op in enumerate(plan.cache_ops):
        if cache_op.op == DETACH:
            continue
        copies[cache_op.after + 1] += round(runtime.host.value) + round(runtime.host_copy.value)
        if cache_op.op in runtime.pins_each_time:
            copies[cache_op.after + 1] += _pinning_ns(
                runtime, plan.graph.tensors[cache_op.tensor].size_bytes
            )
        if cache_op.op in runtime.blocks:
            waits[cache_op.after + 1].append(k)
    if most := round(runtime.stores.value):
        stores = _stores_of_activations(plan)
        for earlier, k in zip(stores, stores[most:], strict=False):
            waits[plan.cache_ops[k].after + 1].append(earlier)
    ops, awaits, takes = (
        len(plan.graph.ops),
        _awaits(plan.graph, runtime),
        round(runtime.host.value),
    )
    begins = _begins(plan, hardware, runtime) if runtime.segments else [True] * ops
    return HostCalls(
        tuple([takes if begun else 0 for begun in begins]),
        tuple(copies),
        ((), *[() if not begun else each for begun, each in zip(begins, awaits, strict=True)]),
        frozenset([i for i, op in enumerate(plan.graph.ops.each()) if op.kind in runtime.blocks]),
        tuple(map(tuple, waits)),
    )


def _begins(plan: Plan, hardware: Hardware, runtime: Runtime) -> list[bool]:
    """Return whether each op has a call of its own, where one call launches a segment. Ops that the
    host waits for, gathers that it holds back, and ops of other processors are in no segment.
    """
    graph, held_back = plan.graph, {*runtime.blocks}
    if runtime.gathers.value:
        held_back |= GATHERS
    alone = {i for i, op in enumerate(graph.ops.each()) if op.kind in held_back}
    alone.update(graph.elsewhere, [graph.op_index[name] for name in launched_alone(graph)])
    return begin_segments(plan, hardware.device_tier, alone)


def _stores_of_activations(plan: Plan) -> list[int]:
    """Their positions in the plan, in the order in which the host calls them."""
    return sorted(
        [
            k
            for k, cache_op in enumerate(plan.cache_ops)
            if cache_op.op == STORE and plan.graph.tensors[cache_op.tensor].kind == "activation"
        ],
        key=lambda k: plan.cache_ops[k].after,
    )


def first_step_lines(plan: Plan, hardware: Hardware) -> Iterator[str]:
    """Yield what the first step takes longer than those that repeat, where the host pins each
    tensor's memory once.
    """
    runtime = hardware.software
    if runtime is None or not runtime.pins_once:
        return
    sizes = [
        plan.graph.tensors[t].size_bytes
        for t in {c.tensor for c in plan.cache_ops if c.op in runtime.pins}
    ]
    if takes := sum([_pinning_ns(runtime, size) for size in sizes]):
        yield (
            f"the first step takes up to {human_time(takes)} longer, in which the host pins "
            f"{human_size(sum(sizes))}"
        )


def idle_lines(plan: Plan, hardware: Hardware) -> Iterator[str]:
    """Yield which settings of the host name ops that the workload has none of, so that they change
    nothing.
    """
    runtime = hardware.software
    if runtime is None or not runtime.waits:
        return
    kinds = {op.kind for op in plan.graph.ops.alike}
    if runtime.gathers.value and not kinds & GATHERS:
        yield (
            f"gathers of {runtime.name} limits nothing: no op is of the kind "
            f"{' or '.join(sorted(GATHERS))}"
        )
    for kind in sorted({*runtime.blocks} - {*COPIES} - kinds):
        yield f"blocks of {runtime.name}: the host never waits for {kind}, as no op is of that kind"


def host_cells(calls: HostCalls | None, order: npt.NDArray[Any]) -> dict[str, Any]:
    """The calls as arrays of the loop; ``order`` has the position in the plan of each of its moves.

    Raises :class:`UncoveredError` where they may take too long to be counted exactly.
    """
    if calls is None:
        return NO_HOST
    ops, move = len(calls.copy_ns) - 1, np.argsort(order)
    if sum(calls.op_ns) + sum(calls.copy_ns) >= LONGEST_NS:
        raise UncoveredError(TOO_LARGE)
    awaited, waits = calls.awaits[1:], [[move[k] for k in listed] for listed in calls.waits]
    return {
        "hosted": ops,
        "host_ns": longs(calls.op_ns),
        "host_copies": longs(calls.copy_ns),
        "host_blocks": flags([i in calls.blocking for i in range(ops)]),
        "host_await_from": ints(accumulate(map(len, awaited), initial=0)),
        "host_await": ints(chain.from_iterable(awaited)),
        "host_wait_from": ints(accumulate(map(len, waits), initial=0)),
        "host_wait": ints(chain.from_iterable(waits)),
    }


NO_HOST: dict[str, Any] = {
    "hosted": 0,
    **dict.fromkeys(("host_ns", "host_copies"), longs(())),
    "host_blocks": flags(()),
    **dict.fromkeys(("host_await_from", "host_await", "host_wait_from", "host_wait"), ints(())),
}
"""The arrays where everything is called at once."""


def _pinning_ns(runtime: Runtime, size_bytes: int) -> int:
    """The time that the host takes to pin so many bytes, rounded up."""
    rate = round(runtime.pin_rate.value)
    return round(runtime.pin.value) + (-(-size_bytes * NS_PER_S // rate) if rate else 0)


def _awaits(graph: Graph, runtime: Runtime) -> list[tuple[int, ...]]:
    """The ops that have to have ended before the call of each op begins."""
    ahead, most = round(runtime.ahead.value), round(runtime.gathers.value)
    gathers: list[int] = []
    found = []
    for i, op in enumerate(graph.ops.each()):
        awaited = {i - ahead} if 0 < ahead <= i else set()
        if most and op.kind in GATHERS:
            if len(gathers) >= most:
                first = gathers[-most]
                users = [j for t in graph.ops[first].writes for j in graph.users[t]]
                awaited.update([j for j in users if first <= j < i])
            gathers.append(i)
        found.append(tuple(sorted(awaited)))
    return found


def called_at(calls: HostCalls, op_ends: Sequence[int], copy_ends: Mapping[int, int]) -> list[int]:
    """When the call of each op is over, from when ops and cache ops end; one that does nothing has
    no end.
    """
    now = calls.copy_ns[AT_START + 1]
    now = max([now, *[copy_ends[k] for k in calls.waits[AT_START + 1] if k in copy_ends]])
    found = []
    for i, end in enumerate(op_ends):
        now = max([now, *[op_ends[j] for j in calls.awaits[i + 1]]]) + calls.op_ns[i]
        found.append(now)
        if i in calls.blocking:
            now = max(now, end)
        now += calls.copy_ns[i + 1]
        now = max([now, *[copy_ends[k] for k in calls.waits[i + 1] if k in copy_ends]])
    return found


class HostThread:
    """The host of one device of a replay, on its way through the calls.

    ``called_at`` is when the calls of ops were over, of those that were made; ``passed`` places
    have the calls of their cache ops behind them. ``has_ended`` tells of an op, ``is_done`` of a
    cache op, whether the host no longer has to wait for it.
    """

    def __init__(
        self, calls: HostCalls, has_ended: Callable[[int], bool], is_done: Callable[[int], bool]
    ) -> None:
        self._calls, self._has_ended, self._is_done = calls, has_ended, is_done
        # of the call that it makes or waits after: those of cache ops are even, those of ops odd
        self._number = 0
        self._over: int | None = None
        self.called_at: list[int] = []
        self.passed = 0

    def go_on(self, now: int) -> int:
        """Make calls until one takes time or has to wait: nanoseconds of one that begins now, else
        0.
        """
        calls = self._calls
        while self._number < 2 * len(calls.copy_ns) - 1:
            place, is_op = (self._number + 1) // 2, self._number % 2 == 1
            if self._over is None:
                if is_op and not all(map(self._has_ended, calls.awaits[place])):
                    return 0
                takes = calls.op_ns[place - 1] if is_op else calls.copy_ns[place]
                self._over = now + takes
                if takes:
                    return takes
            if now < self._over:
                return 0
            if is_op and len(self.called_at) < place:
                self.called_at.append(self._over)
            if not is_op:
                self.passed = place + 1
            if is_op and place - 1 in calls.blocking and not self._has_ended(place - 1):
                return 0
            if not is_op and not all(map(self._is_done, calls.waits[place])):
                return 0
            self._number, self._over = self._number + 1, None
        return 0

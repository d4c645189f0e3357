"""The account of memory in program order: what PyTorch's caching allocator sees (docs/contract.md,
rule 10).

The host runs through the plan ahead of the device, and allocates and frees as it goes: at each op
its outputs and workspace, after it what dies there, then the cache ops that stand there. So the
bytes of a prefetch count from the place where it is issued, and those of a detached or dead tensor
until the place where it is dropped, whenever the device gets there.

A block belongs to the stream of its tensor's first user, which waits for the prefetch that fills
it. Another stream that used it (an op's there, or the channel's of a store that reads it) has to be
waited for: once freed the block is *pending*, until everything has passed that was queued on that
stream by then. The allocator looks at each allocation, so what has passed depends on how far ahead
the host is. It is taken to be a number of ops ahead of the device, :data:`LAUNCH_QUEUE` unless
told, and no further than a runtime's host is (rule 23); ops and transfers end when the replay in
time says. What a route stages in the device tier on its way between two others is not counted. When
memory is short the host waits for all of them, as PyTorch does before it gives up.
"""

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate
from typing import TypedDict

from hosim.base.groups import grouped
from hosim.cache_plan import AT_START, DETACH, Plan
from hosim.engine.allocators import CachingAllocator
from hosim.engine.arenas import caching_figures, streams_of_tensors
from hosim.engine.host_calls import called_at, host_calls
from hosim.engine.result_figures import without_timelines
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.result import (
    ACCOUNTS,
    CACHING,
    EXPANDABLE,
    IN_PROGRAM_ORDER,
    IN_TIME,
    LEDGER,
    AllocatorFigures,
    AllocatorState,
    Result,
    Timeline,
)
from hosim.units import human_percent, human_size

LAUNCH_QUEUE = 1024
"""Ops that a host gets ahead of the device before launching one blocks: about as many as CUDA
queues. 0: it waits for each op.
"""

NEVER = 1 << 62
"""Later than any instant."""

_ANOTHER = -1
"""A stream that no tensor belongs to."""


@dataclass(frozen=True, slots=True)
class ProgramAccount:
    """The figures, and an out-of-memory report if the capacity was not enough."""

    figures: AllocatorFigures
    error: str | None


def program_account(
    plan: Plan,
    hardware: Hardware,
    timeline: Timeline,
    capacity_bytes: int,
    allocator: str = LEDGER,
    ahead: int = LAUNCH_QUEUE,
) -> ProgramAccount:
    """Return the account of the device tier in program order, under ``ledger`` (no rounding, no
    segments), ``caching`` or ``caching-expandable``.

    ``timeline`` is that of the plan's replay: it says when other streams' work has passed. Raises
    as :func:`check_program_account`.
    """
    check_program_account(plan, MemoryCount(allocator, IN_PROGRAM_ORDER))
    blocks = _Counted(capacity_bytes) if allocator == LEDGER else _Placed(allocator, capacity_bytes)
    failed = _Host(plan, hardware, timeline, blocks, ahead).run()
    if failed is None:
        return ProgramAccount(blocks.figures(None), None)
    state = blocks.state()
    held = f"{_size(state.allocated_bytes)} of {_size(capacity_bytes)} are held"
    detail = (
        f"{_size(state.reserved_bytes)} reserved, fragmentation "
        f"{human_percent(state.fragmentation)}, "
        f"largest free block {_size(state.largest_free_bytes)}"
    )
    return ProgramAccount(
        blocks.figures(state),
        f"out of memory in program order: {failed} of {hardware.device_tier}, where {held} "
        f"(allocator {allocator}: {detail})",
    )


@dataclass(frozen=True, slots=True)
class MemoryCount:
    """The account of memory: its allocator, the kind of account, and the bytes that the allocator
    may reserve if not the budget.
    """

    allocator: str = LEDGER
    account: str = IN_TIME
    reserve_bytes: int | None = None


class CountFields(TypedDict, total=False):
    """The fields of a :class:`MemoryCount`, as keywords."""

    allocator: str
    account: str
    reserve_bytes: int | None


def check_program_account(plan: Plan, count: MemoryCount) -> None:
    """Raise :class:`InputError` for an allocator that has no such account, and for a plan whose
    cache ops a runtime policy decides.

    Also for another account than this one.
    """
    if count.account != IN_PROGRAM_ORDER:
        raise InputError(
            f"no account {count.account!r} (accounts: {', '.join(ACCOUNTS)})", source="account"
        )
    if count.allocator not in (LEDGER, CACHING, EXPANDABLE):
        raise InputError(
            f"{count.allocator} has no account in program order: it places what lives over time",
            source="account",
        )
    if plan.runtime is not None:
        raise InputError(
            "a runtime policy decides during the replay: there is no program order before it",
            source="account",
        )


def in_program_order(
    told: Result, plan: Plan, hardware: Hardware, count: MemoryCount, record: bool
) -> Result:
    """The result with the figures of this account, from ``told``, that of the replay in time;
    ``record``: with its timeline.
    """
    assert told.timeline is not None
    capacity = min(
        told.budget_bytes if count.reserve_bytes is None else count.reserve_bytes,
        hardware.device.capacity_bytes,
    )
    counted = program_account(plan, hardware, told.timeline, capacity, count.allocator)
    result = replace(told if record else without_timelines(told), allocator=counted.figures)
    if not result.feasible or counted.error is None:
        return result
    return replace(
        result,
        feasible=False,
        error=counted.error,
        makespan_ns=None,
        busy_ns=None,
        drain_ns=None,
        streams={},
        draws=None,
    )


class _Counted:
    """Bytes without places. What is pending waits in ``_waiting`` as (until, bytes)."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._sizes: dict[int, int] = {}
        self._waiting: list[tuple[int, int]] = []
        self._allocated = self._active = self._peak_allocated = self._peak_active = (
            self._active_at_peak
        ) = 0

    def take(self, key: int, size: int, stream: int) -> bool:
        """Allocate; if there is no room, wait for all that is pending; False if that is not
        enough.
        """
        if self._active + size > self._capacity:
            self.pass_time(NEVER)
            if self._active + size > self._capacity:
                return False
        self._sizes[key] = size
        self._allocated += size
        self._active += size
        self._peak_active = max(self._peak_active, self._active)
        if self._allocated > self._peak_allocated:
            self._peak_allocated, self._active_at_peak = self._allocated, self._active
        return True

    def free(self, key: int, until: int | None) -> None:
        """Free; with ``until`` it is pending until that instant."""
        size = self._sizes.pop(key)
        self._allocated -= size
        if until is None:
            self._active -= size
        else:
            heappush(self._waiting, (until, size))

    def pass_time(self, now: int) -> None:
        """Free the memory that waits until ``now`` at the latest."""
        while self._waiting and self._waiting[0][0] <= now:
            self._active -= heappop(self._waiting)[1]

    def state(self) -> AllocatorState:
        """Return the state of the memory held now."""
        return AllocatorState(self._allocated, self._active, 0)

    def figures(self, out_of_memory: AllocatorState | None) -> AllocatorFigures:
        """Return the figures: what is active is all that is reserved."""
        return AllocatorFigures(
            LEDGER,
            IN_PROGRAM_ORDER,
            self._peak_allocated,
            self._peak_active,
            self._peak_active,
            AllocatorState(self._peak_allocated, self._active_at_peak, 0),
            out_of_memory,
        )


class _Placed:
    """Blocks of the caching allocator. What is pending waits in ``_waiting`` as (until,
    address).
    """

    def __init__(self, name: str, capacity_bytes: int) -> None:
        self._name = name
        self._allocator = CachingAllocator(capacity_bytes, expandable=name == EXPANDABLE)
        self._where: dict[int, int] = {}
        self._waiting: list[tuple[int, int]] = []

    def take(self, key: int, size: int, stream: int) -> bool:
        """Allocate; the allocator itself waits for what is pending before it gives up."""
        address = self._allocator.try_malloc(size, stream)
        if self._waiting and not self._allocator.waits(self._waiting[0][1]):
            self._waiting.clear()  # it did
        if address is None:
            return False
        self._where[key] = address
        return True

    def free(self, key: int, until: int | None) -> None:
        """Free; with ``until`` it is pending until that instant."""
        address = self._where.pop(key)
        if until is not None and address:
            self._allocator.record_stream(address, _ANOTHER)
            heappush(self._waiting, (until, address))
        self._allocator.free(address)

    def pass_time(self, now: int) -> None:
        """Free the memory that waits until ``now`` at the latest."""
        while self._waiting and self._waiting[0][0] <= now:
            self._allocator.complete(heappop(self._waiting)[1])

    def state(self) -> AllocatorState:
        """Return the state of the memory held now."""
        return self._allocator.stats.now

    def figures(self, out_of_memory: AllocatorState | None) -> AllocatorFigures:
        """The allocator's own counters."""
        return caching_figures(self._name, IN_PROGRAM_ORDER, self._allocator.stats, out_of_memory)


class _Host:
    """The host on its way through the plan.

    ``queued[s]`` is when all that is queued on stream (or channel) ``s`` by now will have passed,
    ``used[t]`` are the streams other than its own that used a tensor's block.
    """

    def __init__(
        self,
        plan: Plan,
        hardware: Hardware,
        timeline: Timeline,
        blocks: _Counted | _Placed,
        ahead: int,
    ) -> None:
        self._graph = graph = plan.graph
        self._tier = hardware.device_tier
        self._timeline = timeline
        self._blocks = blocks
        self._ahead = ahead
        names = {name: s for s, name in enumerate(graph.streams)}
        self._stream_of = [names[op.stream] for op in graph.ops.each()]
        self._home = streams_of_tensors(graph, self._stream_of)
        self._after = grouped((cache_op.after, k) for k, cache_op in enumerate(plan.cache_ops))
        self._cache_ops = plan.cache_ops
        self._initial = [
            t for t, where in plan.residency(self._tier).items() if self._tier in where
        ]
        self._passes = grouped(
            (transfer.cache_op, (transfer.channel, transfer.end_ns))
            for transfer in timeline.transfers
        )
        self._queued: dict[int | str, int] = {}
        self._used: dict[int, set[int | str]] = {}
        self._dead: set[int] = set()
        self._called = self._calls(plan, hardware)

    def _calls(self, plan: Plan, hardware: Hardware) -> list[int]:
        """When each op is allocated for, as far as is known: it is not before its call begins, nor
        more than so many ops ahead.
        """
        ends = list(accumulate(self._timeline.op_end_ns, max))
        called = [ends[i - 1 - self._ahead] if i > self._ahead else 0 for i in range(len(ends))]
        calls = host_calls(plan, hardware)
        if calls is None:
            return called
        copy_ends = {transfer.cache_op: transfer.end_ns for transfer in self._timeline.transfers}
        at = called_at(calls, self._timeline.op_end_ns, copy_ends)
        begun = [over - takes for over, takes in zip(at, calls.op_ns, strict=True)]
        return list(map(max, called, begun))

    def run(self) -> str | None:
        """Go to the end; returns who wanted how much where there was no room."""
        graph, blocks = self._graph, self._blocks
        for t in self._initial:
            if not self._take(t):
                return (
                    f"initial resident {graph.tensors[t].name!r} wants "
                    f"{_size(graph.tensors[t].size_bytes)}"
                )
        failed = self._cache_ops_at(AT_START)
        for i, op in enumerate(graph.ops):
            if failed is not None:
                return failed
            blocks.pass_time(self._called[i])
            stream = self._stream_of[i]
            wanted = [t for t in op.outputs if t not in self._used]
            if not (
                all([self._take(t) for t in wanted]) and blocks.take(~i, op.workspace_bytes, stream)
            ):
                return (
                    f"op {op.name!r} wants "
                    f"{_size(op.workspace_bytes + sum(graph.tensors[t].size_bytes for t in wanted))}"
                )
            self._queued[stream] = max(self._queued.get(stream, 0), self._timeline.op_end_ns[i])
            blocks.free(~i, None)
            for t in op.uses:
                if t in self._used and self._home[t] != stream:
                    self._used[t].add(stream)
                if graph.users[t][-1] == i and not graph.tensors[t].survives:
                    self._dead.add(t)
                    self._drop(t)
            failed = self._cache_ops_at(i)
        return failed

    def _cache_ops_at(self, place: int) -> str | None:
        for k in self._after.get(place, ()):
            cache_op = self._cache_ops[k]
            t = cache_op.tensor
            if t in self._dead:
                continue
            if cache_op.op == DETACH:
                if cache_op.source == self._tier:
                    self._drop(t)
                continue
            if cache_op.destination == self._tier and t not in self._used and not self._take(t):
                tensor = self._graph.tensors[t]
                return f"{cache_op.op} of {tensor.name!r} wants {_size(tensor.size_bytes)}"
            passes = self._passes.get(k, [])
            for channel, end in passes:
                self._queued[channel] = max(self._queued.get(channel, 0), end)
            if cache_op.source == self._tier and t in self._used and passes:
                self._used[t].add(passes[0][0])  # the first hop is through first
        return None

    def _take(self, t: int) -> bool:
        taken = self._blocks.take(t, self._graph.tensors[t].size_bytes, self._home[t])
        if taken:
            self._used[t] = set()
        return taken

    def _drop(self, t: int) -> None:
        if t in self._used:
            waits = [self._queued.get(stream, 0) for stream in self._used.pop(t)]
            self._blocks.free(t, max(waits) if waits else None)


def _size(size: int) -> str:
    return f"{human_size(size)} ({size} B)"

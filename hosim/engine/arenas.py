"""Arenas: where in the device tier a replay's bytes lie, when an allocator is chosen for it.

An arena is told of every allocation and release of the device tier, in the order of the replay. The
default, ``ledger``, has none: only bytes count, and nothing is called. This is the account *in
time* (docs/contract.md, rule 10): memory is allocated when an op or a transfer starts and released
when its last use ends, on the device. A program under PyTorch's caching allocator moves in program
order instead: :mod:`hosim.engine.program_account` counts that.

* ``caching`` places by the rules of PyTorch's caching allocator. What does not find a place waits,
  where PyTorch would raise, until something is released; if nothing can proceed, the replay is out
  of memory. So a plan that fits by its bytes may fail for fragmentation.
* ``static`` gives every allocation of the whole replay an offset, once it is known when each lives:
  what a planned arena needs. It delays nothing; a packing that is higher than the budget is out of
  memory.
"""

from collections.abc import Sequence

from hosim.data.allocator_blocks import MIN_BLOCK
from hosim.engine.allocators import AllocatorStats, CachingAllocator
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.result import ALLOCATORS as ALLOCATORS
from hosim.result import (
    CACHING,
    EXPANDABLE,
    IN_TIME,
    LEDGER,
    STATIC,
    AllocatorFigures,
    AllocatorState,
)
from hosim.units import human_size

# -- planned arena
# --------------------------------------------------------------------------------------------------
# The arena of the ``static`` allocator: an offset for each allocation of a whole replay, found
# when it has ended.

_EFFORT = 200_000_000
"""Steps of the exact search for a packing, about a second; greedy placements come first."""


class PlannedArena:
    """Offsets for every allocation of a replay, found when it has ended. Offsets are multiples of
    512 B.

    What lives at the same time is known from the order of allocations and releases, so that what is
    released at an instant makes room for what is allocated at it, and what lives for no time still
    has its place.
    """

    name = STATIC

    def __init__(self, graph: Graph, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._graph = graph
        self._lowers: list[int] = []
        self._uppers: list[int] = []
        self._sizes: list[int] = []
        self._open: dict[int, int] = {}
        self._staged: dict[tuple[int, int], list[int]] = {}
        self._now = 0
        self._packed: tuple[AllocatorState, int] | None = None
        self._offsets: Sequence[int] = ()
        self._height = 0

    def take(self, t: int) -> bool:
        """Allocate a tensor: it will find its place."""
        self._begin(t, self._graph.tensors[t].size_bytes)
        return True

    def begin_op(self, i: int, outputs: Sequence[int]) -> bool:
        """Allocate the outputs of op ``i`` and its workspace."""
        for t in outputs:
            self.take(t)
        self._begin(~i, self._graph.ops[i].workspace_bytes)
        return True

    def end_op(self, i: int) -> None:
        """Release the workspace of op ``i``."""
        self._end(~i)

    def drop(self, t: int) -> None:
        """Release a tensor."""
        self._end(t)

    def stage(self, t: int, size: int) -> bool:
        """Allocate bytes that pass through."""
        self._staged.setdefault((t, size), []).append(self._add(size))
        return True

    def unstage(self, t: int, size: int) -> None:
        """Release bytes that have passed through."""
        self._uppers[self._staged[t, size].pop(0)] = self._now

    def state(self) -> AllocatorState:
        """Return the state of the memory held now, out of what all so far takes."""
        self._pack()
        return self._state_of([k for k, upper in enumerate(self._uppers) if upper < 0])

    def failure(self) -> str | None:
        """Return whether the packing is higher than the capacity."""
        at_peak, height = self._pack()
        if height <= self._capacity:
            return None
        return (
            f"out of memory: a static plan of {len(self._sizes)} allocations takes "
            f"{human_size(height)} ({height} B) of "
            f"{human_size(self._capacity)} ({self._capacity} B), though at most "
            f"{human_size(at_peak.allocated_bytes)} "
            f"({at_peak.allocated_bytes} B) live at once"
        )

    def figures(self, failed: bool) -> AllocatorFigures:
        """The packing's height is what is reserved, all the time."""
        at_peak, height = self._pack()
        ended = at_peak if height > self._capacity else self.state()
        return AllocatorFigures(
            name=self.name,
            account=IN_TIME,
            peak_allocated_bytes=at_peak.allocated_bytes,
            peak_active_bytes=at_peak.allocated_bytes,
            peak_reserved_bytes=height,
            at_peak=at_peak,
            out_of_memory=ended if failed else None,
        )

    def _begin(self, key: int, size: int) -> None:
        if size:
            self._open[key] = self._add(size)

    def _add(self, size: int) -> int:
        """A new allocation from now on; returns its position."""
        self._lowers.append(self._now)
        self._uppers.append(-1)
        self._sizes.append(size)
        self._now += 1
        return len(self._sizes) - 1

    def _end(self, key: int) -> None:
        if key in self._open:
            self._uppers[self._open.pop(key)] = self._now

    def _pack(self) -> tuple[AllocatorState, int]:
        """The state at the peak of allocated bytes, and the height of the packing; found once."""
        if self._packed is None:
            from hosim.analysis.packing import pack  # other allocators pack nothing

            uppers = [self._now if upper < 0 else upper for upper in self._uppers]
            packing = pack(self._lowers, uppers, self._sizes, alignment=MIN_BLOCK, effort=_EFFORT)
            self._offsets = packing.offsets
            self._height = packing.height
            self._packed = (
                self._state_of(_live_at_peak(self._lowers, uppers, self._sizes)),
                packing.height,
            )
        return self._packed

    def _state_of(self, live: Sequence[int]) -> AllocatorState:
        """Return the memory held, and the largest gap that is left, while the allocations ``live``
        are.
        """
        largest, end = 0, 0
        for offset, size in sorted((self._offsets[k], self._sizes[k]) for k in live):
            largest = max(largest, offset - end)
            end = offset + size
        return AllocatorState(
            sum(self._sizes[k] for k in live), self._height, max(largest, self._height - end)
        )


def _live_at_peak(lowers: Sequence[int], uppers: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The allocations that live when most bytes do, for the first time. Each starts at an instant
    of its own, in order.
    """
    ends: list[list[int]] = [[] for _ in range(len(sizes) + 1)]
    for k, upper in enumerate(uppers):
        ends[upper].append(k)
    held = most = peak = 0
    for k, size in enumerate(sizes):
        held += size - sum(sizes[ended] for ended in ends[k])
        if held > most:
            most, peak = held, k
    return [k for k in range(peak + 1) if k < len(sizes) and uppers[k] > peak]


def streams_of_tensors(graph: Graph, stream_of: Sequence[int]) -> list[int]:
    """The stream of each tensor's first user, which its blocks belong to; 0 for a tensor without
    users.
    """
    return [stream_of[first] if first >= 0 else 0 for first in graph.compact_users.first]


class CachingArena:
    """PyTorch's caching allocator under a replay: what is asked of it is what the device holds at
    each instant.
    """

    def __init__(
        self, graph: Graph, stream_of: Sequence[int], capacity_bytes: int, *, expandable: bool
    ) -> None:
        self.name = EXPANDABLE if expandable else CACHING
        self._allocator = CachingAllocator(capacity_bytes, expandable=expandable)
        self._sizes = [tensor.size_bytes for tensor in graph.tensors.each()]
        self._workspaces = [op.workspace_bytes for op in graph.ops.each()]
        self._stream_of = stream_of
        self._stream_of_tensor = streams_of_tensors(graph, stream_of)
        self._where: dict[int, int] = {}
        self._workspace_at: dict[int, int] = {}
        self._staged: dict[tuple[int, int], list[int]] = {}
        self._releases = 0
        self._refused: dict[int, int] = {}

    def take(self, t: int) -> bool:
        """Allocate a tensor; False if there is no place for it now."""
        address = self._place_for(t, self._sizes[t])
        if address is not None:
            self._where[t] = address
        return address is not None

    def _place_for(self, t: int, size: int) -> int | None:
        """The address of so many bytes for a tensor; asked again only when something has been
        released, as it is in vain until then.
        """
        if self._refused.get(t) == self._releases:
            return None
        address = self._allocator.try_malloc(size, self._stream_of_tensor[t])
        if address is None:
            self._refused[t] = self._releases
        return address

    def begin_op(self, i: int, outputs: Sequence[int]) -> bool:
        """Allocate outputs in the op's order, then its workspace: all of them or none."""
        if self._refused.get(~i) == self._releases:
            return False
        taken: list[int] = []
        for t in outputs:
            if not self.take(t):
                break
            taken.append(t)
        else:
            address = self._allocator.try_malloc(self._workspaces[i], self._stream_of[i])
            if address is not None:
                self._workspace_at[i] = address
                return True
        for t in reversed(taken):
            self._allocator.free(self._where.pop(t))
        self._refused[~i] = self._releases
        return False

    def end_op(self, i: int) -> None:
        """Release the workspace of op ``i``."""
        self._releases += 1
        self._allocator.free(self._workspace_at.pop(i))

    def drop(self, t: int) -> None:
        """Release a tensor."""
        self._releases += 1
        self._allocator.free(self._where.pop(t))

    def stage(self, t: int, size: int) -> bool:
        """Allocate bytes that pass through."""
        address = self._place_for(t, size)
        if address is not None:
            self._staged.setdefault((t, size), []).append(address)
        return address is not None

    def unstage(self, t: int, size: int) -> None:
        """Release bytes that have passed through."""
        self._releases += 1
        self._allocator.free(self._staged[t, size].pop(0))

    def state(self) -> AllocatorState:
        """Return the state of the memory held now."""
        return self._allocator.stats.now

    def failure(self) -> str | None:
        """None: what does not fit has waited."""
        return None

    def figures(self, failed: bool) -> AllocatorFigures:
        """The allocator's own counters."""
        return caching_figures(
            self.name, IN_TIME, self._allocator.stats, self.state() if failed else None
        )


Arena = PlannedArena | CachingArena
"""An account of the device tier, as a replay calls it. Tensors and ops are positions in the graph;
sizes are the graph's.
"""


def make_arena(
    allocator: str, graph: Graph, stream_of: Sequence[int], capacity_bytes: int
) -> Arena | None:
    """The arena of an allocator of :data:`ALLOCATORS` for one replay; None for ``ledger``. Raises
    :class:`InputError` for another name.

    ``stream_of`` is the stream of each op. A tensor's blocks are its first user's stream's, whoever
    fills them.
    """
    if allocator == LEDGER:
        return None
    if allocator == STATIC:
        return PlannedArena(graph, capacity_bytes)
    if allocator in (CACHING, EXPANDABLE):
        return CachingArena(graph, stream_of, capacity_bytes, expandable=allocator == EXPANDABLE)
    raise InputError(
        f"no allocator {allocator!r} (allocators: {', '.join(ALLOCATORS)})", source="allocator"
    )


def caching_figures(
    name: str, account: str, stats: AllocatorStats, out_of_memory: AllocatorState | None
) -> AllocatorFigures:
    """The figures of a caching allocator from its counters."""
    return AllocatorFigures(
        name=name,
        account=account,
        peak_allocated_bytes=stats.peak_allocated_bytes,
        peak_active_bytes=stats.peak_active_bytes,
        peak_reserved_bytes=stats.peak_reserved_bytes,
        at_peak=AllocatorState(
            stats.peak_allocated_bytes,
            stats.reserved_at_peak_bytes,
            stats.largest_free_at_peak_bytes,
        ),
        out_of_memory=out_of_memory,
    )

"""The arena of the ``static`` allocator: an offset for each allocation of a whole replay, found
when it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from hosim.data.allocator_blocks import MIN_BLOCK
from hosim.graph import Graph
from hosim.packing import pack
from hosim.result import IN_TIME, STATIC, AllocatorFigures, AllocatorState
from hosim.units import human_size

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
        live = [k for k, upper in enumerate(self._uppers) if upper < 0]
        return self._state_of(live)

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

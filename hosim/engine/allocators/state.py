"""An allocator at rest: segments of blocks (what a snapshot shows), its counters, and the driver
that segments come from.
"""

from dataclasses import dataclass
from typing import Literal

from hosim.engine.allocators.sizes import ROUND_LARGE
from hosim.errors import InfeasibleError
from hosim.result import AllocatorState
from hosim.units import human_percent, human_size

PoolId = tuple[int, int]
SHARED_POOL: PoolId = (0, 0)
"""The pool of all that is not in a private one (those belong to CUDA graphs and to memory pools
made by the user).
"""

BlockUse = Literal["allocated", "pending", "free"]
"""``pending``: freed, but the work of another stream on it has not passed yet."""


@dataclass(frozen=True, slots=True)
class BlockState:
    """A block of a segment: its bytes, whether it is held, and what was asked for (which says
    nothing of a free one).
    """

    address: int
    size_bytes: int
    use: BlockUse
    requested_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SegmentState:
    """Bytes held from the driver at consecutive addresses, divided into blocks without a hole.

    For an expandable segment this is one mapped range. ``base`` is then the first address that was
    reserved for the segment (None: the range's own), and ranges of one base, pool and stream are
    one segment.
    """

    address: int
    size_bytes: int
    stream: int
    small: bool
    blocks: tuple[BlockState, ...]
    expandable: bool = False
    pool_id: PoolId = SHARED_POOL
    base: int | None = None


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """Counters of an allocator, in bytes but for the last four.

    *Allocated* is what callers hold (rounded), *active* adds what waits for other streams,
    *reserved* is what the driver gave. The figures ``at_peak`` are those of the moment at which
    ``peak_allocated_bytes`` was first reached. ``inactive_split_bytes`` are free, but in segments
    that cannot be given back because another part is held (not counted in expandable segments,
    whose free pages can).
    """

    capacity_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    reserved_at_peak_bytes: int
    largest_free_at_peak_bytes: int
    largest_free_bytes: int
    inactive_split_bytes: int
    segments: int
    device_frees: int
    retries: int
    failures: int

    @property
    def now(self) -> AllocatorState:
        """The memory that is held now."""
        return AllocatorState(self.allocated_bytes, self.reserved_bytes, self.largest_free_bytes)


class Driver:
    """The source of segments. This one gives addresses that only count upward; override it to
    replay what another driver gave.
    """

    def __init__(self, first_address: int = 1 << 40) -> None:
        self._next = first_address

    def avoid(self, end: int) -> None:
        """Give no address below ``end``."""
        self._next = max(self._next, -(-end // ROUND_LARGE) * ROUND_LARGE)

    def allocate(self, size: int, stream: int, pool_id: PoolId) -> int:
        """The address of a new segment of ``size`` bytes."""
        address = self._next
        self.avoid(address + size)
        return address

    def reserve(self, size: int, stream: int, pool_id: PoolId) -> int:
        """The first of ``size`` addresses for an expandable segment, of which nothing is mapped
        yet.
        """
        return Driver.allocate(self, size, stream, pool_id)

    def free(self, address: int, size: int) -> None:
        """A whole segment goes back."""

    def map(self, address: int, size: int) -> None:
        """Pages of an expandable segment are mapped."""

    def unmap(self, address: int, size: int) -> None:
        """Pages of an expandable segment go back."""


def out_of_memory(size_bytes: int, stats: AllocatorStats) -> InfeasibleError:
    """Return the error of an allocator in this state for a request that it cannot serve."""
    message = (
        f"the caching allocator cannot serve {human_size(size_bytes)}: "
        f"{human_size(stats.reserved_bytes)} of "
        f"{human_size(stats.capacity_bytes)} are reserved, {human_size(stats.allocated_bytes)} "
        "allocated; the largest free block has "
        f"{human_size(stats.largest_free_bytes)}"
    )
    lines = (
        f"wanted: {size_bytes} bytes",
        f"capacity: {stats.capacity_bytes} bytes, of which "
        f"{stats.capacity_bytes - stats.reserved_bytes} are not reserved",
        f"reserved: {stats.reserved_bytes} bytes, of which {stats.allocated_bytes} are allocated "
        "(fragmentation "
        f"{human_percent(stats.now.fragmentation)})",
        f"largest free block: {stats.largest_free_bytes} bytes",
    )
    return InfeasibleError(message, report="\n".join(lines))

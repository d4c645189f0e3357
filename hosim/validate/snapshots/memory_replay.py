"""Replay of a recording's memory: allocated bytes by the ledger and reserved bytes by the caching
allocator, compared with the recorded ones.

The account is the one in *program order* (docs/contract.md, rule 10): PyTorch's profiler and its
allocator's history record a block when the host allocates or frees it, not when the device does.
These replays do the same, so they need no device time.

The replay is given the order, the bytes of each allocation, and the level before the first one (its
total less its bytes). The ledger frees the bytes that it allocated itself; the recorded bytes of a
free, and the recorded totals, are only compared.

Reserved bytes follow exactly from a start with nothing allocated and nothing cached, or from a
snapshot. For any other recording at most two bounds are known: the reserve after the first event
(or the allocated peak), which the replay is then given, and that plus the segments for all
allocations if no cached memory serves them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hosim.engine import Ledger
from hosim.engine.allocators import division_table, round_size
from hosim.errors import InputError
from hosim.io.importers.recordings import KinetoTrace, MemoryEvent
from hosim.result import IN_PROGRAM_ORDER
from hosim.units import human_size
from hosim.validate.snapshots.recording import Snapshot
from hosim.validate.snapshots.reserved_replay import (
    Change,
    ReservedReplay,
    held_before,
    most_growth,
    replay_from_addresses,
    replay_from_nothing,
)
from hosim.validate.snapshots.snapshot import replay_snapshot

Curve = npt.NDArray[np.int64]

_UNLIMITED = 1 << 62
_LISTED = 20


@dataclass(frozen=True, slots=True, eq=False)
class MemoryReplay:
    """A recording's memory, measured and simulated, in bytes; None if the recording does not say.
    Curves have one value for each event, after it.

    ``start_bytes`` were allocated before the first event; if they are unknown, the simulated
    figures count from there. ``reserved_peak_bytes`` is the caching allocator's, None if its start
    is not known: ``reserved_unknown`` is then the reason, and ``reserved_low_bytes`` and
    ``reserved_high_bytes`` bound it as far as they are known. ``reserved_growth_bytes`` is the
    growth of the reserve beyond the start, in a replay from the recorded addresses, which gave
    ``addresses_matched`` of ``allocations`` again (for a snapshot both start from its true state).
    ``freed_before`` and ``freed_before_bytes`` count the blocks from before the recording that it
    frees. ``mismatches`` are contradictions within the recording, in words (the first few).
    """

    device: int | None
    account: str
    start_bytes: int | None
    allocations: int
    freed_before: int
    freed_before_bytes: int
    times_ns: Curve
    measured_bytes: Curve | None
    simulated_bytes: Curve
    measured_reserved_bytes: Curve | None
    simulated_reserved_bytes: Curve | None
    reserved_growth_bytes: int | None
    addresses_matched: int | None
    mismatches: tuple[str, ...] = ()
    reserved_low_bytes: int | None = None
    reserved_high_bytes: int | None = None
    reserved_unknown: str | None = None
    requested_bytes: Curve | None = None

    @property
    def events(self) -> int:
        """The number of allocations and frees."""
        return len(self.times_ns)

    @property
    def measured_peak_bytes(self) -> int | None:
        """The largest recorded total."""
        return _peak(self.measured_bytes)

    @property
    def requested_peak_bytes(self) -> int | None:
        """The largest level of requested bytes."""
        return _peak(self.requested_bytes)

    @property
    def simulated_peak_bytes(self) -> int | None:
        """The largest level of the replay."""
        return _peak(self.simulated_bytes)

    @property
    def max_abs_error_bytes(self) -> int | None:
        """The largest difference between simulated and recorded total after any event."""
        return (
            None
            if self.measured_bytes is None
            else int(np.abs(self.simulated_bytes - self.measured_bytes).max(initial=0))
        )

    @property
    def measured_reserved_peak_bytes(self) -> int | None:
        """The largest recorded reserve."""
        return _peak(self.measured_reserved_bytes)

    @property
    def measured_reserved_growth_bytes(self) -> int | None:
        """The amount by which the recorded reserve exceeds the first recorded one."""
        curve = self.measured_reserved_bytes
        return None if curve is None else int((curve - curve[0]).max())

    @property
    def reserved_peak_bytes(self) -> int | None:
        """The largest simulated reserve."""
        return _peak(self.simulated_reserved_bytes)

    @property
    def reserved_error(self) -> float | None:
        """The signed relative error: simulated reserved peak over the recorded one, less 1."""
        measured, simulated = self.measured_reserved_peak_bytes, self.reserved_peak_bytes
        return simulated / measured - 1 if measured and simulated is not None else None


def replay_memory(trace: KinetoTrace, device: int | None = None) -> MemoryReplay:
    """Replay the memory events of an accelerator (default: the one with most of them).

    If a trace has no memory events, or its events have no totals, the figures that are not known
    are None.
    """
    events = _events_of(trace, device)
    index = events[0].device if events else device
    times = np.fromiter((event.time_ns for event in events), np.int64, len(events))
    totals = _recorded([event.total_allocated for event in events])
    start = int(totals[0]) - events[0].size_bytes if totals is not None else None
    mismatches: list[str] = []
    simulated = _ledger(events, start or 0, mismatches)
    changes: list[Change] = [
        (event.address, event.size_bytes) for event in events if event.address is not None
    ]
    reserved = _recorded([event.total_reserved for event in events])
    known = MemoryReplay(
        device=index,
        account=IN_PROGRAM_ORDER,
        start_bytes=start,
        allocations=sum(event.size_bytes > 0 for event in events),
        freed_before=0,
        freed_before_bytes=0,
        times_ns=times,
        measured_bytes=totals,
        simulated_bytes=simulated,
        measured_reserved_bytes=reserved,
        simulated_reserved_bytes=None,
        reserved_growth_bytes=None,
        addresses_matched=None,
        mismatches=_first(mismatches),
        reserved_unknown=_NO_BLOCKS if events else None,
    )
    if len(changes) < len(events) or start is None:
        return known
    before = held_before(changes)
    if sum(before.values()) > start:
        mismatches.append(
            f"blocks of {sum(before.values())} bytes from before the recording are freed, but it "
            f"begins with {start} bytes"
        )
    cold = replay_from_nothing(changes, start)
    unknown = _unknown_start(trace, cold, start, reserved)
    low, high = _bounds(trace, changes, start, totals, reserved) if unknown else (None, None)
    try:
        warm = replay_from_addresses(changes)
    except InputError as error:
        warm = None
        mismatches.append(f"the recorded addresses contradict each other: {error}")
    return replace(
        known,
        allocations=cold.allocations,
        freed_before=len(before),
        freed_before_bytes=sum(before.values()),
        simulated_reserved_bytes=None if unknown else cold.reserved_bytes,
        reserved_growth_bytes=warm.growth_bytes if warm else None,
        addresses_matched=warm.matched if warm else None,
        mismatches=_first(mismatches),
        reserved_low_bytes=low,
        reserved_high_bytes=high,
        reserved_unknown=unknown,
    )


_NO_BLOCKS = "its recorded allocations lack addresses or totals"


def _unknown_start(
    trace: KinetoTrace, cold: ReservedReplay, start: int, reserved: Curve | None
) -> str | None:
    """Return the reason, in words, that the allocator's state at the start does not follow from a
    recording; None if it held nothing.
    """
    if reserved is None:
        return "the recording does not say what was reserved when it began"
    if start:
        where = "where it lay, and what free memory was cached, is not recorded"
        apart = _apart(trace)
        return (
            f"{human_size(start)} were allocated before the recording; "
            f"{where}{f'; {apart}' if apart else ''}"
        )
    cached = int(reserved[0] - cold.reserved_bytes[0])
    if cached > 0:
        return (
            f"{human_size(cached)} of free memory were cached before the recording, in blocks "
            "that it does not name"
        )
    return (
        "its first allocation reserved less than a segment of PyTorch's allocator"
        if cached < 0
        else None
    )


def _apart(trace: KinetoTrace) -> str | None:
    """Return a text on the parts of a recording that have free memory of their own, if allocations
    cannot be assigned to them; else None.
    """
    if any("BeginCapture" in call.name for call in trace.calls):
        return "graphs that it captures have memory of their own"
    streams = len({(op.device, op.stream) for op in trace.ops})
    return f"{streams} streams may each have free memory of their own" if streams > 1 else None


def _bounds(
    trace: KinetoTrace,
    changes: Sequence[Change],
    start: int,
    totals: Curve | None,
    reserved: Curve | None,
) -> tuple[int | None, int | None]:
    """Return the least and the most possible reserved peak; None if it is not known."""
    peak = _peak(totals)
    if reserved is None:
        return peak, None
    first = int(reserved[0])
    segments = int(replay_from_nothing(changes[:1], start).reserved_bytes[0])
    known = not _apart(trace) and (start or first >= segments)
    return max(first, peak or 0), first + most_growth(changes, start) if known else None


def replay_history(snapshot: Snapshot, device: int | None = None) -> MemoryReplay:
    """Replay the history of an allocator's snapshot from its true state at the start, which follows
    from the segments at the end.

    The history has no totals, and only the requested bytes of each block: the bytes that a block
    keeps beyond that (a rest too small to be split off) are known only at the end. If the allocator
    makes every recorded choice again, its blocks are the recorded ones, and its curve is the
    measured one; otherwise there is no measurement of the allocated bytes. Raises `InputError` as
    `hosim.validate.snapshots.snapshot.rewind`.
    """
    device = snapshot.device(device)
    replay = replay_snapshot(snapshot, device)
    history = snapshot.histories[device]
    divisions = division_table(snapshot.settings.roundup_power2_divisions)
    segments = snapshot.segments.get(device, ())
    held = [block for segment in segments for block in segment.blocks if block.use == "allocated"]
    live = {block.address: round_size(block.requested_bytes, divisions) for block in held}
    asked, reserved = sum(live.values()), sum(segment.size_bytes for segment in segments)
    requested, measured_reserved = (
        np.zeros(len(history), np.int64),
        np.zeros(len(history), np.int64),
    )
    for index in range(len(history) - 1, -1, -1):
        requested[index], measured_reserved[index] = asked, reserved
        entry = history[index]
        if entry.action == "alloc":
            asked -= live.pop(entry.address, 0)
        elif entry.action == "free_requested":
            live[entry.address] = round_size(entry.size_bytes, divisions)
            asked += live[entry.address]
        elif entry.action in ("segment_alloc", "segment_map"):
            reserved -= entry.size_bytes
        elif entry.action in ("segment_free", "segment_unmap"):
            reserved += entry.size_bytes
    # Segments have entries of their own beside the allocation that needs them: the curves have only
    # the entries of allocations and frees.
    places = [
        index for index, entry in enumerate(history) if entry.action in ("alloc", "free_requested")
    ]
    before = held_before(
        [
            (e.address, e.size_bytes if e.action == "alloc" else -e.size_bytes)
            for e in (history[i] for i in places)
        ]
    )
    return MemoryReplay(
        device=device,
        account=IN_PROGRAM_ORDER,
        start_bytes=replay.start_bytes,
        allocations=replay.allocations,
        freed_before=len(before),
        freed_before_bytes=sum(before.values()),
        times_ns=replay.times_us[places] * 1000,
        measured_bytes=replay.allocated_bytes[places] if replay.exact else None,
        simulated_bytes=replay.allocated_bytes[places],
        measured_reserved_bytes=measured_reserved[places],
        simulated_reserved_bytes=replay.reserved_bytes[places],
        reserved_growth_bytes=int(replay.reserved_bytes.max(initial=reserved)) - reserved,
        addresses_matched=replay.matched,
        mismatches=_first(
            [
                f"entry {m.index} ({m.action} of {m.size_bytes} bytes): hosim's allocator "
                f"{m.instead}"
                for m in replay.mismatches
            ]
        ),
        requested_bytes=requested[places],
    )


def _events_of(trace: KinetoTrace, device: int | None) -> tuple[MemoryEvent, ...]:
    """Return the memory events of one accelerator, in order of time; events of one instant in
    listed order.
    """
    events = [event for event in trace.device_memory(device) if event.size_bytes]
    counts = Counter((event.device_type, event.device) for event in events)
    chosen = max(counts, key=lambda key: (counts[key], (-key[0], -key[1])), default=None)
    return tuple(event for event in events if (event.device_type, event.device) == chosen)


def _ledger(events: Sequence[MemoryEvent], start: int, mismatches: list[str]) -> Curve:
    """Return the level after each event by the ledger: a free releases the bytes that were
    allocated at its address.
    """
    ledger = Ledger(_UNLIMITED)
    ledger.allocate(start, 0, 0)
    live: dict[int, int] = {}
    levels = np.zeros(len(events), np.int64)
    for index, event in enumerate(events):
        size = abs(event.size_bytes)
        if event.size_bytes > 0:
            if event.address is not None:
                if event.address in live:
                    mismatches.append(
                        f"event {index}: {size} bytes are allocated at {event.address}, where "
                        f"{live[event.address]} are held"
                    )
                live[event.address] = size
            ledger.allocate(size, 0, event.time_ns)
        else:
            held = size if event.address is None else live.pop(event.address, size)
            if held != size:
                mismatches.append(
                    f"event {index}: {size} bytes are freed at {event.address}, where {held} were "
                    "allocated"
                )
            ledger.release(held, 0)
        levels[index] = ledger.held
    return levels


def _recorded(values: Sequence[int | None]) -> Curve | None:
    """Return recorded totals; None unless every event has one."""
    known = [value for value in values if value is not None]
    return np.array(known, np.int64) if values and len(known) == len(values) else None


def _peak(curve: Curve | None) -> int | None:
    return int(curve.max()) if curve is not None and len(curve) else None


def _first(lines: Sequence[str]) -> tuple[str, ...]:
    rest = len(lines) - _LISTED
    return (*lines[:_LISTED], f"and {rest} more") if rest > 0 else tuple(lines)

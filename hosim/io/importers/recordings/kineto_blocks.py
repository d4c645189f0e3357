"""Blocks of device memory in a recording: when each was allocated and freed, from the recorded
allocations alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hosim.io.importers.recordings.kineto_events import KinetoTrace, MemoryEvent


@dataclass(frozen=True, slots=True)
class RecordedBlock:
    """``allocated_ns`` is None if that was before the recording, ``freed_ns`` if it is not in it;
    the threads are those of these events.
    """

    size_bytes: int
    allocated_ns: int | None
    freed_ns: int | None
    thread: str


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a device in the order of their first event.

    ``resident_bytes`` were allocated before the recording and are not freed in it; None if the
    recording has no totals. ``addresses`` is False where frees had to be matched by their bytes
    (the schema of 2021 has no addresses).
    """

    listed: tuple[RecordedBlock, ...]
    resident_bytes: int | None
    addresses: bool


def device_of_blocks(trace: KinetoTrace) -> int | None:
    """The device with most memory events (its number may differ from that of the ops); None if no
    device has memory events.
    """
    devices = [event.device for event in trace.device_memory()]
    return max(dict.fromkeys(devices), key=devices.count, default=None)


def blocks_of(events: Sequence[MemoryEvent]) -> Blocks:
    """The blocks that these events, in order of time, allocate and free."""
    addresses = all(event.address is not None for event in events)
    live: defaultdict[int, list[int]] = defaultdict(list)
    found: list[RecordedBlock] = []
    for event in events:
        key = event.address if addresses and event.address is not None else abs(event.size_bytes)
        if event.size_bytes > 0:
            live[key].append(len(found))
            found.append(RecordedBlock(event.size_bytes, event.time_ns, None, event.thread))
        elif event.size_bytes < 0:
            if live[key]:
                last = live[key].pop()
                found[last] = replace(found[last], freed_ns=event.time_ns)
            else:
                found.append(RecordedBlock(-event.size_bytes, None, event.time_ns, event.thread))
    return Blocks(tuple(found), _resident(events, found), addresses)


def _resident(events: Sequence[MemoryEvent], found: Iterable[RecordedBlock]) -> int | None:
    first = next((event for event in events if event.total_allocated is not None), None)
    if first is None or first is not events[0] or first.total_allocated is None:
        return None
    there = sum(block.size_bytes for block in found if block.allocated_ns is None)
    return max(0, first.total_allocated - first.size_bytes - there)

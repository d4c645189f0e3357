"""Reader of Nsight Systems recordings (``nsys export --type sqlite``), into the same data as those
of PyTorch's profiler.

``trace = read_nsys(path)`` returns a :class:`KinetoTrace`, which
:mod:`hosim.io.importers.recordings.kineto` describes. The tables are those of NVIDIA's "SQLite Export
Schema Reference". A table without entries is not written, so any may be missing, and newer releases
have more columns. Of several processes, the one with the most device entries is read.

An export has no CPU ops. Its memory events are the driver's (``cudaMalloc``, which PyTorch calls
reserved), without totals. The event that a stream waits for is known only if the records of events
are listed (``CUPTI_ACTIVITY_KIND_CUDA_EVENT``, since 2024).
"""

import os
import re
import sqlite3
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hosim.base.files.formats import DATABASE, unexpected
from hosim.errors import InputError
from hosim.formats.nsight.sqlite_tables import plain_tables
from hosim.io.importers.recordings import (
    Annotation,
    DeviceInfo,
    DeviceOp,
    HostCall,
    KinetoTrace,
    MemoryEvent,
    SyncRecord,
    call_role,
)
from hosim.limits import Budget

_KERNEL, _COPY, _MEMSET, _CALLS = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")
)
_SYNCS, _EVENTS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_MEMORY, _STRINGS, _RANGES, _GPUS = (
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
    "StringIds",
    "NVTX_EVENTS",
    "TARGET_INFO_GPU",
)
_TABLES = (_KERNEL, _COPY, _MEMSET, _CALLS, _SYNCS, _EVENTS, _MEMORY, _STRINGS, _RANGES, _GPUS)

# The documented numbers of ENUM_CUDA_MEM_KIND, of both ends of ENUM_CUDA_MEMCPY_OPER, of
# ENUM_CUPTI_SYNC_TYPE and of NVTX event types.
_MEMORY_KINDS = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device",
    6: "managed",
}
_SIDES = {"h": "host", "d": "device", "a": "array", "m": "managed", "?": "unknown"}
_COPY_KINDS = ("??", "hd", "dh", "ha", "ah", "aa", "ad", "da", "dd", "hh", "dd", "md", "dm", "dd")
_MIGRATIONS = (11, 12, 13)  # pages that the driver moves when a processor touches them
_SYNC_NAMES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_EVENT_SYNC, _STREAM_WAIT = 1, 2
_RANGE_TYPES = (59, 60)  # push and pop, start and end
_NO_ID = (1 << 32) - 1
_THREAD_BITS = 24
_VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")

Row = tuple[int | str | None, ...]


def read_nsys(path: str | os.PathLike[str]) -> KinetoTrace:
    """Return the recording in the SQLite export at ``path``.

    Raises :class:`InputError` for a damaged file, for another database, and for a recording without
    device activity.
    """
    source = os.fspath(path)
    try:
        with plain_tables(Path(path), _TABLES) as (connection, columns):
            return _Export(connection, columns).trace(Path(path).stem)
    except InputError as error:
        other = unexpected(source, "a recording (an SQLite export of Nsight Systems)", but=DATABASE)
        raise other or InputError(error.message, source=source, where=error.where) from None
    except (OSError, sqlite3.Error, OverflowError) as error:
        raise InputError(
            f"cannot be read as an SQLite export of Nsight Systems: {error}", source=source
        ) from None


class _Export:
    """The tables of an export, as data on a clock that begins with its first entry. Rows and texts
    are read within the limits.
    """

    def __init__(
        self, connection: sqlite3.Connection, columns: Mapping[str, Collection[str]]
    ) -> None:
        self._connection = connection
        self._columns = columns
        self._budgets = Budget("records"), Budget("unpacked_bytes")
        if _STRINGS not in self._columns:
            raise InputError(
                f"expected the table {_STRINGS}; write it with: nsys export --type sqlite"
            )
        self._strings: dict[object, str] = {}
        for key, value in self._rows(_STRINGS, ("id", "value"), (), None):
            if isinstance(value, str):
                self._strings[key] = value
        self._process = self._busiest_process()

    def trace(self, name: str) -> KinetoTrace:
        """Return the whole recording."""
        ops = [*self._kernels(), *self._copies(), *self._memsets()]
        if not ops:
            raise InputError(
                "no kernel, copy or memset of a device was recorded; record with: nsys profile "
                "--trace=cuda"
            )
        calls, memory, ranges = list(self._calls()), list(self._memory()), list(self._ranges())
        syncs = self._syncs()
        starts = [entry.start_ns for entries in (ops, calls, ranges, syncs) for entry in entries]
        origin = min([*starts, *(event.time_ns for event in memory)])
        calls.sort(key=lambda call: (call.start_ns, -call.end_ns))
        ops.sort(key=lambda op: (op.start_ns, -op.end_ns))
        launches = {call.correlation: i for i, call in enumerate(calls)}
        launches.pop(None, None)
        return KinetoTrace(
            name,
            origin,
            tuple(replace(_shifted(op, origin), call=launches.get(op.correlation)) for op in ops),
            tuple(_shifted(call, origin) for call in calls),
            (),
            tuple(
                _shifted(sync, origin)
                for sync in sorted(syncs, key=lambda sync: (sync.start_ns, -sync.end_ns))
            ),
            tuple(
                replace(event, time_ns=event.time_ns - origin)
                for event in sorted(memory, key=lambda event: event.time_ns)
            ),
            tuple(
                _shifted(entry, origin)
                for entry in sorted(ranges, key=lambda entry: (entry.start_ns, -entry.end_ns))
            ),
            self._devices(),
        )

    def _kernels(self) -> Iterator[DeviceOp]:
        extents = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        room = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")
        optional = ("correlationId", "demangledName", "shortName", *extents, *room)
        for row in self._rows(_KERNEL, ("start", "end", "deviceId", "streamId"), optional):
            start, end, device, stream, correlation, long, short = row[:7]
            known = tuple(n for n in row[7:13] if isinstance(n, int))
            grid, block = (known[:3], known[3:]) if len(known) == 6 else ((), ())
            registers, *shared = (_number(n) for n in row[13:])
            total = None if None in shared else sum(n or 0 for n in shared)
            name = self._text(long) or self._text(short) or "kernel"
            where, times = _ids(device, stream), _times(_KERNEL, start, end)
            yield DeviceOp(
                "kernel",
                name,
                *where,
                *times,
                _number(correlation),
                grid=grid,
                block=block,
                registers=registers,
                shared_bytes=total,
            )

    def _copies(self) -> Iterator[DeviceOp]:
        needed = ("start", "end", "deviceId", "streamId", "bytes", "copyKind")
        for row in self._rows(_COPY, needed, ("correlationId", "srcKind", "dstKind")):
            start, end, device, stream, size, kind, correlation, source_kind, target_kind = row
            ends = [_SIDES[side] for side in dict(enumerate(_COPY_KINDS)).get(_whole(kind), "??")]
            source, target = (
                _end(end_, memory)
                for end_, memory in zip(ends, (source_kind, target_kind), strict=True)
            )
            migration = kind in _MIGRATIONS
            what = "Migration of managed memory," if migration else "Memcpy"
            name = (
                f"{what} {_letter(ends[0])}to{_letter(ends[1])} ({source.capitalize()} -> "
                f"{target.capitalize()})"
            )
            where, times = _ids(device, stream), _times(_COPY, start, end)
            op = DeviceOp(
                "copy",
                name,
                *where,
                *times,
                _number(correlation),
                None,
                _whole(size),
                source,
                target,
            )
            yield replace(op, migration=migration)

    def _memsets(self) -> Iterator[DeviceOp]:
        for row in self._rows(
            _MEMSET, ("start", "end", "deviceId", "streamId", "bytes"), ("correlationId",)
        ):
            start, end, device, stream, size, correlation = row
            where, times = _ids(device, stream), _times(_MEMSET, start, end)
            yield DeviceOp(
                "memset", "Memset", *where, *times, _number(correlation), None, _whole(size)
            )

    def _calls(self) -> Iterator[HostCall]:
        for start, end, name, correlation, thread in self._rows(
            _CALLS, ("start", "end", "nameId"), ("correlationId", "globalTid"), "globalTid"
        ):
            text = _VERSION.sub("", self._text(name) or "call")
            yield HostCall(
                text,
                call_role(text),
                _thread(thread),
                *_times(_CALLS, start, end),
                _number(correlation),
            )

    def _syncs(self) -> list[SyncRecord]:
        """Return the recorded waits. If the event of one wait was not recorded, all are omitted,
        and the reader infers them.
        """
        records = self._event_records()
        syncs = []
        needed = ("start", "end", "deviceId", "streamId", "syncType", "eventId")
        for row in self._rows(_SYNCS, needed, ("correlationId", "contextId", "eventSyncId")):
            start, end, device, stream, kind, event, correlation, context, sync_id = row
            number = _whole(kind)
            on_stream = record = None
            if number in (_EVENT_SYNC, _STREAM_WAIT):
                found = _record_of(records.get((context, event), ()), correlation, sync_id)
                if found is not None:
                    record, on_stream = found
                elif number == _STREAM_WAIT and not records:
                    return []
            waits = (
                None if number == _EVENT_SYNC or stream in (None, -1, _NO_ID) else _whole(stream)
            )
            times = _times(_SYNCS, start, end)
            name = _SYNC_NAMES.get(number, "Sync")
            syncs.append(
                SyncRecord(
                    name, _whole(device), waits, *times, _number(correlation), on_stream, record
                )
            )
        return syncs

    def _event_records(self) -> Mapping[tuple[object, object], Sequence[tuple[int, int, object]]]:
        """Return the calls that recorded each event, by context and event: the correlation, the
        stream, and the number of the record (None in older schemas).
        """
        records: defaultdict[tuple[object, object], list[tuple[int, int, object]]] = defaultdict(
            list
        )
        for row in self._rows(
            _EVENTS, ("streamId", "eventId", "correlationId"), ("contextId", "eventSyncId")
        ):
            stream, event, correlation, context, sync_id = row
            if correlation is not None:
                records[context, event].append((_whole(correlation), _whole(stream), sync_id))
        for listed in records.values():
            listed.sort(key=lambda record: record[0])
        return records

    def _memory(self) -> Iterator[MemoryEvent]:
        for row in self._rows(
            _MEMORY, ("start", "deviceId", "address", "bytes", "memKind", "memoryOperationType"), ()
        ):
            time, device, address, size, kind, operation = map(_whole, row)
            on_device = _MEMORY_KINDS.get(kind) in ("device", "array")
            yield MemoryEvent(
                time,
                int(on_device),
                device,
                -size if operation else size,
                "",
                address,
                None,
                None,
                None,
            )

    def _ranges(self) -> Iterator[Annotation]:
        needed, optional = ("start", "end", "eventType"), ("text", "globalTid", "textId")
        for start, end, kind, text, thread, text_id in self._rows(
            _RANGES, needed, optional, "globalTid"
        ):
            if end is not None and kind in _RANGE_TYPES:
                name = text if isinstance(text, str) else self._text(text_id)
                yield Annotation(name or "range", _thread(thread), *_times(_RANGES, start, end))

    def _devices(self) -> Mapping[int, DeviceInfo]:
        devices = {}
        room = ("maxWarpsPerSm", "threadsPerWarp", "maxRegistersPerSm", "maxShmemPerSm")
        for row in self._rows(
            _GPUS, ("id",), ("cuDevice", "name", "totalMemory", "smCount", *room), None
        ):
            number, cuda, name, *sizes = row
            memory, processors, warps, lanes, registers, shared = (
                size if isinstance(size, int) else None for size in sizes
            )
            threads = warps * lanes if warps is not None and lanes is not None else None
            if isinstance(name, str):
                index = cuda if isinstance(cuda, int) else _whole(number)
                devices[index] = DeviceInfo(name, memory, processors, threads, registers, shared)
        return devices

    def _busiest_process(self) -> int | None:
        """Return the process (its number in the export) with the most device entries; None if the
        export names none.
        """
        counts: Counter[int] = Counter()
        for table in (_KERNEL, _COPY, _MEMSET):
            if "globalPid" in self._columns.get(table, ()):
                found = self._connection.execute(
                    f"SELECT globalPid, count(*) FROM {table} NOT INDEXED GROUP BY globalPid"
                )
                counts.update({pid: n for pid, n in found if isinstance(pid, int)})
        return max(counts, key=lambda pid: (counts[pid], -pid), default=None)

    def _rows(
        self,
        table: str,
        needed: Sequence[str],
        optional: Sequence[str],
        process: str | None = "globalPid",
    ) -> Iterator[Row]:
        """Yield the rows of a table for the chosen process; nothing without the table. A missing
        column of ``optional`` gives None.

        ``process`` is the column that names the process, or a thread of it.
        """
        columns = self._columns.get(table)
        if columns is None:
            return
        missing = [column for column in needed if column not in columns]
        if missing:
            raise InputError(
                f"expected the column {missing[0]}; this export has {', '.join(sorted(columns))}",
                where=table,
            )
        chosen = ", ".join(
            [*(f'"{c}"' for c in needed), *(f'"{c}"' if c in columns else "NULL" for c in optional)]
        )
        where, arguments = "", tuple[int, ...]()
        if process in columns and self._process is not None:
            where, arguments = (
                f' WHERE "{process}" >> {_THREAD_BITS} = ? >> {_THREAD_BITS}',
                (self._process,),
            )
        rows = self._connection.execute(
            f'SELECT {chosen} FROM "{table}" NOT INDEXED{where} ORDER BY rowid', arguments
        )
        records, texts = self._budgets
        for row in rows:
            records.draw(where=table)
            texts.draw(sum([len(v) for v in row if isinstance(v, str | bytes)]), where=table)
            yield row

    def _text(self, key: object) -> str | None:
        """Return the string with that number; newer tables may have the text itself."""
        return key if isinstance(key, str) else self._strings.get(key)


Timed = TypeVar("Timed", DeviceOp, HostCall, SyncRecord, Annotation)


def _shifted(entry: Timed, origin: int) -> Timed:
    return replace(entry, start_ns=entry.start_ns - origin, end_ns=entry.end_ns - origin)


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise InputError(f"expected a whole number, got {str(value)[:60]!r}")
    return value


def _number(value: object) -> int | None:
    return None if value is None else _whole(value)


def _ids(device: object, stream: object) -> tuple[int, int]:
    return _whole(device), _whole(stream)


def _times(table: str, start: object, end: object) -> tuple[int, int]:
    times = _whole(start), _whole(end)
    if times[0] > times[1]:
        raise InputError(
            f"expected an end after the start, got {times[1]} after {times[0]}", where=table
        )
    return times


def _thread(value: object) -> str:
    """Return the number of a thread, from the export's combined number of process and thread."""
    return str(value & (1 << _THREAD_BITS) - 1) if isinstance(value, int) else ""


def _end(end: str, memory: object) -> str:
    """Return one end of a copy: its side or, on the host's side, the kind of memory from the other
    column.
    """
    kind = _MEMORY_KINDS.get(memory) if isinstance(memory, int) else None
    return (
        kind
        if kind is not None
        and (end == "unknown" or (end == "host" and kind in ("pageable", "pinned")))
        else end
    )


def _letter(end: str) -> str:
    return {"device": "D", "array": "A"}.get(end, "H")


def _record_of(
    records: Sequence[tuple[int, int, object]], correlation: object, sync_id: object
) -> tuple[int, int] | None:
    """Return the correlation and the stream of the record that a wait is for: the record with the
    wait's number, else the event's last record before it.
    """
    if sync_id is not None:
        for found, stream, number in records:
            if number == sync_id:
                return found, stream
    at = (
        bisect_left(records, _whole(correlation), key=lambda record: record[0])
        if correlation is not None
        else len(records)
    )
    return records[at - 1][:2] if at else None

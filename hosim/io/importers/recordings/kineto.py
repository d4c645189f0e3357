"""Reader of PyTorch profiler traces (Kineto, Chrome trace JSON): what the device did, what the host
called, what was allocated.

``trace = read_kineto(path)`` understands the schema of 2021 (capitalised categories, whole
microseconds) and later ones, on CUDA and on HIP. Everything is frozen
(:mod:`hosim.io.importers.recordings.kineto_events`), in tuples sorted by start; times are whole
nanoseconds since the recording's first entry (``trace.origin_ns`` is that entry's own clock), sizes
bytes::

    trace.ops          DeviceOp     kernels, copies and memsets: name, device, stream, times, bytes, direction, grid and block; ``op.call``
                                    is the position in trace.calls of the call that launched it (None: launched before the recording)
    trace.calls        HostCall     runtime and driver calls: name, *role* (launch, copy, memset, record, wait, device_sync, stream_sync,
                                    event_sync, query, allocate, free, other), thread, times, and the innermost CPU op around it
    trace.cpu_ops      CpuOp        operators of the host: thread, times, the op that called it, shapes and dtypes of the arguments
    trace.syncs        SyncRecord   newer schemas: what a wait or synchronisation waits for (stream, correlation of the event's record)
    trace.memory       MemoryEvent  allocations (bytes > 0) and frees (< 0): device type and index, address, totals after it; in order of
                                    time, those of one time as listed. ``trace.device_memory(device)`` picks those of an accelerator
    trace.annotations  Annotation   ranges such as ``ProfilerStep#7``
    trace.devices      DeviceInfo   name, memory and multiprocessors, by device index

Whatever a schema lacks is None (or an empty tuple).
"""

import os
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hosim.base.files import read_head, read_json
from hosim.base.files.formats import is_kineto, of_events, unexpected
from hosim.errors import InputError
from hosim.io.importers.recordings.kineto_events import (
    MODULE,
    Annotation,
    Collective,
    CpuOp,
    DeviceInfo,
    DeviceOp,
    HostCall,
    Kind,
    KinetoTrace,
    MemoryEvent,
    Role,
    SyncRecord,
)

P = ParamSpec("P")
T = TypeVar("T")

_LARGEST = 1 << 53  # microseconds: 285 years
_LARGEST_SIZE, _LARGEST_TOTAL = (
    1 << 42,
    1 << 62,
)  # bytes; a million of the largest sizes do not exceed the largest total
_NO_ID = (-1, (1 << 32) - 1)
_CATEGORIES = {
    "kernel": "op",
    "gpu_memcpy": "op",
    "gpu_memset": "op",
    "memcpy": "op",
    "memset": "op",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "runtime": "call",
    "privateuse1_runtime": "call",
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
    "user_annotation": "annotation",
    "cuda_sync": "sync",
}
_ROLES: Sequence[tuple[re.Pattern[str], Role]] = (
    (re.compile("StreamWaitEvent"), "wait"),
    (re.compile("EventRecord"), "record"),
    (re.compile("DeviceSynchronize|CtxSynchronize"), "device_sync"),
    (re.compile("StreamSynchronize"), "stream_sync"),
    (re.compile("EventSynchronize"), "event_sync"),
    (re.compile("EventQuery|StreamQuery"), "query"),
    (re.compile(r"Launch(Cooperative)?(Kernel|Grid)|GraphLaunch|Launch$"), "launch"),
    (re.compile("Memcpy"), "copy"),
    (re.compile("Memset"), "memset"),
    (re.compile("Malloc|MemAlloc|HostAlloc|HostRegister|MemCreate"), "allocate"),
    (re.compile("Free"), "free"),
)
_DEVICE_KEYS = (
    "totalGlobalMem",
    "numSms",
    "maxThreadsPerMultiprocessor",
    "regsPerMultiprocessor",
    "sharedMemPerMultiprocessor",
)
_COPY = re.compile(r"\((.+?) -> (.+?)\)")
_SHORT_COPY = re.compile(r"\b(?:Copy)?(D|H|Device|Host)[tT]o(D|H|Device|Host)")


def read_kineto(path: str | os.PathLike[str]) -> KinetoTrace:
    """Read the recording at ``path`` (plain or gzip).

    Raises :class:`InputError` for a damaged file, with the place in it, and for a recording in
    which no device did anything.
    """
    source = os.fspath(path)
    try:
        document = read_json(
            source,
            "a profiler trace",
            "record or download it again",
            parse_float=Decimal,
            constants=False,
        )
        return parse_kineto(document, Path(path).name.removesuffix(".gz").removesuffix(".json"))
    except InputError as error:
        other = None if is_kineto(read_head(source)) else unexpected(source, "a profiler trace")
        raise other or InputError(error.message, source=source, where=error.where) from None


def parse_kineto(document: object, name: str) -> KinetoTrace:
    """Return the recording in a parsed trace. Fractions of a microsecond may be ``Decimal`` (exact)
    or ``float``. Raises :class:`InputError`.
    """
    listed = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(listed, list):
        raise InputError("expected a profiler trace: an object with a list of traceEvents")
    kept = [
        (position, raw, what)
        for position, raw in enumerate(listed)
        if (what := _at(position, _what, raw))
    ]
    origin = min(
        (
            _at(position, _nanoseconds, raw.get("ts"))
            for position, raw, what in kept
            if what != "module"
        ),
        default=0,
    )
    first = next((raw for _, raw, what in kept if what == "op"), None)
    if (other := of_events(listed if first is None else [first])) is not None:
        raise InputError(f"no kernel, copy or memset of a CUDA or HIP device in it; {other}")
    flows = flow_ids(kept, listed)
    reader = _Reader(origin)
    for position, raw, what in kept:
        _at(position, reader.read, what, raw, flows.get(position))
    return replace(
        reader.trace(name, document.get("deviceProperties")),
        ranks=_ranks(document.get("distributedInfo")),
    )


def _ranks(said: object) -> int:
    size = said.get("world_size") if isinstance(said, dict) else None
    return size if type(size) is int and size > 0 else 1


def _at(position: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``read(...)``; an error in the entry becomes an :class:`InputError` with its place."""
    try:
        return read(*args, **kwargs)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        problem = f"expected the key {error}" if isinstance(error, KeyError) else str(error)[:100]
        raise InputError(problem, where=f"traceEvents[{position}]") from None


def _what(raw: Any) -> str:
    """Return the name of the reader's list that an entry belongs to; empty if there is none."""
    if not isinstance(raw, dict):
        raise TypeError("expected an object")
    phase = raw.get("ph")
    if phase == "X":
        category = raw.get("cat")
        if category == "python_function" and str(raw.get("name", "")).startswith(MODULE):
            return "module"
        return _CATEGORIES.get(category.lower(), "") if isinstance(category, str) else ""
    return "memory" if phase in ("i", "I") and raw.get("name") == "[memory]" else ""


def _nanoseconds(microseconds: Any) -> int:
    if isinstance(microseconds, (int, Decimal, float)) and -_LARGEST < microseconds < _LARGEST:
        return round(microseconds * 1000)
    raise ValueError("expected a time in microseconds")


def _whole(args: Mapping[str, Any], key: str, largest: int = 1 << 64) -> int | None:
    """Return a whole number whose magnitude is below ``largest`` (some are written as text); None
    if it is missing.
    """
    value: Any = args.get(key)
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if value is not None and (type(value) is not int or abs(value) >= largest):
        raise ValueError(f"expected a whole number in {key}")
    return None if value is None else int(value)


def _id(args: Mapping[str, Any], key: str) -> int | None:
    """The number of a stream, device or call; None if it is missing or has the value for "none"."""
    value = _whole(args, key)
    return None if value in _NO_ID else value


def _args(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    args = raw.get("args", {})
    if not isinstance(args, dict):
        raise TypeError("expected an object in args")
    return args


def _name(raw: Mapping[str, Any]) -> str:
    name = raw["name"]
    if not isinstance(name, str):
        raise TypeError("expected a name")
    return name


def _thread(raw: Mapping[str, Any]) -> str:
    if not isinstance(raw["tid"], (int, str)):
        raise TypeError("expected a number or a name in tid")
    return str(raw["tid"])


def _extent(raw: object) -> tuple[int, ...]:
    return tuple(raw) if isinstance(raw, list) and all(type(n) is int for n in raw) else ()


def _listed(raw: object, depth: int = 0) -> tuple[Any, ...]:
    """Return a list as nested tuples, at most as deep as a list of tensors' shapes."""
    if not isinstance(raw, list) or depth > 3:
        return ()
    return tuple(_listed(item, depth + 1) if isinstance(item, list) else item for item in raw)


def _ends(name: str, kind: object) -> tuple[str, str]:
    """The source and the target of a copy: ``Memcpy HtoD (Pageable -> Device)``, or at least
    ``HtoD`` or ``CopyHostToDevice``.
    """
    if match := _COPY.search(name):
        return match[1].lower(), match[2].lower()
    if match := _SHORT_COPY.search(name) or (
        _SHORT_COPY.search(kind) if isinstance(kind, str) else None
    ):
        source, target = ("device" if end.startswith("D") else "host" for end in match.groups())
        return source, target
    return "unknown", "unknown"


def call_role(name: str) -> Role:
    """Return the role of a call of the CUDA or HIP runtime or driver, by its name."""
    return next((role for pattern, role in _ROLES if pattern.search(name)), "other")


class _Reader:
    """Turns raw entries into data. Times count from ``origin``."""

    def __init__(self, origin: int) -> None:
        self._origin = origin
        self._ops: list[DeviceOp] = []
        self._calls: list[HostCall] = []
        self._cpu_ops: list[CpuOp] = []
        self._syncs: list[SyncRecord] = []
        self._memory: list[MemoryEvent] = []
        self._annotations: list[Annotation] = []
        self._modules: list[Annotation] = []
        self._roles: dict[str, Role] = {}
        self._extents: dict[
            int, tuple[tuple[int, ...], tuple[int, ...]]
        ] = {}  # grid and block of a launch on HIP, by correlation

    def read(self, what: str, raw: Mapping[str, Any], flow: int | None = None) -> None:
        """Add an entry to the list named ``what`` (see `_what`). ``flow`` is the number of an arrow
        that replaces the entry's correlation.
        """
        if what == "memory":
            self._memory.append(self._memory_event(raw))
            return
        args, name = _args(raw) if flow is None else {**_args(raw), "correlation": flow}, _name(raw)
        start, duration = _nanoseconds(raw["ts"]) - self._origin, _nanoseconds(raw["dur"])
        if duration < 0:
            raise ValueError("expected a duration of at least 0")
        end = start + duration
        match what:
            case "op":
                self._ops.append(_device_op(raw["cat"].lower(), name, start, end, args))
            case "call":
                self._call(name, _thread(raw), start, end, args)
            case "cpu_op":
                shapes, dtypes, concrete = (
                    _listed(args.get(key))
                    for key in ("Input Dims", "Input type", "Concrete Inputs")
                )
                sequence = _id(args, "Sequence number")
                self._cpu_ops.append(
                    CpuOp(name, _thread(raw), start, end, None, shapes, dtypes, concrete, sequence)
                )
            case "annotation":
                self._annotations.append(Annotation(name, _thread(raw), start, end))
            case "module":
                self._modules.append(Annotation(name, _thread(raw), start, end))
            case _:
                ids = (
                    _id(args, key)
                    for key in (
                        "correlation",
                        "wait_on_stream",
                        "wait_on_cuda_event_record_corr_id",
                    )
                )
                self._syncs.append(
                    SyncRecord(
                        name, _id(args, "device") or 0, _id(args, "stream"), start, end, *ids
                    )
                )

    def _call(self, name: str, thread: str, start: int, end: int, args: Mapping[str, Any]) -> None:
        if name not in self._roles:
            self._roles[name] = call_role(name)
        correlation = _id(args, "correlation")
        self._calls.append(HostCall(name, self._roles[name], thread, start, end, correlation))
        if correlation is not None and "grid" in args:
            self._extents[correlation] = _extent(args["grid"]), _extent(args.get("block"))

    def _memory_event(self, raw: Mapping[str, Any]) -> MemoryEvent:
        args = _args(raw)
        size = _whole(args, "Bytes", _LARGEST_SIZE)
        if size is None:
            raise KeyError("Bytes")
        totals = (
            _whole(args, key, _LARGEST_TOTAL) for key in ("Total Allocated", "Total Reserved")
        )
        rest = (_whole(args, "Addr"), *totals, _whole(args, "Ev Idx"))
        time = _nanoseconds(raw["ts"]) - self._origin
        return MemoryEvent(
            time,
            _id(args, "Device Type") or 0,
            _id(args, "Device Id") or 0,
            size,
            _thread(raw),
            *rest,
        )

    def trace(self, name: str, devices: object) -> KinetoTrace:
        """Return the trace that was read, sorted and linked."""
        if not self._ops:
            raise InputError(
                "no kernel, copy or memset of a device was recorded; record with "
                "ProfilerActivity.CUDA, on a rank that has a GPU"
            )
        for entries in (
            self._ops,
            self._calls,
            self._cpu_ops,
            self._syncs,
            self._annotations,
            self._modules,
        ):
            entries.sort(key=_by_start)
        self._memory.sort(key=attrgetter("time_ns"))
        cpu_ops, calls = _nested(self._cpu_ops, self._calls)
        launches = {
            call.correlation: i for i, call in enumerate(calls) if call.correlation is not None
        }
        ops = tuple(self._launched(op, launches) for op in self._ops)
        annotations = tuple(self._annotations)
        recorded = (
            tuple(self._syncs),
            tuple(self._memory),
            annotations,
            _devices(devices),
            tuple(self._modules),
        )
        return KinetoTrace(name, self._origin, ops, calls, cpu_ops, *recorded)

    def _launched(self, op: DeviceOp, launches: Mapping[int, int]) -> DeviceOp:
        """The op with the call that launched it; on HIP that call has the grid and the block."""
        call = launches.get(op.correlation) if op.correlation is not None else None
        if call is None or op.correlation is None:
            return op
        grid, block = self._extents.get(op.correlation, (op.grid, op.block))
        return replace(op, call=call, grid=grid, block=block)


def _device_op(category: str, name: str, start: int, end: int, args: Mapping[str, Any]) -> DeviceOp:
    kind: Kind = "copy" if "memcpy" in category else "memset" if "memset" in category else "kernel"
    source, target = _ends(name, args.get("kind")) if kind == "copy" else (None, None)
    size = _whole(args, "bytes") if kind != "kernel" else None
    if size is not None and size < 0:
        raise ValueError("expected bytes of at least 0")
    device, stream, correlation = (_id(args, key) for key in ("device", "stream", "correlation"))
    grid, block = _extent(args.get("grid")), _extent(args.get("block"))
    registers, shared = _whole(args, "registers per thread"), _whole(args, "shared memory")
    where = device or 0, stream or 0
    collective = _collective(args)
    return DeviceOp(
        kind,
        name,
        *where,
        start,
        end,
        correlation,
        None,
        size,
        source,
        target,
        grid,
        block,
        registers,
        shared,
        collective,
    )


def _collective(args: Mapping[str, Any]) -> Collective | None:
    name, group = args.get("Collective name"), args.get("Process Group Name")
    if not isinstance(name, str) or group is None:
        return None
    return Collective(
        name, f"{group} {args.get('Process Group Ranks', '')}".strip(), _whole(args, "Seq")
    )


def _by_start(entry: DeviceOp | HostCall | CpuOp | SyncRecord | Annotation) -> tuple[int, int]:
    """The order by start; the longer of two comes first, because it encloses the other."""
    return entry.start_ns, -entry.end_ns


def _nested(
    cpu_ops: Sequence[CpuOp], calls: Sequence[HostCall]
) -> tuple[tuple[CpuOp, ...], tuple[HostCall, ...]]:
    """Return ops with the op that called them, and calls with the innermost op around them, by the
    times on their threads.
    """
    stacks: dict[str, list[int]] = {}

    def around(entry: CpuOp | HostCall) -> int | None:
        stack = stacks.setdefault(entry.thread, [])
        while stack and cpu_ops[stack[-1]].end_ns < entry.end_ns:
            stack.pop()
        return stack[-1] if stack else None

    placed_ops, placed_calls = list(cpu_ops), list(calls)
    merged = sorted(
        [(*_by_start(op), 0, i) for i, op in enumerate(cpu_ops)]
        + [(*_by_start(call), 1, i) for i, call in enumerate(calls)]
    )
    for _, _, is_call, i in merged:
        if is_call:
            placed_calls[i] = replace(calls[i], cpu_op=around(calls[i]))
        else:
            placed_ops[i] = replace(cpu_ops[i], parent=around(cpu_ops[i]))
            stacks[cpu_ops[i].thread].append(i)
    return tuple(placed_ops), tuple(placed_calls)


def _devices(listed: object) -> Mapping[int, DeviceInfo]:
    devices = {}
    for raw in listed if isinstance(listed, list) else ():
        if (
            isinstance(raw, dict)
            and type(raw.get("id")) is int
            and isinstance(raw.get("name"), str)
        ):
            values = (raw.get(key) for key in _DEVICE_KEYS)
            devices[raw["id"]] = DeviceInfo(
                raw["name"], *(value if type(value) is int else None for value in values)
            )
    return devices


_Entry = tuple[int, Mapping[str, Any], str]
"""The position of an entry in a trace, the entry, and the reader's list that it belongs to."""


# -- launches by arrows ----------------------------------------------------------------------------
# If a trace has no correlation numbers, its arrows (``ac2g`` flow events) tell which call
# launched each op.
#
# An arrow has an id, a beginning (``s``) and an end (``f``). Each of the two has a process, a
# thread and a time that lies within the call or op that it belongs to.


def flow_ids(kept: Sequence[_Entry], listed: Iterable[object]) -> Mapping[int, int]:
    """Return the number of the arrow at each call and op, by its position in the trace; nothing if
    any op has a correlation of its own.
    """
    ops = [entry for entry in kept if entry[2] == "op"]
    if any(isinstance(raw.get("args"), dict) and "correlation" in raw["args"] for _, raw, _ in ops):
        return {}
    arrows = [
        raw
        for raw in listed
        if isinstance(raw, dict) and raw.get("cat") == "ac2g" and type(raw.get("id")) is int
    ]
    begins = _place(
        _Places(entry for entry in kept if entry[2] == "call"),
        (raw for raw in arrows if raw.get("ph") == "s"),
    )
    ends = _place(_Places(ops), (raw for raw in arrows if raw.get("ph") == "f"))
    both = {number for number, _, _ in begins} & {
        number for number, _, _ in ends
    }  # a launched graph has one begin and many ends
    # an arrow at the exact start of an entry belongs to it; one within an entry may belong to a
    # short neighbour
    return {
        position: number
        for number, position, _ in sorted((*begins, *ends), key=itemgetter(2))
        if number in both
    }


class _Places:
    """Entries by process and thread, sorted by time."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._by_thread: defaultdict[tuple[str, str], list[tuple[Any, Any, int]]] = defaultdict(
            list
        )
        for position, raw, _ in entries:
            if (time := _time(raw, "ts")) is not None and (
                duration := _time(raw, "dur")
            ) is not None:
                self._by_thread[_thread_of(raw)].append((time, time + duration, position))
        for found in self._by_thread.values():
            found.sort()

    def covering(self, raw: Mapping[str, Any]) -> tuple[int, bool] | None:
        """Return the position of the last entry on the arrow's thread whose time covers the
        arrow's, and whether the entry begins at that time; None if there is no such entry.
        """
        found, time = self._by_thread.get(_thread_of(raw), []), _time(raw, "ts")
        at = 0 if time is None else bisect_right(found, time, key=itemgetter(0))
        return (
            (found[at - 1][2], found[at - 1][0] == time)
            if at and time <= found[at - 1][1]
            else None
        )


def _place(places: _Places, arrows: Iterable[Mapping[str, Any]]) -> list[tuple[int, int, bool]]:
    """Return the id of each arrow that lies in an entry, the entry's position, and whether the
    entry begins at the arrow's time.
    """
    found = ((raw["id"], places.covering(raw)) for raw in arrows)
    return [(number, *place) for number, place in found if place is not None]


def _thread_of(raw: Mapping[str, Any]) -> tuple[str, str]:
    return str(raw.get("pid")), str(raw.get("tid"))


def _time(raw: Mapping[str, Any], key: str) -> Any:
    """Return a number of microseconds; None for anything else."""
    value = raw.get(key)
    return (
        None
        if isinstance(value, bool) or value is None or isinstance(value, str | list | dict)
        else value
    )

"""A recording of the PyTorch profiler (Kineto) as frozen data;
:mod:`hosim.io.importers.recordings.kineto` reads it and describes it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["kernel", "copy", "memset"]
Role = Literal[
    "launch",
    "copy",
    "memset",
    "record",
    "wait",
    "device_sync",
    "stream_sync",
    "event_sync",
    "query",
    "allocate",
    "free",
    "other",
]
MODULE = "nn.Module: "
"""The prefix of the name of a module's call."""
Shape = tuple[Any, ...]
"""The dimensions of a tensor, or of each tensor of a list."""


@dataclass(frozen=True, slots=True)
class Collective:
    """The profiler's data on a collective: its name, its process group and ranks, and its number in
    the group if it has one.
    """

    name: str
    group: str
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceOp:
    """A kernel, copy or memset. ``source`` and ``target`` of a copy are ``device``, ``pinned``,
    ``pageable`` or as recorded, in lower case.

    ``size_bytes`` are the bytes that a copy moves or a memset sets, else None. ``registers`` are
    per thread, ``shared_bytes`` per block.
    """

    kind: Kind
    name: str
    device: int
    stream: int
    start_ns: int
    end_ns: int
    correlation: int | None
    call: int | None = None
    size_bytes: int | None = None
    source: str | None = None
    target: str | None = None
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None
    collective: Collective | None = None
    migration: bool = False
    """True for pages of managed memory that move to the processor which touches them; no program
    requested these copies.
    """

    @property
    def duration_ns(self) -> int:
        """Recorded time on the device."""
        return self.end_ns - self.start_ns

    @property
    def direction(self) -> str | None:
        """``h2d``, ``d2h``, ``d2d`` or ``h2h`` for a copy; None for anything else."""
        if self.source is None or self.target is None:
            return None
        return "2".join(
            "d" if end in ("device", "array") else "h" for end in (self.source, self.target)
        )


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of the CUDA or HIP runtime or driver. ``cpu_op`` is the position of the innermost CPU
    op of its thread that covers it.
    """

    name: str
    role: Role
    thread: str
    start_ns: int
    end_ns: int
    correlation: int | None
    cpu_op: int | None = None

    @property
    def duration_ns(self) -> int:
        """Return the time for which the call occupied its thread."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class CpuOp:
    """An operator on the host. ``parent`` is the position of the op that called it.

    ``shapes``, ``dtypes`` (as recorded) and ``concrete`` have one entry per argument; ``concrete``
    has numbers and lists of them as text. An operator and its gradient share the number
    ``sequence``.
    """

    name: str
    thread: str
    start_ns: int
    end_ns: int
    parent: int | None = None
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[Any, ...] = ()
    concrete: tuple[Any, ...] = ()
    sequence: int | None = None

    @property
    def bare_name(self) -> str:
        """The name without its namespace: ``mm`` of ``aten::mm``."""
        return self.name.rpartition("::")[2]


@dataclass(frozen=True, slots=True)
class SyncRecord:
    """The wait of a call with the same ``correlation``. ``stream`` is the waiting stream; None if
    the host or every stream waits.

    ``on_stream`` is the stream on which the event was recorded, ``record`` the correlation of the
    call that recorded it.
    """

    name: str
    device: int
    stream: int | None
    start_ns: int
    end_ns: int
    correlation: int | None
    on_stream: int | None
    record: int | None


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """An allocation or a free (negative ``size_bytes``). ``device_type`` is torch's number: 0 the
    host, 1 CUDA, 6 HIP.
    """

    time_ns: int
    device_type: int
    device: int
    size_bytes: int
    thread: str
    address: int | None
    total_allocated: int | None
    total_reserved: int | None
    index: int | None
    """``Ev Idx``: the profiler's own numbering, by thread and not by time."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A named range of a host thread, such as ``ProfilerStep#7``."""

    name: str
    thread: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """An accelerator as the profiler lists it. Threads, registers and shared memory are per
    multiprocessor.
    """

    name: str
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    threads: int | None = None
    registers: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class KinetoTrace:
    """A recording; :mod:`hosim.io.importers.recordings.kineto` describes its fields."""

    name: str
    origin_ns: int
    ops: tuple[DeviceOp, ...]
    calls: tuple[HostCall, ...]
    cpu_ops: tuple[CpuOp, ...]
    syncs: tuple[SyncRecord, ...]
    memory: tuple[MemoryEvent, ...]
    annotations: tuple[Annotation, ...]
    devices: Mapping[int, DeviceInfo]
    modules: tuple[Annotation, ...] = ()
    """Calls of ``nn.Module``s, such as ``nn.Module: Linear_3``."""
    ranks: int = 1
    """The number of processes that ran the program together, by ``distributedInfo``."""

    @property
    def kernels(self) -> tuple[DeviceOp, ...]:
        """The kernels."""
        return tuple(op for op in self.ops if op.kind == "kernel")

    @property
    def copies(self) -> tuple[DeviceOp, ...]:
        """The copies."""
        return tuple(op for op in self.ops if op.kind == "copy")

    @property
    def span_ns(self) -> int:
        """The time from the first start of an op to the last end of one."""
        return max(op.end_ns for op in self.ops) - min(op.start_ns for op in self.ops)

    def operator_at(self, op: DeviceOp) -> int | None:
        """The position of the innermost operator around the launch of an op."""
        return self.calls[op.call].cpu_op if op.call is not None else None

    def operators_around(self, at: int | None) -> Iterator[int]:
        """Yield the position of an operator, then those of the operators that called it, from the
        inside to the outside; nothing for None.
        """
        while at is not None:
            yield at
            at = self.cpu_ops[at].parent

    @property
    def device_name(self) -> str | None:
        """The name of the busiest device; None if the trace does not have it."""
        used = [op.device for op in self.ops]
        busiest = max(dict.fromkeys(used), key=used.count, default=0)
        info = self.devices.get(busiest) or next(iter(self.devices.values()), None)
        return info.name if info else None

    def device_memory(self, device: int | None = None) -> tuple[MemoryEvent, ...]:
        """The memory events of all accelerators, or of the one with index ``device``."""
        return tuple(
            e for e in self.memory if e.device_type > 0 and (device is None or e.device == device)
        )

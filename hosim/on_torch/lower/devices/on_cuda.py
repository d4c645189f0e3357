"""A GPU: copy streams for each channel, events, pinned host memory, and torch's stream-ordered
allocator.

The host runs ahead: submitted work is launched at once on the stream of its queue, which waits for
events when the GPU gets there. Storages are freed and allocated in the order of the compute stream;
one that a copy still reads is freed when the host finds that it has ended
(:class:`CudaMemory`). A run ends when all is launched: the next one
begins while the GPU is still at work.

A thread for each channel reads and writes files, only between host memory and disk. A GPU cannot
wait for a thread: if a copy needs data that a thread has not brought yet, or if host memory is full
until a copy ends, the host waits before it launches more.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from hosim.data.allocator_blocks import in_blocks
from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.errors import ExecutionError, InputError
from hosim.hardware import Hardware
from hosim.on_torch.lower.devices import torch_gpu
from hosim.on_torch.lower.devices.cuda_graphs import CudaGraphs
from hosim.on_torch.lower.devices.cuda_queues import (
    ComputeQueue,
    CudaEvent,
    CudaQueue,
    DeferredCalls,
    FileQueue,
    LaunchedRun,
    now,
)
from hosim.on_torch.lower.tiers import (
    CHUNK_BYTES,
    DeviceBytes,
    Done,
    FileBlock,
    HostBytes,
    Place,
    RunMemory,
    TierBlock,
    copy_bytes,
    in_one_line,
    memory_of_tiers,
    part_of,
    shrink_host_memory,
)
from hosim.result import CACHING, EXPANDABLE
from hosim.units import human_size

# -- cuda memory
# --------------------------------------------------------------------------------------------------
# The memory of a GPU under a budget: what a program has allocated, what copies still read of what
# it has freed, and what is reserved.

RESERVE = 1.05
"""How many times its budget a program's part of torch's allocator may be: free memory lies in
pieces between what is held.
"""


class CudaMemory:
    """Storages of the GPU of number ``index``. ``budget_bytes`` bounds what the program holds, what
    copies still read included; ``None``: nothing does.
    """

    def __init__(self, calls: DeferredCalls, index: int) -> None:
        self.budget_bytes: int | None = None
        self._index = index
        self._callers_fraction = 1.0
        self.use = RunMemory()
        self._calls = calls
        self._freeing: dict[int, object] = {}
        self._pending_bytes = 0
        self._outside_bytes = 0
        self._slack_bytes = 0
        self._is_running = False

    def begin(self, resident_bytes: int) -> None:
        """Begin a run: find what is reserved for others, and give back what the model had before it
        was moved to other tiers.
        """
        self.use = RunMemory()
        self._is_running = True
        if self.budget_bytes is not None:
            self._calls.look()
            self._outside_bytes = max(
                0,
                torch_gpu.cuda.memory_allocated(self._index) - resident_bytes - self._pending_bytes,
            )
            if torch_gpu.cuda.memory_reserved(self._index) > self._limit_bytes():
                torch_gpu.cuda.empty_cache()
            self._callers_fraction = torch_gpu.cuda.get_per_process_memory_fraction(self._index)
            self._limit()

    def end(self) -> None:
        """End a run: note what torch's allocator has from the device, and what of it is beyond the
        budget.
        """
        self._is_running = False
        self._calls.look()
        self.use.reserved_bytes = torch_gpu.cuda.memory_reserved(self._index)
        if self.budget_bytes is not None:
            self.use.over_budget_bytes = max(
                0, self.use.reserved_bytes - self._outside_bytes - self.budget_bytes
            )
            torch_gpu.cuda.set_per_process_memory_fraction(self._callers_fraction, self._index)

    def _limit_bytes(self) -> int:
        """Return the bytes that torch's allocator may reserve for the whole process."""
        assert self.budget_bytes is not None
        return int(self._outside_bytes + self.budget_bytes * RESERVE + self._slack_bytes)

    def _limit(self) -> None:
        """Let torch's allocator give unused memory back before it takes more than the budget from
        the device.
        """
        _, total = torch_gpu.cuda.mem_get_info(self._index)
        torch_gpu.cuda.set_per_process_memory_fraction(
            min(self._callers_fraction, self._limit_bytes() / total), self._index
        )

    def allocate(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its bytes, in the order of the compute stream; bytes that a transfer still
        reads can be used again.
        """
        if self._freeing.pop(storage._cdata, None) is not None:
            self._pending_bytes -= in_blocks(storage.nbytes())
        elif storage.nbytes() != size_bytes:
            try:
                storage.resize_(size_bytes)
            except torch_gpu.cuda.OutOfMemoryError:
                self._allocate_again(storage, size_bytes)

    def _allocate_again(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its bytes once there is room. Raises torch's error if there never is."""
        may_help = True
        while may_help:
            may_help = self.recover()
            try:
                storage.resize_(size_bytes)
            except torch_gpu.cuda.OutOfMemoryError:
                if not may_help:
                    raise
            else:
                return

    def free(self, storage: Any, after: Sequence[Any]) -> None:
        """Free a storage's bytes once no transfer reads them, when the host next looks.

        ``Tensor.record_stream`` would give them to the allocator at once, which keeps them as long:
        then nothing would say how much waits.
        """
        key, token, size = storage._cdata, object(), in_blocks(storage.nbytes())
        if all([event.done() for event in after]):
            storage.resize_(0)
            return
        self._freeing[key] = token
        self._pending_bytes += size

        def now() -> None:
            if self._freeing.get(key) is token:
                del self._freeing[key]
                self._pending_bytes -= size
                storage.resize_(0)

        self._calls.later(after, now)

    def linger(self, size_bytes: int, after: Sequence[Any]) -> None:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Device.linger`."""
        size = in_blocks(size_bytes)
        self._pending_bytes += size

        def ended() -> None:
            self._pending_bytes -= size

        self._calls.later(after, ended)

    def hold_back(self, level_bytes: int) -> None:
        """Before the program holds ``level_bytes``: let the host wait until they, and what
        transfers still read, fit the budget.
        """
        if self._pending_bytes:
            self._calls.look()
            if self.budget_bytes is not None:
                while self._pending_bytes and level_bytes + self._pending_bytes > self.budget_bytes:
                    self._calls.wait_for_first()
        self.use.note(level_bytes, self._pending_bytes)

    def recover(self) -> bool:
        """After a request found no room: wait for all that is freed, and let the program reserve
        more; whether a second try may succeed.
        """
        waits = bool(self._pending_bytes)
        torch_gpu.cuda.synchronize(self._index)
        self._calls.look()
        torch_gpu.cuda.empty_cache()
        if waits:
            return True
        if (
            not self._is_running
            or self.budget_bytes is None
            or self._limit_bytes() >= torch_gpu.cuda.mem_get_info(self._index)[1]
        ):
            return False
        self._slack_bytes = max(2 * self._slack_bytes, int(self.budget_bytes / 64))
        self._limit()
        return True


# -- pinning ---------------------------------------------------------------------------------------


class CudaPinning:
    """As :class:`hosim.on_torch.lower.tiers.host_pool.Pinning`, by the driver of one device."""

    def __init__(self, index: int) -> None:
        self._index = index

    def pin(self, address: int, size_bytes: int) -> None:
        """Pin memory."""
        with torch_gpu.cuda.device(self._index):
            error = int(torch_gpu.cuda.cudart().cudaHostRegister(address, size_bytes, 0))
        if error:
            raise ExecutionError(
                f"the driver cannot pin {human_size(size_bytes)} of host memory (CUDA error "
                f"{error}): lower the tier's capacity, or "
                "raise the limit of locked memory (ulimit -l)"
            )

    def unpin(self, address: int) -> None:
        """Undo it."""
        with torch_gpu.cuda.device(self._index):
            torch_gpu.cuda.cudart().cudaHostUnregister(address)


# -- the device ------------------------------------------------------------------------------------


LAUNCHES = Runtime(
    "hosim.offload",
    source="CPU time of the executor on the stand-in for torch.cuda that its tests use",
    host=RuntimeFigure(12_000.0),
    host_copy=RuntimeFigure(30_000.0),
)
"""The host's time to launch an op, and a cache op beyond that."""


class CudaDevice:
    """A GPU: that of number ``index``, by default the current one, which stays what it is.
    ``directories`` has a folder for each tier that is made of files; the others are pinned host
    memory.

    The device is named in every call of torch that speaks of one: the caller may make another one
    current between two runs.

    Raises :class:`InputError` without a GPU, and for a channel that joins files and the device
    tier.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        directories: Mapping[str, str | os.PathLike[str]] | None = None,
        direct: bool = False,
        index: int | None = None,
    ) -> None:
        if not torch_gpu.cuda.is_available():
            raise InputError("expected a CUDA device, torch finds none", source="device")
        files = dict(directories or {})
        for channel in hardware.channels:
            if hardware.device_tier in (channel.source, channel.destination) and {
                channel.source,
                channel.destination,
            } & set(files):
                raise InputError(
                    f"channel {channel.name} joins files and the device tier; files are reached "
                    "through host memory",
                    source="hardware",
                )
        self._index = torch_gpu.cuda.current_device() if index is None else index
        self.torch_device = torch_gpu.gpu(self._index)
        self.allocator: str | None = allocator_of_torch()
        self.out_of_memory: tuple[type[Exception], ...] = (torch_gpu.cuda.OutOfMemoryError,)
        self.captures = False
        self.calls = DeferredCalls()
        self._run = LaunchedRun(self.calls)
        self._memory = CudaMemory(self.calls, self._index)
        self.allocate, self.free = self._memory.allocate, self._memory.free
        self.linger = self._memory.linger
        self.hold_back, self.recover = self._memory.hold_back, self._memory.recover
        self.later = self.calls.later
        self._main = self._caller = torch_gpu.cuda.current_stream(self._index)
        self._first: CudaEvent | None = None
        self.compute = ComputeQueue("compute", self._run, [self._main])
        self._channels: dict[str, CudaQueue | FileQueue] = {}
        for channel in hardware.channels:
            if {channel.source, channel.destination} & set(files):
                self._channels[channel.name] = FileQueue(channel.name, self._run, channel.engines)
            else:
                streams = [torch_gpu.cuda.Stream(self._index) for _ in range(channel.engines)]
                self._channels[channel.name] = CudaQueue(channel.name, self._run, streams)
        self._tiers = memory_of_tiers(
            hardware, files, self.later, direct=direct, pinning=CudaPinning(self._index)
        )
        pairs = [(c.source, c.destination) for c in hardware.channels]
        beside = {name for pair in pairs if hardware.device_tier in pair for name in pair}
        self._without_folder = set(self._tiers) - beside - set(files)

    def channel(self, name: str) -> CudaQueue | FileQueue:
        """The queue of a channel of the profile."""
        return self._channels[name]

    @property
    def runtime(self) -> Runtime | None:
        """As :class:`hosim.on_torch.lower.tiers.transfers.Device` has it."""
        return replace(LAUNCHES, segments=self.captures)

    @property
    def recording(self) -> bool:
        """Return whether to keep what :meth:`take_record` gives."""
        return self._run.recording

    @recording.setter
    def recording(self, is_wanted: bool) -> None:
        self._run.recording = is_wanted

    @property
    def budget_bytes(self) -> int | None:
        """The bytes of the device tier that a program may hold, what transfers still read
        included.
        """
        return self._memory.budget_bytes

    @budget_bytes.setter
    def budget_bytes(self, budget_bytes: int | None) -> None:
        self._memory.budget_bytes = budget_bytes

    @property
    def memory(self) -> RunMemory:
        """Return the peak of the memory held in the last run."""
        return self._memory.use

    # -- a run
    # ----------------------------------------------------------------------------------------------

    @contextmanager
    def running(self, resident_bytes: int = 0) -> Iterator[None]:
        """A context in which work is launched. At its end threads of files are done, and the GPU
        may still be at work.

        A caller on another stream than the one that this machine was made on is ordered: its work
        before the run comes first, and its work after the run waits.
        """
        run = self._run
        run.stopped = False
        run.culprits.clear()
        run.file_events.clear()
        run.timed.clear()
        self._caller = torch_gpu.cuda.current_stream(self._index)
        if self._caller != self._main:
            self._main.wait_stream(self._caller)
        if run.recording:
            torch_gpu.cuda.synchronize(self._index)  # nothing of the run before is in its times
        self._memory.begin(resident_bytes)
        self._first = now(self._main) if run.recording else None
        try:
            with torch_gpu.cuda.stream(self._main):
                yield
            for event in run.file_events:
                event.wait()
            if run.recording:
                torch_gpu.cuda.synchronize(self._index)
        except BaseException as error:
            run.culprits.setdefault(id(error), run.label)
            run.stopped = True
            raise
        finally:
            if run.stopped:
                for queue in self._channels.values():
                    if isinstance(queue, FileQueue):
                        queue.close()
                torch_gpu.cuda.synchronize(self._index)
            self._memory.end()
            if self._caller != self._main:
                self._caller.wait_stream(self._main)

    def graphs(self) -> CudaGraphs | None:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Device.graphs`."""
        return CudaGraphs(self._index) if self.captures else None

    def wait(self) -> None:
        """Wait for all that is launched."""
        torch_gpu.cuda.synchronize(self._index)
        self.calls.look()

    def hand_over(self, values: Sequence[Any]) -> None:
        """Let the caller use a run's results on its own stream: their memory is not reused before
        that stream has passed.
        """
        if self._caller != self._main:
            for value in values:
                if isinstance(value, torch.Tensor):
                    torch_gpu.used_on(value, self._caller)

    def blame(self, error: BaseException) -> str:
        """The work under way when ``error`` was raised, and the error, in one line."""
        return in_one_line(error, self._run.culprits.get(id(error)))

    def take_record(self) -> tuple[Done, ...]:
        """The work done in the last run, if ``recording`` is set, without reads and writes of
        files.
        """
        record = []
        for one in self._run.timed:
            assert self._first is not None
            free, start, end = (
                event.elapsed_ns(self._first) for event in (one.free, one.start, one.end)
            )
            # what a thread of files did, or what was launched before this run, has no time of the
            # GPU
            issued = (
                one.issued.elapsed_ns(self._first)
                if isinstance(one.issued, CudaEvent) and one.issued.is_timed
                else start
            )
            record.append(Done(one.label, one.queue, issued, free, start, end))
        self._run.timed.clear()
        return tuple(record)

    # -- memory
    # ----------------------------------------------------------------------------------------------

    def block(self, tier: str, size_bytes: int, owner: str) -> TierBlock:
        """A block of a tier below the device tier."""
        return self._tiers[tier].block(size_bytes, owner)

    def check_tiers(self, names: Iterable[str]) -> None:
        """Raise :class:`InputError` for a tier that no channel joins to the device tier and that
        has no folder: it is not host memory.
        """
        for name in names:
            if name in self._without_folder:
                raise InputError(
                    f"the plan uses tier {name}, which is not host memory: no channel joins it "
                    "and the device tier. Name a folder for it "
                    f'(directories={{"{name}": ...}}), or plan for a machine without it',
                    source="directories",
                )

    def shrink(self) -> None:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Device.shrink`."""
        shrink_host_memory(self._tiers)

    def on_device(self) -> DeviceBytes:
        """A place for bytes of the device tier."""
        return DeviceBytes()

    def move(self, channel: str, source: Any, destination: Any, start: int, stop: int) -> None:
        """Move the bytes ``[start, stop)`` of a tensor, on the stream or in the thread of the
        channel.
        """
        if isinstance(self._channels[channel], FileQueue):
            copy_bytes(source, destination, start, stop, start)
            return
        part_of(destination, start, stop).copy_(part_of(source, start, stop), non_blocking=True)

    def has(self, tensor: Any) -> bool:
        """Return whether a tensor is on this GPU."""
        return torch_gpu.is_on(tensor, self.torch_device)

    def to_host(self, tensor: Any) -> Any:
        """A copy of a tensor in the host's memory."""
        return torch_gpu.to_host(tensor)

    def move_now(self, source: Place, destination: Place) -> None:
        """Move all bytes before returning, while nothing else runs."""
        if (type(source), type(destination)) in ((FileBlock, HostBytes), (HostBytes, FileBlock)):
            copy_bytes(source, destination, 0, source.size_bytes, 0)
            return
        if hasattr(source, "bytes") and hasattr(destination, "bytes"):
            destination.bytes.copy_(source.bytes)
            return
        size = source.size_bytes
        staged = DeviceBytes()  # not of a tier, which may be full
        staged.size_bytes, staged.bytes = (
            size,
            torch.empty(min(size, CHUNK_BYTES), dtype=torch.uint8),
        )
        for start in range(0, size, CHUNK_BYTES):
            stop = min(start + CHUNK_BYTES, size)
            for one, other in ((source, staged), (staged, destination)):
                if hasattr(one, "bytes") and hasattr(other, "bytes"):
                    part_of(other, start, stop).copy_(part_of(one, start, stop))
                else:
                    copy_bytes(one, other, start, stop, start)

    def close(self) -> None:
        """Release everything: threads, memory, files."""
        for queue in self._channels.values():
            if isinstance(queue, FileQueue):
                queue.close()
        self.wait()  # no copy reads or writes what goes
        for tier in self._tiers.values():
            tier.close()


def allocator_of_torch() -> str:
    """Return the allocator that torch uses on a GPU, of those that hosim knows, by the
    environment.
    """
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get(
        "PYTORCH_ALLOC_CONF", ""
    )
    return EXPANDABLE if "expandable_segments:true" in settings.lower() else CACHING

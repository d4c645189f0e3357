"""A GPU: copy streams for each channel, events, pinned host memory, and torch's stream-ordered allocator.

The host runs ahead: submitted work is launched at once on the stream of its queue, which waits for events when the GPU gets there. Storages
are freed and allocated in the order of the compute stream. The block of a storage that a copy stream reads is marked as used there, so that
the allocator reuses it only after that copy has ended.

A thread for each channel reads and writes files, only between host memory and disk. A GPU cannot wait for a thread: if a copy needs data
that a thread has not brought yet, or if host memory is full until a copy ends, the host waits before it launches more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from typing import Any

from torch import cuda

from hosim.errors import ExecutionError, InputError
from hosim.hardware import Hardware
from hosim.lower.error_text import in_one_line
from hosim.lower.host_bytes import DeviceBytes, copy_bytes, part_of
from hosim.lower.host_pool import HostPool
from hosim.lower.tier_memory import memory_of_tiers
from hosim.lower.transfers import Done, Label, Place, TierBlock


class CudaEvent:
    """The end of everything launched on a stream so far; with times, also its start."""

    __slots__ = ("_end", "start")

    def __init__(self, end: Any, start: Any = None) -> None:
        self._end = end
        self.start = start

    def done(self) -> bool:
        """Whether the GPU has reached it."""
        return bool(self._end.query())

    def wait(self) -> None:
        """Let the host wait."""
        self._end.synchronize()

    def hold(self, stream: Any) -> None:
        """Let later work on a stream wait."""
        stream.wait_event(self._end)

    def elapsed_ns(self, since: Any) -> int:
        """Nanoseconds from another event, one of torch, to this one."""
        elapsed_ms: float = since.elapsed_time(self._end)
        return round(elapsed_ms * 1e6)


class ThreadEvent:
    """The end of a thread's work."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether it has ended."""
        return self._future.done()

    def wait(self) -> None:
        """Let the host wait; an error of the thread is raised here."""
        self._future.result()

    def hold(self, stream: Any) -> None:
        """Let the host wait, because a stream cannot."""
        self.wait()


class CudaQueue:
    """A queue of streams, one for each engine, taken in turn."""

    def __init__(self, name: str, device: CudaDevice, streams: Sequence[Any]) -> None:
        self.name = name
        self._device = device
        self._streams = cycle(streams)

    def submit(
        self,
        work: Callable[[], object],
        after: Sequence[Any] = (),
        label: Label | None = None,
        room: Callable[[], bool] | None = None,
        joins: Sequence[Any] = (),
    ) -> CudaEvent:
        """As :meth:`hosim.lower.transfers.Queue.submit`; launched at once, so its place in the queue is here."""
        device = self._device
        device.label = label
        stream = next(self._streams)
        for event in after:
            event.hold(stream)
        if room is not None:
            device.find(room)
        timed = device.recording and label is not None
        with cuda.stream(stream):
            start = device.now(stream) if timed else None
            work()
            event = CudaEvent(device.now(stream) if timed else _mark(stream), start)
        if timed:
            assert label is not None
            device.timed.append((label, self.name, after[0] if after else None, event))
        device.label = None
        return event


class FileQueue:
    """A queue between host memory and files, with a thread for each engine."""

    def __init__(self, name: str, device: CudaDevice, engines: int) -> None:
        self.name = name
        self._device = device
        self._threads = ThreadPoolExecutor(engines, thread_name_prefix=f"hosim {name}")

    def submit(
        self,
        work: Callable[[], object],
        after: Sequence[Any] = (),
        label: Label | None = None,
        room: Callable[[], bool] | None = None,
        joins: Sequence[Any] = (),
    ) -> ThreadEvent:
        """As :meth:`hosim.lower.transfers.Queue.submit`."""
        device = self._device
        device.label = label
        if room is not None:
            device.find(room)

        def run() -> None:
            try:
                for event in after:
                    event.wait()
                if not device.stopped:
                    work()
            except BaseException as error:
                device.culprits.setdefault(id(error), label)
                raise

        event = ThreadEvent(self._threads.submit(run))
        device.file_events.append(event)
        device.label = None
        return event

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._threads.shutdown(cancel_futures=True)


class CudaDevice:
    """A GPU. ``directories`` has a folder for each tier that is made of files; the others are pinned host memory.

    Raises :class:`InputError` without a GPU, and for a channel that joins files and the device tier.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        directories: Mapping[str, str | os.PathLike[str]] | None = None,
        direct: bool = False,
        index: int | None = None,
    ) -> None:
        if not cuda.is_available():
            raise InputError("expected a CUDA device, torch finds none", source="device")
        files = dict(directories or {})
        for channel in hardware.channels:
            if hardware.device_tier in (channel.source, channel.destination) and {channel.source, channel.destination} & set(files):
                raise InputError(
                    f"channel {channel.name} joins files and the device tier; files are reached through host memory", source="hardware"
                )
        cuda.set_device(cuda.current_device() if index is None else index)
        self.recording = False
        self.stopped = False
        self.label: Label | None = None
        self.culprits: dict[int, Label | None] = {}
        self.timed: list[tuple[Label, str, Any, CudaEvent]] = []
        self.file_events: list[ThreadEvent] = []
        self._main = cuda.current_stream()
        self._first: Any = None
        self._later: list[tuple[list[Any], Callable[[], None]]] = []
        self.compute = CudaQueue("compute", self, [self._main])
        self._copy_streams: list[Any] = []
        self._channels: dict[str, CudaQueue | FileQueue] = {}
        for channel in hardware.channels:
            if {channel.source, channel.destination} & set(files):
                self._channels[channel.name] = FileQueue(channel.name, self, channel.engines)
            else:
                streams = [cuda.Stream() for _ in range(channel.engines)]
                self._copy_streams += streams
                self._channels[channel.name] = CudaQueue(channel.name, self, streams)
        self._tiers = memory_of_tiers(hardware, files, self.later, direct=direct, pinned=True)

    def channel(self, name: str) -> CudaQueue | FileQueue:
        """The queue of a channel of the profile."""
        return self._channels[name]

    # -- events ------------------------------------------------------------------------------------------------

    def now(self, stream: Any) -> Any:
        """An event of torch with a time."""
        event = cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def later(self, after: Sequence[Any], then: Callable[[], None]) -> None:
        """Call ``then`` once all of ``after`` is done, when the host next checks."""
        self._later.append((list(after), then))
        self._look()

    def _look(self) -> None:
        waiting, self._later = self._later, []
        for after, then in waiting:
            if all(event.done() for event in after):
                then()
            else:
                self._later.append((after, then))

    def find(self, room: Callable[[], bool]) -> None:
        """Wait until there is room. Raises :class:`ExecutionError` if there never will be."""
        self._look()
        while not room():
            if not self._later:
                raise ExecutionError("finds no room")
            for event in self._later[0][0]:
                event.wait()
            self._look()

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which work is launched; at its end all work is done, or the error is raised."""
        self.stopped = False
        self.culprits.clear()
        self.file_events.clear()
        self.timed.clear()
        self._first = self.now(self._main) if self.recording else None
        for stream in self._copy_streams:
            stream.wait_stream(self._main)
        try:
            yield
            for event in self.file_events:
                event.wait()
            cuda.synchronize()
        except BaseException as error:
            self.culprits.setdefault(id(error), self.label)
            self.stopped = True
            raise
        finally:
            if self.stopped:
                for queue in self._channels.values():
                    if isinstance(queue, FileQueue):
                        queue.close()
                cuda.synchronize()
            self._look()

    def blame(self, error: BaseException) -> str:
        """The work under way when ``error`` was raised, and the error, in one line."""
        return in_one_line(error, self.culprits.get(id(error)))

    def take_record(self) -> tuple[Done, ...]:
        """The work done in the last run, if ``recording`` is set, without reads and writes of files."""
        record = []
        for label, queue, issued, event in self.timed:
            start = round(self._first.elapsed_time(event.start) * 1e6)
            issue = issued.elapsed_ns(self._first) if isinstance(issued, CudaEvent) else start
            record.append(Done(label, queue, issue, start, start, event.elapsed_ns(self._first)))
        self.timed.clear()
        return tuple(record)

    # -- memory ------------------------------------------------------------------------------------------------

    def block(self, tier: str, size_bytes: int, owner: str) -> TierBlock:
        """A block of a tier below the device tier."""
        return self._tiers[tier].block(size_bytes, owner)

    def on_device(self) -> DeviceBytes:
        """A place for bytes of the device tier."""
        return DeviceBytes()

    def allocate(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its bytes, in the order of the compute stream."""
        if storage.nbytes() != size_bytes:
            storage.resize_(size_bytes)

    def free(self, storage: Any, after: Sequence[Any]) -> None:
        """Free a storage's bytes; the allocator knows which copy streams still read them."""
        storage.resize_(0)

    def move(self, channel: str, source: Any, destination: Any, start: int, stop: int) -> None:
        """Move the bytes ``[start, stop)`` of a tensor, on the stream or in the thread of the channel."""
        if isinstance(self._channels[channel], FileQueue):
            copy_bytes(source, destination, start, stop, start)
            return
        if isinstance(source, DeviceBytes):
            _used_on(source.bytes, cuda.current_stream())
        part_of(destination, start, stop).copy_(part_of(source, start, stop), non_blocking=True)

    def move_now(self, source: Place, destination: Place) -> None:
        """Move all bytes before returning, while nothing else runs."""
        if hasattr(source, "bytes") and hasattr(destination, "bytes"):
            destination.bytes.copy_(source.bytes)
            return
        staged = self._tiers[next(name for name, tier in self._tiers.items() if isinstance(tier, HostPool))].block(source.size_bytes, "")
        self.find(staged.take)
        for one, other in ((source, staged), (staged, destination)):
            if hasattr(one, "bytes") and hasattr(other, "bytes"):
                other.bytes.copy_(one.bytes)
            else:
                copy_bytes(one, other, 0, source.size_bytes, 0)
        staged.release()

    def close(self) -> None:
        """Release everything: threads, memory, files."""
        for queue in self._channels.values():
            if isinstance(queue, FileQueue):
                queue.close()
        for tier in self._tiers.values():
            tier.close()


def _mark(stream: Any) -> Any:
    event = cuda.Event()
    event.record(stream)
    return event


def _used_on(tensor: Any, stream: Any) -> None:
    """Keep the allocator from reusing the tensor's block before the work queued on the stream has ended."""
    tensor.record_stream(stream)

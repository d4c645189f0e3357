"""The only access to the GPU: streams, events, copies, pinned memory, and the counters of the
allocator.

`CudaBackend` is the real one. `CpuBackend` replaces it without a GPU: its compute stream works at
once, and its copy streams as late as the waits allow. A scheme that forgets to wait thus computes
with data that has not arrived, and its loss shows it.
"""

import contextlib
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

MAIN, TO_DEVICE, TO_HOST = "main", "h2d", "d2h"
"""The streams of a device: the one that computes, and one for the copies of each direction."""


class CudaBackend:
    """A CUDA (or HIP) device. All its methods but `synchronize` only queue work."""

    kind = "cuda"

    def __init__(self, index: int = 0) -> None:
        torch.cuda.set_device(index)
        self.torch_device = torch.device("cuda", index)
        self._streams = {
            MAIN: torch.cuda.current_stream(),
            TO_DEVICE: torch.cuda.Stream(),
            TO_HOST: torch.cuda.Stream(),
        }

    def empty(self, count: int, dtype: Any) -> Any:
        """An uninitialised flat tensor on the device, allocated on the compute stream."""
        return torch.empty(count, dtype=dtype, device=self.torch_device)

    def host(self, count: int, dtype: Any, pinned: bool = True) -> Any:
        """A flat tensor in host memory."""
        return torch.empty(count, dtype=dtype, pin_memory=pinned)

    def copy(self, stream: str, destination: Any, source: Any) -> None:
        """Queue a copy on a stream. The host waits for copies from or to pageable memory."""
        with torch.cuda.stream(self._streams[stream]):
            destination.copy_(source, non_blocking=True)

    def mark(self, stream: str) -> Any:
        """An event after everything queued on the stream so far."""
        event = torch.cuda.Event()
        event.record(self._streams[stream])
        return event

    def wait(self, stream: str, event: Any) -> None:
        """Let later work on the stream wait for the event."""
        self._streams[stream].wait_event(event)

    def synchronize(self) -> None:
        """The host waits for everything."""
        torch.cuda.synchronize()

    def time_copies(self, copies: list[tuple[str, Any, Any]]) -> int:
        """Nanoseconds from the start of the first to the end of the last of ``copies`` (stream,
        destination, source), by device events.
        """
        marks = []
        self.synchronize()
        for stream, destination, source in copies:
            queue = self._streams[stream]
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(queue)
            self.copy(stream, destination, source)
            end.record(queue)
            marks.append((start, end))
        self.synchronize()
        first = marks[0][0]
        begin: float = min(first.elapsed_time(start) for start, _ in marks)
        end_ms: float = max(first.elapsed_time(end) for _, end in marks)
        return round((end_ms - begin) * 1e6)

    def time_both(
        self, kernels: Sequence[Callable[[], Any]], copies: list[tuple[str, Any, Any]]
    ) -> tuple[int, int]:
        """Nanoseconds that kernels on the compute stream, and copies (all on one stream) that are
        queued with them, take; 0 for none.
        """
        self.synchronize()
        spans = []
        for stream, work in ((copies[0][0] if copies else TO_DEVICE, copies), (MAIN, kernels)):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(self._streams[stream])
            for one in work:
                self.copy(*one) if isinstance(one, tuple) else one()
            end.record(self._streams[stream])
            spans.append((start, end, bool(work)))
        self.synchronize()
        took = [round(start.elapsed_time(end) * 1e6) if some else 0 for start, end, some in spans]
        return took[1], took[0]

    def time_calls(self, call: Callable[[], Any], count: int) -> int:
        """Nanoseconds of one of ``count`` calls that a CUDA graph runs one after the other, so that
        no launch of the host is in it.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        graph.replay()
        return round(self.time_both([graph.replay], [])[0] / count)

    def reset_peaks(self) -> None:
        """Start counting peaks."""
        torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, int] | None:
        """``max_memory_allocated`` and ``max_memory_reserved`` since `reset_peaks`, and the bytes
        allocated now.
        """
        return {
            "max_memory_allocated": torch.cuda.max_memory_allocated(),
            "max_memory_reserved": torch.cuda.max_memory_reserved(),
            "memory_allocated": torch.cuda.memory_allocated(),
            "memory_reserved": torch.cuda.memory_reserved(),
        }

    def empty_caches(self) -> None:
        """Return unused memory of the device and pinned allocators to the driver."""
        torch.cuda.empty_cache()
        empty_host = getattr(torch._C, "_host_emptyCache", None)  # since torch 2.5
        if empty_host is not None:
            empty_host()

    @contextlib.contextmanager
    def history(self, kept: list[Any]) -> Iterator[None]:
        """Record the allocator's history inside, and append the snapshot to ``kept``."""
        memory = torch.cuda.memory
        memory._record_memory_history(enabled="all", context=None, max_entries=1 << 20)
        try:
            yield
            self.synchronize()
            kept.append(memory._snapshot())
        finally:
            memory._record_memory_history(enabled=None)

    def activities(self) -> list[Any]:
        """Return the activities that the profiler records."""
        return [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]

    def describe(self) -> dict[str, Any]:
        """The device and its software, for the record."""
        properties = torch.cuda.get_device_properties(self.torch_device)
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        return {
            "kind": self.kind,
            "name": properties.name,
            "index": self.torch_device.index,
            "total_memory_bytes": properties.total_memory,
            "free_memory_bytes": free,
            "host_memory_bytes": host_memory_bytes(),
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "driver": _driver(),
            "allocator": torch.cuda.get_allocator_backend(),
        }


@dataclass(eq=False)
class _Queue:
    """A copy stream of the CPU backend: its queued work, and how much of that is done."""

    work: list[Callable[[], None] | None] = field(default_factory=list)
    done: int = 0

    def run(self, until: int) -> None:
        while self.done < until:
            work = self.work[self.done]
            self.work[self.done] = None
            self.done += 1
            assert work is not None
            work()


class CpuBackend:
    """The CPU backend. If ``lazy``, copies happen only when something waits for them, otherwise at
    once.
    """

    kind = "cpu"

    def __init__(self, lazy: bool = True) -> None:
        self.torch_device = torch.device("cpu")
        self._lazy = lazy
        self._queues = {TO_DEVICE: _Queue(), TO_HOST: _Queue()}

    def empty(self, count: int, dtype: Any) -> Any:
        """A flat tensor, filled with NaN if the type has it, so that reading it too early shows."""
        return torch.full((count,), float("nan") if dtype.is_floating_point else 255, dtype=dtype)

    def host(self, count: int, dtype: Any, *_: bool) -> Any:
        """As `empty`: no memory of the stand-in is pinned."""
        return self.empty(count, dtype)

    def copy(self, stream: str, destination: Any, source: Any) -> None:
        """Queue a copy."""
        self._queue(stream, lambda: destination.copy_(source))

    def mark(self, stream: str) -> Any:
        """An event: the stream, and how much of its work it stands for."""
        return stream, len(self._queues[stream].work) if stream in self._queues else 0

    def wait(self, stream: str, event: Any) -> None:
        """As `CudaBackend.wait`."""
        other, until = event
        if other in self._queues and other != stream:
            self._queue(stream, lambda: self._queues[other].run(until))

    def synchronize(self) -> None:
        """All queued work is done."""
        for queue in self._queues.values():
            queue.run(len(queue.work))

    def time_copies(self, copies: list[tuple[str, Any, Any]]) -> int:
        """Nanoseconds by the host's clock."""
        self.synchronize()
        start = time.perf_counter_ns()
        for stream, destination, source in copies:
            self.copy(stream, destination, source)
        self.synchronize()
        return time.perf_counter_ns() - start

    def time_both(
        self, kernels: Sequence[Callable[[], Any]], copies: list[tuple[str, Any, Any]]
    ) -> tuple[int, int]:
        """As `CudaBackend.time_both`, one after the other."""
        self.synchronize()
        looks = [time.perf_counter_ns()]
        for work in (kernels, copies):
            for one in work:
                self.copy(*one) if isinstance(one, tuple) else one()
            self.synchronize()
            looks.append(time.perf_counter_ns())
        took = [
            max(1, after - before) if work else 0
            for work, before, after in zip((kernels, copies), looks, looks[1:], strict=False)
        ]
        return took[0], took[1]

    def time_calls(self, call: Callable[[], Any], count: int) -> int:
        """As `CudaBackend.time_calls`, by the host's clock."""
        return max(1, round(self.time_both([call] * count, [])[0] / count))

    def reset_peaks(self) -> None:
        """There are none."""

    def peaks(self) -> dict[str, int] | None:
        """None: torch counts no host memory."""
        return None

    def empty_caches(self) -> None:
        """There are none."""

    @contextlib.contextmanager
    def history(self, kept: list[Any]) -> Iterator[None]:
        """Nothing is recorded: torch keeps no history of host memory."""
        yield

    def activities(self) -> list[Any]:
        """Return the activities that the profiler records."""
        return [torch.profiler.ProfilerActivity.CPU]

    def describe(self) -> dict[str, Any]:
        """The machine, for the record."""
        return {
            "kind": self.kind,
            "index": 0,
            "name": platform.machine(),
            "driver": None,
            "host_memory_bytes": host_memory_bytes(),
        }

    def _queue(self, stream: str, work: Callable[[], None]) -> None:
        queue = self._queues.get(stream)
        if queue is None:
            work()
            return
        queue.work.append(work)
        if not self._lazy:
            queue.run(len(queue.work))


Device = CudaBackend | CpuBackend


def host_memory_bytes() -> int:
    """Bytes of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _driver() -> str | None:
    """The version of NVIDIA's kernel driver; None where the system does not say."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return found.group() if found else None

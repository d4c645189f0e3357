"""Events and queues of a GPU: streams that launched work runs on, threads that read and write
files, and calls that wait for events. A GPU says nothing by itself: the host makes these calls when
it looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import Any

from hosim.errors import ExecutionError
from hosim.on_torch.lower.devices import torch_gpu
from hosim.on_torch.lower.tiers import Label

# -- deferred calls --------------------------------------------------------------------------------


class DeferredCalls:
    """Calls in the order of their queues. An event has ``done``, ``wait`` and the name of its
    ``queue``.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[tuple[int, list[Any], Callable[[], None]]]] = {}
        self._count = count()

    def later(self, after: Sequence[Any], then: Callable[[], None]) -> None:
        """Call ``then`` once all of ``after`` is done, when the host next checks; calls that wait
        for one queue keep their order.
        """
        if all([event.done() for event in after]):
            then()
        else:
            self._waiting.setdefault(after[-1].queue, deque()).append(
                (next(self._count), list(after), then)
            )

    def look(self) -> None:
        """Make the calls whose events are done."""
        for waiting in self._waiting.values():
            while waiting and all([event.done() for event in waiting[0][1]]):
                waiting.popleft()[2]()

    def find(self, room: Callable[[], bool]) -> None:
        """Wait until there is room. Raises :class:`ExecutionError` if there never will be."""
        self.look()
        while not room():
            if not any(self._waiting.values()):
                raise ExecutionError("finds no room")
            self.wait_for_first()

    def wait_for_first(self) -> None:
        """Wait for what the first of the calls to come waits for."""
        _, after, _ = min(
            waiting[0] for waiting in self._waiting.values() if waiting
        )  # by number, which no two share
        for event in after:
            event.wait()
        self.look()


# -- queues ----------------------------------------------------------------------------------------


class CudaEvent:
    """The end of everything launched on a stream so far. ``is_timed`` says whether torch can tell
    its time.
    """

    __slots__ = ("_end", "is_timed", "queue")

    def __init__(self, end: Any, is_timed: bool = False, queue: str = "") -> None:
        self._end = end
        self.is_timed = is_timed
        self.queue = queue

    def done(self) -> bool:
        """Return whether the GPU has reached it."""
        return bool(self._end.query())

    def wait(self) -> None:
        """Let the host wait."""
        self._end.synchronize()

    def hold(self, stream: Any) -> None:
        """Let later work on a stream wait."""
        stream.wait_event(self._end)

    def elapsed_ns(self, since: CudaEvent) -> int:
        """Nanoseconds from another event to this one; torch raises :class:`ValueError` if one of
        them has no time.
        """
        elapsed_ms: float = since._end.elapsed_time(self._end)
        return round(elapsed_ms * 1e6)


class ThreadEvent:
    """The end of a thread's work."""

    __slots__ = ("_future", "queue")

    def __init__(self, future: Future[None], queue: str) -> None:
        self._future = future
        self.queue = queue

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._future.done()

    def wait(self) -> None:
        """Let the host wait; an error of the thread is raised here."""
        self._future.result()

    def hold(self, stream: Any) -> None:
        """Let the host wait, because a stream cannot."""
        self.wait()


@dataclass(frozen=True, slots=True)
class TimedWork:
    """Work whose times are asked for: the first event that it waits for, when its stream was free,
    its start and its end.
    """

    label: Label
    queue: str
    issued: Any
    free: CudaEvent
    start: CudaEvent
    end: CudaEvent


@dataclass(slots=True)
class LaunchedRun:
    """The notes of a device's queues on the run under way.

    ``label`` is that of the work being launched and ``culprits`` those of errors in threads by the
    error's identity; ``calls`` wait for events. With ``recording``, ``timed`` has the work that is
    done; ``file_events`` are the ends of the threads' work, which is dropped once ``stopped`` is
    set.
    """

    calls: DeferredCalls
    recording: bool = False
    stopped: bool = False
    label: Label | None = None
    culprits: dict[int, Label | None] = field(default_factory=dict)
    timed: list[TimedWork] = field(default_factory=list)
    file_events: list[ThreadEvent] = field(default_factory=list)


def now(stream: Any, queue: str = "") -> CudaEvent:
    """An event with a time on a stream, of a queue."""
    event = torch_gpu.cuda.Event(enable_timing=True)
    event.record(stream)
    return CudaEvent(event, True, queue)


class CudaQueue:
    """A queue of streams, one for each engine, taken in turn."""

    def __init__(self, name: str, run: LaunchedRun, streams: Sequence[Any]) -> None:
        self.name = name
        self._run = run
        self.stream = streams[0]
        self._streams = cycle(streams)

    def submit(
        self,
        work: Callable[[], object],
        after: Sequence[Any] = (),
        label: Label | None = None,
        room: Callable[[], bool] | None = None,
        joins: Sequence[Any] = (),
    ) -> CudaEvent:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Queue.submit`; launched at once, so its
        place in the queue is here.
        """
        launched = self._run
        launched.label = label
        stream = next(self._streams)
        timed = launched.recording
        free = now(stream) if timed else None
        for event in after:
            event.hold(stream)
        if room is not None:
            launched.calls.find(room)
        with torch_gpu.cuda.stream(stream):
            start = now(stream) if timed else None
            work()
            event = now(stream, self.name) if timed else _mark(stream, self.name)
        if label is not None and free is not None and start is not None:
            launched.timed.append(
                TimedWork(label, self.name, after[0] if after else None, free, start, event)
            )
        launched.label = None
        return event


class ComputeQueue(CudaQueue):
    """The queue of the stream that is current during a run."""

    def launch(
        self, work: Callable[[], object], after: Sequence[Any], label: Label | None
    ) -> object:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Queue.launch`; an event costs as much as a
        small op, so there is none.
        """
        if self._run.recording:
            return self.submit(work, after, label)
        self._run.label = label
        for event in after:
            event.hold(self.stream)
        work()
        self._run.label = None
        return None


class FileQueue:
    """A queue between host memory and files, with a thread for each engine."""

    def __init__(self, name: str, run: LaunchedRun, engines: int) -> None:
        self.name = name
        self._run = run
        self._threads = ThreadPoolExecutor(engines, thread_name_prefix=f"hosim {name}")

    def submit(
        self,
        work: Callable[[], object],
        after: Sequence[Any] = (),
        label: Label | None = None,
        room: Callable[[], bool] | None = None,
        joins: Sequence[Any] = (),
    ) -> ThreadEvent:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Queue.submit`."""
        launched = self._run
        launched.label = label
        if room is not None:
            launched.calls.find(room)

        def run() -> None:
            try:
                for event in after:
                    event.wait()
                if not launched.stopped:
                    work()
            except BaseException as error:
                launched.culprits.setdefault(id(error), label)
                raise

        event = ThreadEvent(self._threads.submit(run), self.name)
        launched.file_events.append(event)
        launched.label = None
        return event

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._threads.shutdown(cancel_futures=True)


def _mark(stream: Any, queue: str) -> CudaEvent:
    event = torch_gpu.cuda.Event()
    event.record(stream)
    return CudaEvent(event, queue=queue)

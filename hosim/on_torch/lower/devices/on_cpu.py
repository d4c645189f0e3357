"""A machine without a GPU: the device tier is memory of the CPU, and a thread for each engine of
each channel copies.

Computation runs in the calling thread, so that the caller's settings for its thread hold. It runs
behind the host, which queues up to ``ahead`` pieces of work before it takes one from the queue: as
on a GPU, an op that does not wait for its transfer computes with bytes that have not arrived.

With ``throttle``, transfers keep to the pace of the profile's channels
(:mod:`hosim.on_torch.lower.devices.pace`); without, they are as fast as memory and disk. With
``synchronous`` there are no copy threads: each transfer runs at its place among the ops.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from hosim.data.runtime import Runtime
from hosim.errors import ExecutionError
from hosim.hardware import Hardware
from hosim.on_torch.lower.devices.pace import Pace, paces
from hosim.on_torch.lower.tiers import (
    ALIGNMENT,
    DeviceBytes,
    Done,
    Label,
    Place,
    RunMemory,
    TierBlock,
    copy_bytes,
    in_one_line,
    memory_of_tiers,
    shrink_host_memory,
)

# -- work on the CPU -------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class CpuEvent:
    """The end of one piece of work. ``is_awaited`` says whether other work waits for it."""

    is_done: bool = False
    is_awaited: bool = False
    end_ns: int = 0
    then: list[Callable[[], None]] = field(default_factory=list)

    def done(self) -> bool:
        """Return whether it has ended."""
        return self.is_done


@dataclass(eq=False, slots=True)
class CpuWork:
    """One piece of work of a queue: what it waits for, and when it could have started."""

    run: Callable[[], object] | None
    after: tuple[CpuEvent, ...]
    label: Label | None
    room: Callable[[], bool] | None
    event: CpuEvent
    found_none: bool = False

    def ready(self) -> bool:
        """Return whether what it waits for has ended, and there is room."""
        if not all([event.is_done for event in self.after]):
            return False
        if self.room is None or self.room():
            return True
        self.found_none = True
        return False

    def ready_ns(self, now_ns: int) -> int:
        """The earliest time at which it could have started, as far as known."""
        return (
            now_ns
            if self.found_none or not self.after
            else max(event.end_ns for event in self.after)
        )


# -- the device ------------------------------------------------------------------------------------


SLICE_BYTES = 4 << 20
"""The number of bytes to copy at once without throttling."""

AHEAD = 1024
"""The number of pieces of work by which the host may be ahead of the computation: about as many as
CUDA queues kernels.
"""


class _StoppedError(Exception):
    """Ends a run that is complete, or in which something else failed."""


class CpuQueue:
    """One queue. Work is taken only from its head, so work that waits there holds back later
    work.
    """

    def __init__(self, name: str, device: CpuDevice, ahead: int | None = None) -> None:
        self.name = name
        self.items: deque[CpuWork] = deque()
        self._device = device
        self._ahead = ahead

    def submit(
        self,
        work: Callable[[], object],
        after: Sequence[Any] = (),
        label: Label | None = None,
        room: Callable[[], bool] | None = None,
        joins: Sequence[Any] = (),
    ) -> CpuEvent:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Queue.submit`."""
        event = CpuEvent()
        item = CpuWork(work, tuple(after), label, room, event)
        in_line = self._ahead is not None  # the queue that computes is in the order of the program
        self._device.admit(self, item, () if in_line else joins)
        if self._ahead is not None and len(self.items) > self._ahead:
            self.step()  # this thread is the one that computes
        return event

    launch = submit

    def step(self) -> None:
        """Do the work at the head as soon as it is ready."""
        device = self._device
        waits_from = time.perf_counter_ns()
        item = device.next_of(self)
        start = time.perf_counter_ns()
        run, item.run = item.run, None
        assert run is not None
        device.doing(item.label, item.ready_ns(start))
        run()
        del run  # what it held may be freed with it
        device.ended(self, item, waits_from, start)


class CpuDevice:
    """The machine. ``directories`` has a folder for each tier that is made of files; the other
    tiers are host memory.

    Tiers have the capacities of the profile, except the device tier, which only counts. Raises
    :class:`InputError` for a folder that cannot be used, and for an unknown tier.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        throttle: bool = False,
        synchronous: bool = False,
        directories: Mapping[str, str | os.PathLike[str]] | None = None,
        direct: bool = False,
        ahead: int = AHEAD,
    ) -> None:
        self.hardware = hardware
        self.recording = self.captures = False
        self.budget_bytes: int | None = None
        self.memory = RunMemory()
        self.runtime: Runtime | None = None
        self.out_of_memory: tuple[type[Exception], ...] = (
            MemoryError,
            RuntimeError,
        )  # torch raises the latter for memory of the CPU
        self.torch_device = torch.device("cpu")
        self.allocator: str | None = None
        self.compute = CpuQueue("compute", self, ahead)
        # One lock for all queues: pieces of work are long beside what it protects.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stop = threading.Event()
        self._channels: dict[str, CpuQueue] = {}
        self._engines: list[CpuQueue] = []
        for channel in hardware.channels:
            queue = self.compute if synchronous else CpuQueue(channel.name, self)
            self._channels[channel.name] = queue
            self._engines += [] if synchronous else [queue] * channel.engines
        self._paces: dict[str, Pace] = paces(hardware, self._sleep) if throttle else {}
        self._tiers = memory_of_tiers(hardware, directories or {}, self.later, direct=direct)
        self._outstanding = 0
        self._waiting: list[Callable[[], bool]] = []
        self._threads: list[threading.Thread] = []
        self._is_running = False
        self._error: BaseException | None = None
        self._culprit: Label | None = None
        self._local = threading.local()
        self._freeing: dict[int, object] = {}
        self._pending_bytes = 0
        self._record: list[Done] = []

    # -- queues
    # ----------------------------------------------------------------------------------------------

    def channel(self, name: str) -> CpuQueue:
        """The queue of a channel of the profile."""
        return self._channels[name]

    def _sleep(self, seconds: float) -> None:
        """Wait, or less if the run stops."""
        self._stop.wait(seconds)

    def admit(self, queue: CpuQueue, item: CpuWork, joins: Sequence[CpuEvent]) -> None:
        """Put work into a queue once all of ``joins`` is done."""
        with self._changed:
            if self._stop.is_set():
                raise _StoppedError
            self._outstanding += 1
            for event in item.after:
                event.is_awaited = True
            if queue is self.compute:
                queue.items.append(item)
            else:
                self.later(joins, lambda: queue.items.append(item))

    def next_of(self, queue: CpuQueue) -> CpuWork:
        """The head of a queue, taken from it when it is ready."""
        with self._changed:
            self._await(lambda: bool(queue.items) and queue.items[0].ready())
            return queue.items.popleft()

    def doing(self, label: Label | None, ready_ns: float = 0) -> None:
        """Record what this thread does, for an error message, and the earliest time at which it
        could.
        """
        self._local.label = label
        self._local.ready_ns = ready_ns

    def ended(self, queue: CpuQueue, item: CpuWork, free_ns: int, start_ns: int) -> None:
        """Finish a piece of work."""
        event = item.event
        self.doing(None)
        with self._changed:
            event.end_ns = time.perf_counter_ns()
            event.is_done = True
            then, event.then = event.then, []
            for call in then:
                call()
            self._outstanding -= 1
            if event.is_awaited or then or not self._outstanding:
                self._changed.notify_all()  # waking threads costs more than most small ops
            if self.recording and item.label is not None:
                issued = item.after[0].end_ns if item.after else start_ns
                self._record.append(
                    Done(item.label, queue.name, issued, free_ns, start_ns, event.end_ns)
                )

    def later(self, after: Sequence[Any], then: Callable[[], None]) -> None:
        """Call ``then`` once all of ``after`` is done: now, or in the thread that does the last of
        it.
        """
        with self._changed:
            left = [event for event in after if not event.is_done]
            count = len(left)

            def one_less() -> None:
                nonlocal count
                count -= 1
                if not count:
                    then()

            for event in left:
                event.then.append(one_less)
            if not count:
                then()
                self._changed.notify_all()

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait, holding the lock. If all threads wait and none can proceed, raise an error instead
        of waiting forever.
        """
        self._waiting.append(condition)
        try:
            while not self._stop.is_set() and not condition():
                if len(self._waiting) > len(self._threads) and not any(
                    [other() for other in self._waiting]
                ):
                    self._fail(ExecutionError(self._stuck()), None)
                    break
                self._changed.wait()
        finally:
            self._waiting.remove(condition)
        if self._stop.is_set():
            raise _StoppedError

    def _stuck(self) -> str:
        heads = [
            queue.items[0] for queue in dict.fromkeys([self.compute, *self._engines]) if queue.items
        ]
        for item in heads:
            if all(event.is_done for event in item.after) and item.label is not None:
                return f"nothing can proceed: no room for {item.label.text}"
        what = next((item.label.text for item in heads if item.label is not None), "some work")
        return f"nothing can proceed: {what} waits for work that never ends"

    # -- a run
    # ----------------------------------------------------------------------------------------------

    @contextmanager
    def running(self, resident_bytes: int = 0) -> Iterator[None]:
        """A context in which work is queued; at its end all work is done, or the error is raised,
        and no thread is left.
        """
        self._error = self._culprit = None
        self.memory = RunMemory()
        self._outstanding = 0
        self._stop.clear()
        self._threads = [
            threading.Thread(target=self._engine, args=(queue,), name=f"hosim {queue.name}")
            for queue in self._engines
        ]
        self._is_running = True
        started = []
        try:
            for thread in self._threads:
                thread.start()
                started.append(thread)
            yield
            while self.compute.items:
                self.compute.step()
            with self._changed:
                self._await(lambda: not self._outstanding)
        except _StoppedError:
            assert self._error is not None
            raise self._error from None
        except BaseException as error:
            self._fail(error, getattr(self._local, "label", None))
            raise
        finally:
            self._is_running = False
            self._stop.set()
            with self._changed:
                self._changed.notify_all()
            self._let_go()
            for thread in started:
                thread.join()
            self._threads = []
            for queue in (self.compute, *self._engines):
                queue.items.clear()
            self.doing(None)

    def _let_go(self) -> None:
        """Release the lock that an interrupt may have left taken, if it came between taking and
        releasing it.
        """
        with suppress(RuntimeError):
            while True:
                self._lock.release()

    def _engine(self, queue: CpuQueue) -> None:
        try:
            while True:
                queue.step()
        except _StoppedError:
            pass
        except BaseException as error:
            self._fail(error, getattr(self._local, "label", None))

    def _fail(self, error: BaseException, culprit: Label | None) -> None:
        with self._changed:
            if self._error is None:
                self._error, self._culprit = error, culprit
            self._stop.set()
            self._changed.notify_all()

    def wait(self) -> None:
        """All work has ended with its run."""

    def hand_over(self, values: Sequence[Any]) -> None:
        """They are the caller's."""

    def blame(self, error: BaseException) -> str:
        """The work under way when ``error`` was raised, and the error, in one line."""
        return in_one_line(error, self._culprit if error is self._error else None)

    def take_record(self) -> tuple[Done, ...]:
        """The work done since the last call, if ``recording`` is set."""
        record, self._record = self._record, []
        return tuple(record)

    # -- memory
    # ----------------------------------------------------------------------------------------------

    def block(self, tier: str, size_bytes: int, owner: str) -> TierBlock:
        """A block of a tier below the device tier."""
        return self._tiers[tier].block(size_bytes, owner)

    def check_tiers(self, names: Iterable[str]) -> None:
        """Every tier is memory of the CPU, or files."""

    def shrink(self) -> None:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Device.shrink`."""
        shrink_host_memory(self._tiers)

    def on_device(self) -> DeviceBytes:
        """A place for bytes of the device tier."""
        return DeviceBytes()

    def allocate(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its bytes; bytes that a transfer still reads are unchanged and can be used
        again.
        """
        with self._changed:
            if self._freeing.pop(storage._cdata, None) is not None:
                self._pending_bytes -= storage.nbytes()
            elif storage.nbytes() != size_bytes:
                storage.resize_(size_bytes)

    def free(self, storage: Any, after: Sequence[Any]) -> None:
        """Free a storage's bytes once no transfer reads them."""
        key, token = storage._cdata, object()
        with self._changed:
            if key not in self._freeing:
                self._pending_bytes += storage.nbytes()
            self._freeing[key] = token

            def now() -> None:
                if self._freeing.get(key) is token:
                    del self._freeing[key]
                    self._pending_bytes -= storage.nbytes()
                    storage.resize_(0)

            self.later(after, now)

    def linger(self, size_bytes: int, after: Sequence[Any]) -> None:
        """As :meth:`hosim.on_torch.lower.tiers.transfers.Device.linger`."""

        def ended() -> None:
            self._pending_bytes -= size_bytes

        with self._changed:
            self._pending_bytes += size_bytes
            self.later(after, ended)

    def hold_back(self, level_bytes: int) -> None:
        """Note what is held. Memory of the CPU is there for transfers that are slow."""
        self.memory.note(level_bytes, self._pending_bytes)

    def graphs(self) -> None:
        """There are none: launching is no work of its own."""

    def recover(self) -> bool:
        """There is nothing to give back."""
        return False

    def move(self, channel: str, source: Any, destination: Any, start: int, stop: int) -> None:
        """Move the bytes ``[start, stop)`` of a tensor, at the channel's pace if there is one."""
        pace = self._paces.get(channel)
        if pace is None:
            self._move_slices(source, destination, start, stop, SLICE_BYTES, lambda moved: None)
            return
        size = -(-pace.slice_bytes // ALIGNMENT) * ALIGNMENT
        label = getattr(self._local, "label", None)
        with pace.transfer(
            stop - start, None if label is None else label.kind, self._local.ready_ns
        ) as moved:
            self._move_slices(source, destination, start, stop, size, moved)

    def _move_slices(
        self,
        source: Any,
        destination: Any,
        start: int,
        stop: int,
        size: int,
        moved: Callable[[int], None],
    ) -> None:
        for at in range(start, stop, size):
            if self._stop.is_set() and self._is_running:
                raise _StoppedError
            end = min(at + size, stop)
            copy_bytes(source, destination, at, end, start)
            moved(end - at)

    def has(self, tensor: Any) -> bool:
        """Return whether a tensor is in memory of the CPU."""
        return bool(tensor.device.type == "cpu")

    def to_host(self, tensor: Any) -> Any:
        """The tensor itself."""
        return tensor

    def move_now(self, source: Place, destination: Place) -> None:
        """Move all bytes before returning, while nothing else runs."""
        self._move_slices(
            source, destination, 0, source.size_bytes, SLICE_BYTES, lambda moved: None
        )

    def close(self) -> None:
        """Release everything: memory, files."""
        for tier in self._tiers.values():
            tier.close()

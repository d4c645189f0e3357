"""The interface of a machine for the executor: queues, events, and the memory of each tier.

A machine has one compute queue and one queue for each channel. Work on a queue starts in the order
in which it was submitted, once the events that it waits for are done. Nothing waits on the host,
and nothing can wait for work that was submitted later, so there is no deadlock as long as every
tier has room. :mod:`hosim.on_torch.lower.devices.on_cpu` and
:mod:`hosim.on_torch.lower.devices.on_cuda` are the machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hosim.data.runtime import Runtime
from hosim.errors import HosimError


class Event(Protocol):
    """The end of one piece of work."""

    def done(self) -> bool:
        """Return whether it has ended."""


@dataclass(frozen=True, slots=True)
class Label:
    """The label of a piece of work: op number ``op`` of the plan's graph, or part of cache op
    number ``cache_op``; ``text`` for messages.

    A cache op also has the ``kind`` of its tensor, and the number of bytes that this work moves.
    """

    text: str
    op: int = -1
    cache_op: int = -1
    kind: str | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """Work that was done, by the machine's clock in nanoseconds.

    ``free_ns`` is when its queue began to wait for it, and ``issue_ns`` when the first event that
    it waits for had ended.
    """

    label: Label
    queue: str
    issue_ns: int
    free_ns: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class RunMemory:
    """The most bytes of the device tier in a run.

    ``allocated_bytes`` is what the program holds in its order; ``pending_bytes`` is what it has
    freed and a transfer still reads; ``held_bytes`` is the most of both at once, which the budget
    bounds. ``reserved_bytes`` is what torch's allocator has from the device for the whole process
    (0 on a machine without such an allocator). ``over_budget_bytes`` is what the program needed
    beyond its budget, because free memory was in pieces too small.
    """

    allocated_bytes: int = 0
    pending_bytes: int = 0
    held_bytes: int = 0
    reserved_bytes: int = 0
    over_budget_bytes: int = 0

    def note(self, allocated_bytes: int, pending_bytes: int) -> None:
        """Take in what is held at some moment."""
        self.allocated_bytes = max(self.allocated_bytes, allocated_bytes)
        self.pending_bytes = max(self.pending_bytes, pending_bytes)
        self.held_bytes = max(self.held_bytes, allocated_bytes + pending_bytes)


class Place(Protocol):
    """The place of one tensor's bytes, in some tier."""

    size_bytes: int


class TierBlock(Place, Protocol):
    """Bytes of a tier below the device tier, reserved when the first transfer into them starts."""

    valid: bool
    """Whether all bytes have arrived and none is stale; set by whoever moves bytes."""

    def take(self) -> bool:
        """Reserve the bytes if they are free; returns whether the block has them."""

    def release(self, after: Sequence[Event] = ()) -> None:
        """Release the bytes once all of ``after`` is done."""


class Origin(Protocol):
    """The origin of a placed storage's contents, if they are not in it."""

    returns: bool
    """Whether the contents go back there."""

    def contents(self) -> Place:
        """The bytes, in memory of the host."""

    def leave(self) -> None:
        """The bytes are on the machine now: give the memory back."""

    def room(self) -> Place:
        """Memory for the bytes to go back to. Raises :class:`MemoryError` or :class:`RuntimeError`
        if there is none.
        """


class Queue(Protocol):
    """Work that starts in the order in which it was submitted."""

    name: str

    def submit(
        self,
        work: Callable[[], object],
        after: Sequence[Event] = (),
        label: Label | None = None,
        room: Callable[[], bool] | None = None,
        joins: Sequence[Event] = (),
    ) -> Event:
        """Queue ``work``; it starts when the queue reaches it, all of ``after`` is done and
        ``room`` reports room.

        It takes its place in the queue when all of ``joins`` is done. Returns the event of its end.
        """


class LaunchQueue(Queue, Protocol):
    """The queue of the ops."""

    def launch(
        self, work: Callable[[], object], after: Sequence[Event], label: Label | None
    ) -> object:
        """As :meth:`submit`, for work whose end nothing waits for."""


class Device(Protocol):
    """A machine on which plans are run. ``tiers`` below the device tier have blocks, the device
    tier has torch storages.
    """

    recording: bool
    """Whether to keep what :meth:`take_record` gives."""

    budget_bytes: int | None
    """The bytes of the device tier that a program may hold, what transfers still read included;
    ``None``: all there are.
    """
    captures: bool
    """Whether segments of ops are captured and launched as one, where they can be."""
    out_of_memory: tuple[type[Exception], ...]
    """The error that is raised where the device tier has no room."""
    torch_device: Any
    """Torch's device of the tensors in the device tier."""
    allocator: str | None
    """Which of torch's allocators that hosim knows gives out the device tier's memory, if one of
    them does.
    """

    def has(self, tensor: Any) -> bool:
        """Return whether a tensor is in the device tier's memory."""

    def to_host(self, tensor: Any) -> Any:
        """A copy of a tensor in the host's memory."""

    @property
    def runtime(self) -> Runtime | None:
        """The host's time to launch ops, or segments of them, and copies; ``None`` where launching
        is no work of its own.
        """

    @property
    def memory(self) -> RunMemory:
        """Return the peak of the memory held in the last run."""

    @property
    def compute(self) -> LaunchQueue:
        """The compute queue."""

    def channel(self, name: str) -> Queue:
        """The queue of a channel of the profile."""

    def block(self, tier: str, size_bytes: int, owner: str) -> TierBlock:
        """A block of a tier below the device tier for the tensor ``owner``, without bytes yet."""

    def check_tiers(self, names: Iterable[str]) -> None:
        """Raise :class:`hosim.errors.InputError` for a tier that a plan uses and this machine has
        no memory for.
        """

    def on_device(self) -> DevicePlace:
        """A place for bytes of the device tier, to be opened when the compute queue reaches it."""

    def allocate(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its bytes, in the order of the compute queue."""

    def free(self, storage: Any, after: Sequence[Event]) -> None:
        """Free a storage's bytes, after the transfers that still read them (``after``)."""

    def linger(self, size_bytes: int, after: Sequence[Event]) -> None:
        """Count bytes of a storage that the program has dropped, and that transfers still read,
        until these (``after``) have ended.
        """

    def hold_back(self, level_bytes: int) -> None:
        """Before the program holds ``level_bytes``: let the host wait until they, and what
        transfers still read, fit the budget.
        """

    def recover(self) -> bool:
        """After a request found no room: wait for all that is freed, and give unused memory back;
        whether a second try may succeed.
        """

    def graphs(self) -> Any:
        """The object that captures segments of ops and runs each as one call, for one program;
        ``None`` where it is not asked for, or cannot be.
        """

    def later(self, after: Sequence[Event], then: Callable[[], None]) -> None:
        """Call ``then`` once all of ``after`` is done."""

    def shrink(self) -> None:
        """Give memory of the tiers below that holds nothing back to the system, while nothing
        runs.
        """

    def move(self, channel: str, source: Place, destination: Place, start: int, stop: int) -> None:
        """Move the bytes ``[start, stop)`` of a tensor, as work of a channel's queue. A place of
        fewer bytes holds this part alone.
        """

    def move_now(self, source: Place, destination: Place) -> None:
        """Move all bytes before returning, while nothing else runs."""

    def running(self, resident_bytes: int = 0) -> AbstractContextManager[None]:
        """A context in which work is queued; at its end the host has no more to do, or the error is
        raised and nothing runs any more.

        ``resident_bytes`` of the device tier are the program's when it begins; all others are
        somebody else's.
        """

    def wait(self) -> None:
        """Wait for all work of the runs before."""

    def hand_over(self, values: Sequence[Any]) -> None:
        """Let the caller use a run's results as it uses its own tensors."""

    def blame(self, error: BaseException) -> str:
        """The work under way when ``error`` was raised, and the error, in one line."""

    def take_record(self) -> tuple[Done, ...]:
        """The work done since the last call, if ``recording`` is set."""

    def close(self) -> None:
        """Release everything: memory, files."""


class DevicePlace(Place, Protocol):
    """Bytes of the device tier under a transfer."""

    def open(self, storage: Any, size_bytes: int) -> None:
        """Name the storage."""

    def close(self) -> None:
        """Release the storage, so that it may be freed."""


# -- texts for errors about a machine's failures and about values, in one line ---------------------


def in_one_line(error: BaseException, culprit: Label | None) -> str:
    """Return the failure and its reason, from the work that was under way and its error.

    >>> in_one_line(OSError(28, "No space left on device"), Label("store of 'w' from hbm to nvme"))
    "store of 'w' from hbm to nvme: No space left on device"
    """
    what = f"{culprit.text}: " if culprit is not None else ""
    if isinstance(error, HosimError):
        return f"{what}{error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{what}{error.strerror}" + (f" ({error.filename})" if error.filename else "")
    reason = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{what}{type(error).__name__}" + (f": {reason}" if reason else "")


def unlike(value: Any, like: torch.Tensor) -> str | None:
    """Return what a value is, if it is no tensor of the shape and dtype of another.

    >>> unlike(torch.zeros(2), torch.zeros(3))
    '(2,) of torch.float32'
    """
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if value.shape == like.shape and value.dtype == like.dtype:
        return None
    return f"{tuple(value.shape)} of {value.dtype}"

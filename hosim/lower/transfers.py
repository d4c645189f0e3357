"""What an executor asks of a machine: queues, events, memory of each tier. The small interface that every backend has.

A machine has one queue that computes and one for each channel. Work on a queue starts in the order in which it was submitted, once the
events that it waits for are done. So nothing waits on the host, and nothing can wait for what was submitted later: there is no deadlock as
long as every tier has room. :mod:`hosim.lower.on_cpu` and :mod:`hosim.lower.on_cuda` are the machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


class Event(Protocol):
    """The end of one piece of work."""

    def done(self) -> bool:
        """Whether it has ended."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a piece of work is: op number ``op`` of the plan's graph, or part of cache op number ``cache_op``; ``text`` for messages.

    Of a cache op also the ``kind`` of its tensor, and how many bytes of it this work moves.
    """

    text: str
    op: int = -1
    cache_op: int = -1
    kind: str | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """Work that was done, by the machine's clock in nanoseconds.

    ``free_ns`` is when its queue began to wait for it, and ``issue_ns`` when what it was submitted behind (the first event that it waits
    for) had ended.
    """

    label: Label
    queue: str
    issue_ns: int
    free_ns: int
    start_ns: int
    end_ns: int


class Place(Protocol):
    """Where the bytes of one tensor are, in some tier."""

    size_bytes: int


class TierBlock(Place, Protocol):
    """Bytes of a tier below the device tier. They are taken when the first transfer into them starts."""

    valid: bool
    """Whether all bytes have arrived and none is stale. Whoever moves bytes says so."""

    def take(self) -> bool:
        """Take the bytes if they are free; whether the block has them now."""

    def release(self, after: Sequence[Event] = ()) -> None:
        """Give the bytes back once all of ``after`` is done."""


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
        """Queue ``work``; it starts when the queue has got to it, all of ``after`` is done and ``room`` says that there is some.

        It takes its place in the queue when all of ``joins`` is done. Returns the event of its end.
        """


class Device(Protocol):
    """A machine on which plans are run. ``tiers`` below the device tier have blocks, the device tier has torch storages."""

    recording: bool
    """Whether to keep what :meth:`take_record` gives."""

    @property
    def compute(self) -> Queue:
        """The queue that computes."""

    def channel(self, name: str) -> Queue:
        """The queue of a channel of the profile."""

    def block(self, tier: str, size_bytes: int, owner: str) -> TierBlock:
        """A block of a tier below the device tier, for the tensor ``owner``. It takes no bytes yet."""

    def on_device(self) -> DevicePlace:
        """A place for bytes of the device tier, to be opened when the queue that computes gets there."""

    def allocate(self, storage: Any, size_bytes: int) -> None:
        """Give a storage its bytes, in the order of the queue that computes."""

    def free(self, storage: Any, after: Sequence[Event]) -> None:
        """Take a storage's bytes from it: its views see none. Transfers that still read them (``after``) get to read them."""

    def move(self, channel: str, source: Place, destination: Place, start: int, stop: int) -> None:
        """Move the bytes ``[start, stop)`` of a tensor, as work of a channel's queue. A place of fewer bytes holds this part alone."""

    def move_now(self, source: Place, destination: Place) -> None:
        """Move all bytes before returning, while nothing else runs."""

    def running(self) -> AbstractContextManager[None]:
        """Queues work inside; at its end everything submitted is done, or what failed is raised as it is and nothing runs any more."""

    def blame(self, error: BaseException) -> str:
        """What was being done when ``error`` was raised, and why, in one line."""

    def take_record(self) -> tuple[Done, ...]:
        """What was done since the last call, if ``recording`` is set."""

    def close(self) -> None:
        """Give everything back: memory, files."""


class DevicePlace(Place, Protocol):
    """Bytes of the device tier under a transfer."""

    def open(self, storage: Any, size_bytes: int) -> None:
        """Name the storage."""

    def close(self) -> None:
        """Let go of the storage, so that it may die."""

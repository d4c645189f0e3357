"""One stream of one device: its place in the listed order and the division of its time (rule 8)."""

from __future__ import annotations

from collections.abc import Sequence

from hosim.engine.channels import IssuedTransfer
from hosim.engine.clock import Alarm
from hosim.engine.recorder import TimelineRecorder
from hosim.result import STALL_CAUSES, StreamFigures

NEVER = 2**62
"""More ops than a stream has."""


class Stream:
    """Runs its ops one at a time, in order.

    ``done`` counts ended ops, so that ``queue[done]`` is the op at its head, and ``running`` is that op's position while it runs, else -1.
    ``dependency_met`` and ``residency_met`` are rule 8's t_dep and t_res of the head, -1 while not met; ``free_since`` is when its last op
    ended, if it is idle, and ``waited_for`` the transfer on which the wait for residency is blamed. The head waits until ``needed`` ops
    of the stream ``producer`` have ended, and another stream until ``awaited`` ops of this one have. ``alarm`` wakes its process
    (:meth:`hosim.engine.device.DeviceReplay.run_stream`).

    Where copies can slow ops down, ``began`` is when the running op did, -1 if it goes by others' time, and ``ends`` is when it ends if
    nothing changes.
    """

    __slots__ = (
        "alarm",
        "awaited",
        "began",
        "dependency_met",
        "done",
        "ends",
        "exposed_ns",
        "free_since",
        "inspected_at",
        "length",
        "name",
        "needed",
        "producer",
        "queue",
        "recorder",
        "residency_met",
        "running",
        "stalls",
        "waited_for",
    )

    alarm: Alarm

    def __init__(self, name: str, queue: Sequence[int], channels: int, recorder: TimelineRecorder | None) -> None:
        self.name = name
        self.queue = queue
        self.length = len(queue)
        self.recorder = recorder
        self.done = 0
        self.running = self.began = self.ends = -1
        self.free_since = 0
        self.awaited = NEVER
        self.inspected_at = -1
        self.dependency_met = -1
        self.residency_met = -1
        self.waited_for: IssuedTransfer | None = None
        self.producer: Stream | None = None
        self.needed = 0
        self.stalls = dict.fromkeys(STALL_CAUSES, 0)
        self.exposed_ns = [0] * channels

    def inspect(self, now: int, inspect_ns: int) -> bool:
        """Spend the runtime's inspection of the head op; says whether it is over."""
        if self.inspected_at < 0:
            self.inspected_at = now + inspect_ns
            if inspect_ns:
                self.alarm.ring_at(self.inspected_at)
        return now >= self.inspected_at

    def rest(self, now: int) -> None:
        """The running op has ended, and nothing is known yet of the next one."""
        self.running = self.began = self.dependency_met = self.residency_met = -1
        self.free_since = now
        if self.done >= self.awaited:
            self.awaited = NEVER

    def wait_for(self, producer: Stream, count: int) -> None:
        """The head waits until ``count`` ops of another stream have ended: let that one's process know."""
        self.producer, self.needed = producer, count
        if count < producer.awaited:
            producer.awaited = count

    def has_ended(self, i: int) -> bool:
        """Whether op ``i``, one of this stream's, has ended."""
        return self.done == self.length or i < self.queue[self.done]

    def divide(self, i: int, now: int) -> None:
        """Rule 8: divide the idle time before op ``i``, which starts now, by cause: runtime, dependency, transfer, capacity."""
        begin = self.free_since
        runtime = max(self.inspected_at, begin)
        dependency = max(self.dependency_met, runtime)
        residency = max(self.residency_met, dependency)
        stalls = self.stalls
        stalls["runtime"] += runtime - begin
        stalls["dependency"] += dependency - runtime
        stalls["transfer"] += residency - dependency
        stalls["capacity"] += now - residency
        if self.recorder is not None:
            for cause, start, end in (
                ("runtime", begin, runtime),
                ("dependency", runtime, dependency),
                ("transfer", dependency, residency),
                ("capacity", residency, now),
            ):
                if end > start:
                    self.recorder.stall(i, cause, start, end, self.waited_for if cause == "transfer" else None)
        if self.waited_for is not None:
            self.exposed_ns[self.waited_for.channel.index] += residency - dependency
            self.waited_for = None

    @property
    def transfer_wait(self) -> int:
        """Nanoseconds for which the head op has waited for residency alone."""
        return self.residency_met - max(self.dependency_met, self.inspected_at, self.free_since)

    def figures(self, busy_ns: int, makespan: int) -> StreamFigures:
        """Division of the makespan. ``drain`` runs from the last op's end to the end of everything."""
        return StreamFigures(busy_ns, dict(self.stalls), makespan - self.free_since)

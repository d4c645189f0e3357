"""One stream of one device: its place in the listed order and the division of its time (rule 8)."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from hosim.engine.alarm import Alarm
from hosim.engine.recorder import Recorder
from hosim.engine.runtime import Runtime
from hosim.result import STALL_CAUSES, StreamFigures


class Stream:
    """Runs its ops one at a time, in order.

    ``dependency_met`` and ``residency_met`` are rule 8's t_dep and t_res of the op at its head, -1 while not met; ``free_since`` is
    when its last op ended. ``done`` counts ended ops, ``position`` is the head in ``queue``, ``running`` the op that runs or -1. ``alarm`` is
    what its process sleeps on (:meth:`hosim.engine.device.Device.run_stream`).
    """

    __slots__ = (
        "alarm",
        "busy_ns",
        "dependency_met",
        "done",
        "free_since",
        "index",
        "inspected_at",
        "length",
        "name",
        "position",
        "queue",
        "recorder",
        "residency_met",
        "running",
        "runtime",
        "stalls",
    )

    def __init__(
        self,
        env: simpy.Environment,
        index: int,
        name: str,
        queue: Sequence[int],
        recorder: Recorder | None,
        runtime: Runtime | None,
    ) -> None:
        self.index = index
        self.name = name
        self.queue = queue
        self.length = len(queue)
        self.recorder = recorder
        self.runtime = runtime
        self.position = 0
        self.done = 0
        self.running = -1
        self.free_since = 0
        self.inspected_at = -1
        self.dependency_met = -1
        self.residency_met = -1
        self.busy_ns = 0
        self.stalls = dict.fromkeys(STALL_CAUSES, 0)
        self.alarm = Alarm(env)

    def inspect(self, now: int) -> bool:
        """Spend the runtime's inspection of the head op; says whether it is over."""
        assert self.runtime is not None
        if self.inspected_at < 0:
            self.inspected_at = now + self.runtime.inspect_ns
            if self.runtime.inspect_ns:
                self.alarm.ring_after(self.runtime.inspect_ns)
        return now >= self.inspected_at

    def start(self, i: int, duration: int, now: int) -> None:
        """Run op ``i`` from now on."""
        if now > self.free_since:
            self._divide(i, now)
        if self.recorder is not None:
            self.recorder.op(i, now, duration)
        self.running = i
        self.position += 1
        self.busy_ns += duration
        self.alarm.ring_after(duration)

    def end(self) -> None:
        """The running op has ended, and nothing is known yet of the next one."""
        self.running = -1
        self.inspected_at = self.dependency_met = self.residency_met = -1

    def has_ended(self, i: int) -> bool:
        """Whether op ``i``, one of this stream's, has ended."""
        return self.done == self.length or i < self.queue[self.done]

    def _divide(self, i: int, now: int) -> None:
        """Rule 8: idle time before an op, by cause, in the order runtime, dependency, transfer, capacity."""
        begin = self.free_since
        runtime = max(self.inspected_at, begin)
        dependency = max(self.dependency_met, runtime)
        residency = max(self.residency_met, dependency)
        for cause, start, end in (
            ("runtime", begin, runtime),
            ("dependency", runtime, dependency),
            ("transfer", dependency, residency),
            ("capacity", residency, now),
        ):
            if end > start:
                self.stalls[cause] += end - start
                if self.recorder is not None:
                    self.recorder.stall(i, cause, start, end)

    @property
    def transfer_wait(self) -> int:
        """Nanoseconds for which the head op has waited for residency alone."""
        return self.residency_met - max(self.dependency_met, self.inspected_at, self.free_since)

    def figures(self, makespan: int) -> StreamFigures:
        """Division of the makespan. ``drain`` runs from the last op's end to the end of everything."""
        return StreamFigures(self.busy_ns, dict(self.stalls), makespan - self.free_since)

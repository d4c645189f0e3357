"""Copies take bandwidth of the device tier's memory; ops that need it go slower while they flow (:mod:`hosim.costmodel.memory_traffic`).

One :class:`MemoryContention` a device. An op's speed changes when the rates of transfers do: then what it has done is noted and its end is
set anew. Exact: speeds and work done are fractions, an op ends at the first whole nanosecond at which all its work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from hosim.costmodel.memory_traffic import MemoryUse
from hosim.engine.link_groups import NEVER, LinkGroup
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.stream import Stream


class _Running:
    """An op that runs: ``left_ns`` of its time alone is still to be done from ``since`` on, at 1 / ``slowdown`` of the speed."""

    __slots__ = ("ends_alone", "left_ns", "since", "slowdown", "use")

    def __init__(self, use: MemoryUse, now: int, duration: int) -> None:
        self.use = use
        self.ends_alone = now + duration
        self.since = now + use.launch_ns
        self.left_ns = Fraction(duration - use.launch_ns)
        self.slowdown: Fraction | None = Fraction(1)

    def advance(self, now: int) -> None:
        """Note what is done by now."""
        if now > self.since:
            if self.slowdown is not None:
                self.left_ns -= (now - self.since) / self.slowdown
            self.since = now

    @property
    def end(self) -> int:
        """The first whole nanosecond at which all is done, at the present speed."""
        return NEVER if self.slowdown is None else self.since - int(-self.left_ns * self.slowdown // 1)


class MemoryContention:
    """The running ops of one device and the copies that flow there. ``slowed_ns`` is what the ops of each stream, by name, took longer."""

    def __init__(self, uses: Mapping[int, MemoryUse], bandwidth_bytes_per_s: int, recorder: TimelineRecorder | None) -> None:
        self._uses = uses
        self._left = self._bandwidth = Fraction(bandwidth_bytes_per_s)
        self._taken: dict[LinkGroup, Fraction] = {}
        self._running: dict[Stream, _Running] = {}
        self._recorder = recorder
        self.slowed_ns: dict[str, int] = {}

    def begin(self, stream: Stream, i: int, now: int, duration: int) -> int:
        """Op ``i`` starts, which alone would take so long: the instant at which it ends if nothing changes."""
        use = self._uses.get(i)
        if use is None:
            return now + duration
        running = self._running[stream] = _Running(use, now, duration)
        running.slowdown = use.slowdown(self._left)
        return running.end

    def end(self, stream: Stream, i: int, now: int) -> None:
        """Op ``i`` has ended."""
        running = self._running.pop(stream, None)
        if running is not None and now > running.ends_alone:
            self.slowed_ns[stream.name] = self.slowed_ns.get(stream.name, 0) + now - running.ends_alone
            if self._recorder is not None:
                self._recorder.op_ended(i, now)

    def take(self, group: LinkGroup, rate: Fraction, now: int) -> None:
        """The transfers of a group take ``rate`` bytes per second of the device tier's memory from now on."""
        if self._taken.get(group, 0) == rate:
            return
        self._taken[group] = rate
        self._left = self._bandwidth - sum(self._taken.values())
        for stream, running in self._running.items():
            slowdown = running.use.slowdown(self._left)
            if slowdown != running.slowdown:
                running.advance(now)
                running.slowdown = slowdown
                stream.alarm.move_to(max(now, running.end))

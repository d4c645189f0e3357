"""Copies take bandwidth of the device tier's memory; ops that need it go slower while they flow (:mod:`hosim.costmodel.memory_traffic`).

One :class:`MemoryContention` a device, which also knows its collectives. An op's speed changes when the rates of transfers do: then what
it has done is noted and its end is set anew. Exact: speeds and work done are ratios of integers, an op ends at the first whole nanosecond
at which all its work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import gcd

from hosim.costmodel.memory_traffic import MemoryUse
from hosim.engine.clock import NEVER
from hosim.engine.device_meetings import DeviceCollectives
from hosim.engine.link_groups import LinkGroup
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.stream import Stream

Ratio = tuple[int, int]
"""A fraction in lowest terms, numerator first: quick to look things up by, unlike a ``Fraction``."""

NOTHING: Ratio = 0, 1
"""Of the memory's bandwidth."""


class _Speeds:
    """How fast ops go where copies take so many bytes per second; ``copying`` says whether they take any."""

    __slots__ = ("_durations", "_slowdowns", "_taken", "copying")

    def __init__(self, taken: Fraction) -> None:
        self._taken = taken
        self._slowdowns: dict[MemoryUse, Ratio | None] = {}
        self._durations: dict[tuple[MemoryUse, int], int] = {}
        self.copying = taken > 0

    def slowdown(self, use: MemoryUse) -> Ratio | None:
        """How much longer such ops take, launch aside; ``None``: they cannot go on."""
        if use not in self._slowdowns:
            factor = use.slowdown(self._taken)
            self._slowdowns[use] = None if factor is None else factor.as_integer_ratio()
        return self._slowdowns[use]

    def duration(self, use: MemoryUse, alone: int) -> int:
        """Nanoseconds that such an op takes, which alone would take so many, if nothing changes."""
        known = self._durations.get((use, alone))
        if known is None:
            ratio = self.slowdown(use)
            known = NEVER if ratio is None else use.launch_ns - (-(alone - use.launch_ns) * ratio[0] // ratio[1])
            self._durations[use, alone] = known
        return known


class _Running:
    """An op that runs since ``start`` and ends at ``end`` if nothing changes; its alarm rings at ``rings_at``, which is never later.

    Once something has changed, ``left`` of its time alone is still to be done from ``since`` on, in parts of a nanosecond of which it has
    ``parts``.
    """

    __slots__ = ("duration", "end", "left", "parts", "rings_at", "since", "speeds", "start", "use")

    left: int
    since: int

    def __init__(self, use: MemoryUse, start: int, duration: int, end: int, speeds: _Speeds) -> None:
        self.use = use
        self.start = start
        self.duration = duration
        self.end = self.rings_at = end
        self.speeds = speeds
        self.parts = 0

    def change(self, speeds: _Speeds, now: int) -> None:
        """Note what is done by now; from now on it goes at other speeds."""
        before, self.speeds = self.speeds, speeds
        launched = self.start + self.use.launch_ns
        if now <= launched:
            self.end = self.start + speeds.duration(self.use, self.duration)
            return
        if not self.parts:
            self.since, self.left, self.parts = launched, self.duration - self.use.launch_ns, 1
        done = before.slowdown(self.use)
        if done is not None:
            longer, alone = done  # so many nanoseconds for so many of its time alone
            finer = longer // gcd(longer, self.parts)
            self.parts *= finer
            self.left = self.left * finer - (now - self.since) * alone * (self.parts // longer)
        self.since = now
        ratio = speeds.slowdown(self.use)
        self.end = NEVER if ratio is None else max(now, now - (-self.left * ratio[0] // (ratio[1] * self.parts)))


class MemoryContention:
    """The running ops of one device and the copies that flow there.

    ``uses`` are the ops that copies can slow down, ``speeds`` are those of now. ``slowed_ns`` is what the ops of each stream, by name, took
    longer. ``collectives`` are the ops that end when others let them, if there are any.
    """

    def __init__(
        self,
        uses: Mapping[int, MemoryUse],
        recorder: TimelineRecorder | None,
        collectives: DeviceCollectives | None = None,
    ) -> None:
        self.uses = uses
        self.collectives = collectives
        if collectives is not None:
            collectives.proceed = self.proceed
        self._taken: dict[LinkGroup, Ratio] = {}
        self._known: dict[tuple[Ratio, ...], _Speeds] = {}
        self.speeds = _Speeds(Fraction(0))
        self._running: dict[Stream, _Running] = {}
        self._recorder = recorder
        self.slowed_ns: dict[str, int] = {}

    def start(self, stream: Stream, i: int, now: int, duration: int) -> None:
        """Op ``i`` starts, which alone would take so long: set the stream's alarm to its end, if that is known by now."""
        end = self.begin(stream, i, now, duration)
        if end is not None:
            stream.alarm.ring_at(end)

    def begin(self, stream: Stream, i: int, now: int, duration: int) -> int | None:
        """Op ``i`` starts, which alone would take so long: the instant at which it ends if nothing changes.

        ``None`` for a collective that waits for other devices or crosses links; it sets the stream's alarm itself.
        """
        if self.collectives is not None and i in self.collectives.ops:
            return self.collectives.begin(stream, i, now, duration)
        return self.proceed(stream, i, now, duration)

    def proceed(self, stream: Stream, i: int, now: int, duration: int) -> int:
        """Op ``i`` goes on from now, with all of its work to be done: when it ends if nothing changes."""
        use = self.uses.get(i)
        if use is None:
            return now + duration
        end = now + (self.speeds.duration(use, duration) if self.speeds.copying else duration)
        self._running[stream] = _Running(use, now, duration, end, self.speeds)
        return end

    def has_ended(self, stream: Stream, i: int, now: int) -> bool:
        """Whether op ``i`` is through, now that its alarm rings; if not, the alarm is set anew."""
        running = self._running.get(stream)
        if running is None:
            if self.collectives is not None:
                self.collectives.end(stream, now)
            return True
        if running.end > now:
            running.rings_at = running.end
            stream.alarm.ring_at(running.end)
            return False
        del self._running[stream]
        if now > running.start + running.duration:
            self.slow(stream, now - running.start - running.duration)
            if self._recorder is not None:
                self._recorder.op_ended(i, now)
        if self.collectives is not None:
            self.collectives.end(stream, now)
        return True

    def slow(self, stream: Stream, ns: int) -> None:
        """Ops of a stream have taken so much longer."""
        self.slowed_ns[stream.name] = self.slowed_ns.get(stream.name, 0) + ns

    def take(self, group: LinkGroup, rate: Ratio, now: int) -> None:
        """The transfers of a group take ``rate`` bytes per second of the device tier's memory from now on."""
        if self._taken.get(group, NOTHING) == rate:
            return
        self._taken[group] = rate
        taken = tuple(self._taken.values())
        speeds = self._known.get(taken)
        if speeds is None:
            speeds = self._known[taken] = _Speeds(sum([Fraction(*part) for part in taken], Fraction(0)))
        self.speeds = speeds
        for stream, running in self._running.items():
            running.change(speeds, now)
            if running.end < running.rings_at:
                running.rings_at = running.end
                stream.alarm.move_to(running.end)

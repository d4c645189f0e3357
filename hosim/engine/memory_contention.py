"""Copies take bandwidth of a tier's memory; ops that need it go slower while they flow (:mod:`hosim.costmodel.memory_traffic`).

One :class:`MemoryContention` for each tier of a device whose processor runs ops. An op's speed changes when the rates of transfers do:
then what it has done is noted and its end is set anew. Exact: speeds and work done are ratios of integers, an op ends at the first whole
nanosecond at which all its work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import gcd

from hosim.costmodel import HELD_BYTES_PER_S, MemoryUse
from hosim.engine.channels import ChannelQueue
from hosim.engine.clock import NEVER
from hosim.engine.device_meetings import DeviceCollectives
from hosim.engine.link_groups import KEPT_RATES, Flows, LinkGroup
from hosim.engine.recorder import TimelineRecorder
from hosim.engine.stream import Stream

Ratio = tuple[int, int]
"""A fraction in lowest terms, numerator first: quick to compute with and to look things up by, unlike a ``Fraction``."""

NOTHING: Ratio = 0, 1
"""Of the memory's bandwidth."""

_HELD, _NOT_TAKEN = Fraction(HELD_BYTES_PER_S), Fraction(0)


class _Slowdowns(dict[MemoryUse, "Ratio | None"]):
    """How much longer ops take, launch aside, where copies take so many bytes per second: worked out once. ``None``: they cannot go on."""

    __slots__ = ("_taken",)

    def __init__(self, taken: Fraction) -> None:
        self._taken = taken

    def __missing__(self, use: MemoryUse) -> Ratio | None:
        factor = use.slowdown(self._taken)
        self[use] = found = None if factor is None else factor.as_integer_ratio()
        return found


class _Speeds:
    """How fast ops go where the copies of each group take so many bytes per second; ``copying`` says whether any takes some."""

    __slots__ = ("_durations", "copying", "parts", "slowdowns")

    def __init__(self, parts: Mapping[LinkGroup, Ratio]) -> None:
        self.parts = parts
        taken = sum([Fraction(*part) for part in parts.values()], Fraction(0))
        self.slowdowns = _Slowdowns(taken)
        self._durations: dict[tuple[MemoryUse, int], int] = {}
        self.copying = taken > 0

    def duration(self, use: MemoryUse, alone: int) -> int:
        """Nanoseconds that such an op takes, which alone would take so many, if nothing changes; with jitter it may be all launch."""
        known = self._durations.get((use, alone))
        if known is None:
            busy = max(0, alone - use.launch_ns)
            ratio = self.slowdowns[use] if busy else (1, 1)
            known = NEVER if ratio is None else alone - busy - (-busy * ratio[0] // ratio[1])
            self._durations[use, alone] = known
        return known


class _WorkLeft:
    """What is left of an op that has changed its speed: ``left`` of its time alone from ``since`` on, in ``parts`` of a nanosecond."""

    __slots__ = ("left", "op", "parts", "since")

    def __init__(self, op: int, left: int, since: int) -> None:
        self.op = op
        self.left = left
        self.since = since
        self.parts = 1

    def go_on(self, now: int, before: Ratio | None, after: Ratio | None) -> int:
        """The op took ``before`` times as long as alone until now, and takes ``after`` times as long from now on: when it ends."""
        if before is not None:
            longer, alone = before  # so many nanoseconds for so many of its time alone
            finer = longer // gcd(longer, self.parts)
            self.parts *= finer
            self.left = self.left * finer - (now - self.since) * alone * (self.parts // longer)
        self.since = now
        if self.left <= 0:  # done at the instant at which a copy begins that would hold it
            return now
        return NEVER if after is None else now - (-self.left * after[0] // (after[1] * self.parts))


class MemoryContention:
    """The running ops of some streams of one device, and the copies that flow in the tier that these ops use.

    ``uses`` are the ops that copies can slow down, ``durations`` what each op takes alone, ``touches`` says of each channel whether its
    copies take bandwidth of the tier, ``holds`` whether they hold all ops (docs/contract.md, rule 22), and ``speeds`` are those of now.
    ``slowed_ns`` is what the ops of each stream, by name, take longer.
    ``collectives`` are the ops that end when others let them, if there are any.

    ``begin(stream, i, now, duration)`` says that op ``i`` starts, which alone would take so long, and gives the instant at which it ends
    if nothing changes: ``None`` for a collective that waits for other devices or crosses links, which sets the stream's alarm itself.
    """

    begin: Callable[[Stream, int, int, int], int | None]

    def __init__(
        self,
        uses: Mapping[int, MemoryUse],
        durations: Sequence[int],
        streams: Sequence[Stream],
        touches: Sequence[bool],
        recorder: TimelineRecorder | None,
        collectives: DeviceCollectives | None = None,
        holds: Sequence[bool] = (),
    ) -> None:
        self.uses = uses
        self.collectives = collectives
        self.begin = self.proceed
        if collectives is not None:
            collectives.proceed = self.proceed
            self.begin = self._begin_beside
        self._durations = durations
        self._streams = streams
        self._touches = touches
        self._holds = holds or [False] * len(touches)
        self._recorder = recorder
        self.speeds = _Speeds({})
        self._known: dict[tuple[tuple[LinkGroup, Ratio], ...], _Speeds] = {(): self.speeds}
        self._after: dict[tuple[_Speeds, LinkGroup, Flows], _Speeds] = {}
        self._work: dict[Stream, _WorkLeft] = {}
        self.slowed_ns: dict[str, int] = {}

    # -- ops -----------------------------------------------------------------------------------------------------

    def start(self, stream: Stream, i: int, now: int, duration: int) -> None:
        """Op ``i`` starts, which alone would take so long: set the stream's alarm to its end, if that is known by now."""
        end = self.begin(stream, i, now, duration)
        if end is not None:
            stream.alarm.ring_at(end)

    def _begin_beside(self, stream: Stream, i: int, now: int, duration: int) -> int | None:
        """:meth:`begin` where there are collectives."""
        assert self.collectives is not None
        begin = self.collectives.begin if i in self.collectives.ops else self.proceed
        return begin(stream, i, now, duration)

    def proceed(self, stream: Stream, i: int, now: int, duration: int) -> int:
        """Op ``i`` goes on from now, with all of its work to be done: when it ends if nothing changes."""
        stream.began = now
        stream.ends = end = now + duration
        speeds = self.speeds
        if speeds.copying and (use := self.uses.get(i)) is not None:
            slowed = now + speeds.duration(use, duration)
            if slowed != end:
                self._end_at(stream, i, slowed)
                return slowed
        return end

    def _end_at(self, stream: Stream, i: int, end: int) -> None:
        """The running op of a stream ends at ``end`` and not when it was to."""
        slowed, name = self.slowed_ns, stream.name
        slowed[name] = slowed.get(name, 0) + end - stream.ends
        stream.ends = end
        if self._recorder is not None:
            self._recorder.op_ended(i, end)

    def slow(self, stream: Stream, ns: int) -> None:
        """Ops of a stream take so much longer."""
        self.slowed_ns[stream.name] = self.slowed_ns.get(stream.name, 0) + ns

    # -- copies --------------------------------------------------------------------------------------------------

    def take(self, group: LinkGroup, now: int) -> None:
        """The rates of a group's transfers, all of this device, are others from now on."""
        state = self.speeds, group, group.flows
        speeds = self._after.get(state)
        if speeds is None:
            taken = sum([self.taken_by(channel, rate) for channel, rate in group.rates()], Fraction(0))
            speeds = self._after[state] = self._with(group, taken.as_integer_ratio())
        if speeds is not self.speeds:
            self._change(speeds, now)

    def taken_by(self, channel: ChannelQueue, rate: Fraction) -> Fraction:
        """What a transfer that flows at this rate takes of what the ops need."""
        if self._holds[channel.index]:
            return _HELD
        return rate if self._touches[channel.index] else _NOT_TAKEN

    def take_part(self, group: LinkGroup, rate: Ratio, now: int) -> None:
        """Of a group's transfers, those of this device take so many bytes per second from now on."""
        if self.speeds.parts.get(group, NOTHING) != rate:
            self._change(self._with(group, rate), now)

    def _with(self, group: LinkGroup, rate: Ratio) -> _Speeds:
        """The speeds when a group takes so many bytes per second and the others what they take now."""
        if len(self._after) + len(self._known) > KEPT_RATES:
            self._after.clear()
            self._known.clear()
        parts = {**self.speeds.parts, group: rate}
        if rate == NOTHING:
            del parts[group]
        known = tuple(parts.items())
        if known not in self._known:
            self._known[known] = _Speeds(parts)
        return self._known[known]

    def _change(self, speeds: _Speeds, now: int) -> None:
        """Note what the running ops have done by now; from now on they go at other speeds."""
        slowed, slows = self.speeds.slowdowns, speeds.slowdowns
        self.speeds = speeds
        for stream in self._streams:
            if stream.began < 0:
                continue
            i = stream.running
            use = self.uses.get(i)
            if use is None or (before := slowed[use]) == (after := slows[use]):
                continue
            launched = stream.began + use.launch_ns
            if now <= launched:
                end = stream.began + speeds.duration(use, self._durations[i])
            else:
                work = self._work.get(stream)
                if work is None or work.op != i:
                    work = self._work[stream] = _WorkLeft(i, self._durations[i] - use.launch_ns, launched)
                end = work.go_on(now, before, after)
            if end != stream.ends:
                self._end_at(stream, i, end)
            if end < stream.alarm.rings_at:
                stream.alarm.move_to(end)

"""A recording as a graph whose replay predicts when every kernel and copy starts.

Host threads are streams of the graph, with segments of work of recorded duration between the calls
that launch or wait. Device streams are streams on which kernels, copies and memsets of recorded
duration run in order. Only a few ops are given their starts, and these are counted: the first op of
a stream if its launch was not recorded, and that of a device which was busy when the recording
began.

- A call releases its op a fitted latency after the call's end, on a *lane* that no two concurrent
  launches share.
- On its stream an op follows the previous one after a fitted gap. After a wait for other streams it
  also follows the ops that these had been given by then.
- A launch that returned long after its op had started submitted the op after the usual time of a
  launch.
- A call that blocks (a synchronisation, a copy of pageable memory) ends a fitted time after the ops
  that it waits for, whatever its recorded duration. A free waits for the whole device, and then
  takes the rest of its recorded time.
- A thread that pauses while another one works, and continues right after the other's last call, has
  waited for it: forward and backward passes hand over like this. It continues the recorded time
  after that call.
- A kernel that fills its device (:func:`placed_ns`) keeps those of other streams from starting
  until its last blocks are placed. In the graph the device's room is one byte of memory: a
  filling kernel needs the whole byte as workspace, and any other kernel passes a gate that needs
  it for no time.
- At most :data:`QUEUE_DEPTH` launches wait in a stream: the next launch blocks until the first of
  them has ended.

:class:`GivenNumbers` counts the numbers that are taken from the recording besides the order of
calls. Ops launched before the recording run one after the other from the start of the first. If an
op starts before the previous one on its stream has ended (rounded clocks, overlapping launches), it
may start early by that overlap, which is given: the previous op holds the stream for that much
less.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hosim.errors import InputError
from hosim.graph import Graph, Op
from hosim.io.importers.recordings import (
    HostCall,
    KinetoTrace,
    ProgramOrder,
    StreamId,
    Waits,
    blocks,
    program_order,
    stream_of,
    waits,
)
from hosim.validate.recorded_steps.filling_kernels import (
    is_collective,
    kernels_wait_for_room,
    placed_ns,
)
from hosim.validate.recorded_steps.latencies import (
    Latencies,
    fit_latencies,
    in_one_graph,
    label,
    returns_late,
)

QUEUE_DEPTH = 1024
"""The number of launches that a stream accepts before the next one blocks its thread."""

WHOLE_DEVICE = 1
"""The bytes of the graph's device tier, and the workspace of an op that needs or takes the whole
device.
"""

_HANDOVER = 4
"""A pause is a wait for another thread if that thread's last call is at least this many times
nearer to the pause's end than to its start.
"""


@dataclass(frozen=True, slots=True)
class GivenNumbers:
    """Counts of the recorded numbers that a replay is given.

    These are durations of device ops and of host segments (between calls that launch or wait,
    including the calls that launch), overlaps on a stream, starts of ops whose launch was not
    recorded, and fitted constants.
    """

    device_durations: int
    host_segments: int
    overlaps: int
    starts: int
    constants: int

    @property
    def total(self) -> int:
        """Their sum."""
        return (
            self.device_durations
            + self.host_segments
            + self.overlaps
            + self.starts
            + self.constants
        )


@dataclass(frozen=True, slots=True)
class GivenTimes:
    """Ops whose recorded starts a replay is given, and calls whose recorded ends it is given, by
    position in the recording.
    """

    ops: frozenset[int] = frozenset()
    calls: frozenset[int] = frozenset()


NO_TIMES = GivenTimes()


@dataclass(frozen=True, slots=True)
class RecurringDelay:
    """A delay that ``samples`` ops of one name share, and the least and the largest of their
    delays, in nanoseconds.
    """

    name: str
    stream: int
    delay_ns: int
    samples: int
    low_ns: int
    high_ns: int


@dataclass(frozen=True, slots=True)
class Known:
    """The order of a recording's ops and their waits, and the further delay of an op, by its
    position.

    ``recurring`` lists the delays that several ops share.
    """

    order: ProgramOrder
    waits: Waits
    delays: Mapping[int, int] = field(default_factory=dict)
    recurring: tuple[RecurringDelay, ...] = ()
    first: frozenset[int] = frozenset()
    """The first ops of devices that were busy when the recording began; their starts are given."""


@dataclass(frozen=True)
class Structure:
    """The graph, in which ``trace.ops[i]`` is the op at ``heads[i]``.

    That op holds its stream only for as long as it keeps others waiting; its duration is in
    ``durations_ns``. ``known_ns`` has, for each op of the graph, its recorded end, None if it was
    not recorded; ``returns`` has the ops at which a call that waited returns.
    """

    trace: KinetoTrace
    graph: Graph
    heads: tuple[int, ...]
    durations_ns: tuple[int, ...]
    known: Known
    latencies: Latencies
    given: GivenNumbers
    streams: tuple[tuple[int, ...], ...]
    """The ops of each device stream, in order."""
    known_ns: tuple[int | None, ...]
    returns: Mapping[int, int]

    @property
    def order(self) -> ProgramOrder:
        """The order of issue."""
        return self.known.order

    @property
    def waits(self) -> Waits:
        """The waits of ops and calls for other ops."""
        return self.known.waits


def structure(
    trace: KinetoTrace,
    *,
    kernel_scale: float = 1.0,
    latencies: Latencies | None = None,
    durations_ns: Sequence[int] | None = None,
    times: GivenTimes = NO_TIMES,
    known: Known | None = None,
) -> Structure:
    """Return the graph of a recording. Its kernels take ``kernel_scale`` times their recorded
    durations, or its ops take ``durations_ns``.

    ``latencies`` are fitted to the recording itself unless others are given. The starts and ends in
    ``times`` are taken from the recording, and ``known`` has what is already known of its order.
    Raises :class:`InputError` if no op has a recorded launch.
    """
    if all(op.call is None for op in trace.ops):
        raise InputError(
            "no launch of a kernel or copy was recorded; record with ProfilerActivity.CPU as well",
            source=trace.name,
        )
    if known is None:
        order = program_order(trace)
        known = Known(order, waits(trace, order))
    durations = durations_ns
    if durations is None:
        durations = [
            round(op.duration_ns * kernel_scale) if op.kind == "kernel" else op.duration_ns
            for op in trace.ops
        ]
    return _Builder(
        trace, known, latencies or fit_latencies(trace, known.order, known.waits), durations, times
    ).build()


@dataclass(slots=True)
class _Thread:
    """A host thread while it is built: its last op, the recorded instant at which that op ends, and
    its launch lanes.
    """

    name: str
    last: int = field(init=False)
    mark_ns: int = 0
    work_ns: int = (
        0  # total duration on this thread so far: bounds the time between starts of its ops
    )
    lanes: list[int] = field(default_factory=list)  # by lane, the work after which it is free again


class _Builder:
    def __init__(
        self,
        trace: KinetoTrace,
        known: Known,
        latencies: Latencies,
        durations: Sequence[int],
        times: GivenTimes,
    ) -> None:
        self._trace, self._before, self._latencies, self._times = trace, known, latencies, times
        self._order, self._waits = known.order, known.waits
        order = known.order
        self._ops: list[Op] = []
        self._known: list[int | None] = []
        self._returns: dict[int, int] = {}
        self._heads = [-1] * len(trace.ops)
        self._done = [-1] * len(trace.ops)
        self._threads: dict[str, _Thread] = {}
        self._last_call: tuple[_Thread, int, int] | None = None
        self._place = {i: n for queue in order.streams.values() for n, i in enumerate(queue)}
        self._segments = self._overlaps = self._starts = 0
        self._shared = kernels_wait_for_room(trace, known.order, known.waits)
        self._several = len({op.device for op in trace.ops}) > 1
        self._durations = durations

    def build(self) -> Structure:
        trace, order = self._trace, self._order
        launched: defaultdict[int, list[int]] = defaultdict(list)
        for i in order.order:
            launch = trace.ops[i].call
            if launch is not None:
                launched[launch].append(i)
            elif i not in order.strays:
                self._unlaunched(i)
        pending = sorted(order.strays, key=lambda i: trace.ops[i].start_ns, reverse=True)
        for c, call in enumerate(trace.calls):
            while pending and order.issued_ns[pending[-1]] <= call.start_ns:
                self._unlaunched(pending.pop())
            if c in launched:
                self._launch(c, call, launched[c])
            elif c in self._waits.of_calls:
                self._block(c, call, self._waits.of_calls[c])
        for i in reversed(pending):
            self._unlaunched(i)
        graph = Graph(trace.name, (), tuple(self._ops), {"source": "structure of a profiler trace"})
        given = GivenNumbers(
            len(trace.ops),
            self._segments,
            self._overlaps,
            self._starts,
            self._latencies.count + len(self._before.recurring),
        )
        return Structure(
            trace,
            graph,
            tuple(self._heads),
            tuple(self._durations),
            self._before,
            self._latencies,
            given,
            tuple(order.streams.values()),
            tuple(self._known),
            self._returns,
        )

    def _add(
        self,
        what: str,
        stream: str,
        duration: int,
        deps: Sequence[int] = (),
        room: int = 0,
        known_ns: int | None = None,
    ) -> int:
        position = len(self._ops)
        self._known.append(known_ns)
        self._ops.append(
            Op(
                f"{what}.{position}",
                what,
                deps=tuple(sorted({d for d in deps if d >= 0})),
                stream=stream,
                duration_ns=max(0, duration),
                workspace_bytes=room,
            )
        )
        return position

    # ---- the host

    def _thread_at(self, call: HostCall) -> tuple[_Thread, Sequence[int]]:
        """Return the thread that makes the call, and the ops that its next op waits for; after a
        handover, the thread continues from the other one's last call.
        """
        thread = self._threads.get(call.thread)
        known = thread is not None
        if thread is None:
            thread = self._threads[call.thread] = _Thread(f"host{call.thread}")
        if self._last_call is not None:
            other, position, mark = self._last_call
            lag, pause = call.start_ns - mark, call.start_ns - thread.mark_ns
            if other is not thread and lag >= 0 and (not known or lag * _HANDOVER <= pause):
                thread.mark_ns = mark
                return thread, (position,)
        return thread, ()

    def _work(self, thread: _Thread, until_ns: int, deps: Sequence[int]) -> int:
        """Add a segment of the thread's work, up to a recorded instant."""
        duration = max(0, until_ns - thread.mark_ns)
        thread.mark_ns = max(until_ns, thread.mark_ns)
        thread.last = self._add("host", thread.name, duration, deps, known_ns=thread.mark_ns)
        thread.work_ns += duration
        self._segments += 1
        return thread.last

    def _returned(self, thread: _Thread) -> None:
        if self._last_call is None or self._last_call[2] <= thread.mark_ns:
            self._last_call = thread, thread.last, thread.mark_ns

    def _launch(self, c: int, call: HostCall, ops: Sequence[int]) -> None:
        trace, latencies = self._trace, self._latencies
        thread, deps = self._thread_at(call)
        first = trace.ops[ops[0]]
        deps = self._room_in_queue(call, thread, ops[0], deps)
        blocking = blocks(first, call)
        latency = 0 if blocking else latencies.launch_of(first)
        if blocking:
            until = self._entered(call, ops[0])
        elif returns_late(first, call):
            until = min(call.end_ns, call.start_ns + latencies.call)
        else:
            until = max(call.start_ns, call.end_ns + min(0, latency))
        released = self._work(thread, until, deps)
        if latency > 0:
            released = self._add("latency", self._lane(thread, latency), latency, (released,))
        for i in ops:
            self._on_device(i, released, latencies.back.get(label(first), 0) if blocking else 0)
        if blocking:
            back = max(0, latencies.back.get(label(first), 0))
            self._return(c, thread, back, (self._done[ops[-1]],))
            thread.work_ns += back
        self._returned(thread)

    def _entered(self, call: HostCall, i: int) -> int:
        """Return the instant when a call that blocks for its copy has done its own work before the
        copy.

        If the stream was free, that work is the call's time without the copy and its return;
        otherwise it is the fitted constant, because it was not visible.
        """
        op, place = self._trace.ops[i], self._place[i]
        before = self._order.streams[stream_of(op)][place - 1 : place] if place else ()
        free = max(
            (self._trace.ops[a].end_ns for a in (*before, *self._waits.of_ops.get(i, ()))),
            default=0,
        )
        if free > call.start_ns:
            return call.start_ns + self._latencies.entry_of(op)
        return max(
            call.start_ns, call.end_ns - self._latencies.back.get(label(op), 0) - op.duration_ns
        )

    def _room_in_queue(
        self, call: HostCall, thread: _Thread, op: int, deps: Sequence[int]
    ) -> Sequence[int]:
        """Return the ops that a launch waits for: if its stream has as many pending launches as it
        accepts, also the first of these.
        """
        place = self._place[op]
        if place < QUEUE_DEPTH:
            return deps
        first = self._order.streams[stream_of(self._trace.ops[op])][place - QUEUE_DEPTH]
        end = self._trace.ops[first].end_ns
        if call.start_ns < end < call.end_ns:  # it did block: the rest of the call is its own work
            self._work(thread, call.start_ns, deps)
            thread.mark_ns = end
            deps = ()
        return (*deps, self._done[first])

    def _return(self, c: int, thread: _Thread, back: int, deps: Sequence[int]) -> None:
        """Add the end of a call that waited, ``back`` after the ops that it waited for."""
        end = self._trace.calls[c].end_ns
        if c in self._times.calls:
            back, deps = 0, (self._given(end),)
        thread.last = self._add("return", thread.name, back, deps, known_ns=end)
        thread.mark_ns = end
        self._returns[thread.last] = c

    def _given(self, instant_ns: int) -> int:
        """Add an op that ends at an instant of the recording."""
        self._starts += 1
        return self._add("given", f"given{self._starts}", instant_ns, known_ns=instant_ns)

    def _block(self, c: int, call: HostCall, awaited: Sequence[int]) -> None:
        latencies = self._latencies
        thread, deps = self._thread_at(call)
        done = [self._done[i] for i in awaited]
        if not awaited:  # the ops that it waits for are not in the recording
            self._work(thread, call.end_ns, deps)
        elif call.role == "free":
            self._work(thread, call.start_ns, deps)
            free = max((self._trace.ops[i].end_ns for i in awaited), default=0)
            thread.mark_ns = min(max(thread.mark_ns, free), call.end_ns)
            self._work(thread, call.end_ns, done)
        else:
            back = latencies.back.get(call.role, 0)
            own = latencies.unblocked.get(call.role, back)
            self._work(thread, call.start_ns, deps)
            thread.last = self._add("sync", thread.name, own - back, ())
            self._return(c, thread, min(own, back) if own else back, done)
        self._returned(thread)

    def _lane(self, thread: _Thread, latency: int) -> str:
        """Return a lane on which no launch of this thread can still be pending."""
        lanes = thread.lanes
        lane = next((k for k, free in enumerate(lanes) if free <= thread.work_ns), len(lanes))
        lanes[lane : lane + 1] = [thread.work_ns + latency]
        return f"lane{lane}.{thread.name}"

    # ---- the device

    def _unlaunched(self, i: int) -> None:
        """Add an op whose launch was not recorded: it follows the previous one on its stream; the
        first one is given its start.
        """
        released = -1
        if self._place[i] == 0 or i in self._order.strays:
            released = self._given(self._trace.ops[i].start_ns)
        self._on_device(i, released, 0)

    def _on_device(self, i: int, released: int, back: int) -> None:
        trace = self._trace
        op, queue, place = (
            trace.ops[i],
            self._order.streams[stream_of(trace.ops[i])],
            self._place[i],
        )
        stream = self._stream_name(stream_of(op))
        before = trace.ops[queue[place - 1]] if place else None
        awaited = self._waits.of_ops.get(i, ())
        if i in self._times.ops or i in self._before.first:
            released = self._given(op.start_ns)
        elif awaited:
            self._add("wait", stream, self._latencies.wait, [self._done[a] for a in awaited])
        elif before is not None and before.end_ns <= op.start_ns:
            gap = self._latencies.gap_of(before, op, in_one_graph(before, op))
            if gap:
                self._add("gap", stream, gap)
        if i in self._before.delays and i not in self._times.ops:
            self._add("delay", stream, self._before.delays[i])
        held = self._durations[i]
        after = trace.ops[queue[place + 1]] if place + 1 < len(queue) else None
        if after is not None and after.start_ns < op.end_ns and held:
            self._overlaps += 1
            held -= min(held, op.end_ns - after.start_ns)
        if (
            self._shared
            and op.kind == "kernel"
            and not is_collective(op.name)
            and i not in self._times.ops
        ):
            alone = min(held, placed_ns(op, trace.devices.get(op.device), self._durations[i]))
            name = "kernel" if alone else "gate"
            self._heads[i] = self._done[i] = self._add(
                name, stream, alone, (released,), WHOLE_DEVICE, op.start_ns + alone
            )
            if alone < held:
                self._done[i] = self._add(
                    "rest" if alone else "kernel", stream, held - alone, known_ns=op.start_ns + held
                )
            return
        rest = (
            min(held, -back) if back < 0 else 0
        )  # the host continues while the last part is still copied
        self._heads[i] = self._done[i] = self._add(
            op.kind, stream, held - rest, (released,), known_ns=op.start_ns + held - rest
        )
        if rest:
            self._add("rest", stream, rest, known_ns=op.start_ns + held)

    def _stream_name(self, stream: StreamId) -> str:
        device, number = stream
        return f"gpu{device}.stream{number}" if self._several else f"stream{number}"

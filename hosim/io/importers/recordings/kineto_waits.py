"""Waits in a recording: of streams for other streams, and of the host for the device.

Newer schemas record them. If a schema does not say which streams a ``StreamWaitEvent`` joins, they
are inferred: the stream on which the calling thread launches next waits for the other stream on
which it launched last. A CUDA graph may run on its own streams. It is ordered on the stream that it
is launched on, which is assumed to be the thread's previous one. A wait is dropped and counted if
the recording contradicts it, because the op started or the call returned before the awaited work
had ended: ``cudaFree(nullptr)`` waits for nothing.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from hosim.base.groups import grouped
from hosim.io.importers.recordings.kineto_events import DeviceOp, HostCall, KinetoTrace, SyncRecord

StreamId = tuple[int, int]
"""A device and a stream."""

BEFORE_RECORDING = -1
CLOCK_STEP_NS = 2_000
"""Two instants of a recording may be the same one if they are at most this far apart."""
_CLOCKS_APART_NS = 50_000
"""The largest assumed difference between the clocks of host and device."""

_STAGED_BYTES = 64 * 1024
"""CUDA returns from an asynchronous copy of pageable memory up to this size once it is staged,
before the device copies it.
"""


def stream_of(op: DeviceOp) -> StreamId:
    """The device and stream of an op."""
    return op.device, op.stream


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """The ops in the order in which they were issued.

    ``order`` lists all ops, ``issued_ns`` has the start of each op's call, ``streams`` lists the
    ops of each stream. Ops whose launch was not recorded come first on their stream, issued at
    :data:`BEFORE_RECORDING`; those that come between others (``strays``) count as issued when they
    started.
    """

    order: tuple[int, ...]
    issued_ns: tuple[int, ...]
    streams: Mapping[StreamId, tuple[int, ...]]
    strays: frozenset[int]

    def last_before(self, stream: StreamId, time_ns: int) -> int | None:
        """The last op of a stream that was issued before that time; None if there is none."""
        queue = self.streams.get(stream, ())
        at = bisect_left(queue, time_ns, key=lambda i: self.issued_ns[i])
        return queue[at - 1] if at else None

    def all_before(self, time_ns: int) -> tuple[int, ...]:
        """The last op of every stream that was issued before that time."""
        last = (self.last_before(stream, time_ns) for stream in self.streams)
        return tuple(i for i in last if i is not None)


def program_order(trace: KinetoTrace) -> ProgramOrder:
    """The order in which a recording's ops were issued."""
    launched: set[StreamId] = set()
    strays = set()
    issued = []
    for i, op in enumerate(trace.ops):
        if op.call is not None:
            issued.append(trace.calls[op.call].start_ns)
            launched.add(stream_of(op))
        elif stream_of(op) in launched:
            strays.add(i)
            issued.append(op.start_ns)
        else:
            issued.append(BEFORE_RECORDING)
    order = sorted(range(len(trace.ops)), key=lambda i: (issued[i], trace.ops[i].start_ns, i))
    streams = defaultdict(list)
    for i in order:
        streams[stream_of(trace.ops[i])].append(i)
    return ProgramOrder(
        tuple(order),
        tuple(issued),
        {stream: tuple(queue) for stream, queue in streams.items()},
        frozenset(strays),
    )


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of a recording. ``of_ops`` has, for an op, the ops of other streams that its stream
    waits for before it; ``of_calls`` has, for a call, the ops that the host waits for.

    ``recorded`` and ``inferred`` count the stream waits, ``contradicted`` the dropped waits of
    either kind.
    """

    of_ops: Mapping[int, tuple[int, ...]]
    of_calls: Mapping[int, tuple[int, ...]]
    recorded: int
    inferred: int
    contradicted: int


def waits(trace: KinetoTrace, order: ProgramOrder) -> Waits:
    """Return the waits of a recording."""
    syncs = {sync.correlation: sync for sync in trace.syncs if sync.correlation is not None}
    record_times = {
        call.correlation: call.start_ns for call in trace.calls if call.role == "record"
    }
    launches = _launches(trace)
    of_ops: defaultdict[int, list[int]] = defaultdict(list)
    of_calls: dict[int, tuple[int, ...]] = {}
    recorded = inferred = contradicted = 0
    for c, call in enumerate(trace.calls):
        sync = syncs.get(call.correlation) if call.correlation is not None else None
        if call.role == "wait":
            if sync is not None:
                pair = _recorded_pair(sync, call, order, record_times)
                recorded += pair is not None
            elif trace.syncs:
                continue  # this schema lists every wait that had something to wait for
            else:
                pair = _inferred_pair(trace, order, launches.get(call.thread, ()), call)
                if (
                    pair is not None
                    and trace.ops[pair[0]].start_ns < trace.ops[pair[1]].end_ns - CLOCK_STEP_NS
                ):
                    contradicted += 1
                    pair = None
                inferred += pair is not None
            if pair is not None:
                of_ops[pair[0]].append(pair[1])
        elif call.role in ("device_sync", "stream_sync", "event_sync") or (
            call.role == "free" and "Host" not in call.name
        ):
            awaited = _awaited_by_host(
                trace, order, launches.get(call.thread, ()), call, sync, record_times
            )
            certain = call.role == "device_sync" or sync is not None
            if certain or all(
                trace.ops[i].end_ns <= call.end_ns + _CLOCKS_APART_NS for i in awaited
            ):
                of_calls[c] = awaited
            else:
                contradicted += 1
    for waiter, awaited_op in _around_graphs(trace, order, launches):
        if trace.ops[waiter].start_ns < trace.ops[awaited_op].end_ns - CLOCK_STEP_NS:
            contradicted += 1
        else:
            inferred += 1
            of_ops[waiter].append(awaited_op)
    found = {op: tuple(dict.fromkeys(awaited)) for op, awaited in of_ops.items()}
    return Waits(found, of_calls, recorded, inferred, contradicted)


def blocks(op: DeviceOp, call: HostCall) -> bool:
    """Return whether the call that requests a copy blocks the host until the copy is done.

    Copies to pageable memory block, and so do large copies from it, whatever the name of the call.
    Calls without "Async" in their name block, too, except for copies within devices. If the
    recording does not say which kind of memory a copy uses, the copy blocks if its call ended after
    it. A call that returned before its copy began did not block: drivers differ in how much they
    stage.
    """
    if op.kind != "copy" or call.end_ns + CLOCK_STEP_NS < op.start_ns:
        return False
    ends = op.source, op.target
    if "pageable" in ends:
        return op.target == "pageable" or (op.size_bytes or 0) > _STAGED_BYTES
    if "Async" not in call.name and op.direction != "d2d":
        return True
    known = {"device", "pinned", "array"}
    return not known.issuperset(e for e in ends if e) and call.end_ns >= op.end_ns


def _launches(trace: KinetoTrace) -> Mapping[str, Sequence[tuple[int, int]]]:
    """For each thread, the start of each call that issues an op, and that op, in order of time."""
    launches: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, op in enumerate(trace.ops):
        if op.call is not None:
            launches[trace.calls[op.call].thread].append((trace.calls[op.call].start_ns, i))
    return {thread: sorted(listed) for thread, listed in launches.items()}


def _launched_by(trace: KinetoTrace, call: int, op: int) -> bool:
    return trace.ops[op].call == call


def _around_graphs(
    trace: KinetoTrace, order: ProgramOrder, launches: Mapping[str, Sequence[tuple[int, int]]]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of a waiting and an awaited op around CUDA graphs that run on their own streams:
    a graph's first ops wait for the op before it on the stream of the launch, and the op after it
    waits for the graph's last ops.
    """
    for listed in launches.values():
        for position, (time, i) in enumerate(listed):
            call = trace.ops[i].call
            if not position or call is None or call == trace.ops[listed[position - 1][1]].call:
                continue
            before = listed[position - 1][1]
            of_call = (k for _, k in listed[position:])
            nodes = list(takewhile(partial(_launched_by, trace, call), of_call))
            stream = stream_of(trace.ops[before])
            streams = grouped(
                (stream_of(trace.ops[k]), k)
                for k in sorted(nodes, key=lambda k: trace.ops[k].start_ns)
            )
            if len(nodes) < 2 or stream in streams:
                continue
            queue = order.streams[stream]
            at = bisect_right(queue, time, key=lambda k: order.issued_ns[k])
            for own in streams.values():
                if at:
                    yield own[0], queue[at - 1]
                if at < len(queue):
                    yield queue[at], own[-1]


def _recorded_pair(
    sync: SyncRecord, call: HostCall, order: ProgramOrder, record_times: Mapping[int | None, int]
) -> tuple[int, int] | None:
    """Return the next op of the waiting stream, and the last op before the event's record; None if
    either is not in the recording.
    """
    if sync.stream is None or sync.on_stream is None or sync.on_stream == sync.stream:
        return None
    awaited = order.last_before(
        (sync.device, sync.on_stream), record_times.get(sync.record, call.start_ns)
    )
    queue = order.streams.get((sync.device, sync.stream), ())
    at = bisect_left(queue, call.start_ns, key=lambda i: order.issued_ns[i])
    return (queue[at], awaited) if at < len(queue) and awaited is not None else None


def _inferred_pair(
    trace: KinetoTrace, order: ProgramOrder, launches: Sequence[tuple[int, int]], call: HostCall
) -> tuple[int, int] | None:
    at = bisect_left(launches, (call.start_ns, -1))
    if at == len(launches):
        return None
    waiter = launches[at][1]
    others = [
        i
        for i in order.all_before(call.start_ns)
        if stream_of(trace.ops[i]) != stream_of(trace.ops[waiter])
    ]
    return (waiter, max(others, key=lambda i: (order.issued_ns[i], i))) if others else None


def _awaited_by_host(
    trace: KinetoTrace,
    order: ProgramOrder,
    launches: Sequence[tuple[int, int]],
    call: HostCall,
    sync: SyncRecord | None,
    record_times: Mapping[int | None, int],
) -> tuple[int, ...]:
    """Return the last ops that a synchronisation waits for. If its stream is not recorded, the
    stream on which the thread launched last is assumed.
    """
    if call.role in ("device_sync", "free"):
        return order.all_before(call.start_ns)
    time, stream = call.start_ns, None
    if sync is not None:
        number = sync.on_stream if call.role == "event_sync" else sync.stream
        stream = (sync.device, number) if number is not None else None
        if call.role == "event_sync":
            time = record_times.get(sync.record, time)
    if stream is None:
        at = bisect_left(launches, (time, -1))
        if not at:
            return ()
        stream = stream_of(trace.ops[launches[at - 1][1]])
    last = order.last_before(stream, time)
    return () if last is None else (last,)

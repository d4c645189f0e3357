"""Traces of the PyTorch profiler (Kineto) as workload graphs: the work of the device, with recorded
durations, streams and waits.

Ops are the kernels, copies and memsets, in the order in which the host issued them. An op waits for
the op before it on its stream, for the ops that its stream waits for, and for those that the host
had waited for when it issued the op. The host itself and the device's idle time are omitted.

A profiler trace has no tensors. If memory was recorded, each block of the allocator becomes a
tensor: the first op that its thread issued after the allocation makes it, and the last op issued
before the free uses it last. In between, an op uses a block if its bytes equal those of an argument
recorded with the op's operator; of several blocks, it uses the latest. A block that is freed after
the last op and not used by it is an output. Memory that was allocated before the recording and not
freed is split into the weights that operators' arguments show
(:mod:`hosim.io.importers.recordings.kineto_before`). The rest is one tensor that every op uses,
because its uses are not recorded: ``meta["unknown_uses_bytes"]`` has its bytes, and
``unknown_uses_share`` the share of the kernels' time in kernels without an operator.
``meta["missing"]`` lists what the file lacks.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from hosim.data.allocator_blocks import in_blocks
from hosim.devices_of_graph import DEVICES
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder
from hosim.io.importers.op_kinds import op_kind
from hosim.io.importers.recordings.kineto import read_kineto
from hosim.io.importers.recordings.kineto_before import (
    BeforeTensor,
    StrangeArgument,
    ended_before,
    ops_on_lists,
    storages_before,
    tensors_before,
)
from hosim.io.importers.recordings.kineto_events import CpuOp, DeviceOp, KinetoTrace, MemoryEvent
from hosim.io.importers.recordings.kineto_waits import (
    ProgramOrder,
    blocks,
    program_order,
    stream_of,
    waits,
)
from hosim.io.importers.torch_programs import DTYPES, RecordedCall, recorded_calls
from hosim.io.models import ITEM_BYTES
from hosim.measured_on import MEASURED_ON
from hosim.notes import LEFT_OUT
from hosim.plain_text import counted
from hosim.units import human_size

# -- blocks of device memory -----------------------------------------------------------------------
# Blocks of device memory, with the times of their allocation and free, from the recorded
# allocations.


@dataclass(frozen=True, slots=True)
class RecordedBlock:
    """A block of device memory. ``allocated_ns`` is None if it was allocated before the recording,
    ``freed_ns`` if the recording does not free it. ``thread`` is the thread of the first event.
    """

    size_bytes: int
    allocated_ns: int | None
    freed_ns: int | None
    thread: str


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a device in the order of their first event.

    ``resident_bytes`` were allocated before the recording and are not freed in it; None if the
    recording has no totals. ``addresses`` is False if frees had to be matched by their bytes (the
    schema of 2021 has no addresses).
    """

    listed: tuple[RecordedBlock, ...]
    resident_bytes: int | None
    addresses: bool


def device_of_blocks(trace: KinetoTrace) -> int | None:
    """The device with the most memory events (its number may differ from that of the ops); None if
    no device has any.
    """
    devices = [event.device for event in trace.device_memory()]
    return max(dict.fromkeys(devices), key=devices.count, default=None)


def blocks_of(events: Sequence[MemoryEvent]) -> Blocks:
    """Return the blocks that these events, in order of time, allocate and free."""
    addresses = all(event.address is not None for event in events)
    live: defaultdict[int, list[int]] = defaultdict(list)
    found: list[RecordedBlock] = []
    for event in events:
        key = event.address if addresses and event.address is not None else abs(event.size_bytes)
        if event.size_bytes > 0:
            live[key].append(len(found))
            found.append(RecordedBlock(event.size_bytes, event.time_ns, None, event.thread))
        elif event.size_bytes < 0:
            if live[key]:
                last = live[key].pop()
                found[last] = replace(found[last], freed_ns=event.time_ns)
            else:
                found.append(RecordedBlock(-event.size_bytes, None, event.time_ns, event.thread))
    return Blocks(tuple(found), _resident(events, found), addresses)


def _resident(events: Sequence[MemoryEvent], found: Iterable[RecordedBlock]) -> int | None:
    first = next((event for event in events if event.total_allocated is not None), None)
    if first is None or first is not events[0] or first.total_allocated is None:
        return None
    there = sum(block.size_bytes for block in found if block.allocated_ns is None)
    return max(0, first.total_allocated - first.size_bytes - there)


_LARGEST = 1 << 60
_COLLECTIVES = (
    ("AllReduce", "all_reduce"),
    ("AllGather", "all_gather"),
    ("ReduceScatter", "reduce_scatter"),
    ("Broadcast", "broadcast"),
    ("SendRecv", "all_to_all"),
    ("Reduce", "reduce"),
)
_NAME = re.compile(r"(?:[\w$]+::|\(anonymous namespace\)::)*([\w$]+)")


def import_kineto(
    path: str | os.PathLike[str], execution_trace: str | os.PathLike[str] | None = None
) -> Graph:
    """Return the graph of the profiler trace at ``path`` (plain or gzip), named after the file.
    Sizes are in bytes, durations in nanoseconds.

    An ``execution_trace`` of the same run tells which ops use the memory that was allocated before.
    Raises :class:`InputError` for a damaged file, with the place in it, for a recording in which no
    device did anything, and for an execution trace of another run.
    """
    trace = read_kineto(path)
    if execution_trace is None:
        return workload_of(trace)
    try:
        return workload_of(trace, recorded_calls(execution_trace))
    except InputError as error:
        raise InputError(
            error.message, source=error.source or os.fspath(execution_trace), where=error.where
        ) from None


def workload_of(trace: KinetoTrace, calls: Sequence[RecordedCall] | None = None) -> Graph:
    """Return the graph of a recording; ``calls`` are those of an execution trace of the
    same run.
    """
    order = program_order(trace)
    device = device_of_blocks(trace)
    found = blocks_of(trace.device_memory(device)) if device is not None else Blocks((), None, True)
    uses = _BlockUses(trace, order, found)
    before: tuple[BeforeTensor, ...] = ()
    if calls is not None:
        freed = [
            (found.listed[n].size_bytes, last)
            for n, (_, last) in uses.spans.items()
            if found.listed[n].allocated_ns is None
        ]
        before = storages_before(trace, order.order, calls, found.resident_bytes or 0, freed)
    elif found.resident_bytes:
        before = tensors_before(trace, order.order, uses.strange, found.resident_bytes)
    meta: dict[str, Any] = {
        "source": "trace of the PyTorch profiler",
        **({MEASURED_ON: trace.device_name} if trace.device_name else {}),
        **({DEVICES: trace.ranks} if trace.ranks > 1 else {}),
        "span_ns": trace.span_ns,
        "blocks": len(found.listed),
        "blocks_no_op_used": uses.unused,
        "inputs_matched": uses.matched,
        "inputs_guessed": uses.guessed,
        "inputs_unknown": uses.unknown,
        "unknown_uses_share": _without_operator(trace, order) if found.resident_bytes else 0.0,
        "unknown_uses_bytes": (found.resident_bytes or 0)
        - sum(tensor.size_bytes for tensor in before),
        "missing": list(_missing(trace, found, device, uses, before, calls is not None)),
    }
    told = list(_uncertain(meta["unknown_uses_bytes"], uses))
    meta |= {LEFT_OUT: told} if told else {}
    on_lists = (
        ops_on_lists((place, _operator(trace, trace.ops[i])) for place, i in enumerate(order.order))
        if calls is None
        else ()
    )
    return _graph(trace, order, found, uses, (before, on_lists), meta)


def _uncertain(unknown_bytes: int, uses: _BlockUses) -> Iterator[str]:
    """Yield one line for each assumption that affects what-if studies."""
    if unknown_bytes:
        yield (
            f"which ops use {human_size(unknown_bytes)} that were allocated before the "
            "recording: all are taken to"
        )
    if uses.guessed:
        arguments = uses.matched + uses.guessed + uses.unknown
        yield (
            f"which block {uses.guessed:,} of {counted(arguments, 'argument')} are, of several "
            "with their bytes: the latest is taken"
        )


def _missing(
    trace: KinetoTrace,
    found: Blocks,
    device: int | None,
    uses: _BlockUses,
    before: Sequence[BeforeTensor],
    by_storages: bool,
) -> Iterator[str]:
    """Yield one line for each thing that the file lacks."""
    yield "idle time of the device: the host, and what waits for it, are left out"
    unlaunched = sum(op.call is None for op in trace.ops)
    if unlaunched:
        yield (
            f"the launches of {counted(unlaunched, 'op')}, made before the recording: they come "
            "first on their streams"
        )
    if any(call.role == "wait" for call in trace.calls) and not trace.syncs:
        yield "which streams a wait joins: inferred from the launches around it"
    if device is None:
        yield "tensors: record with profile_memory=True"
        return
    if not any(op.shapes for op in trace.cpu_ops):
        yield (
            "shapes of arguments: what an op reads between a block's first and last use; record "
            "with record_shapes=True"
        )
    else:
        total = uses.matched + uses.guessed + uses.unknown
        yield (
            f"which block an argument is: of {total} arguments {uses.matched} have the bytes of "
            f"one block, {uses.guessed} of several"
            f" (the latest is taken), {uses.unknown} of none (allocated before, or a part of one)"
        )
    yield (
        "what tensors are for: activation if freed before the last op, output if not, parameter "
        "or buffer if there before"
    )
    yield "which arguments an op writes: nothing but the blocks made for it"
    if found.resident_bytes is None:
        yield "bytes allocated before the recording"
    elif found.resident_bytes:
        known = sum(tensor.size_bytes for tensor in before)
        by = (
            "the modules around operators"
            if trace.modules
            else "the order of operators, each of which takes other weights"
        )
        by = "the storages of the execution trace" if by_storages else by
        yield (
            f"uses of {human_size(found.resident_bytes - known)} of the "
            f"{human_size(found.resident_bytes)} allocated before:"
            f" every op is taken to use them; the rest is {counted(len(before), 'tensor')}, told "
            f"apart by {by}"
        )
    if not found.addresses:
        yield "addresses: a free is taken to be of the latest block of its bytes"


def _without_operator(trace: KinetoTrace, order: ProgramOrder) -> float:
    """The share of the kernels' time in kernels without an operator, whose arguments are unknown,
    rounded to thousandths.
    """
    known = set(order.order[: ended_before(trace, order.order)])
    kernels = [(i, op) for i, op in enumerate(trace.ops) if op.kind == "kernel"]
    unknown = sum(
        op.duration_ns for i, op in kernels if i not in known and _operator(trace, op) is None
    )
    return round(unknown / max(1, sum(op.duration_ns for _, op in kernels)), 3)


class _BlockUses:
    """The ops that make, use and last use each block, by their places in program order."""

    def __init__(self, trace: KinetoTrace, order: ProgramOrder, found: Blocks) -> None:
        self._trace = trace
        self._times = [order.issued_ns[i] for i in order.order]
        self._by_thread: defaultdict[str, list[int]] = defaultdict(list)
        for place, i in enumerate(order.order):
            launch = trace.ops[i].call
            if launch is not None:
                self._by_thread[trace.calls[launch].thread].append(place)
        self.spans: dict[int, tuple[int, int]] = {}
        self.unused = self.matched = self.guessed = self.unknown = 0
        self.strange: list[StrangeArgument] = []
        for number, block in enumerate(found.listed):
            first, last = self._first(block), self._last(block)
            if first <= last:
                self.spans[number] = first, last
            else:
                self.unused += 1
        self.reads: defaultdict[int, list[int]] = defaultdict(list)
        self._match(order, found)
        self.kept = self._kept_to_the_end(order, found)

    def _kept_to_the_end(self, order: ProgramOrder, found: Blocks) -> frozenset[int]:
        """The blocks that the recording frees after the last op was issued, and that this op is
        known not to use: they are outputs.
        """
        end = len(self._times) - 1
        at = self._trace.operator_at(self._trace.ops[order.order[end]])
        if at is None or not any(True for _ in _argument_bytes(self._trace.cpu_ops[at])):
            return frozenset()
        last = {
            number for number, (first, last) in self.spans.items() if last == end and first < end
        }
        return frozenset(last.difference(self.reads[end]))

    def _first(self, block: RecordedBlock) -> int:
        """The place of the op that makes a block: the next op that its thread issues, or that any
        thread issues if its own issues none.
        """
        if block.allocated_ns is None:
            return 0
        own = self._by_thread.get(block.thread, ())
        at = bisect_right(own, block.allocated_ns, key=lambda place: self._times[place])
        return own[at] if at < len(own) else bisect_right(self._times, block.allocated_ns)

    def _last(self, block: RecordedBlock) -> int:
        """The place of the last op issued before a block was freed."""
        return (
            len(self._times) - 1
            if block.freed_ns is None
            else bisect_left(self._times, block.freed_ns) - 1
        )

    def _match(self, order: ProgramOrder, found: Blocks) -> None:
        """Find the blocks that ops read, by the sizes of their arguments."""
        begins: defaultdict[int, list[int]] = defaultdict(list)
        ends: defaultdict[int, list[int]] = defaultdict(list)
        for number, (first, last) in self.spans.items():
            begins[first].append(number)
            ends[last].append(number)
        live: defaultdict[int, dict[int, None]] = defaultdict(dict)
        for place, i in enumerate(order.order):
            for number in begins[place]:
                live[found.listed[number].size_bytes][number] = None
            at = self._trace.operator_at(self._trace.ops[i])
            if at is not None:
                self._read(place, at, live, found)
            for number in ends[place]:
                del live[found.listed[number].size_bytes][number]

    def _read(
        self, place: int, at: int, live: Mapping[int, dict[int, None]], found: Blocks
    ) -> None:
        operator = self._trace.cpu_ops[at]
        for index, size in _argument_bytes(operator):
            candidates: list[int] = []
            for number in reversed(live.get(size, {})):
                allocated = found.listed[number].allocated_ns
                if (
                    allocated is None or allocated < operator.start_ns
                ) and number not in self.reads[place]:
                    candidates.append(number)
                    if len(candidates) > 1:
                        break
            if candidates:
                self.reads[place].append(candidates[0])
            self.matched += len(candidates) == 1
            self.guessed += len(candidates) > 1
            if not candidates:
                self.unknown += 1
                self.strange.append(StrangeArgument(place, at, index, size))


def _operator(trace: KinetoTrace, op: DeviceOp) -> CpuOp | None:
    at = trace.operator_at(op)
    return trace.cpu_ops[at] if at is not None else None


def _argument_bytes(operator: CpuOp) -> Iterator[tuple[int, int]]:
    """Yield the position and the bytes of an operator's tensor arguments, rounded as the allocator
    rounds them.
    """
    for index, (shape, dtype) in enumerate(zip(operator.shapes, operator.dtypes, strict=False)):
        name = DTYPES.get(dtype) if isinstance(dtype, str) else None
        if (
            name is not None
            and isinstance(shape, tuple)
            and shape
            and all(type(n) is int and 0 <= n < _LARGEST for n in shape)
        ):
            size = prod(shape) * ITEM_BYTES[name]
            if 0 < size < _LARGEST:
                yield index, in_blocks(size)


def _weights(
    builder: GraphBuilder, tensors: Sequence[BeforeTensor], unknown: Sequence[int]
) -> Mapping[int, Sequence[str]]:
    """Return the tensors from before the recording, by the places of the ops that use them. Ops at
    the places in ``unknown`` are assumed to use all.
    """
    weights: defaultdict[int, list[str]] = defaultdict(list)
    for tensor in tensors:
        name = builder.tensor(tensor.name, tensor.size_bytes, "parameter")
        for place in dict.fromkeys((*tensor.places, *unknown)):
            weights[place].append(name)
    return weights


def _graph(
    trace: KinetoTrace,
    order: ProgramOrder,
    found: Blocks,
    uses: _BlockUses,
    before: tuple[Sequence[BeforeTensor], Sequence[int]],
    meta: Mapping[str, Any],
) -> Graph:
    """Build the graph. ``before`` has the tensors from before the recording, and the places of ops
    that are assumed to use all of them.
    """
    builder = GraphBuilder(trace.name, meta)
    everywhere = []
    if meta["unknown_uses_bytes"]:
        everywhere = [builder.tensor("allocated_before", meta["unknown_uses_bytes"], "buffer")]
    weights = _weights(builder, *before)
    outputs: defaultdict[int, list[str]] = defaultdict(list)
    inputs: defaultdict[int, dict[str, None]] = defaultdict(dict)
    workspace: defaultdict[int, int] = defaultdict(int)
    names: dict[int, str] = {}  # names of the blocks that are tensors
    for number, (first, last) in uses.spans.items():
        block = found.listed[number]
        if block.allocated_ns is None:
            names[number] = builder.tensor(
                f"block{number}", block.size_bytes, home="hbm", persistent=False
            )
            inputs[last][names[number]] = None
        elif first == last and block.freed_ns is not None:
            workspace[first] += block.size_bytes
        else:
            kept = block.freed_ns is None or number in uses.kept
            names[number] = builder.tensor(
                f"block{number}", block.size_bytes, "output" if kept else "activation"
            )
            outputs[first].append(names[number])
            if not kept:
                inputs[last][names[number]] = None
    for place, numbers in uses.reads.items():
        inputs[place].update((names[number], None) for number in numbers if number in names)
    streams = _streams(trace)
    dependencies = _dependencies(trace, order)
    named: dict[int, str] = {}
    for place, i in enumerate(order.order):
        op = trace.ops[i]
        operator = _operator(trace, op)
        read = [name for name in inputs[place] if name not in outputs[place]]
        named[i] = builder.op(
            f"{_short(op)}.{place}",
            _kind(op, operator),
            inputs=[*everywhere, *weights[place], *read],
            outputs=outputs[place],
            deps=[named[d] for d in dependencies[i]],
            stream=streams[stream_of(op)],
            duration_ns=op.duration_ns,
            bytes_accessed=op.size_bytes or 0,
            dtype=_dtype(operator),
            workspace_bytes=workspace[place],
        )
    return builder.build()


def _streams(trace: KinetoTrace) -> Mapping[tuple[int, int], str]:
    """Name the streams: ``compute`` for the stream with the most time in kernels, ``stream<id>``
    for the others, with the device if there are several.
    """
    busy: defaultdict[tuple[int, int], int] = defaultdict(int)
    for op in trace.ops:
        busy[stream_of(op)] += op.duration_ns if op.kind == "kernel" else 0
    several = len({device for device, _ in busy}) > 1
    names = {
        (device, number): f"gpu{device}.stream{number}" if several else f"stream{number}"
        for device, number in busy
    }
    return names | {max(busy, key=lambda stream: busy[stream]): "compute"}


def _dependencies(trace: KinetoTrace, order: ProgramOrder) -> Mapping[int, Sequence[int]]:
    """Return the ops of other streams that each op waits for, through its stream or because the
    host waited before it issued the op.
    """
    found = waits(trace, order)
    awaited = {call: set(ops) for call, ops in found.of_calls.items()}
    for i, op in enumerate(trace.ops):
        if op.call is not None and blocks(op, trace.calls[op.call]):
            awaited.setdefault(op.call, set()).add(i)
    place = {i: n for n, i in enumerate(order.order)}
    needs: defaultdict[int, set[int]] = defaultdict(set)
    for i, before in found.of_ops.items():
        needs[i].update(before)
    for call, ops in awaited.items():
        end = trace.calls[call].end_ns
        for queue in order.streams.values():  # later ops of a stream follow its first one
            at = bisect_left(queue, end, key=lambda i: order.issued_ns[i])
            if at < len(queue):
                needs[queue[at]].update(ops)
    return {
        i: sorted(
            (
                d
                for d in needs[i]
                if place[d] < place[i] and stream_of(trace.ops[d]) != stream_of(trace.ops[i])
            ),
            key=place.__getitem__,
        )
        for i in order.order
    }


def _short(op: DeviceOp) -> str:
    """The short name of an op: a kernel's function without return type, namespaces and arguments,
    ``copy_h2d`` or ``memset``.
    """
    if op.kind == "copy":
        return f"copy_{op.direction}"
    match = _NAME.match(op.name.removeprefix("void ")) if op.kind == "kernel" else None
    return match[1] if match else op.kind


def _kind(op: DeviceOp, operator: CpuOp | None) -> str:
    """The kind of an op: that of the operator around a kernel's launch, a collective's operation,
    ``copy``, or ``fill`` for a memset.
    """
    if op.kind != "kernel":
        return "copy" if op.kind == "copy" else "fill"
    if op.name.lower().removeprefix("void ").startswith(("nccl", "rccl")):
        return next((kind for part, kind in _COLLECTIVES if part in op.name), "collective")
    return (
        op_kind(operator.bare_name) if operator is not None and "::" in operator.name else "kernel"
    )


def _dtype(operator: CpuOp | None) -> str:
    """The dtype of the first tensor argument; ``fp32`` if none is recorded."""
    types = operator.dtypes if operator is not None else ()
    return next(
        (DTYPES[name] for name in types if isinstance(name, str) and name in DTYPES), "fp32"
    )

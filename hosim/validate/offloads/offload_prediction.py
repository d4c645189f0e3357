"""Offload schemes, predicted from an all-resident recording and a bandwidth sweep, and compared
with recordings of the schemes.

The resident run of `hosim.gpu` gives the ops of a step with their durations, and the blocks that
live from a layer's forward pass to its backward pass; the sweep gives the bandwidth of the
channels. A scheme has the moves of the kit, in the same places. The prediction is their cost:
makespan and stall by the engine, and the peak of memory in program order (docs/contract.md, rule
10).

The host's cost of moving, and the memory bandwidth that copies take from kernels, are not modelled.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from hosim.cache_plan import AT_START, DETACH, PREFETCH, STORE, CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io.importers.recordings import (
    KinetoTrace,
    MemoryEvent,
    RecordedBlock,
    blocks_of,
    device_of_blocks,
    read_kineto,
)
from hosim.validate.kit import (
    SCHEMES,
    SMALLEST_OFFLOAD,
    BandwidthSweep,
    KitRun,
    OffloadScheme,
    bandwidth_sweep,
    kit_run,
    model_sizes,
    swept_channels,
)
from hosim.validate.snapshots import Change, replay_from_nothing

_PREFIX = "hosim."
_STEP = "hosim.step"


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase with a ``name`` such as ``layer.3.forward``: the instant when the host entered it,
    and the positions ``[first, stop)`` of the ops launched in it.
    """

    name: str
    begin_ns: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step with everything resident: phases in program order, ops with their durations and the
    instants of their launch, and memory events (program order).

    The kit marks the instant when the host enters each phase (``hosim.layer.3.forward``). An op
    belongs to the phase in which it was launched. Its duration runs from the end of the previous op
    to its own end, so that the device's wait for the host belongs to the late op.
    """

    phases: tuple[Phase, ...]
    op_names: tuple[str, ...]
    issued_ns: tuple[int, ...]
    durations_ns: tuple[int, ...]
    memory: tuple[MemoryEvent, ...]
    start_bytes: int | None

    @property
    def makespan_ns(self) -> int:
        """The time from the start of the first op to the end of the last."""
        return sum(self.durations_ns)

    @property
    def phase_index(self) -> Mapping[str, int]:
        """The position of each phase by name."""
        return {phase.name: i for i, phase in enumerate(self.phases)}

    @property
    def layers(self) -> int:
        """The number of layers."""
        return sum(
            phase.name.startswith("layer.") and phase.name.endswith(".forward")
            for phase in self.phases
        )

    def begin_of(self, name: str) -> int:
        """Return the instant when the host entered the phase."""
        return self.phases[self.phase_index[name]].begin_ns

    @property
    def trains(self) -> bool:
        """Return whether it is a training step, and not a prefill."""
        return "layer.0.update" in self.phase_index

    def kept_blocks(self, layer: int, smallest: int) -> tuple[RecordedBlock, ...]:
        """Return the blocks of at least ``smallest`` bytes that are allocated in the forward phase
        of a layer and still live when the host enters the head.
        """
        phase = self.phase_index[f"layer.{layer}.forward"]
        begin, end, head = (
            self.phases[phase].begin_ns,
            self.phases[phase + 1].begin_ns,
            self.begin_of("head.forward"),
        )
        blocks = (
            b
            for b in blocks_of(self.memory).listed
            if b.allocated_ns is not None and b.size_bytes >= smallest
        )
        return tuple(
            b
            for b in blocks
            if begin <= (b.allocated_ns or 0) < end and (b.freed_ns is None or b.freed_ns >= head)
        )

    def producer_of(self, block: RecordedBlock) -> int:
        """Return the first op launched after the block was allocated."""
        assert block.allocated_ns is not None
        return min(bisect_left(self.issued_ns, block.allocated_ns), len(self.issued_ns) - 1)


def last_step(trace: KinetoTrace) -> RecordedStep:
    """Return the last step of a recording on one stream. Raises `InputError` for a recording that
    the kit did not make.
    """
    marks = [(a.start_ns, a.name) for a in trace.annotations if a.name.startswith(_PREFIX)]
    starts = [time for time, name in marks if name == _STEP]
    if not starts:
        raise InputError(
            f"expected a recording of hosim.gpu, with its annotations ({_STEP})", source=trace.name
        )
    marks = [(time, name.removeprefix(_PREFIX)) for time, name in marks if time > starts[-1]]
    ops = sorted(
        (trace.calls[op.call].start_ns, op.start_ns, op.end_ns, op.name, op.stream)
        for op in trace.ops
        if op.call is not None
    )
    ops = [op for op in ops if op[0] >= starts[-1]]
    if not ops or len({op[4] for op in ops}) > 1:
        raise InputError(
            "expected a step with everything resident, on one stream; it has "
            f"{len({op[4] for op in ops})}",
            source=trace.name,
        )
    ends = [ops[0][1]]
    for _, start, end, _, _ in ops:
        ends.append(max(ends[-1], start, end))
    issued = [op[0] for op in ops]
    bounds = [0, *(bisect_left(issued, time) for time, _ in marks[1:]), len(ops)]
    device = device_of_blocks(trace)
    memory = (
        tuple(e for e in trace.device_memory(device) if e.time_ns >= starts[-1] and e.size_bytes)
        if device is not None
        else ()
    )
    total = memory[0].total_allocated if memory else None
    return RecordedStep(
        tuple(
            Phase(name, time, first, stop)
            for (time, name), first, stop in zip(marks, bounds, bounds[1:], strict=False)
        ),
        tuple(op[3] for op in ops),
        tuple(issued),
        tuple(end - begin for begin, end in pairwise(ends)),
        memory,
        None if total is None else total - memory[0].size_bytes,
    )


_DEVICE, _HOST, _SEEN = "hbm", "ddr", "seen"
_ROOM = 1 << 50
_INSTANT = 10**12
"""Bytes per second: the one byte of a fence takes the shortest possible time, a nanosecond."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of weights of a layer, and the bytes of the smallest storage that training sends
    to the host (prefill: any key or value).
    """

    layer_parameters: int
    smallest_offload_bytes: int = SMALLEST_OFFLOAD

    @property
    def parameter_bytes(self) -> int:
        """The bytes of a layer's weights, in bf16."""
        return 2 * self.layer_parameters

    @property
    def state_bytes(self) -> int:
        """The bytes of a layer's optimizer state: two moments in single precision."""
        return 8 * self.layer_parameters


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step under a scheme, in nanoseconds and bytes; measured figures are None without a
    recording.

    ``stall_ns`` is the makespan less that of the resident step. ``measured_ns`` is the median wall
    time of the recorded steps, ``measured_stall_ns`` its excess over that of the resident run,
    ``measured_peak_bytes`` their ``max_memory_allocated``. ``reserved_bytes`` is the reserve of the
    caching allocator from a start with nothing cached.
    """

    scheme: str
    makespan_ns: int
    stall_ns: int
    moved_bytes: Mapping[str, int]
    peak_bytes: int | None
    reserved_bytes: int | None
    measured_ns: int | None = None
    measured_stall_ns: int | None = None
    measured_peak_bytes: int | None = None
    measured_reserved_bytes: int | None = None


def predict_recording(folder: Path, model: str, mode: str, length: int) -> tuple[Prediction, ...]:
    """Predict every scheme of a model, mode and length, from its resident run and the sweep;
    recorded schemes also get their measured figures.

    Raises `InputError` if the resident run or the sweep is missing or damaged.
    """
    sizes = Sizes(*model_sizes(folder / "meta.json", model))
    machine = machine_of(bandwidth_sweep(folder / "bandwidth.json"))
    step = last_step(read_kineto(folder / f"{model}-{mode}-{length}-resident" / "trace.json.gz"))
    runs = {}
    for name in SCHEMES:
        path = folder / f"{model}-{mode}-{length}-{name}" / "run.json"
        if path.exists():
            runs[name] = kit_run(path)
    resident_ns = runs["resident"].wall_ns if "resident" in runs else None
    predictions = []
    for name, scheme in SCHEMES.items():
        if name == "offload-optimizer" and not step.trains:
            continue
        predictions.append(
            _with_measured(predict(step, sizes, machine, scheme), runs.get(name), resident_ns)
        )
    return tuple(predictions)


def predict(
    step: RecordedStep, sizes: Sizes, machine: Hardware, scheme: OffloadScheme
) -> Prediction:
    """Predict the step under a scheme on a machine. Raises `InputError` if the replay
    does not end.
    """
    plan = plan_of(step, sizes, scheme)
    result = replay(plan, _with_room(machine, plan, sizes, scheme))
    if result.makespan_ns is None:
        raise InputError(f"the replay of {scheme.name} did not end: {result.error}")
    peak = reserved = None
    if step.start_bytes is not None:
        start, changes = _memory(step, sizes, scheme)
        level = peak = start
        for _, size in changes:
            level += size
            peak = max(peak, level)
        reserved = replay_from_nothing(changes, start).peak_bytes
    return Prediction(
        scheme.name,
        result.makespan_ns,
        result.makespan_ns - step.makespan_ns,
        {name: result.channels[name].bytes for name in ("h2d", "d2h")},
        peak,
        reserved,
    )


def machine_of(sweep: BandwidthSweep) -> Hardware:
    """Return the two channels of a sweep (a ``bandwidth.json``): pinned copies by size, and the
    bandwidth of both directions at once.

    Raises `InputError` if a direction is missing.
    """
    channels = list(swept_channels(sweep, host=_HOST, device=_DEVICE))
    # these tell a stream that a copy has ended: see _Moves._wait_for_stores
    channels += [
        Channel("noted", _HOST, _SEEN, _INSTANT),
        Channel("told", _SEEN, _DEVICE, _INSTANT),
    ]
    tiers = (
        Tier(_DEVICE, _ROOM, _INSTANT, "device"),
        Tier(_HOST, _ROOM, _INSTANT),
        Tier(_SEEN, _ROOM, _INSTANT),
    )
    return Hardware("recorded machine", tiers, tuple(channels), Compute({"bf16": 1}))


def plan_of(step: RecordedStep, sizes: Sizes, scheme: OffloadScheme) -> Plan:
    """Return the step as a graph whose ops have the recorded durations, with the scheme's cache ops
    in the places where the kit makes them.
    """
    return _Moves(step, sizes, scheme).plan()


_Placed = tuple[str, str, int, str, str | None]
"""A cache op: its kind, its tensor, the op after which it is issued, and its source and target
tiers.
"""


def _prefetch(name: str, after: int) -> _Placed:
    return PREFETCH, name, after, _HOST, _DEVICE


def _store(name: str, after: int) -> _Placed:
    return STORE, name, after, _DEVICE, _HOST


def _detach(name: str, after: int) -> _Placed:
    return DETACH, name, after, _DEVICE, None


class _Moves:
    """Builds the graph and the cache ops, phase by phase."""

    def __init__(self, step: RecordedStep, sizes: Sizes, scheme: OffloadScheme) -> None:
        self._step = step
        self._smallest = sizes.smallest_offload_bytes if step.trains else 0
        self._scheme = scheme
        self._phases = {phase.name: phase for phase in step.phases}
        self._tensors: list[tuple[str, int, str, str | None]] = []
        self._inputs: defaultdict[int, list[str]] = defaultdict(list)
        self._outputs: defaultdict[int, list[str]] = defaultdict(list)
        self._mutates: defaultdict[int, list[str]] = defaultdict(list)
        self._cache_ops: list[_Placed] = []
        layers = range(step.layers)
        forward = [f"layer.{i}.forward" for i in layers]
        trains = step.trains
        updates = [f"layer.{i}.update" for i in layers] if trains else []
        if scheme.parameters:
            backward = [f"layer.{i}.backward" for i in reversed(layers)] if trains else []
            for i in layers:
                self._tensors.append(
                    (f"layer.{i}.parameters", sizes.parameter_bytes, "parameter", _HOST)
                )
            visits = [*forward, *backward, *updates]
            follows = [
                *(i + 1 for i in layers),
                *([i - 1 for i in reversed(layers)] + [i + 1 for i in layers] if trains else []),
            ]
            self._stream("parameters", visits, follows, "embedding.forward")
        if scheme.optimizer and trains:
            for i in layers:
                self._tensors.append(
                    (f"layer.{i}.optimizer_state", sizes.state_bytes, "optimizer_state", _HOST)
                )
            self._stream("optimizer_state", updates, [i + 1 for i in layers], "embedding.update")
        if scheme.activations:
            for i in layers[:-1] if trains else layers:
                self._offload(i)
        moved = sum(size for _, size, kind, _ in self._tensors if kind in ("activation", "output"))
        if trains and moved:
            # No activation is left by then, but later phases must not use their room: they have
            # only their two buffers.
            self._tensors.append(("ballast", moved, "gradient", None))
            self._outputs[self._phases["embedding.update"].first].append("ballast")
            self._inputs[len(step.durations_ns) - 1].append("ballast")

    def plan(self) -> Plan:
        """Return the finished graph and plan."""
        builder = GraphBuilder("recorded step")
        for name, size, kind, home in self._tensors:
            builder.tensor(name, size, kind, home)
        for i, (name, duration) in enumerate(
            zip(self._step.op_names, self._step.durations_ns, strict=True)
        ):
            inputs, outputs, mutates = self._inputs[i], self._outputs[i], self._mutates[i]
            builder.op(
                f"{i} {name}",
                "kernel",
                inputs=inputs,
                outputs=outputs,
                mutates=mutates,
                duration_ns=duration,
            )
        graph = builder.build()
        cache_ops = tuple(
            CacheOp(op, graph.tensor_index[name], source, target, after)
            for op, name, after, source, target in sorted(
                self._cache_ops, key=lambda cache_op: cache_op[2]
            )
        )
        return Plan(graph, self._scheme.name, cache_ops)

    def _stream(self, kind: str, visits: Sequence[str], follows: Sequence[int], first: str) -> None:
        """Stream layers through two buffers: layer i is copied into buffer i mod 2 while the
        previous layer computes, and is copied back after its update.
        """
        holds: list[int | None] = [None, None]

        def prefetch(layer: int, after: int) -> None:
            if not 0 <= layer < self._step.layers or holds[layer % 2] == layer:
                return
            before = holds[layer % 2]
            if before is not None:
                self._cache_ops.append(_detach(f"layer.{before}.{kind}", after))
            self._cache_ops.append(_prefetch(f"layer.{layer}.{kind}", after))
            holds[layer % 2] = layer

        prefetch(0, self._before(first))
        for visit, following in zip(visits, follows, strict=True):
            phase, layer = self._phases[visit], int(visit.split(".")[1])
            name = f"layer.{layer}.{kind}"
            prefetch(following, self._before(visit))
            for op in range(phase.first, phase.stop):
                self._inputs[op].append(name)
            if visit.endswith(".update") and phase.stop > phase.first:
                self._mutates[phase.stop - 1].append(name)
                self._cache_ops.append(_store(name, phase.stop - 1))

    def _offload(self, layer: int) -> None:
        """Copy a layer's activations out as they are made, and drop them after the next layer,
        which waits for the copy.
        """
        forward = self._phases[f"layer.{layer}.forward"]
        phases, index = self._step.phases, self._step.phase_index
        following = phases[min(index[forward.name] + 2, index["head.forward"])].first
        stored: list[_Placed] = []
        for number, block in enumerate(self._step.kept_blocks(layer, self._smallest)):
            name, producer = f"layer.{layer}.activation.{number}", self._step.producer_of(block)
            self._tensors.append(
                (name, block.size_bytes, "activation" if self._step.trains else "output", None)
            )
            self._outputs[producer].append(name)
            stored.append(_store(name, producer))
            self._cache_ops.append(_detach(name, following - 1))
            if self._step.trains:
                self._cache_ops.append(_prefetch(name, self._before(f"layer.{layer + 1}.backward")))
                backward = self._phases[f"layer.{layer}.backward"]
                for op in range(backward.first, backward.stop):
                    self._inputs[op].append(name)
        if stored and following < len(self._step.durations_ns):
            stored += self._wait_for_stores(
                layer, max(forward.stop - 1, *(after for _, _, after, _, _ in stored)), following
            )
        self._cache_ops = [*stored, *self._cache_ops]  # before the detaches in the same place

    def _wait_for_stores(self, layer: int, last: int, waiting: int) -> list[_Placed]:
        """Make op ``waiting`` start after the copies that were issued by the end of op ``last``
        have ended.

        A fence, one byte made by ``last``, follows them on their channel, and returns on a channel
        of its own: it is an input of the op.
        """
        name = f"layer.{layer}.fence"
        self._tensors.append((name, 1, "activation", None))
        self._outputs[last].append(name)
        self._inputs[waiting].append(name)
        round_trip = (
            (STORE, name, last, _HOST, _SEEN),
            _detach(name, last),
            (PREFETCH, name, last, _SEEN, _DEVICE),
        )
        return [_store(name, last), *round_trip]

    def _before(self, phase: str) -> int:
        """Return the last op before a phase."""
        first = self._phases[phase].first
        return first - 1 if first else AT_START


def _with_room(machine: Hardware, plan: Plan, sizes: Sizes, scheme: OffloadScheme) -> Hardware:
    """Return the machine with as much device memory as the scheme's buffers and activations need,
    because a buffer is filled only when it is free.
    """
    buffers = 2 * (sizes.parameter_bytes * scheme.parameters + sizes.state_bytes * scheme.optimizer)
    kept = sum(
        tensor.size_bytes
        for tensor in plan.graph.tensors
        if tensor.kind in ("activation", "output")
    )
    device, *others = machine.tiers
    return replace(machine, tiers=(replace(device, capacity_bytes=max(buffers + kept, 1)), *others))


def _memory(step: RecordedStep, sizes: Sizes, scheme: OffloadScheme) -> tuple[int, list[Change]]:
    """Return the bytes at the start, and the allocations and frees in program order under the
    scheme; blocks have numbers instead of addresses.
    """
    away = step.layers - 2  # two are in their buffers
    start = (step.start_bytes or 0) - away * sizes.parameter_bytes * scheme.parameters
    if step.trains:
        start -= away * sizes.state_bytes * scheme.optimizer
    absences: defaultdict[tuple[int | None, int], list[_Absence]] = defaultdict(list)
    if scheme.activations:
        for block, absence in _absences(step, sizes.smallest_offload_bytes if step.trains else 0):
            absences[block.allocated_ns, block.size_bytes].append(absence)
    changes: list[
        tuple[int, int, int, int]
    ] = []  # time; rank: frees, allocations, recorded events; block; bytes
    live: dict[int | None, int] = {}
    for number, event in enumerate(step.memory, 1):
        size = event.size_bytes
        if size > 0:
            changes.append((event.time_ns, 2, number, size))
            found = absences[event.time_ns, size]
            live[event.address] = 0 if found else number
            if found:
                dropped, back, gone = found.pop()
                changes.append((dropped, 0, number, -size))
                if back is not None and gone is not None:
                    changes += [(back, 1, -number, size), (gone, 0, -number, -size)]
        elif live.get(event.address) != 0:
            changes.append((event.time_ns, 2, live.get(event.address, number), size))
    return start, [
        (block, size) for _, _, block, size in sorted(changes, key=lambda change: change[:2])
    ]


_Absence = tuple[int, int | None, int | None]
"""The instant when a block is dropped and, in training, those when its memory is allocated again
and finally released.
"""


def _absences(step: RecordedStep, smallest: int) -> Iterator[tuple[RecordedBlock, _Absence]]:
    """Yield the blocks that a scheme moves out, with their absences."""
    layers = step.layers
    for layer in range(layers - 1 if step.trains else layers):
        dropped = step.begin_of(
            f"layer.{layer + 2}.forward" if layer + 2 < layers else "head.forward"
        )
        back = gone = None
        if step.trains:
            back = step.begin_of(f"layer.{layer + 1}.backward")
            gone = step.begin_of(f"layer.{layer - 1}.backward" if layer else "embedding.backward")
        for block in step.kept_blocks(layer, smallest):
            yield block, (dropped, back, gone)


def _with_measured(
    predicted: Prediction, run: KitRun | None, resident_ns: int | None
) -> Prediction:
    if run is None:
        return predicted
    return replace(
        predicted,
        measured_ns=run.wall_ns,
        measured_stall_ns=None if resident_ns is None else run.wall_ns - resident_ns,
        measured_peak_bytes=run.allocated_bytes,
        measured_reserved_bytes=run.reserved_bytes,
    )

"""The constants of a structural replay, fitted to a recording: one number per kind of event, never one per op.

Launch and entry are medians, because the cause of a delayed launch is not always recorded; the others are means of the middle nine tenths
of their samples, because those of many ops in a row add up. In nanoseconds:

``launch``     from the end of the call to the op's start, on a stream with nothing to do (below 0: the op starts before the call ends);
``entry``      from the start of a call that blocks for its copy to the copy's start, likewise;
``back``       from the end of what the host waited for to the end of the call that waited (below 0 for copies whose last part is staged);
``unblocked``  a synchronisation that had nothing to wait for;
``gap``        between an op and the next on a busy stream, by the kinds of both;
``wait``       from the end of what a stream waited for on another stream to the start of its next op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import TypeVar

from hosim.importers.kineto_events import DeviceOp, HostCall, KinetoTrace
from hosim.importers.kineto_waits import ProgramOrder, Waits, blocks

K = TypeVar("K")


@dataclass(frozen=True)
class Latencies:
    """The fitted constants, by what they are for, and how many samples each has in ``samples``."""

    launch: Mapping[str, int]
    entry: Mapping[str, int]
    back: Mapping[str, int]
    unblocked: Mapping[str, int]
    gap: Mapping[tuple[str, str], int]
    wait: int
    samples: Mapping[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many numbers these are."""
        return len(self.listed)

    @property
    def listed(self) -> Mapping[str, int]:
        """Every one by name, such as ``launch kernel`` and ``gap kernel memset``."""
        groups: dict[str, Mapping[str, int]] = {"launch": self.launch, "entry": self.entry, "back": self.back, "unblocked": self.unblocked}
        named = {f"{name} {key}": value for name, group in groups.items() for key, value in group.items()}
        return named | {f"gap {a} {b}": value for (a, b), value in self.gap.items()} | {"wait": self.wait}

    def launch_of(self, op: DeviceOp) -> int:
        """``launch`` of an op, or of the kinds with samples if this kind has none."""
        return _known(self.launch, label(op), "kernel")

    def entry_of(self, op: DeviceOp) -> int:
        """``entry`` of a copy, never below 0."""
        return max(0, _known(self.entry, label(op), label(op)))

    def gap_of(self, before: DeviceOp, op: DeviceOp) -> int:
        """``gap`` between two ops."""
        return max(0, _known(self.gap, (before.kind, op.kind), ("kernel", "kernel")))


def label(op: DeviceOp) -> str:
    """The kind of an op: ``kernel``, ``memset``, ``copy h2d pinned``, ... of pageable memory large or small."""
    if op.kind != "copy":
        return op.kind
    memory = next((end for end in (op.source, op.target) if end not in (None, "device")), "device")
    size = " small" if memory == "pageable" and (op.size_bytes or 0) <= 65536 else ""
    return f"copy {op.direction} {memory}{size}"


def centre(values: Sequence[int]) -> int:
    """The mean of the middle nine tenths, rounded."""
    cut = len(values) // 20
    middle = sorted(values)[cut : len(values) - cut]
    return round(sum(middle) / len(middle))


def fit_latencies(trace: KinetoTrace, order: ProgramOrder, waits: Waits) -> Latencies:
    """The constants of a recording."""
    samples = _Samples()
    for queue in order.streams.values():
        before: DeviceOp | None = None
        for i in queue:
            samples.add_op(trace, i, before, [trace.ops[a].end_ns for a in waits.of_ops.get(i, ())])
            before = trace.ops[i]
    for c, awaited in waits.of_calls.items():
        call = trace.calls[c]
        if call.role != "free":
            samples.add_sync(call, max((trace.ops[i].end_ns for i in awaited), default=-1))
    return samples.fit()


class _Samples:
    """The measured samples, by constant."""

    def __init__(self) -> None:
        self._groups: dict[str, defaultdict[tuple[str, ...], list[int]]] = {
            name: defaultdict(list) for name in ("launch", "entry", "back", "unblocked", "gap", "wait", "any_launch")
        }

    def add_op(self, trace: KinetoTrace, i: int, before: DeviceOp | None, awaited_ends: Sequence[int]) -> None:
        op = trace.ops[i]
        add = self._groups
        call = trace.calls[op.call] if op.call is not None else None
        free = before.end_ns if before is not None else -1
        awaited = max(awaited_ends, default=-1)
        if call is None:
            if before is not None and op.start_ns >= free:
                add["gap"][before.kind, op.kind].append(op.start_ns - free)
            return
        blocking = blocks(op, call)
        if blocking:
            add["back"][label(op),].append(call.end_ns - op.end_ns)
        add["any_launch"]["",].append(op.start_ns - call.end_ns)
        if max(free, awaited) <= call.start_ns:
            if blocking:
                add["entry"][label(op),].append(op.start_ns - call.start_ns)
            else:
                add["launch"][label(op),].append(op.start_ns - call.end_ns)
        elif awaited > max(free, call.end_ns):
            add["wait"]["",].append(max(0, op.start_ns - awaited))
        elif before is not None and op.start_ns >= free > max(awaited, (call.start_ns if blocking else call.end_ns) + _AHEAD_NS):
            add["gap"][before.kind, op.kind].append(op.start_ns - free)

    def add_sync(self, call: HostCall, awaited_end: int) -> None:
        if awaited_end > call.start_ns:
            self._groups["back"][call.role,].append(max(0, call.end_ns - awaited_end))
        else:
            self._groups["unblocked"][call.role,].append(call.duration_ns)

    def fit(self) -> Latencies:
        fitted = {
            name: {key: (median_low if name in ("launch", "entry") else centre)(values) for key, values in sorted(group.items())}
            for name, group in self._groups.items()
        }
        launch = {key[0]: value for key, value in fitted["launch"].items()}
        if not launch and self._groups["any_launch"]:
            launch = {"kernel": min(self._groups["any_launch"]["",])}
        gap = {(a, b): value for (a, b), value in fitted["gap"].items()}
        counts = {" ".join((name, *key)).strip(): len(values) for name, group in self._groups.items() for key, values in group.items()}
        counts.pop("any_launch", None)
        entry, back, unblocked = ({key[0]: value for key, value in fitted[name].items()} for name in ("entry", "back", "unblocked"))
        wait = fitted["wait"].get(("",), gap.get(("kernel", "kernel"), 0))
        return Latencies(launch, entry, back, unblocked, gap, wait, counts)


_AHEAD_NS = 20_000
"""An op issued this long before its stream was free waited only for the stream."""


def _known(group: Mapping[K, int], key: K, other: K) -> int:
    """The constant for ``key``, else for ``other``, else the centre of all constants."""
    if key in group:
        return group[key]
    if other in group:
        return group[other]
    return centre(list(group.values())) if group else 0

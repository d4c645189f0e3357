"""The constants of a structural replay, fitted to a recording: one number per kind of event, never
one per op.

Launch and entry are medians, because the cause of a delayed launch is not always recorded. The
others are means of the middle nine tenths of their samples, because the errors of successive ops
add up. In nanoseconds:

``launch``     from the end of the call to the op's start, on a stream with nothing to do (below 0: the op starts before the call ends);
``entry``      from the start of a call that blocks for its copy to the copy's start, likewise;
``back``       from the end of what the host waited for to the end of the call that waited (below 0 for copies whose last part is staged);
``unblocked`` a synchronisation that had nothing to wait for;
``gap``        between an op and the next on a busy stream, by the kinds of both;
``wait``       from the end of what a stream waited for on another stream to the start of its next op.

A sample outside :data:`PLAUSIBLE` has another cause and does not count. A constant with fewer than
:data:`FEWEST` samples would just be the time of one op, so it is limited to :data:`USUAL`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import TypeVar

from hosim.io.importers.recordings import (
    DeviceOp,
    HostCall,
    KinetoTrace,
    ProgramOrder,
    Waits,
    blocks,
)

K = TypeVar("K")

FEWEST = 3
"""The number of samples from which a constant may be unusual."""

PLAUSIBLE: Mapping[str, tuple[int, int]] = {
    "launch": (-100_000, 200_000),
    "entry": (0, 1_000_000),
    "back": (-200_000, 200_000),
    "unblocked": (0, 200_000),
    "gap": (0, 50_000),
    "wait": (0, 50_000),
}
"""The least and the largest sample of each kind of constant, in nanoseconds."""

USUAL: Mapping[str, tuple[int, int]] = {
    "launch": (-20_000, 20_000),
    "entry": (0, 300_000),
    "back": (-100_000, 50_000),
    "unblocked": (0, 50_000),
    "gap": (0, 10_000),
    "wait": (0, 10_000),
}
"""The least and the largest value of a constant with few samples."""


@dataclass(frozen=True)
class Latencies:
    """The fitted constants, by the events that they are for.

    ``samples`` has the number of samples of each, ``spreads`` the range of the middle nine tenths
    of these.
    """

    launch: Mapping[str, int]
    entry: Mapping[str, int]
    back: Mapping[str, int]
    unblocked: Mapping[str, int]
    gap: Mapping[tuple[str, str], int]
    wait: int
    samples: Mapping[str, int] = field(default_factory=dict)
    spreads: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False)
    call: int = field(default=5_000, compare=False)
    """The median time of a launch."""

    @property
    def count(self) -> int:
        """The number of constants."""
        return len(self.listed)

    @property
    def listed(self) -> Mapping[str, int]:
        """Every constant by name, such as ``launch kernel`` and ``gap kernel memset``."""
        groups: dict[str, Mapping[str, int]] = {
            "launch": self.launch,
            "entry": self.entry,
            "back": self.back,
            "unblocked": self.unblocked,
        }
        named = {
            f"{name} {key}": value for name, group in groups.items() for key, value in group.items()
        }
        return (
            named
            | {f"gap {a} {b}": value for (a, b), value in self.gap.items()}
            | {"wait": self.wait}
        )

    def launch_of(self, op: DeviceOp) -> int:
        """``launch`` of an op, or that of kernels if its kind has no samples."""
        return _known(self.launch, label(op), "kernel")

    def entry_of(self, op: DeviceOp) -> int:
        """``entry`` of a copy, never below 0."""
        return max(0, _known(self.entry, label(op), label(op)))

    def gap_of(self, before: DeviceOp, op: DeviceOp, graph: bool = False) -> int:
        """``gap`` between two ops; that of ops in one CUDA graph if ``graph`` is true and it is
        known.
        """
        if graph and IN_GRAPH in self.gap:
            return max(0, self.gap[IN_GRAPH])
        return max(0, _known(self.gap, (before.kind, op.kind), ("kernel", "kernel")))


IN_GRAPH = ("graph", "graph")
"""The key of ``gap`` for ops that one call launched."""

_LATE_NS = 20_000


def in_one_graph(before: DeviceOp, op: DeviceOp) -> bool:
    """Return whether one call launched both: they are nodes of a CUDA graph."""
    return op.call is not None and op.call == before.call


def returns_late(op: DeviceOp, call: HostCall) -> bool:
    """Return whether a launch was still under way long after its op had started."""
    return op.start_ns < call.end_ns - _LATE_NS


def label(op: DeviceOp) -> str:
    """The kind of an op: ``kernel``, ``memset`` or ``copy h2d pinned``, with ``small`` for small
    copies of pageable memory.
    """
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
    """Fit the constants of a recording."""
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
    """The measured samples of each constant."""

    def __init__(self) -> None:
        self._groups: dict[str, defaultdict[tuple[str, ...], list[int]]] = {
            name: defaultdict(list)
            for name in (
                "launch",
                "entry",
                "back",
                "unblocked",
                "gap",
                "wait",
                "any_launch",
                "call",
            )
        }

    def add_op(
        self, trace: KinetoTrace, i: int, before: DeviceOp | None, awaited_ends: Sequence[int]
    ) -> None:
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
        if before is not None and in_one_graph(before, op):
            if not awaited_ends and op.start_ns >= free:
                add["gap"][IN_GRAPH].append(op.start_ns - free)
            return
        if not blocking and returns_late(op, call):
            return
        add["call"]["",].append(call.duration_ns)
        add["any_launch"]["",].append(op.start_ns - call.end_ns)
        if max(free, awaited) <= call.start_ns:
            if blocking:
                add["entry"][label(op),].append(op.start_ns - call.start_ns)
            else:
                add["launch"][label(op),].append(op.start_ns - call.end_ns)
        elif awaited > max(free, call.end_ns):
            add["wait"]["",].append(max(0, op.start_ns - awaited))
        elif before is not None and op.start_ns >= free > max(
            awaited, (call.start_ns if blocking else call.end_ns) + _AHEAD_NS
        ):
            add["gap"][before.kind, op.kind].append(op.start_ns - free)

    def add_sync(self, call: HostCall, awaited_end: int) -> None:
        if awaited_end > call.start_ns:
            self._groups["back"][call.role,].append(max(0, call.end_ns - awaited_end))
        else:
            self._groups["unblocked"][call.role,].append(call.duration_ns)

    def fit(self) -> Latencies:
        launches = [
            value
            for group in ("launch", "any_launch")
            for values in self._groups[group].values()
            for value in values
        ]
        anyhow, calls = self._groups.pop("any_launch"), self._groups.pop("call")["",]
        kept: dict[str, dict[tuple[str, ...], list[int]]] = {}
        for name, group in self._groups.items():
            low, high = PLAUSIBLE[name]
            within = {
                key: sorted(value for value in values if low <= value <= high)
                for key, values in sorted(group.items())
            }
            kept[name] = {key: values for key, values in within.items() if values}
        fitted = {
            name: {key: _constant(name, values) for key, values in group.items()}
            for name, group in kept.items()
        }
        launch = {key[0]: value for key, value in fitted["launch"].items()}
        if not launch and anyhow:
            launch = {"kernel": _usual("launch", min(launches))}
        gap = {(a, b): value for (a, b), value in fitted["gap"].items()}
        named = {
            " ".join((name, *key)).strip(): values
            for name, group in kept.items()
            for key, values in group.items()
        }
        entry, back, unblocked = (
            {key[0]: value for key, value in fitted[name].items()}
            for name in ("entry", "back", "unblocked")
        )
        wait = fitted["wait"].get(("",), gap.get(("kernel", "kernel"), 0))
        spreads = {
            name: (values[len(values) // 20], values[-1 - len(values) // 20])
            for name, values in named.items()
        }
        counts = {name: len(values) for name, values in named.items()}
        call = median_low(calls) if len(calls) >= FEWEST else Latencies.call
        return Latencies(launch, entry, back, unblocked, gap, wait, counts, spreads, call)


def _constant(name: str, values: Sequence[int]) -> int:
    found = (median_low if name in ("launch", "entry") else centre)(values)
    return found if len(values) >= FEWEST else _usual(name, found)


def _usual(name: str, value: int) -> int:
    low, high = USUAL[name]
    return min(max(value, low), high)


_AHEAD_NS = 20_000
"""An op issued this long before its stream was free waited only for the stream."""


def _known(group: Mapping[K, int], key: K, other: K) -> int:
    """The constant for ``key``, else for ``other``, else the centre of all constants."""
    if key in group:
        return group[key]
    if other in group:
        return group[other]
    return centre(list(group.values())) if group else 0

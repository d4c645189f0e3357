"""Describe how far the times of ops that nobody measured may be from what they are said to take.

A *spread* is the standard deviation of the logarithm of measured over predicted time: 0.1 is about
10 %. Each class of kernels has one for each way in which its times are known, and guesses have one
for each sort of op (:mod:`hosim.costmodel.spreads.fitted_spreads`). Ops of equal sizes
have one and the same error. Of the errors of different sizes of one class a part is shared;
different classes err independently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum, sqrt

from hosim.costmodel.guessed_attention import UNNAMED_SOFTWARE, is_guessed_attention
from hosim.costmodel.op_time import kernel_times_of, op_durations
from hosim.costmodel.origins import GUESS, MODEL, TABLE
from hosim.costmodel.rescaled import is_counted
from hosim.costmodel.spreads.fitted_spreads import SHARED, SPREADS
from hosim.edits import COLLECTIVE_KINDS
from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.measured_on import RESCALED_FROM

OTHER_MODEL = "fitted model of another machine"
"""The origin of times that the constants of the most similar measured machine say, as the machine
has none of its own.
"""

PRODUCTS, ATTENTION, COLLECTIVES, OTHERS = "products", "attention", "collectives", "others"
"""The sorts of guessed ops of the device."""

OTHER_PROCESSORS = "other processors"
"""The sort of ops that run on other processors, none of which was measured."""

OTHER_ATTENTION = "attention on other processors"
"""That of attention there by software that nobody names
(:mod:`hosim.costmodel.guessed_attention`).
"""

RESCALED, UNCOUNTED = "rescaled", "uncounted"
"""The origin of durations of another machine, scaled by the ratio of two guesses; the sort of those
whose op says no FLOP and no bytes.
"""

_SORTS = {
    "matmul": PRODUCTS,
    "convolution": PRODUCTS,
    "attention": ATTENTION,
    **dict.fromkeys(COLLECTIVE_KINDS, COLLECTIVES),
    OTHER_PROCESSORS: OTHER_PROCESSORS,
    OTHER_ATTENTION: OTHER_ATTENTION,
}

Which = tuple[str, str]
"""An origin, and a class of kernels or a sort of guessed ops."""

Spreads = Mapping[str, Mapping[str, float]]
"""By origin and class."""

_WIDEST = 1.0
"""The spread of a class that nobody measured: a factor of 5 to either side, 9 times in 10."""


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """The ops of one stream that are not measured: how many, and the nanoseconds of each class,
    those of equal sizes together.
    """

    ops: int
    by_class: Mapping[Which, tuple[int, ...]]

    def spread(self, spreads: Spreads, shared: Mapping[str, float]) -> StreamSpread:
        """Return how far all of them together may be off; ``shared`` is the shared part of the
        variance, by origin.
        """
        variance = fsum(
            [
                _variance(times, spread_of(which, spreads), shared[which[0]])
                for which, times in self.by_class.items()
            ]
        )
        return StreamSpread(self.ops, sum(map(sum, self.by_class.values())), variance)


def _variance(times: Iterable[int], spread: float, shared: float) -> float:
    """Of errors of which ``shared`` (a share of the variance) is common to all times, and the rest
    is each one's own.
    """
    listed = [float(ns) for ns in times]
    return spread**2 * (
        shared * fsum(listed) ** 2 + (1 - shared) * fsum([ns * ns for ns in listed])
    )


def spread_of(which: Which, spreads: Spreads) -> float:
    """The spread of a class, or that of one that nobody measured."""
    return spreads.get(which[0], {}).get(which[1], _WIDEST)


def stream_times(graph: Graph, hardware: Hardware) -> Mapping[str, StreamTimes]:
    """The ops whose time was not measured on this machine, by stream; streams without any are left
    out.
    """
    rescaled = RESCALED_FROM in graph.meta
    if not rescaled and all([op.duration_ns is not None for op in graph.ops]):
        return {}
    kernels = kernel_times_of(graph, hardware)
    durations = graph.derived_on(hardware, op_durations)
    counts: defaultdict[str, int] = defaultdict(int)
    times: defaultdict[str, defaultdict[tuple[object, ...], int]] = defaultdict(
        lambda: defaultdict(int)
    )
    for i, op in enumerate(graph.ops):
        if op.duration_ns is None or (rescaled and op.duration_ns):
            counts[op.stream] += 1
            alike: tuple[object, ...] = GUESS, op.kind, op.dtype, op.flops, op.bytes_accessed
            if op.processor:
                sort = OTHER_ATTENTION if is_guessed_attention(op, hardware) else OTHER_PROCESSORS
                alike = GUESS, sort, op.dtype, op.processor, op.kind, op.flops, op.bytes_accessed
            if op.duration_ns is not None:
                sort = (
                    OTHER_PROCESSORS if op.processor else op.kind if is_counted(op) else UNCOUNTED
                )
                alike = RESCALED, sort, op.dtype, op.kind, op.flops, op.bytes_accessed, op.sizes
            elif i in kernels:
                alike = kernels[i][1], op.kernel, op.dtype, op.sizes
            times[op.stream][alike] += durations[i]
    origins: dict[tuple[object, ...], Which] = {}
    found = {}
    for stream, alike_times in times.items():
        by_class: defaultdict[Which, list[int]] = defaultdict(list)
        for alike, ns in alike_times.items():
            key = alike[:3]
            if key not in origins:
                origins[key] = _which(hardware, *map(str, key))
            by_class[origins[key]].append(ns)
        found[stream] = StreamTimes(
            counts[stream], {which: tuple(listed) for which, listed in by_class.items()}
        )
    return found


def _which(hardware: Hardware, origin: str, name: str, dtype: str) -> Which:
    if origin == GUESS:
        return GUESS, _SORTS.get(name, OTHERS)
    if origin == RESCALED:
        return RESCALED, name if name == UNCOUNTED else _SORTS.get(name, OTHERS)
    if origin == TABLE:
        return TABLE, name
    from hosim.costmodel.kernels import (
        CONSTANTS_OF,
        has_own_constants,
    )  # here, as importing numpy takes longer than most replays

    return MODEL if has_own_constants(hardware, name, dtype) else OTHER_MODEL, CONSTANTS_OF.get(
        name, name
    )


def pooled(sources: Iterable[Spreads]) -> dict[str, dict[str, float]]:
    """The spreads of several sources of data: the root of the mean square of those that have a
    class.
    """
    squares: defaultdict[Which, list[float]] = defaultdict(list)
    for source in sources:
        for origin, classes in source.items():
            for name, spread in classes.items():
                squares[origin, name].append(spread**2)
    found: dict[str, dict[str, float]] = {}
    for (origin, name), listed in squares.items():
        found.setdefault(origin, {})[name] = sqrt(fsum(listed) / len(listed))
    return found


_POOLED = pooled([*SPREADS.values(), {GUESS: {OTHER_ATTENTION: UNNAMED_SOFTWARE}}])
_POOLED[RESCALED] = {
    sort: sqrt(2) * spread for sort, spread in _POOLED[GUESS].items()
}  # two guesses that err independently
_SHARED = {**SHARED, RESCALED: SHARED[GUESS]}


@dataclass(frozen=True, slots=True)
class StreamSpread:
    """The ops of one stream that are not measured: how many, the nanoseconds that they take, and
    the variance of these.
    """

    ops: int
    busy_ns: int
    variance: float


def stream_spreads(graph: Graph, hardware: Hardware) -> Mapping[str, StreamSpread]:
    """That of each stream with ops that are not measured."""
    return {
        stream: times.spread(_POOLED, _SHARED)
        for stream, times in stream_times(graph, hardware).items()
    }

"""The likely error of the times of ops that nobody measured.

A *spread* is the standard deviation of the logarithm of measured over predicted time: 0.1 is about
10 %. Each class of kernels has one for each way in which its times are known, and guesses have one
for each sort of op (:mod:`hosim.analysis.costmodel.spreads.fitted_spreads`). Ops of equal sizes have one and
the same error. Of the errors of different sizes of one class a part is shared; different classes
err independently.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from hosim.analysis.costmodel.guessed_attention import UNNAMED_SOFTWARE, is_guessed_attention
from hosim.analysis.costmodel.op_time import kernel_times_of
from hosim.analysis.costmodel.origins import GUESS, MODEL, TABLE
from hosim.analysis.costmodel.rescaled import is_counted
from hosim.analysis.costmodel.spreads.fitted_spreads import SHARED, SPREADS
from hosim.base.groups import grouped
from hosim.data.expert_routing import draw_spread_of
from hosim.edits import COLLECTIVE_KINDS
from hosim.graph import Graph, Op
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
(:mod:`hosim.analysis.costmodel.guessed_attention`).
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


def spread_of(which: Which, spreads: Spreads) -> float:
    """The spread of a class, or that of one that nobody measured."""
    return spreads.get(which[0], {}).get(which[1], _WIDEST)


@dataclass(frozen=True, slots=True)
class AlikeOps:
    """Ops whose time was not measured on a machine, in groups of equal sizes, each of which has one
    error.

    ``group`` has the number of each op's group, by position, -1 where the time was measured. Of
    each group, ``which`` is its class, and ``names`` tells it apart from all others.
    """

    group: Sequence[int]
    which: tuple[Which, ...]
    names: tuple[str, ...]


def alike_ops(graph: Graph, hardware: Hardware) -> AlikeOps:
    """The ops whose time was not measured on this machine."""
    rescaled = RESCALED_FROM in graph.meta
    if not rescaled and all([op.duration_ns is not None for op in graph.ops.alike]):
        return AlikeOps([-1] * len(graph.ops), (), ())
    kernels = kernel_times_of(graph, hardware)
    known: dict[tuple[object, ...], int] = {}
    group = [-1] * len(graph.ops)
    for i, op in enumerate(graph.ops):
        if op.duration_ns is None or (rescaled and op.duration_ns):
            alike = _alike(op, hardware, kernels[i][1] if i in kernels else "")
            group[i] = known.setdefault(alike, len(known))
    origins = {
        which: _which(hardware, *map(str, which))
        for which in dict.fromkeys(alike[:3] for alike in known)
    }
    return AlikeOps(group, tuple([origins[alike[:3]] for alike in known]), tuple(map(repr, known)))


def has_draws(graph: Graph, hardware: Hardware) -> bool:
    """Return whether something of the times is drawn: not where all are measured on the machine,
    and no routing is drawn.
    """
    return bool(graph.derived_on(hardware, alike_ops).which) or bool(draw_spread_of(graph))


def _alike(op: Op, hardware: Hardware, origin: str) -> tuple[object, ...]:
    """The key of equal ops: the origin of their time, their kernel or kind, dtype and sizes."""
    if op.duration_ns is not None:
        sort = OTHER_PROCESSORS if op.processor else op.kind if is_counted(op) else UNCOUNTED
        return RESCALED, sort, op.dtype, op.kind, op.flops, op.bytes_accessed, op.sizes
    if origin:
        return origin, op.kernel, op.dtype, op.sizes
    if op.processor:
        sort = OTHER_ATTENTION if is_guessed_attention(op, hardware) else OTHER_PROCESSORS
        return GUESS, sort, op.dtype, op.processor, op.kind, op.flops, op.bytes_accessed
    return GUESS, op.kind, op.dtype, op.flops, op.bytes_accessed


def _which(hardware: Hardware, origin: str, name: str, dtype: str) -> Which:
    if origin == GUESS:
        return GUESS, _SORTS.get(name, OTHERS)
    if origin == RESCALED:
        return RESCALED, name if name == UNCOUNTED else _SORTS.get(name, OTHERS)
    if origin == TABLE:
        return TABLE, name
    from hosim.analysis.costmodel.kernels import (
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
    squares = grouped(
        ((origin, name), spread**2)
        for source in sources
        for origin, classes in source.items()
        for name, spread in classes.items()
    )
    found: dict[str, dict[str, float]] = {}
    for (origin, name), listed in squares.items():
        found.setdefault(origin, {})[name] = sqrt(fsum(listed) / len(listed))
    return found


POOLED = pooled([*SPREADS.values(), {GUESS: {OTHER_ATTENTION: UNNAMED_SOFTWARE}}])
POOLED[RESCALED] = {
    sort: sqrt(2) * spread for sort, spread in POOLED[GUESS].items()
}  # two guesses that err independently
SHARED_PARTS = {**SHARED, RESCALED: SHARED[GUESS]}
"""The part of a class's variance that its sizes share, by origin."""

"""How far times of ops are off, by class and by where they are from, and what whole steps say of
that: ``make spreads``.

Writes :mod:`hosim.analysis.costmodel.spreads.fitted_spreads`. All from rows beside the project:

- spreads of kernels: shapes that are held out of the fits, without those below 20 us where there
  are enough others: they hardly count in a step. Nine of ten have a smaller error than 1.645
  spreads. By the machine's own constants, by those of another, and between the rows of a table (of
  the shapes fitted).
- spreads of guesses: the kernels of :mod:`composed_steps`, timed as if nobody had said which
  kernels they are; small kernels of :mod:`serving_rows`.
- the shared part of the variance: from the products of the errors of different sizes of one class
  in one composed step.
- the step's share: how much of what these add up to is seen in whole composed steps, nine of ten of
  which lie within 1.645 of what is left.
- gaps between kernels: what makes published steps that were measured end to end most likely.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import log, pi, sqrt
from pathlib import Path

import numpy as np
from composed_steps import FILES, GUESSED, ComposedStep, steps
from kernel_rows import held_out, kernel_tables, processor
from published_rows import graph_of_row, published
from serving_rows import PROCESSORS, card_hardware, served_steps, small_kernels
from stream_spreads import StreamTimes, ends, makespan_spread, stream_times

import hosim
from hosim.analysis.costmodel import GUESS, MODEL, TABLE
from hosim.analysis.costmodel.kernels import CLASSES, FITTED, TimeTable
from hosim.analysis.costmodel.kernels.op_families import Array
from hosim.analysis.costmodel.spreads import (
    ATTENTION,
    COLLECTIVES,
    OTHER_MODEL,
    OTHERS,
    PRODUCTS,
    Spreads,
    pooled,
)
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.graph import MAIN_STREAM, Graph
from hosim.hardware import Hardware, MeasuredTimes
from hosim.io import load_hardware
from hosim.io.importers.recordings import KernelTable
from hosim.io.models import build
from hosim.result import Result
from hosim.shipped import find_hardware
from hosim.validate.fits import predicted_us

FILE = Path(hosim.__file__).parent / "costmodel" / "spreads" / "fitted_spreads.py"

_SHORT_US, _ENOUGH = 20.0, 30
_MOST = 400
"""Rows of a class that are looked up in tables."""
_OTHERS = (("a100_sxm", "h100_sxm"), ("h100_sxm", "a100_sxm"), ("l40s", "a100_sxm"))
"""Each machine, and the one whose constants it has without its own measurements."""
_UNLIKE = {
    "l40s": (
        "generation_attention",
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "custom_all_reduce",
    )
}
"""Left out: measured in a cache of 96 MB, and over PCIe, of which constants for NVLink say
nothing.
"""
_SORT_OF = {
    "gemm": PRODUCTS,
    "moe": PRODUCTS,
    "all_reduce": COLLECTIVES,
    "custom_all_reduce": COLLECTIVES,
}


def spread(ratios: Array) -> float:
    """Of logarithms of measured over predicted: nine of ten are within 1.645 spreads."""
    return float(np.quantile(np.abs(ratios), 0.9)) / 1.645


# -- single kernels
# ------------------------------------------------------------------------------------------------


def _tables(machine: str, kernel: str) -> list[KernelTable]:
    tables = [table for file in FILES for table in kernel_tables(file)]
    return [
        table
        for table in tables
        if (table.machine, table.kernel, table.dtype) == (machine, kernel, "fp16")
    ]


def _ratios(tables: Sequence[KernelTable], predicted: Sequence[Array]) -> Array:
    measured = np.concatenate([table.latency_us for table in tables])
    ratios: Array = np.log(measured / np.concatenate(predicted))
    long = measured >= _SHORT_US
    return ratios[long] if long.sum() >= _ENOUGH else ratios


def by_constants(machine: str, of: str) -> dict[str, float]:
    """The spread of each class on a machine, by the constants of the machine ``of``."""
    found = {}
    for kernel, dtypes in FITTED[of].items():
        parts = [table.part(held_out(table)) for table in _tables(machine, kernel)]
        if parts and "fp16" in dtypes and kernel not in _UNLIKE.get(machine, ()):
            found[kernel] = spread(
                _ratios(
                    parts,
                    [
                        predicted_us(p, processor(machine, "fp16"), dict(dtypes["fp16"]))
                        for p in parts
                    ],
                )
            )
    return found


def between_rows(machine: str) -> dict[str, float]:
    """The spread of each class, where the shapes fitted are a table of the profile."""
    found = {}
    for kernel in FITTED[machine]:
        parts, said = [], []
        for table in _tables(machine, kernel):
            out = np.flatnonzero(held_out(table))
            asked = table.part(np.sort(np.random.default_rng(0).permutation(out)[:_MOST]))
            seen = table.part(~held_out(table))
            rows = MeasuredTimes(
                "",
                kernel,
                "fp16",
                table.distribution,
                _sizes(seen),
                tuple(seen.latency_us.tolist()),
            )
            us, inside = TimeTable([rows], partial(_model_us, table)).us(_sizes(asked))
            parts.append(asked.part(np.array(inside)))
            said.append(us[np.array(inside)])
        found[kernel] = spread(_ratios(parts, said))
    return found


def _model_us(like: KernelTable, sizes: Sequence[tuple[int, ...]]) -> Array:
    """By the machine's own constants, of kernels of a table's class and distribution."""
    columns = dict(zip(CLASSES[like.kernel].sizes, np.array(sizes, float).T, strict=True))
    rows = KernelTable(
        like.machine, like.kernel, "fp16", like.distribution, columns, np.ones(len(sizes))
    )
    return predicted_us(
        rows, processor(like.machine, "fp16"), dict(FITTED[like.machine][like.kernel]["fp16"])
    )


def _sizes(table: KernelTable) -> tuple[tuple[int, ...], ...]:
    return tuple(
        zip(
            *(table.sizes[name].astype(int).tolist() for name in CLASSES[table.kernel].sizes),
            strict=True,
        )
    )


# -- composed steps
# ------------------------------------------------------------------------------------------------


def guessed(machine: str) -> dict[str, float]:
    """The spread of each sort of op whose kernel nobody says."""
    ratios: dict[str, dict[object, float]] = defaultdict(dict)
    for step in composed(machine, GUESSED):
        for which, ns in step.measured.items():
            ratios[_SORT_OF.get(which[0], ATTENTION)][which] = log(ns / step.predicted[which])
    return {sort: spread(np.array(list(ratios[sort].values()))) for sort in sorted(ratios)}


def guessed_small(card: str) -> dict[str, float]:
    """The spread of the other guesses: 3 us, and the bytes at three quarters of the bandwidth."""
    bandwidth = PROCESSORS[card][2]
    return {
        OTHERS: spread(
            np.array(
                [log(us / (3 + 1e6 * size / bandwidth / 0.75)) for size, us in small_kernels(card)]
            )
        )
    }


@cache
def composed(machine: str, by: str) -> tuple[ComposedStep, ...]:
    """The composed steps of a machine with constants of another or its own; those of L40S that have
    no collectives over PCIe.
    """
    listed = [step for step in steps(machine, by) if step.measured]
    if machine in _UNLIKE:
        listed = [
            step for step in listed if not any("reduce" in kernel for kernel, _ in step.measured)
        ]
    return tuple(listed)


def shared_part(listed: Iterable[ComposedStep]) -> float:
    """Which part of a class's variance is common to its sizes.

    With weights w (shares of the class's time) and errors e, the sum of w_i w_j e_i e_j over pairs
    is expected to be that part of the variance, times the sum of w_i w_j.
    """
    common = whole = 0.0
    for step in listed:
        by_class: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for which, ns in step.measured.items():
            by_class[which[0]].append((step.predicted[which], log(ns / step.predicted[which])))
        for rows in by_class.values():
            weights, errors = np.array(rows).T
            weights = weights / weights.sum()
            common += (weights @ errors) ** 2 - (weights**2) @ (errors**2)
            whole += (weights @ errors**2) * (1 - (weights**2).sum())
    return float(min(max(common / whole, 0.0), 1.0))


def shared_parts(without: str = "") -> dict[str, float]:
    """The shared part of the variance by origin; between rows of a table it is that of own
    constants.
    """
    machines = [machine for machine in FITTED if machine != without]
    others = [(machine, of) for machine, of in _OTHERS if machine in machines]
    own = shared_part(step for machine in machines for step in composed(machine, machine))
    other = shared_part(step for pair in others for step in composed(*pair))
    guess = shared_part(step for machine in machines for step in composed(machine, GUESSED))
    return {TABLE: own, MODEL: own, OTHER_MODEL: other, GUESS: guess}


def step_errors(
    machine: str, by: str, spreads: Spreads, shared: Mapping[str, float]
) -> tuple[Array, Array]:
    """The error of each composed step of a machine, as a logarithm, and the standard deviation that
    the spreads of its kernels add up to.
    """
    origin = MODEL if machine == by else OTHER_MODEL
    found = []
    for step in composed(machine, by):
        by_class: dict[tuple[str, str], list[int]] = defaultdict(list)
        for (kernel, _), ns in step.predicted.items():
            by_class[origin, kernel].append(ns)
        expected = StreamTimes(
            0, {which: tuple(listed) for which, listed in by_class.items()}
        ).spread(spreads, shared)
        found.append(
            (
                log(sum(step.measured.values()) / expected.busy_ns),
                sqrt(expected.variance) / expected.busy_ns,
            )
        )
    errors, deviations = np.array(found).T
    return errors, deviations


# -- published steps
# -----------------------------------------------------------------------------------------------

END_TO_END = ("gpt-fast", "megatron")
SOURCES = {
    "aic-a100_sxm": "a100_sxm",
    "aic-h100_sxm": "h100_sxm",
    **dict.fromkeys(END_TO_END, ""),
    **{card: card for card in PROCESSORS},
}
"""How the ids of a source's rows begin, and the machine whose tables they are composed of."""


@dataclass(frozen=True)
class KnownStep:
    """A step whose time others measured, or composed of times that they measured, and what hosim
    says of it.
    """

    source: str
    measured_ns: float
    streams: Mapping[str, StreamTimes]
    result: Result

    @property
    def error(self) -> float:
        """The logarithm of measured over predicted."""
        assert self.result.makespan_ns is not None
        return log(self.measured_ns / self.result.makespan_ns)


def _known(source: str, measured_ns: float, graph: Graph, hardware: Hardware) -> KnownStep:
    return KnownStep(
        source, measured_ns, stream_times(graph, hardware), replay(Plan(graph), hardware)
    )


@cache
def known_steps() -> tuple[KnownStep, ...]:
    """The steps all of which is in hosim's graphs: those of inference, and of training without
    sharded data parallelism.
    """
    found = []
    for row in published(("prefill", "decode", "train")):
        source = next((name for name in SOURCES if row.id.startswith(name)), "")
        if source and not row.id.endswith("memory"):
            found.append(
                _known(
                    source,
                    row.figure * 1e9,
                    graph_of_row(row),
                    load_hardware(find_hardware(row.machine)),
                )
            )
    for card in PROCESSORS:
        found += [
            _known(card, ns, build(card, parameters), card_hardware(card))
            for parameters, ns in served_steps(card)
        ]
    return tuple(found)


@dataclass(frozen=True)
class FittedSpreads:
    """All that intervals of makespans depend on."""

    spreads: Spreads
    shared: Mapping[str, float]
    step_share: float
    gap_ns: float = 0.0

    def spread(self, step: KnownStep) -> float:
        """That of a step's makespan."""
        result = step.result
        assert result.makespan_ns is not None
        assert result.drain_ns is not None
        streams = {
            name: times.spread(self.spreads, self.shared) for name, times in step.streams.items()
        }
        own = {"step_share": self.step_share, "gap_ns": self.gap_ns}
        return makespan_spread(
            streams, MAIN_STREAM, result.makespan_ns, result.stall_ns, result.drain_ns, **own
        )

    def interval(self, step: KnownStep) -> tuple[float, float]:
        """That of a step's makespan."""
        assert step.result.makespan_ns is not None
        return ends(step.result.makespan_ns, self.spread(step))


def fitted(by_source: Mapping[str, Spreads], without: str = "") -> FittedSpreads:
    """All of it, without one of :data:`SOURCES`: neither its rows nor its machine's tables."""
    machine = SOURCES.get(without, "")
    spreads, shared = (
        pooled(part for source, part in by_source.items() if source != machine),
        shared_parts(machine),
    )
    pairs = [(name, name) for name in FITTED] + list(_OTHERS)
    parts = [step_errors(*pair, spreads, shared) for pair in pairs if pair[0] != machine]
    off = np.concatenate([errors / deviations for errors, deviations in parts])
    found = FittedSpreads(spreads, shared, round(spread(off), 3))
    listed = [
        step for step in known_steps() if step.source in END_TO_END and step.source != without
    ]
    variances = [
        (
            step.error,
            found.spread(step) ** 2,
            replace(found, step_share=0.0, gap_ns=1000.0).spread(step) ** 2,
        )
        for step in listed
    ]
    return replace(
        found,
        gap_ns=float(
            max(
                range(0, 5000, 20),
                key=lambda gap: sum([_likelihood(*row, gap) for row in variances]),
            )
        ),
    )


def _likelihood(error: float, kernels: float, gaps: float, gap_ns: float) -> float:
    """The logarithm of a normal density; ``gaps`` is the variance with gaps of 1 us."""
    variance = kernels + gaps * (gap_ns / 1000) ** 2
    return -0.5 * (log(2 * pi * variance) + error**2 / variance)


# -- the module
# --------------------------------------------------------------------------------------------------


def sources() -> dict[str, dict[str, dict[str, float]]]:
    """The spreads by source of data, origin and class."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for machine, of in _OTHERS:
        found[machine] = {OTHER_MODEL: by_constants(machine, of)}
        if machine in FITTED:
            found[machine] |= {
                TABLE: between_rows(machine),
                MODEL: by_constants(machine, machine),
                GUESS: guessed(machine),
            }
    found |= {card: {GUESS: guessed_small(card)} for card in PROCESSORS}
    return {
        source: {
            origin: {name: round(value, 3) for name, value in classes.items()}
            for origin, classes in origins.items()
        }
        for source, origins in found.items()
    }


HEAD = '''"""The spreads of op times that ``make spreads`` found: not to be edited. tests/fit_spreads.py says
how each is found.

From the tables of aiconfigurator 0.4.0 (see :mod:`hosim.analysis.costmodel.kernels.fitted_a100`): shapes
held out; for L40S, without its generation attention and its collectives over PCIe. The small
kernels of RTX 4090 and RTX PRO 6000 are from LLMServingSim (MIT). Gaps: gpt-fast's README and
Megatron-LM (arXiv 2205.05198).
"""

from collections.abc import Mapping

'''

TEXT = '''SPREADS: Mapping[str, Mapping[str, Mapping[str, float]]] = {spreads!r}
"""Standard deviations of the logarithm of measured over predicted time, by source of data, origin of the time, and class."""

SHARED: Mapping[str, float] = {shared!r}
"""The part of a class's variance that its sizes share, by origin."""

STEP_SHARE = {step_share!r}
"""How much of what the spreads of a step's kernels add up to is seen in composed steps."""

GAP_NS = {gap_ns!r}
"""The standard deviation of the mean gap between two kernels of a real step that no measured kernel has."""
'''


def main() -> None:
    """Write the module."""
    by_source = sources()
    found = fitted(by_source)
    shared = {origin: round(part, 3) for origin, part in found.shared.items()}
    FILE.write_text(
        HEAD
        + TEXT.format(
            spreads=by_source, shared=shared, step_share=found.step_share, gap_ns=found.gap_ns
        )
    )


if __name__ == "__main__":
    main()

"""The uncertainty in the times of a workload on a machine, as a small set of factors, and its
draws.

The factors, each with a spread (the standard deviation of the logarithm of real over predicted
time):

- each class of kernels, or sort of guessed ops, in each way in which its times are known
  (:mod:`hosim.analysis.costmodel.spreads.time_spread`): a part is common to all of its ops, the rest is that
  of each size;
- the gaps between ops, which no measured kernel has: so many nanoseconds more or less for each op;
- each link between two tiers, both ways alike, by the spread of its profile if that has one;
- how many experts come in other draws of a routing (:func:`hosim.io.models.routing_draw.draw_spread`);
- the figures of the runtime: the speed of a whole step, the time of its host, its optimizer on the
  CPU.

A factor is drawn by its name (:func:`normal_draws`). Names of what belongs to a machine begin with
the machine's; all others are the same on every machine, so that they cancel where machines are
compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis.costmodel.origins import GUESS, MODEL, TABLE
from hosim.analysis.costmodel.spreads.fitted_spreads import GAP_NS, STEP_SHARE
from hosim.analysis.costmodel.spreads.time_spread import (
    OTHER_MODEL,
    POOLED,
    SHARED_PARTS,
    AlikeOps,
    Which,
    alike_ops,
    spread_of,
)
from hosim.analysis.costmodel.transfers import is_pageable
from hosim.base.groups import grouped
from hosim.data.draws import DRAWS, FEW_DRAWS
from hosim.data.expert_routing import draw_spread_of
from hosim.data.runtime import ONE
from hosim.graph import Graph
from hosim.hardware import Channel, Hardware

# -- step spreads
# --------------------------------------------------------------------------------------------------
# How far whole steps are off, beyond their kernels: ``make intervals`` found these, from steps
# that people timed, each source left out in turn (tests/judge_intervals.py).
#
# By software that nobody names, steps take longer than their kernels alone say: training 1.4
# times as long in the mean, inference 1.1 times. No makespan changes by that, but its interval
# does.


@dataclass(frozen=True, slots=True)
class StepSpread:
    """The mean and the standard deviation of the logarithm of measured over predicted time."""

    mean: float
    spread: float


TRAINING = StepSpread(0.35, 0.28)
"""Training steps by software that nobody names, or of whose speed nothing is known."""

INFERENCE = StepSpread(0.14, 0.28)
"""Steps of inference by such software."""

UNMEASURED_MACHINE = 0.1
"""The additional spread of a machine none of whose kernels were measured."""


# -- hypercube
# --------------------------------------------------------------------------------------------------
# Draws that fill what may be evenly: a Latin hypercube whose first draws are one, too.
#
# Each factor has its values from the middles of equally likely parts, one from each, in an order
# of its own (McKay, Beckman and Conover, Technometrics 1979). After each draw comes the opposite
# one, in which all factors have the other sign: errors of the one and the other cancel
# (antithetic variates; Hammersley and Morton 1956). The first :data:`hosim.data.draws.FEW_DRAWS`
# of them are from different ones of as many larger parts, so that few draws are the first of
# many. An order depends on the name of its factor alone: whoever asks for the same factor meets
# the same draws.

Floats = npt.NDArray[np.float64]

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), as in :mod:`hosim.jitter`."""


def normal_draws(name: str) -> Floats:
    """:data:`DRAWS` values of a standard normal distribution, in the order of the factor of this
    name.

    >>> found = normal_draws("a link")
    >>> len(found), round(float(found.sum()), 9), sorted(found) == sorted(normal_draws("another"))
    (200, 0.0, True)
    """
    return _quantiles()[_order(name)]


@cache
def _quantiles() -> Floats:
    inverse = NormalDist().inv_cdf
    half = np.array([inverse((k + 0.5) / DRAWS) for k in range(DRAWS // 2)])
    return np.concatenate([half, -half[::-1]])  # symmetric to the last bit


def _order(name: str) -> npt.NDArray[np.intp]:
    """The order of the parts: one of two opposite ones, then the other."""
    pairs, few = DRAWS // 2, FEW_DRAWS // 2
    seed = int.from_bytes(sha256(name.encode()).digest()[:8], "little")
    larger, within, after, side = np.split(
        _hashed(seed, few + 2 * pairs), [few, 2 * few, few + pairs]
    )
    first = np.argsort(larger, kind="stable") * (pairs // few) + (within % (pairs // few)).astype(
        np.intp
    )
    left = np.setdiff1d(np.arange(pairs), first)
    lower = np.concatenate([first, left[np.argsort(after, kind="stable")]])
    one = np.where(side % 2 == 0, lower, DRAWS - 1 - lower)
    return np.stack([one, DRAWS - 1 - one], axis=1).ravel()


def _hashed(seed: int, count: int) -> npt.NDArray[Any]:
    """So many numbers of 64 bits."""
    bits = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(seed)
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(_FIRST)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(_SECOND)
    return bits ^ bits >> np.uint64(31)


COPIES = 0.085
"""The spread of the rate of a link: medians of the errors of copies of 20 us or more in three
recordings (docs/accuracy.md) are 0.2, 4.7 and 8.7 %, and half of a normal distribution is within
0.67 deviations.
"""

PAGEABLE = 0.61
"""That of copies of pageable memory: what they reach is the host's. The logarithms of six hosts'
shares of the rate of pinned memory deviate by so much: 0.13 and 0.38 (A100), 0.17 (A6000), 0.61
(RTX 3080), 0.30 (RTX 2080 Ti), 0.50 (V100); docs/accuracy.md has their sources.
"""

LARGEST_FACTOR = 16.0
"""No draw is further off than so many times: numbers of the loop have room for that."""

MEASURE_KERNELS = "`hosim import-kernels` with measured times"
MEASURE_LINKS = "`hosim calibrate` or `python -m hosim.gpu measure`"
RECORD_STEP = "`hosim calibrate` with a recorded step"
FIT_RUNTIME = "`hosim runtime fit` with your own runs"
"""The measurement that makes each kind of factor more certain."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """Something uncertain: what it is, what would make it more certain, and the logarithm of it in
    each draw.
    """

    what: str
    remedy: str
    logs: Floats


class DrawnTimes:
    """The draws of a workload's times on a machine."""

    def __init__(self, graph: Graph, hardware: Hardware) -> None:
        self._graph, self._hardware = graph, hardware
        self._alike: AlikeOps = graph.derived_on(hardware, alike_ops)
        self._group = np.array(self._alike.group, np.intp)
        self._links: dict[tuple[str, bool, float], Factor] = {}
        self._known: dict[int, tuple[Sequence[int], npt.NDArray[np.int64]]] = {}
        self._routing = Factor(
            "the experts that a routing chooses",
            "a recorded routing (--routing)",
            draw_spread_of(graph) * normal_draws("routing"),
        )

    # -- ops
    # ----------------------------------------------------------------------------------------------

    @cached_property
    def _common(self) -> Mapping[Which, Factor]:
        """The factor that all ops of a class have in common."""
        found = {}
        for which in dict.fromkeys(self._alike.which):
            spread = _spread(which) * SHARED_PARTS[which[0]] ** 0.5
            found[which] = Factor(
                _named(which), _remedy(which), spread * normal_draws(self._name(which))
            )
        return found

    @cached_property
    def _of_group(self) -> Floats:
        """The logarithm of the factor of each group of ops, by draw."""
        logs = np.zeros((len(self._alike.which) + 1, DRAWS))  # the last one is of what was measured
        for g, (which, name) in enumerate(zip(self._alike.which, self._alike.names, strict=True)):
            spread = _spread(which) * (1 - SHARED_PARTS[which[0]]) ** 0.5
            logs[g] = self._common[which].logs + spread * normal_draws(
                f"{self._name(which)} {name}"
            )
        return logs

    def _name(self, which: Which) -> str:
        """The key by which a class of times is drawn: all machines share a guess's formula."""
        own = [] if which[0] == GUESS else [self._hardware.name]
        return ", ".join([*own, *which])

    @cached_property
    def _gaps(self) -> Factor:
        return Factor("the gaps between ops", RECORD_STEP, normal_draws("gaps between ops"))

    @cached_property
    def _runtime(self) -> Mapping[str, Factor]:
        """The figures of the runtime that are not sure."""
        software = self._hardware.software
        known = {} if software is None else software.known
        named = {
            "speed": "how fast the runtime's steps are",
            "host": "the host's time for an op",
            "cpu_optimizer": "the optimizer on the CPU",
            "pageable": "copies of pageable memory",
            "cache_copy": "the copies in which a cache moves",
        }
        return {
            name: Factor(
                what,
                RECORD_STEP,
                known[name].spread * normal_draws(f"runtime {software.name} {name}"),
            )
            for name, what in named.items()
            if software is not None and name in known and known[name].spread
        }

    @cached_property
    def _steps(self) -> Sequence[Factor]:
        """The factors that all ops of a step on the device have in common: the software, and a
        machine that nobody measured.
        """
        found = [self._runtime["speed"]] if "speed" in self._runtime else []
        software = self._hardware.software
        if software is None or software.speed == ONE:
            phase = "training" if self._trains else "inference"
            of = TRAINING if self._trains else INFERENCE
            logs = of.mean + of.spread * normal_draws(f"speed of {phase} by unnamed software")
            found.append(Factor("the software, which nobody named", FIT_RUNTIME, logs))
        if not is_measured(self._hardware):
            logs = UNMEASURED_MACHINE * normal_draws(f"{self._hardware.name}, kernels in all")
            found.append(Factor("a machine whose kernels nobody measured", MEASURE_KERNELS, logs))
        return found

    @cached_property
    def _trains(self) -> bool:
        return any(
            [
                tensor.kind in ("gradient", "optimizer_state")
                for tensor in self._graph.tensors.each()
            ]
        )

    def durations(self, nominal: Sequence[int], count: int) -> npt.NDArray[np.int64]:
        """Nanoseconds of each op in each of so many draws, not to be changed; ``nominal`` are those
        as they are said to be. They are kept until others are asked for.
        """
        known = self._known.get(count)
        if known is None or known[0] is not nominal:
            known = self._known[count] = nominal, self._durations(nominal, count)
        return known[1]

    def _durations(self, nominal: Sequence[int], count: int) -> npt.NDArray[np.int64]:
        said = np.array(nominal, float)
        unsure = (self._group >= 0) & (said > 0)
        gaps = np.where(unsure[:, None], GAP_NS * self._gaps.logs[:count], 0.0)
        drawn = said[:, None] * self.kernels(count) + gaps
        least = np.minimum(said, 1)[:, None]
        whole: npt.NDArray[np.int64] = np.rint(
            np.clip(drawn, least, said[:, None] * LARGEST_FACTOR + least)
        ).astype(np.int64)
        return whole.T

    def kernels(self, count: int) -> Floats:
        """By what the time of each op is multiplied in each of so many draws, without gaps."""
        ops, unsure = self._graph.ops, self._group >= 0
        factor: Floats = np.exp(self._of_group[self._group, :count])
        modelled = np.array([not op.processor and op.duration_ns is None for op in ops], bool)
        factor[modelled & unsure] *= np.exp(sum([each.logs[:count] for each in self._steps]))
        if "cpu_optimizer" in self._runtime:
            by_cpu = np.array([bool(op.processor) and op.kind == "optimizer" for op in ops], bool)
            factor[by_cpu & unsure] = self._runtime_factor("cpu_optimizer", count)
        return factor

    def calls(self, count: int) -> Floats:
        """By what the time of a call of the runtime's host is multiplied, in each of so many
        draws.
        """
        return self._runtime_factor("host", count)

    def _runtime_factor(self, name: str, count: int) -> Floats:
        if name not in self._runtime:
            return np.ones(count)
        factor: Floats = np.exp(self._runtime[name].logs[:count])
        return factor

    # -- copies
    # ----------------------------------------------------------------------------------------------

    def copies(self, channel: Channel, kind: str, count: int) -> Floats:
        """By what the time for which bytes of a tensor of this kind flow is multiplied, in each of
        so many draws.
        """
        logs = self._link(channel, kind).logs + self._routing.logs
        if kind == "kv_cache" and "cache_copy" in self._runtime:
            logs = logs + self._runtime["cache_copy"].logs
        return np.clip(
            np.exp(logs[:count]),
            1 / LARGEST_FACTOR,
            LARGEST_FACTOR,
        )

    def _link(self, channel: Channel, kind: str) -> Factor:
        ends = " and ".join(sorted((channel.source, channel.destination)))
        pageable = channel.pageable_bytes_per_s is not None and is_pageable(
            self._hardware, channel, kind
        )
        spread = PAGEABLE if pageable else COPIES if channel.spread is None else channel.spread
        key = ends, pageable, spread
        if key not in self._links:
            if pageable and "pageable" in self._runtime:
                self._links[key] = self._runtime["pageable"]
            else:
                copies = "copies of pageable memory" if pageable else "the copy bandwidth"
                logs = spread * normal_draws(f"{self._hardware.name}, link {key[:2]}")
                self._links[key] = Factor(f"{copies} between {ends}", MEASURE_LINKS, logs)
        return self._links[key]

    # -- where it is from
    # --------------------------------------------------------------------------------------

    def factors(self, nominal: Sequence[int]) -> Sequence[Factor]:
        """All that is drawn; of a class of ops also what its sizes do not share, in the mean over
        the ``nominal`` times.
        """
        found = [
            self._gaps,
            *self._steps,
            *self._runtime.values(),
            *self._links.values(),
            self._routing,
            *self._classes(nominal),
        ]
        return [factor for factor in dict.fromkeys(found) if factor.logs.any()]

    def _classes(self, nominal: Sequence[int]) -> list[Factor]:
        unsure = self._group >= 0
        taken = np.bincount(
            self._group[unsure], np.array(nominal, float)[unsure], len(self._alike.which)
        )
        return [
            Factor(
                _named(which),
                _remedy(which),
                np.average(self._of_group[listed], axis=0, weights=taken[listed]),
            )
            for which, listed in grouped(
                (which, g) for g, which in enumerate(self._alike.which) if taken[g]
            ).items()
        ]


def is_measured(hardware: Hardware) -> bool:
    """Return whether somebody measured the products of a machine, the kernels that count most."""
    if hardware.compute.processor is None:
        return False
    from hosim.analysis.costmodel.kernels import has_own_constants

    return has_own_constants(hardware, "gemm", "fp16")


def _spread(which: Which) -> float:
    return STEP_SHARE * spread_of(which, POOLED)


def _named(which: Which) -> str:
    """A class of times as readers are told."""
    origin, words = which[0], which[1].replace("_", " ")
    return f"guessed times of {words}" if origin == GUESS else f"times of {words} ({origin})"


def _remedy(which: Which) -> str:
    return MEASURE_KERNELS if which[0] in (MODEL, TABLE, OTHER_MODEL) else RECORD_STEP

"""The times of a graph's ops that say which kernel they are, and where each is from: a table, or
the fitted model.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import ceil, log

import numpy as np

from hosim.analysis.costmodel.kernels.classes import CLASSES, DTYPES, LABELS, first_wrong
from hosim.analysis.costmodel.kernels.constants import (
    asked_less,
    constants_for,
    fed_better,
    withheld,
)
from hosim.analysis.costmodel.kernels.op_families import Array, Processor, expected_loads
from hosim.analysis.costmodel.origins import MODEL, TABLE
from hosim.analysis.costmodel.peaks import best_for, peak_for
from hosim.base.groups import grouped
from hosim.errors import GraphError, HardwareError
from hosim.graph import MAIN_STREAM, Graph, Op
from hosim.hardware import Hardware, MeasuredTimes
from hosim.units import LARGEST

# -- table lookup
# --------------------------------------------------------------------------------------------------
# Times from tables: interpolated in the logarithms between the sizes that were measured,
# extrapolated by the model from their edge.
#
# What is interpolated is how far a measured time is from the model's: it varies little from one
# size to the next, whereas times jump with tiles and waves. Where a size lies beyond a table,
# that ratio is the one at the table's edge.

Sizes = tuple[int, ...]

_NEAREST = 4
"""So many nearest rows count where none of the surrounding ones was measured."""


class TimeTable:
    """Rows of one class, dtype and distribution, with the model's times of the same sizes. Rows of
    equal sizes count as their mean.
    """

    def __init__(
        self, times: Sequence[MeasuredTimes], model_us: Callable[[Sequence[Sizes]], Array]
    ) -> None:
        rows = [row for part in times for row in part.sizes]
        measured = np.array([us for part in times for us in part.us])
        off = np.log(measured / model_us(rows))
        several = grouped(zip(rows, off.tolist(), strict=True))
        self._ratio: dict[Sizes, float] = {
            row: sum(ratios) / len(ratios) for row, ratios in several.items()
        }
        self._axes = [sorted(set(column)) for column in zip(*rows, strict=True)]
        self._model_us = model_us

    def us(self, sizes: Sequence[Sizes]) -> tuple[Array, list[bool]]:
        """Microseconds of each, and whether it lies within the table."""
        clamped = [
            tuple(min(max(x, axis[0]), axis[-1]) for x, axis in zip(row, self._axes, strict=True))
            for row in sizes
        ]
        ratios = np.exp([self._off(row) for row in clamped])
        return self._model_us(sizes) * ratios, [
            row == inside for row, inside in zip(sizes, clamped, strict=True)
        ]

    def _off(self, row: Sizes) -> float:
        """The logarithm of measured over modelled time, between the corners of the cell that has
        the sizes.
        """
        if row in self._ratio:
            return self._ratio[row]
        sides: list[list[tuple[int, float]]] = []
        for x, axis in zip(row, self._axes, strict=True):
            i = bisect_left(axis, x)
            if axis[i] == x:
                sides.append([(x, 1.0)])
            else:
                share = (_log(x) - _log(axis[i - 1])) / (_log(axis[i]) - _log(axis[i - 1]))
                sides.append([(axis[i - 1], 1 - share), (axis[i], share)])
        total = weights = 0.0
        for corner in product(*sides):
            off = self._ratio.get(tuple(x for x, _ in corner))
            if off is not None:
                weight = 1.0
                for _, share in corner:
                    weight *= share
                total += weight * off
                weights += weight
        return total / weights if weights > 0 else self._nearest(row)

    def _nearest(self, row: Sizes) -> float:
        distance = sorted(
            (sum((_log(a) - _log(b)) ** 2 for a, b in zip(row, known, strict=True)), known)
            for known in self._ratio
        )
        near = [(1 / (far + 1e-9), self._ratio[known]) for far, known in distance[:_NEAREST]]
        return sum([weight * off for weight, off in near]) / sum([weight for weight, _ in near])


def _log(size: int) -> float:
    return log(size + 1)


_NS_PER_S = 10**9

Timed = tuple[int, str]
"""Nanoseconds, and where they are from."""

_PRODUCTS = frozenset({"gemm", "expert_product", "moe"})
"""Classes that are nothing but matrix products, of which a profile may say the fastest that was
measured.
"""

_MIXTURES = frozenset({name for name, kernel in CLASSES.items() if "experts" in kernel.sizes})
"""Classes whose times depend on how tokens spread over experts; those of all others are measured
once for any.
"""


def kernel_times(graph: Graph, hardware: Hardware) -> Mapping[int, Timed]:
    """The time of each op, by position, that has no measured duration and says which kernel it is,
    if the profile has a processor.

    None takes less than its bytes at the memory's full bandwidth: kernels are measured again and
    again on the same data, part of which then lies in a cache, as it does not in a step. No product
    that the model times takes less than its FLOP at the best that was measured. A product of packed
    weights takes longer by what the model says of more bytes of scales than those of the tables.

    Ops without the constants of their class, and collectives on a machine whose profile has no
    links, are left out. Raises :class:`HardwareError` for an unknown kernel, and for one with
    another number of sizes.
    """
    if hardware.compute.processor is None:
        return {}
    distribution = _distribution(graph)
    wanted: defaultdict[tuple[str, str, str, float], dict[Sizes, list[int]]] = defaultdict(dict)
    alike = graph.ops.alike
    for code, op in enumerate(alike):
        if (
            op.kernel
            and op.duration_ns is None
            and not op.processor
            and (op.dtype in LABELS or op.stream != MAIN_STREAM)
        ):
            spread, label = (
                distribution if op.kernel in _MIXTURES else "uniform",
                _label(op, hardware),
            )
            which = op.kernel, label, spread, _weight_bytes(op, label)
            wanted[which].setdefault(op.sizes, []).append(code)
    times: dict[int, Timed] = {}
    """By code: all that are alike take the same."""
    for (kernel, dtype, spread, weight_bytes), places in wanted.items():
        first = alike[next(iter(places.values()))[0]]
        _check(first, [alike[at[0]] for at in places.values()])
        found = kernel_us(hardware, kernel, dtype, spread, list(places), weight_bytes)
        if found is not None:
            best = best_for(hardware, DTYPES[dtype].compute) if kernel in _PRODUCTS else None
            for (us, origin), at in zip(found, places.values(), strict=True):
                if not 0 <= us <= LARGEST / 1000:
                    name = alike[at[0]].name
                    raise HardwareError(
                        f"op {name!r} would take {us:.3g} us as a kernel {kernel!r}; expected up "
                        "to 2^63-1 ns; check its constants",
                        where=f"compute.kernels.{kernel}",
                    )
                for code in at:
                    floor = -(
                        -alike[code].bytes_accessed
                        * _NS_PER_S
                        // hardware.device.bandwidth_bytes_per_s
                    )
                    if best is not None and origin == MODEL:
                        floor = max(floor, -(-alike[code].flops * _NS_PER_S // best))
                    times[code] = max(ceil(us * 1000), floor), origin
    return {i: times[code] for i, code in enumerate(graph.ops.codes) if code in times}


def _label(op: Op, hardware: Hardware) -> str:
    """The name of an op's dtype in tables: a product of 8 bits, where the processor does not
    compute in fp8, unpacks them as weights.
    """
    label = LABELS.get(op.dtype, "fp16")
    packed = (
        op.kernel in _PRODUCTS
        and DTYPES[label].compute == "fp8"
        and "fp8" not in hardware.compute.peak_flops
    )
    return "int8_weights" if packed else label


def _weight_bytes(op: Op, label: str) -> float:
    """Bytes of an element of the packed weights that a product reads, as those of tables whose
    scales are as usual have them; 0: as the dtype says.

    >>> op = Op("f", "matmul", kernel="gemm", sizes=(1, 4096, 4096), dtype="int4_weights",
    ...         bytes_accessed=2 * 4096 + 4096 * 4096 * 9 // 16 + 2 * 4096)
    >>> _weight_bytes(op, op.dtype)
    0.546875
    """
    kind = DTYPES[label]
    if not kind.scales or op.kernel != "gemm" or len(op.sizes) != 3:
        return 0
    m, n, k = op.sizes
    read = op.bytes_accessed - m * k * kind.input_bytes - m * n * kind.output_bytes
    more = read / max(1, n * k) - kind.scales - kind.weight_bytes
    return kind.weight_bytes + more if more > 0 else 0


def _distribution(graph: Graph) -> str:
    """Return the distribution of the graph's tokens over experts, as its ``meta`` says."""
    distribution = str(graph.meta.get("routing_distribution", "uniform"))
    try:
        expected_loads(1, 1, 1, 1, distribution)
    except ValueError as error:
        raise GraphError(str(error), where="meta.routing_distribution") from None
    return distribution


def _check(first: Op, ops: Sequence[Op]) -> None:
    if first.kernel not in CLASSES:
        raise HardwareError(
            f"op {first.name!r} is an unknown kernel {first.kernel!r}; expected one of "
            f"{', '.join(CLASSES)}"
        )
    names = CLASSES[first.kernel].sizes
    for op in ops:
        if len(op.sizes) != len(names):
            raise HardwareError(
                f"op {op.name!r}, a kernel {op.kernel!r}, has {len(op.sizes)} sizes; expected "
                f"{', '.join(names)}"
            )
    wrong = first_wrong(
        first.kernel, dict(zip(names, np.array([op.sizes for op in ops], float).T, strict=True))
    )
    if wrong is not None:
        row, expected = wrong
        raise HardwareError(
            f"op {ops[row].name!r}, a kernel {first.kernel!r}, has sizes {list(ops[row].sizes)}; "
            f"expected {expected}"
        )


def kernel_us(
    hardware: Hardware,
    kernel: str,
    dtype: str,
    distribution: str,
    sizes: Sequence[Sizes],
    weight_bytes: float = 0,
) -> list[tuple[float, str]] | None:
    """Microseconds of kernels of one class and dtype, and where each is from; ``None`` where
    nothing says it. ``weight_bytes``: of an element of the weights, where it has more than others
    of this dtype; 0: as these.
    """
    constants, processor = constants_for(hardware, kernel, dtype), processor_for(hardware, dtype)
    if constants is None or (
        CLASSES[kernel].sizes == ("ranks", "bytes") and not processor.link_bandwidth
    ):
        return None
    with np.errstate(all="ignore"):  # a time that is no number is refused where it is used
        found = _timed(hardware, kernel, dtype, distribution, sizes)
        if not weight_bytes:
            return found
        model = _KernelModel(hardware, kernel, dtype, distribution)
        longer = model.us(sizes, weight_bytes) / model.us(sizes)
        return [(us * more, origin) for (us, origin), more in zip(found, longer, strict=True)]


def _timed(
    hardware: Hardware, kernel: str, dtype: str, distribution: str, sizes: Sequence[Sizes]
) -> list[tuple[float, str]]:
    model = _KernelModel(hardware, kernel, dtype, distribution)
    tables = [
        t
        for t in hardware.compute.tables
        if (t.kernel, t.dtype, t.distribution) == (kernel, dtype, distribution)
    ]
    if not tables:
        return [(us, MODEL) for us in model.us(sizes).tolist()]
    us, inside = _time_table(tuple(tables), model).us(sizes)
    return [
        (time, TABLE if within else MODEL) for time, within in zip(us.tolist(), inside, strict=True)
    ]


class _KernelModel:
    """The model's times of one class, dtype and distribution on a machine; equal to another of the
    same machine.
    """

    def __init__(self, hardware: Hardware, kernel: str, dtype: str, distribution: str) -> None:
        self.hardware = hardware
        self.which = (kernel, dtype, distribution)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _KernelModel)
            and self.hardware is other.hardware
            and self.which == other.which
        )

    def __hash__(self) -> int:
        return hash((id(self.hardware), self.which))

    def us(self, sizes: Sequence[Sizes], weight_bytes: float = 0) -> Array:
        kernel, dtype, distribution = self.which
        columns = np.array(sizes, float).reshape(len(sizes), -1).T
        return CLASSES[kernel].us(
            constants_for(self.hardware, kernel, dtype),
            processor_for(self.hardware, dtype),
            CLASSES[kernel].shapes(
                dict(zip(CLASSES[kernel].sizes, columns, strict=True)),
                dtype,
                distribution,
                np.full(len(sizes), weight_bytes) if weight_bytes else None,
            ),
        )


@lru_cache(maxsize=64)
def _time_table(tables: tuple[MeasuredTimes, ...], model: _KernelModel) -> TimeTable:
    return TimeTable(tables, model.us)


def processor_for(hardware: Hardware, dtype: str) -> Processor:
    """The processor of a profile that has one, for kernels of this label
    (:data:`hosim.analysis.costmodel.kernels.classes.DTYPES`).
    """
    figures = hardware.compute.processor
    assert figures is not None
    return Processor(
        peak_for(hardware, DTYPES[dtype].compute) or 0,
        hardware.device.bandwidth_bytes_per_s,
        figures.multiprocessors,
        figures.clock_hz,
        figures.link_bytes_per_s,
        fed_better(hardware),
        asked_less(hardware),
        withheld(hardware),
        figures.mesh,
    )

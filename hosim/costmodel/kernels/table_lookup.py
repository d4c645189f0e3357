"""Times from tables: interpolated in the logarithms between the sizes that were measured,
extrapolated by the model from their edge.

What is interpolated is how far a measured time is from the model's: it varies little from one size
to the next, whereas times jump with tiles and waves. Where a size lies beyond a table, that ratio
is the one at the table's edge.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from math import log

import numpy as np

from hosim.costmodel.kernels.op_families import Array
from hosim.hardware import MeasuredTimes

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
        several: defaultdict[Sizes, list[float]] = defaultdict(list)
        for row, ratio in zip(rows, off.tolist(), strict=True):
            several[row].append(ratio)
        self._ratio = {row: sum(ratios) / len(ratios) for row, ratios in several.items()}
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

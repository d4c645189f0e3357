"""Times of iterations from recorded kernels: tables of the ops of a layer by tokens, of attention
by its shape, of what runs per sequence.

The tables are those of LLMServingSim's profiler (casys-kaist/LLMServingSim, MIT):
``kernels_dense.csv`` (layer, tokens, time_us), ``kernels_per_sequence.csv`` (layer, sequences,
time_us) and ``kernels_attention.csv`` (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us),
compressed or not. Between rows times are interpolated.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas

from hosim.base.files import cell_text, check_widths, csv_rows, decode, read_bytes
from hosim.errors import InputError
from hosim.serving.scheduler import Iteration

Array = npt.NDArray[np.float64]

_ONCE = ("embedding", "final_layernorm")
_TIMES = {"layernorm": 2}
"""The number of times that an op runs in a layer, if not once; those of ``_ONCE`` run once an
iteration.
"""

_SHAPE = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


@dataclass(frozen=True, eq=False)
class RecordedIterations:
    """The tables of one model on one machine, and the host's overhead of an iteration. It is called
    with an iteration.
    """

    layers: int
    dense: Mapping[str, tuple[Array, Array]]
    per_sequence: Mapping[str, tuple[Array, Array]]
    attention: Mapping[tuple[int, int, int, int], float]
    overhead_ns: int = 0

    def __call__(self, iteration: Iteration) -> int:
        """Nanoseconds of an iteration."""
        us = _between(iteration.tokens, *self._dense_us) + self.layers * self.attention_us(
            iteration
        )
        us += sum(_between(iteration.sequences, *table) for table in self.per_sequence.values())
        return round(us * 1000) + self.overhead_ns

    def attention_us(self, iteration: Iteration) -> float:
        """Microseconds of one layer's attention.

        The table has one prefill beside decoding sequences with equally many keys. The decoding
        ones are taken to have the mean of theirs; of several prefills the largest is looked up with
        them, and the others add what they take by themselves beyond a launch.
        """
        prefills = sorted(
            iteration.prefills, key=lambda part: (-part[0] * (2 * part[1] + part[0]), part)
        )
        first = prefills[0] if prefills else (0, 0)
        keys = iteration.decode_keys / iteration.decodes if iteration.decodes else 0.0
        us = self._looked_up((*first, iteration.decodes, keys))
        return us + sum(
            max(0.0, self._looked_up((*part, 0, 0)) - self._launch_us) for part in prefills[1:]
        )

    @cached_property
    def _dense_us(self) -> tuple[Array, Array]:
        tokens = next(iter(self.dense.values()))[0]
        total = np.zeros(len(tokens))
        for name, (_, us) in self.dense.items():
            total += us * (1 if name in _ONCE else self.layers * _TIMES.get(name, 1))
        return tokens, total

    @cached_property
    def _axes(self) -> tuple[Array, ...]:
        return tuple(
            np.array(sorted({shape[i] for shape in self.attention}), float) for i in range(4)
        )

    @cached_property
    def _alike(self) -> dict[tuple[bool, bool], list[tuple[int, int, int, int]]]:
        """The rows without a prefill, or without what decodes."""
        found: dict[tuple[bool, bool], list[tuple[int, int, int, int]]] = {}
        for row in self.attention:
            found.setdefault((row[0] == 0, row[2] == 0), []).append(row)
        return found

    @cached_property
    def _launch_us(self) -> float:
        return min(self.attention.values())

    def _looked_up(self, shape: tuple[float, float, float, float]) -> float:
        """Between the rows around a shape, linear in each of its sizes; beyond the last ones as
        between the two before.
        """
        sides = []
        for axis, size in zip(self._axes, shape, strict=True):
            low = int(np.clip(np.searchsorted(axis, size) - 1, 0, len(axis) - 2))
            share = (size - axis[low]) / (axis[low + 1] - axis[low])
            sides.append([(int(axis[low]), 1 - share), (int(axis[low + 1]), share)])
        us = 0.0
        for corner in product(*sides):
            share = float(np.prod([weight for _, weight in corner]))
            if share:
                chunk, before, decodes, keys = (size for size, _ in corner)
                us += share * self._row(
                    chunk, before if chunk else 0, decodes, keys if decodes else 0
                )
        return max(0.0, us)

    def _row(self, chunk: int, before: int, decodes: int, keys: int) -> float:
        """A row; one that is not there as the sum of its two halves, and a half as the nearest one
        there is, by its products of tokens.
        """
        found = self.attention.get((chunk, before, decodes, keys))
        if found is not None:
            return found
        return (
            (self._half((chunk, before, 0, 0)) if chunk else self._launch_us)
            + (self._half((0, 0, decodes, keys)) if decodes else self._launch_us)
            - self._launch_us
        )

    def _half(self, shape: tuple[int, int, int, int]) -> float:
        found = self.attention.get(shape)
        if found is not None:
            return found
        near = min(
            self._alike.get((shape[0] == 0, shape[2] == 0), ()),
            key=lambda row: (
                sum(abs(np.log2((a + 1) / (b + 1))) for a, b in zip(row, shape, strict=True)),
                row,
            ),
        )
        return self._launch_us + (self.attention[near] - self._launch_us) * _work(shape) / _work(
            near
        )


def _between(count: int, counts: Array, us: Array) -> float:
    """The time between the rows around a count; beyond the last row it grows as between the two
    before, if it does.
    """
    if count <= counts[-1] or len(counts) == 1:
        return float(np.interp(count, counts, us))
    return float(
        us[-1] + max(0.0, us[-1] - us[-2]) * (count - counts[-1]) / (counts[-1] - counts[-2])
    )


def _work(shape: tuple[int, int, int, int]) -> float:
    """Products of queries and keys."""
    chunk, before, decodes, keys = shape
    return chunk * (before + chunk / 2) + decodes * keys + 1


def read_recorded_iterations(
    folder: str | os.PathLike[str], layers: int, overhead_ns: int = 0
) -> RecordedIterations:
    """The tables in a folder. Raises :class:`InputError` for one that is missing or damaged."""
    source = os.fspath(folder)
    dense = _by_layer(folder, "kernels_dense", "tokens")
    if len({tuple(tokens) for tokens, _ in dense.values() if len(tokens) > 1}) != 1:
        raise InputError(
            "expected times of every op at the same numbers of tokens",
            source=source,
            where="kernels_dense.csv",
        )
    dense = {name: table for name, table in dense.items() if len(table[0]) > 1}
    per_sequence = _by_layer(folder, "kernels_per_sequence", "sequences")
    rows = _table(folder, "kernels_attention", (*_SHAPE, "time_us"))
    shapes = list(zip(*(rows[name].astype(int) for name in _SHAPE), strict=True))
    alone = {(chunk > 0, decodes > 0) for chunk, _, decodes, _ in shapes}
    if not {(True, False), (False, True)} <= alone or any(
        len(set(sizes)) == 1 for sizes in zip(*shapes, strict=True)
    ):
        raise InputError(
            "expected prefills alone and decodes alone, and at least two values of each of "
            f"{', '.join(_SHAPE)}",
            source=source,
            where="kernels_attention.csv",
        )
    return RecordedIterations(
        layers,
        dense,
        per_sequence,
        dict(zip(shapes, rows["time_us"].astype(float), strict=True)),
        overhead_ns,
    )


def _by_layer(
    folder: str | os.PathLike[str], name: str, count: str
) -> dict[str, tuple[Array, Array]]:
    rows = _table(folder, name, ("layer", count, "time_us"))
    if rows.astype({count: float}).duplicated(["layer", count]).any():
        raise InputError(
            f"expected one time for each layer and number of {count}",
            source=os.fspath(folder),
            where=f"{name}.csv",
        )
    return {
        str(name): (part[count].to_numpy(float), part["time_us"].to_numpy(float))
        for name, part in rows.astype({count: float})
        .sort_values(count, kind="stable")
        .groupby("layer")
    }


def _table(folder: str | os.PathLike[str], name: str, columns: tuple[str, ...]) -> pandas.DataFrame:
    path = next(
        (
            path
            for path in (Path(folder) / f"{name}.csv", Path(folder) / f"{name}.csv.gz")
            if path.exists()
        ),
        None,
    )
    if path is None:
        raise InputError(f"expected {name}.csv or {name}.csv.gz in it", source=os.fspath(folder))
    source = str(path)
    lines = csv_rows(decode(read_bytes(source), source).rstrip().encode(), source)
    header, *rows = lines or [[]]
    if tuple(header) != columns or not rows:
        raise InputError(
            f"expected the columns {', '.join(columns)} and a line for each time",
            source=source,
            where="line 1",
        )
    check_widths(lines, source)
    frame = pandas.DataFrame(rows, columns=list(columns), dtype=object).map(cell_text)
    numbers = frame[[column for column in columns if column != "layer"]].apply(
        pandas.to_numeric, errors="coerce"
    )
    wrong = np.flatnonzero(~((numbers >= 0) & (numbers < 1e12)).all(axis=1))
    if len(wrong):
        raise InputError(
            "expected numbers of at least 0", source=source, where=f"line {wrong[0] + 2}"
        )
    return frame.assign(**{column: numbers[column] for column in numbers})

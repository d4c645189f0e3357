"""The arrays that classes of the loop and of kernels declare, in the form that the loop takes here:
lists, or memory views where it is compiled.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.engine import compiled_loop
from hosim.engine.cells.current_extensions import is_current
from hosim.engine.cells.declared_arrays import Array

COMPILED = is_current(compiled_loop, Path(__file__).parents[1], "loop*.py")
"""True where simulations run compiled."""

Cells = Any
"""Integers by position: a list, or a memory view of an array, as the form of the loop wants
them.
"""

Numbers = Iterable[int] | npt.NDArray[Any]


def ints(values: Numbers) -> Cells:
    """Numbers of 32 bits, at least one."""
    return _cells("i", values)


def flags(values: Numbers) -> Cells:
    """Numbers of 8 bits, at least one."""
    return _cells("B", values)


def longs(values: Numbers) -> Cells:
    """Numbers of 64 bits, at least one."""
    return _cells("q", values)


def fill(cells: Cells, values: Sequence[int] | npt.NDArray[Any]) -> None:
    """Let the first of some numbers be these."""
    if isinstance(cells, list):
        cells[: len(values)] = values.tolist() if isinstance(values, np.ndarray) else values
    elif len(values):
        cells[: len(values)] = _cells(cells.format, values)


def copied(cells: Cells, count: int) -> Cells:
    """A copy of the first of some numbers, which nobody changes."""
    if not COMPILED:
        return list(cells[:count])
    return memoryview(bytes(cells[: max(count, 0)])).cast(cells.format)


def _cells(code: str, values: Numbers) -> Cells:
    if not COMPILED:
        return (values.tolist() if isinstance(values, np.ndarray) else list(values)) or [0]
    found = np.ascontiguousarray(
        values if isinstance(values, np.ndarray | list) else np.fromiter(values, code), code
    )
    return (found if len(found) else np.zeros(1, code)).data.cast("B").cast(code)  # type: ignore[call-overload]


def made_cells(
    declares: type, numbers: Mapping[str, int], *, plain: bool = not COMPILED
) -> dict[str, Cells]:
    """The arrays that a class of the loop declares to be made and that are no state; ``numbers``
    are those that sizes name, ``plain`` asks for lists.
    """
    return _laid_out(_sizes(declares, numbers, kept=False), plain)[1]


def _laid_out(
    sizes: Sequence[tuple[str, str, int, int]], plain: bool
) -> tuple[list[memoryview], dict[str, Cells]]:
    """All arrays of each type as bytes, and each array by name: a part of those of its type; or
    lists.
    """
    if plain:
        return [], {name: [first] * size for name, _, size, first in sizes}
    wholes, by_name = [], dict[str, Cells]()
    for code in "Biq":
        mine = [each for each in sizes if each[1] == code]
        numbers = np.zeros(sum([size for _, _, size, _ in mine]) or 1, code)
        wholes.append(numbers.data.cast("B"))
        whole, begin = wholes[-1].cast(code), 0  # type: ignore[call-overload]
        for name, _, size, first in mine:
            if first:
                numbers[begin : begin + size] = first
            by_name[name] = whole[begin : begin + size]
            begin += size
    return wholes, by_name


def _sizes(
    declares: type, numbers: Mapping[str, int], kept: bool
) -> list[tuple[str, str, int, int]]:
    """The name, the type, the size and the first values of such arrays."""
    arrays, terms = _declared(declares, kept)
    sizes = {
        size: max(
            1,
            sum(
                [
                    prod([int(part) if part.isdigit() else numbers[part] for part in term])
                    for term in of
                ]
            ),
        )
        for size, of in terms.items()
    }
    return [(name, code, sizes[each.size], each.first) for name, code, each in arrays]


@cache
def _declared(
    declares: type, kept: bool
) -> tuple[list[tuple[str, str, Array]], dict[str, list[list[str]]]]:
    """The arrays that a class and its bases declare, each with its name and type; and sizes as sums
    of products of what they name.
    """
    codes = {"Flags": "B", "Ints": "i", "Longs": "q"}
    arrays = [
        (name, codes[made.__annotations__[name]], each)
        for made in reversed(declares.__mro__)
        for name, each in vars(made).items()
        if isinstance(each, Array) and each.kept == kept
    ]
    return arrays, {
        each.size: [term.split("*") for term in each.size.split("+")] for _, _, each in arrays
    }


class StateCells:
    """The arrays of a state, ``by_name``, as a class of the loop declares them: :meth:`kept` copies
    and :meth:`put_back` restores them.
    """

    def __init__(self, declares: type, numbers: Mapping[str, int]) -> None:
        self._wholes, self.by_name = _laid_out(_sizes(declares, numbers, kept=True), not COMPILED)

    def kept(self) -> Any:
        """A copy of the state."""
        return (
            [bytes(whole) for whole in self._wholes]
            if COMPILED
            else [cells.copy() for cells in self.by_name.values()]
        )

    def put_back(self, kept: Any) -> None:
        """Make the state what it was when it was kept."""
        if COMPILED:
            for whole, saved in zip(self._wholes, kept, strict=True):
                whole[:] = saved
            return
        for cells, saved in zip(self.by_name.values(), kept, strict=True):
            cells[:] = saved

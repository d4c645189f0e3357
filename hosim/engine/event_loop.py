"""Which form of the event loop runs, the compiled extension or its source interpreted; and arrays as that form wants them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from hosim.engine import compiled_loop, loop

Cells = Any
"""Integers by position: a list, or a memory view of an array, as the form of the loop wants them."""


def _is_compiled() -> bool:
    """Whether the extension is there and not stale; one line on stderr says if not."""
    if not compiled_loop.SOURCE:
        why = "no compiled loop here (a C compiler at installation makes it)"
    else:
        here = Path(loop.__file__).parent
        sources = [*sorted(here.glob("loop*.py")), here / "compiled_loop.pxd"]
        if sha256(b"".join([source.read_bytes() for source in sources])).hexdigest() == compiled_loop.SOURCE:
            return True
        why = "the compiled loop is of another source (install hosim again)"
    print(f"hosim: {why}: plans are simulated interpreted, slower", file=sys.stderr)
    return False


COMPILED = _is_compiled()
"""Whether simulations run compiled."""

Loop: type[loop.Loop] = compiled_loop.Extension if COMPILED else loop.Loop


def ints(values: Iterable[int]) -> Cells:
    """Numbers of 32 bits, at least one."""
    return _cells("i", values)


def flags(values: Iterable[int]) -> Cells:
    """Numbers of 8 bits, at least one."""
    return _cells("B", values)


def longs(values: Iterable[int]) -> Cells:
    """Numbers of 64 bits, at least one."""
    return _cells("q", values)


def fill(cells: Cells, values: Sequence[int]) -> None:
    """Let the first of some numbers be these."""
    if values:
        cells[: len(values)] = memoryview(array(cells.format, values)) if COMPILED else values


def _cells(code: str, values: Iterable[int]) -> Cells:
    if COMPILED:
        return memoryview(array(code, iter(values)) or array(code, [0]))  # not the bytes of values themselves
    return list(values) or [0]


class StateCells:
    """The arrays of a state, which :meth:`kept` copies and :meth:`put_back` restores.

    ``sizes`` has how long each is; those that ``wide`` names are of 64 bits, those of ``narrow`` of 8, the others of 32.
    """

    def __init__(self, sizes: dict[str, int], wide: Sequence[str], narrow: Sequence[str]) -> None:
        self.by_name: dict[str, Cells] = {}
        self._wholes: list[memoryview] = []
        if not COMPILED:
            self.by_name = {name: [0] * max(1, size) for name, size in sizes.items()}
            return
        for code, bits in (("B", 1), ("i", 4), ("q", 8)):
            of = {name: "q" if name in wide else "B" if name in narrow else "i" for name in sizes}
            mine = {name: max(1, size) for name, size in sizes.items() if of[name] == code}
            whole = memoryview(array(code, bytes(bits * sum(mine.values()))))
            self._wholes.append(whole.cast("B"))
            begin = 0
            for name, size in mine.items():
                self.by_name[name] = whole[begin : begin + size]
                begin += size

    def kept(self) -> Any:
        """A copy of the state."""
        if COMPILED:
            return [bytes(whole) for whole in self._wholes]
        return [cells.copy() for cells in self.by_name.values()]

    def put_back(self, kept: Any) -> None:
        """Make the state what it was when it was kept."""
        if COMPILED:
            for whole, saved in zip(self._wholes, kept, strict=True):
                whole[:] = saved
            return
        for cells, saved in zip(self.by_name.values(), kept, strict=True):
            cells[:] = saved

"""What a long call says in a cell of a notebook while it runs; elsewhere it says nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hosim.plain_text import one_line

_QUIET_S = 2.0
"""What takes less says nothing."""
_BETWEEN_S = 0.25
"""A cell is written no more often than this."""
_LONGEST = 120

Show = Callable[[str | None], None]
"""Writes a line into the cell, in the place of the one before; ``None`` takes it away."""


@contextmanager
def in_cell(show: Show | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str], None]]:
    """A function to be told what begins, which a cell shows once that has taken two seconds, and which is gone at the end.

    ``show`` is what writes; by default the cell that runs, if there is one.
    """
    writes = _cell() if show is None else show
    if writes is None:
        yield lambda doing: None
        return
    begin = clock()
    last = begin - _BETWEEN_S
    shown = False

    def tell(doing: str) -> None:
        nonlocal last, shown
        now = clock()
        if now - begin >= _QUIET_S and now - last >= _BETWEEN_S:
            last, shown = now, True
            writes(one_line(f"{now - begin:.0f} s: {doing}", _LONGEST))

    try:
        yield tell
    finally:
        if shown:
            writes(None)


def _cell() -> Show | None:
    """What writes into the cell that runs; ``None`` outside a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):  # a terminal has IPython, too
        return None
    handles: list[Any] = []

    def show(line: str | None) -> None:
        data = {} if line is None else {"text/plain": line}
        if handles:
            handles[0].update(data, raw=True)
        else:
            handles.append(ipython.display.display(data, raw=True, display_id=True))

    return show

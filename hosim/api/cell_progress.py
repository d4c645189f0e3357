"""The progress that a long call shows while it runs, in the notebook's cell or on the terminal;
elsewhere it shows nothing.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event, Lock, Thread
from typing import Any

from hosim.plain_text import one_line


@contextmanager
def repeated(do: Callable[[], None], every_s: float) -> Iterator[None]:
    """Do it each ``every_s`` seconds until the block ends, in another thread with the context of
    this one (a cell's, a command's).
    """
    ended = Event()
    thread = Thread(
        target=copy_context().run, args=(until, lambda: ended.wait(every_s), do), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def until(ended: Callable[[], bool], do: Callable[[], None]) -> None:
    """Do it each time that ``ended()`` returns false, until it returns true."""
    while not ended():
        do()


_QUIET_S = 2.0
"""Calls that take less print nothing."""
_BETWEEN_S = 0.25
"""A cell is written no more often than this."""
AGAIN_S = 1.0
"""After so long without a new line, the cell gets the last one again, with the time."""
_LONGEST = 120

Show = Callable[[str | None], None]
"""Writes a line into the cell, in the place of the one before; ``None`` takes it away."""


class ProgressLine:
    """The line of a cell: what is being done, and for how long."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._begin = time.monotonic()
        self._last = self._begin - _BETWEEN_S
        self._doing = ""
        self._shown = False
        self._lock = Lock()

    def tell(self, doing: str) -> None:
        """Say what begins, unless the call is young or the cell was written just now."""
        self._doing = doing
        self.again(_BETWEEN_S)

    def again(self, after_s: float) -> None:
        """Say it again, with the time that has passed, if the cell was not written for so long."""
        with self._lock:
            now = time.monotonic()
            if self._doing and now - self._begin >= _QUIET_S and now - self._last >= after_s:
                self._last, self._shown = now, True
                self._show(one_line(f"{now - self._begin:.0f} s: {self._doing}", _LONGEST))

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            self._show(None)


@contextmanager
def in_cell() -> Iterator[Callable[[str], None]]:
    """A function to be told what begins, which the cell that runs, or the terminal, shows once that
    has taken two seconds, and which is gone at the end.
    """
    writes = _cell() or _terminal()
    if writes is None:
        yield lambda doing: None
        return
    line = ProgressLine(writes)
    try:
        with repeated(lambda: line.again(AGAIN_S), AGAIN_S):
            yield line.tell
    finally:
        line.end()


def _cell() -> Show | None:
    """Return the writer for the cell that runs; ``None`` outside a notebook."""
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


def _terminal() -> Show | None:
    """Return the writer for the terminal behind stderr; ``None`` where it is none."""
    terminal = sys.stderr
    if not terminal.isatty():
        return None

    def show(line: str | None) -> None:
        if sys.stderr is terminal:  # else a command's own progress has it
            terminal.write(f"\r\x1b[K{line or ''}")
            terminal.flush()

    return show

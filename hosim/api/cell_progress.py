"""Show the progress of a long call in the notebook's cell or on the terminal, else nowhere."""

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
    """Call ``do`` every ``every_s`` seconds until the block ends, in another thread that has this
    thread's context.
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
    """Call ``do`` after each ``ended()`` that returns false, until one returns true."""
    while not ended():
        do()


_QUIET_S = 2.0
"""Calls shorter than this show nothing."""
_BETWEEN_S = 0.25
"""The shortest time between two updates of a cell."""
AGAIN_S = 1.0
"""After this time without a new line, the last one is shown again with the elapsed time."""
_LONGEST = 120

Show = Callable[[str | None], None]
"""A function that replaces the line in the cell; ``None`` removes it."""


class ProgressLine:
    """The line of a cell: the current work and the elapsed time."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._begin = time.monotonic()
        self._last = self._begin - _BETWEEN_S
        self._doing = ""
        self._shown = False
        self._lock = Lock()

    def tell(self, doing: str) -> None:
        """Set the current work, and show it unless the call is young or the line just changed."""
        self._doing = doing
        self.again(_BETWEEN_S)

    def again(self, after_s: float) -> None:
        """Show the line with the elapsed time if the last update is ``after_s`` seconds ago."""
        with self._lock:
            now = time.monotonic()
            if self._doing and now - self._begin >= _QUIET_S and now - self._last >= after_s:
                self._last, self._shown = now, True
                self._show(one_line(f"{now - self._begin:.0f} s: {self._doing}", _LONGEST))

    def end(self) -> None:
        """Remove the line."""
        if self._shown:
            self._show(None)


@contextmanager
def in_cell() -> Iterator[Callable[[str], None]]:
    """Yield a function that takes the name of the current work.

    The running cell, or the terminal, shows it once the call has taken two seconds, and removes it
    at the end.
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
    """Return the writer for the running cell; ``None`` outside a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):  # IPython in a terminal has no kernel
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
    """Return the writer for the terminal at stderr; ``None`` if stderr is no terminal."""
    terminal = sys.stderr
    if not terminal.isatty():
        return None

    def show(line: str | None) -> None:
        if sys.stderr is terminal:  # else a command's own progress display uses it
            terminal.write(f"\r\x1b[K{line or ''}")
            terminal.flush()

    return show

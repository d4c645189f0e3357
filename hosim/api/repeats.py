"""Something that is done again and again while something else goes on: the lines of what takes
long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event, Thread


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

"""Processes that work for this one: they run no code of the working folder, leave Ctrl-C to this
process, and end with it.

Nothing else in hosim starts a process of Python. A terminal sends Ctrl-C to all of a group; one
that still loads Python would print a traceback, before any code of ours could ignore it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SAFE_PATH = "PYTHONSAFEPATH"
_WATCH_S = 0.2


@contextmanager
def safe_path() -> Iterator[None]:
    """Python processes that are started meanwhile look for no module in the working folder.

    They are started with ``-m`` or ``-c``, which would put it first: a ``types.py`` there would
    run. It holds for the whole life of a pool, which starts processes again when it has lost some.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


@contextmanager
def without_ctrl_c(*track: Callable[[], object]) -> Iterator[None]:
    """Processes that this thread starts meanwhile get no Ctrl-C; one that comes meanwhile
    interrupts this process at the end.

    They inherit the mask of blocked signals, and so do threads, which may start more processes
    later. Python's own tracker of resources and those of ``track`` are started before: some
    releases unblock signals once they have started one.
    """
    from multiprocessing import resource_tracker

    before, came = signal.getsignal(signal.SIGINT), list[int]()
    handles = callable(before) and threading.current_thread() is threading.main_thread()
    if handles:  # the signal may reach a thread of a library, which blocks nothing
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        for start in (resource_tracker.ensure_running, *track):
            start()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    finally:
        if handles:
            signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def belong_to(parent: int) -> None:
    """For a new process that works for the process ``parent``: leave Ctrl-C to it, which ends this
    one, and end when it is gone.

    Linux could do the latter by itself (``PR_SET_PDEATHSIG``), but would end this process with the
    thread that started it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)

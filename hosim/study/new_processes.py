"""Processes that are started to work for this one: Ctrl-C is this process' business alone, from their first instruction on.

A terminal sends Ctrl-C to all of them. One that still loads Python would print a traceback, before any code of ours could ignore it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def without_ctrl_c(*track: Callable[[], object]) -> Iterator[None]:
    """Processes that this thread starts meanwhile get no Ctrl-C; one that comes meanwhile interrupts this process at the end.

    They inherit the mask of blocked signals, and so do threads, which may start more processes later. Python's own tracker of resources and
    those of ``track`` are started before: some releases unblock signals once they have started one.
    """
    before, came = signal.getsignal(signal.SIGINT), list[int]()
    handles = callable(before) and threading.current_thread() is threading.main_thread()
    if handles:  # the signal may reach a thread of a library, which blocks nothing
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        for start in (resource_tracker.ensure_running, *track) if hasattr(signal, "pthread_sigmask") else ():
            start()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if hasattr(signal, "pthread_sigmask") else None
        try:
            yield
        finally:
            if blocked is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    finally:
        if handles:
            signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def ignore_ctrl_c() -> None:
    """For a process that works for another one, which ends it: where signals cannot be blocked, this is what keeps it silent."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

"""Who computes a sweep's tasks: this process, or a pool of processes (joblib). Each yields one row a task, in whatever order.

A process of the pool that dies takes the pool with it. What it may have been doing is then computed again, each task by itself, so that the
one that kills its process, as one does for which there is no memory, is told from those that were beside it: it is a row with an error.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from hosim.errors import InputError
from hosim.study.axes import Value
from hosim.study.rowfile import DIED
from hosim.study.tasks import Task, failed, solve

Runner = Callable[[Sequence[Task]], Iterator[dict[str, Value]]]
"""Gives the row of each task, each once."""

_AHEAD = 2
"""Tasks that a process of the pool has waiting: enough not to idle, few enough to be computed again when one dies."""


def here(tasks: Sequence[Task]) -> Iterator[dict[str, Value]]:
    """The rows of the tasks, computed in this process, in their order."""
    return map(solve, tasks)


def pool(jobs: int) -> Runner:
    """A runner over ``jobs`` processes of this machine (-1: as many as it has cores); with one, no process is made.

    Raises :class:`InputError` for a number that is none.
    """
    if jobs == 0 or jobs < -1:
        raise InputError(f"expected how many processes, or -1 for one a core, got {jobs}", source="jobs")
    count = cores() if jobs == -1 else jobs
    return here if count == 1 else lambda tasks: _pooled(tasks, count)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pooled(tasks: Sequence[Task], jobs: int) -> Iterator[dict[str, Value]]:
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = {task.key: task for task in tasks}
    while left:
        begun: list[str] = []
        try:
            for row in _rows(_noting(list(left.values()), begun), jobs):
                del left[str(row["point"])]
                yield row
        except TerminatedWorkerError:
            for key in [key for key in begun if key in left]:
                yield _alone(left.pop(key))


def _alone(task: Task) -> dict[str, Value]:
    """The row of a task in a process that does nothing else."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    try:
        return next(_rows(iter([task]), 2))
    except TerminatedWorkerError:
        return failed(task, f"{DIED}: the process that computed this point was killed, for want of memory perhaps")


def _noting(tasks: Sequence[Task], begun: list[str]) -> Iterator[Task]:
    """The tasks; which of them somebody has taken is noted."""
    for task in tasks:
        begun.append(task.key)
        yield task


def _rows(tasks: Iterator[Task], jobs: int) -> Iterator[dict[str, Value]]:
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=jobs, backend="loky", return_as="generator_unordered", batch_size=1, pre_dispatch=_AHEAD * jobs)
    rows = parallel(delayed(_in_worker)(task, os.getpid()) for task in tasks)
    try:
        yield from rows
    finally:
        rows.close()


def _in_worker(task: Task, parent: int) -> dict[str, Value]:
    """:func:`solve`, in a process of the pool of the process ``parent``."""
    _belong_to(parent)
    return solve(task)


@cache
def _belong_to(parent: int) -> None:
    """Leave Ctrl-C to the process that asked, which ends this one; and end when that one is no more, however it was ended."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() == parent:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)

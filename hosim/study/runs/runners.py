"""Run a sweep's tasks in this process or in a pool of processes (joblib), one row per task, in any
order.

When a process of the pool dies, the whole pool ends. The tasks in progress are then computed again
one by one, to find the one that kills its process (for lack of memory, say). Its row is an error.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

from hosim.base.new_processes import belong_to, safe_path, without_ctrl_c
from hosim.errors import InputError
from hosim.limits import within
from hosim.study.asked import Value
from hosim.study.rows_of_answers import DIED
from hosim.study.runs.tasks import AnyTask, solve

T = TypeVar("T")
Runner = Callable[[Sequence[AnyTask]], Iterator[dict[str, Value]]]
"""A function that yields the row of each task once."""

_AHEAD = 2
"""The number of waiting tasks per process of the pool: enough to keep it busy, few enough to
compute again when a process dies.
"""


def here(tasks: Sequence[AnyTask]) -> Iterator[dict[str, Value]]:
    """Compute the rows of the tasks in order, in this process."""
    return map(solve, tasks)


def pool(jobs: int) -> Runner:
    """Return a runner over ``jobs`` processes of this machine (-1: one per core); for 1 it starts
    no process.

    Raises :class:`InputError` for an invalid number.
    """
    count = processes(jobs)
    return here if count == 1 else lambda tasks: _pooled(tasks, min(count, max(2, len(tasks))))


def processes(jobs: int) -> int:
    """Return the number of processes that ``--jobs`` asks for (-1: one per core). Raises
    :class:`InputError` for an invalid number, or for too many.

    >>> processes(4)
    4
    """
    if jobs == 0 or jobs < -1:
        raise InputError(
            f"expected a number of processes, or -1 for one per core, got {jobs}", source="jobs"
        )
    return cores() if jobs == -1 else within("processes", jobs, source="jobs")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pooled(tasks: Sequence[AnyTask], jobs: int) -> Iterator[dict[str, Value]]:
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


def _alone(task: AnyTask) -> dict[str, Value]:
    """Compute the row of a task in its own process."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    try:
        return next(_rows(iter([task]), 2))
    except TerminatedWorkerError:
        return task.failed(
            f"{DIED}: the process that computed this point was killed, perhaps for lack of memory"
        )


def _noting(tasks: Sequence[AnyTask], begun: list[str]) -> Iterator[AnyTask]:
    """Yield the tasks, and append the key of each to ``begun``."""
    for task in tasks:
        begun.append(task.key)
        yield task


def _rows(tasks: Iterator[AnyTask], jobs: int) -> Iterator[dict[str, Value]]:
    from joblib import Parallel, delayed
    from joblib.externals.loky.backend.resource_tracker import ensure_running

    own = {"initializer": belong_to, "initargs": (os.getpid(),)}
    parallel = Parallel(
        n_jobs=jobs,
        backend="loky",
        return_as="generator_unordered",
        batch_size=1,
        pre_dispatch=_AHEAD * jobs,
        **own,
    )
    with ExitStack() as stack:
        stack.enter_context(safe_path())
        with without_ctrl_c(ensure_running):
            rows = parallel(delayed(solve)(task) for task in tasks)
            stack.callback(_silently, rows.close)
        while (row := _silently(lambda: next(rows, None))) is not None:
            yield row


def _silently(do: Callable[[], T]) -> T:
    """Return the result of ``do()`` without one message of loky's.

    A pool that ends early drops its waiting tasks and kills its processes. Its thread may then look
    for a dropped task and end with a KeyError, which Python would print above our output.
    """
    before = threading.excepthook

    def report(failed: threading.ExceptHookArgs) -> None:
        if not (
            failed.exc_type is KeyError
            and failed.thread
            and failed.thread.name == "ExecutorManagerThread"
        ):
            before(failed)

    threading.excepthook = report
    try:
        return do()
    finally:
        threading.excepthook = before

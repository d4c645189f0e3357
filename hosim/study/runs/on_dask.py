"""Run a sweep's tasks on a Dask cluster (extra ``dask``), one row per task. If a worker dies, Dask
moves its tasks to another one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

from hosim.errors import HosimError, InputError
from hosim.plain_text import shown
from hosim.study.asked import Value
from hosim.study.rows_of_answers import DIED
from hosim.study.runs.runners import Runner
from hosim.study.runs.scenario import failure
from hosim.study.runs.tasks import AnyTask, solve

if TYPE_CHECKING:
    from distributed import Client

_ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:[0-9]{1,5}|inproc://\S+")
_SHOWN = 100
_PAUSE_S = 0.02
_AHEAD = 3
"""The number of tasks per thread of the cluster that are sent ahead."""
_AGAIN = 3
"""The number of times that a task is sent again because its worker died with the result."""


def cluster(scheduler: str | Client) -> Runner:
    """Return a runner over the workers of a Dask cluster, from its scheduler's address
    (``tcp://host:8786``) or a client.

    The runner closes a client that it made itself. Raises :class:`InputError` without the extra
    ``dask``; the runner raises it if no scheduler answers.
    """
    if find_spec("distributed") is None:
        raise InputError(
            "--scheduler needs Dask, which is not installed; run: pip install 'hosim[dask]'",
            source="scheduler",
        )
    if isinstance(scheduler, str) and not _ADDRESS.fullmatch(scheduler):
        raise InputError(
            "expected the address of a Dask scheduler, such as tcp://host:8786",
            source=scheduler[:_SHOWN] or "scheduler",
        )
    if not isinstance(scheduler, str) and not hasattr(scheduler, "nthreads"):
        raise InputError(
            f"expected the address of a Dask scheduler or a client, got {shown(scheduler)}",
            source="scheduler",
        )
    return lambda tasks: _run(tasks, scheduler)


def _run(tasks: Sequence[AnyTask], scheduler: str | Client) -> Iterator[dict[str, Value]]:
    if not isinstance(scheduler, str):
        yield from _rows(tasks, scheduler)
        return
    from distributed import Client

    with _without_logs():
        try:
            client = Client(scheduler, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"no Dask scheduler answers there ({reason[:100]}); expected an address such as "
                "tcp://host:8786",
                source=scheduler,
            ) from None
        try:
            yield from _rows(tasks, client)
        finally:
            client.close()


@contextmanager
def _without_logs() -> Iterator[None]:
    """Silence Dask's log lines about a lost scheduler: the error reports it."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _rows(tasks: Sequence[AnyTask], client: Any) -> Iterator[dict[str, Value]]:
    """Yield the rows of the tasks. Raises :class:`HosimError` if the connection to the scheduler
    breaks.
    """
    from distributed import as_completed

    with _scheduler_of(client):
        yield from _answers(tasks, client, as_completed)


def _answers(
    tasks: Sequence[AnyTask], client: Any, as_completed: Any
) -> Iterator[dict[str, Value]]:
    waiting = iter(tasks)
    asked: dict[str, tuple[AnyTask, int]] = {}

    def send(task: AnyTask, again: int = 0) -> Any:
        future = client.submit(solve, task, key=f"hosim-{task.key}" + again * "-again", pure=False)
        asked[future.key] = task, again
        return future

    threads = sum(client.nthreads().values()) or 1
    completed = as_completed(
        [send(task) for task in islice(waiting, _AHEAD * threads)], loop=client.loop
    )
    try:
        for future in _arriving(completed, client):
            if future.key not in asked:
                continue
            task, again = asked.pop(future.key)
            lost = future.status in ("cancelled", "lost")
            if lost and client.status != "running":
                raise _gone()
            if lost and again < _AGAIN:
                completed.add(send(task, again + 1))
                continue
            # Dask gives up a task whose workers keep dying; solve itself raises nothing
            if future.status == "finished":
                row = future.result()
            else:
                row = task.failed(
                    f"{DIED}: {'its result was lost' if lost else failure(future.exception())}"
                )
            future.release()
            for following in islice(waiting, 1):
                completed.add(send(following))
            yield row
    finally:
        with suppress(Exception):  # the scheduler may be gone
            client.cancel([future for future in completed.futures if not future.done()])


@contextmanager
def _scheduler_of(client: Any) -> Iterator[None]:
    """Turn a lost connection or a closed client inside the block into :class:`HosimError`: the
    scheduler has gone.
    """
    try:
        yield
    except OSError:  # the base of Dask's errors for a closed connection
        raise _gone() from None
    except Exception as error:
        if isinstance(error, HosimError) or client.status == "running":
            raise
        raise _gone() from None


def _arriving(completed: Any, client: Any) -> Iterator[Any]:
    """Yield the futures as they complete. Raises :class:`HosimError` if the scheduler has gone;
    Dask itself would wait for ever.
    """
    while not completed.is_empty():
        arrived = completed.next_batch(block=False)
        if not arrived:
            if client.status == "closed":
                raise _gone()
            time.sleep(_PAUSE_S)
        yield from arrived


def _gone() -> HosimError:
    return HosimError(
        "the Dask scheduler has gone; start one and run the same command again, which continues"
    )

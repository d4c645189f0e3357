"""The progress of a command, on stderr: a status line in a terminal, or a line now and then in a
log.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from hosim import api, study
from hosim.cli.terminal import NORMAL, QUIET, amount, say
from hosim.plain_text import printable

FIRST_S = 2.0
"""Seconds before a terminal shows anything."""
SWITCH = "HOSIM_PROGRESS"
"""The variable whose value ``off`` leaves progress out."""
EVERY_S = 10.0
"""Seconds between the lines of a log."""


@contextmanager
def progress(first: str = "") -> Iterator[Callable[[str], None]]:
    """A function that takes what begins.

    After :data:`FIRST_S` seconds a terminal shows it with the time it takes; a log gets a line each
    :data:`EVERY_S` seconds.

    A quiet command shows nothing, nor does one with ``off`` in :data:`SWITCH`; a verbose one shows
    a line for each thing that begins.
    """
    begin = time.monotonic()
    if amount() == QUIET or (amount() == NORMAL and os.environ.get(SWITCH) == "off"):
        yield lambda doing: None
    elif amount() > NORMAL:
        if first:
            say(_line(0.0, first))
        yield lambda doing: say(_line(time.monotonic() - begin, doing))
    elif sys.stderr.isatty():
        with _status(first) as tell:
            yield tell
    else:
        with _log(first, begin) as tell:
            yield tell


@contextmanager
def bar() -> Iterator[Callable[[int, int, int], None]]:
    """A progress bar of a terminal: rows done, rows in all, and how many do not fit. Elsewhere what
    :func:`progress` shows.
    """
    if amount() != NORMAL or os.environ.get(SWITCH) == "off" or not sys.stderr.isatty():
        with progress("planning") as tell:
            yield lambda done, total, failed: tell(study.under_way(done, total, failed))
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)

        def show(done: int, total: int, failed: int) -> None:
            shown.update(task, completed=done, total=total, description=study.misfits(failed))

        yield show


@contextmanager
def _status(first: str) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    task = shown.add_task(printable(first or "working"), total=None)
    later = Timer(FIRST_S, shown.start)
    later.daemon = True
    later.start()
    try:
        yield lambda doing: shown.update(task, description=printable(doing))
    finally:
        later.cancel()
        later.join()
        shown.stop()


@contextmanager
def _log(first: str, begin: float) -> Iterator[Callable[[str], None]]:
    doing = [first]

    with api.repeated(lambda: say(_line(time.monotonic() - begin, doing[-1])), EVERY_S):
        yield doing.append


def _line(seconds: float, doing: str) -> str:
    return f"{seconds:6.1f} s  {doing or 'working'}"

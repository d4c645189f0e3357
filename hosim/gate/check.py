"""Cases measured in parallel, written as baselines or judged against them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from hosim.errors import HosimError, InfeasibleError
from hosim.gate import baseline
from hosim.gate.cases import Case, Suite
from hosim.gate.measure import measure
from hosim.gate.record import Measured
from hosim.gate.verdict import CaseVerdict, judge

Telling = Callable[[str], None]

_Answer = tuple[Measured | None, "CaseError | None"]


def check(
    suite: Suite, names: Iterable[str] = (), *, jobs: int = 1, kept: Path | None = None, tell: Telling = lambda doing: None
) -> list[CaseVerdict]:
    """The verdict of each case of ``names`` (all if there are none), in the suite's order.

    Of all cases, baseline files that belong to no case follow as missing. ``jobs`` and ``kept`` are :func:`measured`'s. Raises
    :class:`HosimError` for what is wrong with a case or with its baseline file.
    """
    wanted = tuple(names)
    cases = suite.named(wanted)
    # first, since nothing needs to be replayed to find a damaged file
    files = [suite.baseline(case.name) for case in cases]
    before = [baseline.load(file) if file.is_file() else None for file in files]
    verdicts = []
    for case, file, old, now in zip(cases, files, before, measured(cases, jobs, kept, tell), strict=True):
        verdicts.append(judge(case.name, old, now, case.tolerances, baseline=file.as_posix()))
    lost = [] if wanted else suite.without_case()
    return verdicts + [judge(name, None, None, {}, baseline=suite.baseline(name).as_posix()) for name in lost]


def write(
    suite: Suite,
    names: Iterable[str] = (),
    *,
    only_new: bool = False,
    jobs: int = 1,
    kept: Path | None = None,
    tell: Telling = lambda doing: None,
) -> list[Path]:
    """Writes the baseline of each case of ``names`` (all if there are none); gives the files that changed.

    ``only_new`` leaves those alone that are there. Of all cases, files that belong to no case are removed unless it is set. Raises
    :class:`InfeasibleError` for a case that does not fit, once the others are written, and :class:`HosimError` as :func:`check` does.
    """
    wanted = tuple(names)
    cases = [case for case in suite.named(wanted) if not (only_new and suite.baseline(case.name).is_file())]
    changed, failed = [], []
    for case, now in zip(cases, measured(cases, jobs, kept, tell), strict=True):
        if now.record is None:
            failed.append(f"{case.name}: {now.error}")
        elif baseline.save(now.record, suite.baseline(case.name)):
            changed.append(suite.baseline(case.name))
    for name in [] if wanted or only_new else suite.without_case():
        suite.baseline(name).unlink(missing_ok=True)
        changed.append(suite.baseline(name))
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise InfeasibleError(f"no baseline of what does not fit: {failed[0]}{more}")
    return changed


def measured(cases: Sequence[Case], jobs: int = 1, kept: Path | None = None, tell: Telling = lambda doing: None) -> Iterator[Measured]:
    """Each case's measurement, in order, by up to ``jobs`` processes (-1: one a core).

    Raises :class:`HosimError`, naming the case, for what is wrong with one.
    """
    count = min(len(cases), _cores() if jobs == -1 else jobs)
    if count < 2:
        yield from _told(cases, map(partial(_attempt, kept=kept), cases), tell)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        try:
            yield from _told(cases, pool.map(partial(_attempt, kept=kept), cases), tell)
        except BrokenProcessPool:
            raise HosimError("a process that measured a case was killed, for want of memory perhaps; try --jobs 1") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _told(cases: Sequence[Case], answers: Iterable[_Answer], tell: Telling) -> Iterator[Measured]:
    for case, (now, error) in zip(cases, answers, strict=True):
        tell(case.name)
        if error is not None:
            raise error
        assert now is not None
        yield now


class CaseError(HosimError):
    """What is wrong with a case; the exit code is that of the error itself."""

    def __init__(self, case: str, message: str, exit_code: int) -> None:
        super().__init__(case, message, exit_code)
        self.case = case
        self.message = message
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"case {self.case}: {self.message}"


def _attempt(case: Case, kept: Path | None) -> _Answer:
    """The measurement or what is wrong: errors have to cross from one process to another."""
    try:
        return measure(case, kept), None
    except HosimError as error:
        return None, CaseError(case.name, str(error), error.exit_code)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

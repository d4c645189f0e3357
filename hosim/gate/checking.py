"""Cases measured in parallel, written as baselines or judged against them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, groupby
from multiprocessing import active_children, get_context
from pathlib import Path
from types import MappingProxyType

from hosim.errors import LONGEST, HosimError, InfeasibleError, InputError
from hosim.gate import baselines, matrix_file
from hosim.gate.cases import Case, Suite
from hosim.gate.measure import measure, measure_lines
from hosim.gate.record import Measured
from hosim.gate.verdict import CaseVerdict, judge
from hosim.new_processes import belong_to, without_ctrl_c
from hosim.plain_text import one_line
from hosim.study.runners import cores
from hosim.version import __version__
from hosim.versions import VERSIONS

Telling = Callable[[str], None]

_OPS = 1000
"""The assumed number of ops of a case for which it is unknown."""

_Answer = tuple[Measured | None, "CaseError | None"]


def check(
    suite: Suite, names: Iterable[str] = (), *, jobs: int = 1, kept: Path | None = None, tell: Telling = lambda doing: None
) -> list[CaseVerdict]:
    """The verdict of each case of ``names`` (all cases without names), in the suite's order.

    If all cases are checked, baselines that belong to no case follow as missing. ``jobs`` and ``kept`` are those of :func:`measured`.
    Raises :class:`HosimError` for an invalid case or baseline file.
    """
    wanted = tuple(names)
    cases = suite.named(wanted)
    known = _known(suite, cases)  # first, because finding a damaged file needs no replay
    verdicts = []
    ops = {name: before.record.durations.count for name, before in known.items() if before.record is not None}
    for case, now in zip(cases, measured(cases, jobs, kept, tell, ops), strict=True):
        file = suite.baseline(case.name).as_posix()
        verdicts.append(judge(case.name, known.get(case.name), now, case.tolerances, baseline=file))
    listed = {case.name for case in suite.cases}
    lost = [] if wanted else sorted({*suite.without_case(), *(name for name in known if name not in listed)})
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
    """Write the baseline of each case of ``names`` (all cases without names); returns the files that changed.

    ``only_new`` keeps existing baselines. Without it, writing all cases also removes baselines that belong to no case. A matrix has a line
    for a case that does not fit; for another such case, raises :class:`InfeasibleError` once everything is written. Raises
    :class:`HosimError` as :func:`check` does.
    """
    wanted = tuple(names)
    cases = suite.named(wanted)
    matrices = _matrices(suite, cases, damaged=not only_new and not wanted)
    there = {name for lines in matrices.values() for name in lines}
    cases = tuple(case for case in cases if not (only_new and (case.name in there if case.matrix else suite.baseline(case.name).is_file())))
    changed, failed = [], []
    for case, now in zip(cases, measured(cases, jobs, kept, tell), strict=True):
        if case.matrix is not None:
            matrices[case.matrix][case.name] = now
        elif now.record is None:
            failed.append(f"{case.name}: {now.error}")
        elif baselines.save(now.record, suite.baseline(case.name)):
            changed.append(suite.baseline(case.name))
    listed = {case.name for case in suite.cases}
    for matrix, lines in matrices.items():
        if only_new and lines.keys() <= there:
            continue
        kept_lines = {name: now for name, now in lines.items() if name in listed or wanted or only_new}
        if matrix_file.save(kept_lines, suite.baseline(matrix), hosim=__version__, versions=VERSIONS):
            changed.append(suite.baseline(matrix))
    for name in [] if wanted or only_new else suite.without_case():
        suite.baseline(name).unlink(missing_ok=True)
        changed.append(suite.baseline(name))
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise InfeasibleError(f"no baseline written, because the case does not fit: {failed[0]}{more}")
    return changed


def known_baseline(suite: Suite, name: str) -> Measured | None:
    """The baseline of a case; ``None`` if there is none. Raises :class:`InputError` for a damaged file."""
    file, (matrix, within, _) = suite.baseline(name), name.partition("/")
    if not file.is_file():
        return None
    return matrix_file.load(file, matrix).get(name) if within else Measured(baselines.load(file))


def _known(suite: Suite, cases: Sequence[Case]) -> dict[str, Measured]:
    """The baselines of the cases by their names, and those of the other lines of their matrices."""
    known = {name: now for lines in _matrices(suite, cases).values() for name, now in lines.items()}
    for case in cases:
        found = known_baseline(suite, case.name) if case.matrix is None else None
        if found is not None:
            known[case.name] = found
    return known


def _matrices(suite: Suite, cases: Sequence[Case], damaged: bool = False) -> dict[str, dict[str, Measured]]:
    """The lines of each matrix that has one of the cases; a ``damaged`` file has none if all lines are to be rewritten."""
    found: dict[str, dict[str, Measured]] = {}
    for matrix in dict.fromkeys(case.matrix for case in cases if case.matrix is not None):
        file = suite.baseline(matrix)
        try:
            found[matrix] = matrix_file.load(file, matrix) if file.is_file() else {}
        except InputError:
            if not damaged:
                raise
            found[matrix] = {}
    return found


def measured(
    cases: Sequence[Case],
    jobs: int = 1,
    kept: Path | None = None,
    tell: Telling = lambda doing: None,
    ops: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[Measured]:
    """Each case's measurement, in order, by up to ``jobs`` processes (-1: one per core).

    ``ops`` has the number of ops of a case, if known: several processes begin with the largest case, so that it does not come last. Raises
    :class:`HosimError`, naming the case, for an invalid case.
    """
    groups = [tuple(group) for _, group in groupby(cases, key=lambda c: (c.matrix, c.workload if c.matrix else c.name))]
    count = min(len(groups), cores() if jobs == -1 else jobs)
    if count < 2:
        yield from _told(cases, chain.from_iterable(map(partial(_attempts, kept=kept), groups)), tell)
        return
    others = active_children()
    with ProcessPoolExecutor(count, get_context("spawn"), initializer=belong_to, initargs=(os.getpid(),)) as pool:
        try:
            size = [sum(ops.get(case.name, 0) or _OPS for case in group) for group in groups]
            with without_ctrl_c():
                started = {k: pool.submit(_attempts, groups[k], kept) for k in sorted(range(len(groups)), key=lambda k: -size[k])}
            yield from _told(cases, chain.from_iterable(started[k].result() for k in range(len(groups))), tell)
        except BrokenProcessPool:
            raise HosimError("a process that measured a case was killed, perhaps for lack of memory; try --jobs 1") from None
        except KeyboardInterrupt:  # an interrupt should not wait for running cases
            for child in active_children():
                if child not in others:
                    child.terminate()
            raise
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
    """An error in a case; it has the exit code of the original error."""

    def __init__(self, case: str, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.args = (case, message, exit_code)  # what a worker process needs to hand it over
        self.case = case
        self.message = message
        self.exit_code = exit_code

    def __str__(self) -> str:
        return one_line(f"case {self.case}: {self.message}", LONGEST)


def _attempts(group: Sequence[Case], kept: Path | None) -> list[_Answer]:
    """The measurements of one case, or of a matrix's cases that share a workload, up to the first error.

    Errors are returned, because they have to cross from one process to another.
    """
    answers: list[_Answer] = []
    try:
        for now in measure_lines(group, kept) if group[0].matrix is not None else [measure(group[0], kept)]:
            answers.append((now, None))  # noqa: PERF401 - what is known before an error stays known
    except HosimError as error:
        answers.append((None, CaseError(group[len(answers)].name, str(error), error.exit_code)))
    return answers

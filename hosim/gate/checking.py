"""Measure cases in parallel, and write them as baselines or judge them against baselines or another
revision.

The files of another revision are exported from git, and its own cases are measured there. Nothing
is committed or merged. Measurements are cached by content (:mod:`hosim.gate.kept_graphs`).
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING

from hosim import shipped
from hosim.analysis import digest
from hosim.base.new_processes import belong_to, without_ctrl_c
from hosim.data.versions import VERSIONS
from hosim.errors import LONGEST, HosimError, InfeasibleError, InputError
from hosim.gate.cases import Case, Suite, load_suite
from hosim.gate.imports import code_digest
from hosim.gate.judged_metrics import DRIFT, MAKESPAN, MISSING, NEW
from hosim.gate.kept_graphs import keep_text, kept_text
from hosim.gate.measured_case import measure, measure_lines
from hosim.gate.records import (
    Measured,
    Record,
    machine_files,
    read_matrix,
    read_record,
    save_matrix,
    save_record,
    source_digest,
)
from hosim.gate.verdicts import ERROR, CaseVerdict, judge
from hosim.plain_text import one_line
from hosim.study.runs import cores
from hosim.version import __version__

if TYPE_CHECKING:
    from concurrent import futures


# -- places of cases -------------------------------------------------------------------------------


Place = tuple[str, int]
"""A file and a line number, from 1."""


def place_of(case: Case, source: str) -> Place:
    """Return the place of a case of the file ``source``, without imports of user code."""
    if case.entry is not None:
        module, _, name = case.entry.partition(":")
        for file in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"):
            path = os.path.join(case.folder, file)
            if line := _defined(path, name):
                return Path(os.path.normpath(path)).as_posix(), line
    return Path(source).as_posix(), _table(source, case.matrix or case.name)


def _defined(path: str, name: str) -> int:
    """Return the line where a file defines a function; 0 if it does not."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        for node in ast.parse(Path(path).read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node.lineno
    return 0


def _table(source: str, name: str) -> int:
    """Return the line of the table of a case, such as ``[cases.NAME]``; 1 if there is none."""
    table = re.compile(rf"\s*\[(tool\.hosim\.)?(cases|matrix)\.[\"']?{re.escape(name)}[\"']?\s*\]")
    with suppress(OSError, UnicodeDecodeError):
        for number, line in enumerate(Path(source).read_text(encoding="utf-8").splitlines(), 1):
            if table.match(line):
                return number
    return 1


# -- verdicts --------------------------------------------------------------------------------------


Telling = Callable[[str], None]

_OPS = 1000
"""The assumed number of ops of a case for which it is unknown."""


@dataclass(frozen=True)
class CaseError:
    """The reason why a case cannot be measured or its baseline cannot be read."""

    case: str
    message: str


_Answer = Measured | CaseError


def check(
    suite: Suite,
    names: Iterable[str] = (),
    *,
    jobs: int = 1,
    kept: Path | None = None,
    tell: Telling = lambda doing: None,
    against: str = "",
) -> list[CaseVerdict]:
    """Judge each case of ``names`` (all cases without names), in the suite's order.

    If all cases are checked, baselines that belong to no case follow as missing. A case that cannot
    be measured, or whose baseline is damaged, gets an error and does not affect other cases.
    ``jobs`` and ``kept`` are those of :func:`measured`. ``against`` is a git revision whose cases
    are measured instead of baselines (:func:`baselines_at`): a case that it lacks is new, and a
    case that only it has is drift. Raises :class:`InputError` for an unknown revision.
    """
    return (
        _check_against(against, suite, tuple(names), jobs, kept, tell)
        if against
        else _check(suite, tuple(names), jobs, kept, tell)
    )


def _check_against(
    revision: str,
    suite: Suite,
    wanted: tuple[str, ...],
    jobs: int,
    kept: Path | None,
    tell: Telling,
) -> list[CaseVerdict]:
    def written(there: Suite, names: Iterable[str]) -> None:
        # in separate processes, because modules of both revisions have the same names
        write(
            there,
            names,
            jobs=jobs,
            kept=kept,
            tell=lambda doing: tell(f"{doing} at {revision}"),
            for_now=True,
        )

    with baselines_at(
        revision,
        suite,
        [case.name for case in suite.named(wanted)] if wanted else [],
        kept,
        written,
    ) as (there, failed):
        verdicts = _check(there, wanted, jobs, kept, tell)
    said = f"not at {revision}" + (f": {failed}" if failed else "")
    listed = {case.name for case in suite.cases}
    found = []
    for v in verdicts:
        if v.verdict == MISSING and v.case in listed:
            v = replace(v, verdict=NEW, note=said)
        elif v.verdict == MISSING:
            v = replace(v, verdict=DRIFT, note=f"at {revision}, and no more")
        found.append(replace(v, baseline=suite.source))
    return found


def _check(
    suite: Suite, wanted: tuple[str, ...], jobs: int, kept: Path | None, tell: Telling
) -> list[CaseVerdict]:
    cases = suite.named(wanted)
    known = _known(suite, cases)
    records = {
        name: m.record
        for name, m in known.items()
        if isinstance(m, Measured) and m.record is not None
    }
    readable = [case for case in cases if not isinstance(known.get(case.name), CaseError)]
    found = dict(
        zip(
            [case.name for case in readable],
            measured(readable, jobs, kept, tell, records),
            strict=True,
        )
    )
    verdicts = [_judged(suite, case, known.get(case.name), found.get(case.name)) for case in cases]
    listed = {case.name for case in suite.cases}
    lost = (
        []
        if wanted
        else sorted({*suite.without_case(), *(name for name in known if name not in listed)})
    )
    places = {case.name: place_of(case, suite.source) for case in cases}
    verdicts = [replace(v, place=places[v.case]) for v in verdicts]
    gone = [judge(name, None, None, {}, baseline=suite.baseline(name).as_posix()) for name in lost]
    return verdicts + [replace(v, place=(Path(suite.source).as_posix(), 1)) for v in gone]


def _judged(suite: Suite, case: Case, known: _Answer | None, now: _Answer | None) -> CaseVerdict:
    file = suite.baseline(case.name).as_posix()
    for one in (known, now):
        if isinstance(one, CaseError):
            return CaseVerdict(case.name, ERROR, note=one.message, baseline=file)
    assert not isinstance(known, CaseError)
    assert not isinstance(now, CaseError)
    return judge(case.name, known, now, case.tolerances, baseline=file)


def errors_in_one(errors: Sequence[CaseError]) -> HosimError:
    """Return the first error with the number of the others.

    >>> str(errors_in_one([CaseError("a", "no such file"), CaseError("b", "no such file")]))
    'case a: no such file (and 1 more)'
    """
    first, more = errors[0], f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return HosimError(f"case {first.case}: {one_line(first.message, LONGEST // 2)}{more}")


def write(
    suite: Suite,
    names: Iterable[str] = (),
    *,
    only_new: bool = False,
    jobs: int = 1,
    kept: Path | None = None,
    tell: Telling = lambda doing: None,
    for_now: bool = False,
) -> list[Path]:
    """Write the baseline of each case of ``names`` (all cases without names), and return the files
    that changed.

    ``only_new`` keeps existing baselines. Without it, writing all cases also removes baselines that
    belong to no case. With ``for_now`` the baselines are for one check: they have memory curves and
    are measured in other processes. In a matrix, a case that does not fit has its line. Once all
    else is written, another case that does not fit raises :class:`InfeasibleError`, and one that
    cannot be measured :class:`HosimError`. Raises :class:`InputError` for a damaged file that is to
    be kept.
    """
    wanted = tuple(names)
    cases = suite.named(wanted)
    matrices = _matrices(suite, cases, damaged=not only_new and not wanted)
    there = {name for lines in matrices.values() for name in lines}
    cases = tuple(
        case
        for case in cases
        if not (
            only_new
            and (case.name in there if case.matrix else suite.baseline(case.name).is_file())
        )
    )
    changed, failed, errors = [], [], []
    machines = machine_files(suite.baselines)
    for case, now in zip(cases, measured(cases, jobs, kept, tell, apart=for_now), strict=True):
        if isinstance(now, CaseError):
            errors.append(now)
        elif case.matrix is not None:
            matrices[case.matrix][case.name] = now
        elif now.record is None:
            failed.append(f"{case.name}: {now.error}")
        elif save_record(now.record, suite.baseline(case.name), curve=for_now):
            changed.append(suite.baseline(case.name))
    listed = {case.name for case in suite.cases}
    for matrix, lines in matrices.items():
        if only_new and lines.keys() <= there:
            continue
        kept_lines = {
            name: now for name, now in lines.items() if name in listed or wanted or only_new
        }
        if save_matrix(kept_lines, suite.baseline(matrix), hosim=__version__, versions=VERSIONS):
            changed.append(suite.baseline(matrix))
    for name in [] if wanted or only_new else suite.without_case():
        suite.baseline(name).unlink(missing_ok=True)
        changed.append(suite.baseline(name))
    for path in set() if only_new else machine_files(suite.baselines, unused=True):
        path.unlink(missing_ok=True)
    changed += sorted(machines ^ machine_files(suite.baselines))
    if errors:
        raise errors_in_one(errors)
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise InfeasibleError(
            f"no baseline written, because the case does not fit: {failed[0]}{more}"
        )
    return changed


def known_baseline(suite: Suite, name: str) -> Measured | None:
    """Return the baseline of a case; ``None`` if there is none. Raises :class:`InputError` for a
    damaged file.
    """
    file, (matrix, within, _) = suite.baseline(name), name.partition("/")
    if not file.is_file():
        return None
    return read_matrix(file, matrix).get(name) if within else Measured(read_record(file))


def _known(suite: Suite, cases: Sequence[Case]) -> dict[str, _Answer]:
    """Return the baselines by case name, with those of the other lines of their matrices; a damaged
    one is an error.
    """
    known: dict[str, _Answer] = {}
    for place, of in groupby(
        sorted(cases, key=lambda case: case.matrix or ""), key=lambda case: case.matrix or case.name
    ):
        asked = list(of)
        try:
            if asked[0].matrix is not None:
                known |= _matrices(suite, asked)[place]
            elif (found := known_baseline(suite, place)) is not None:
                known[place] = found
        except InputError as error:
            known |= {case.name: CaseError(case.name, str(error)) for case in asked}
    return known


def _matrices(
    suite: Suite, cases: Sequence[Case], damaged: bool = False
) -> dict[str, dict[str, Measured]]:
    """Return the lines of each matrix that has one of the cases; a ``damaged`` file counts as empty
    if all its lines are to be rewritten.
    """
    found: dict[str, dict[str, Measured]] = {}
    for matrix in dict.fromkeys(case.matrix for case in cases if case.matrix is not None):
        file = suite.baseline(matrix)
        try:
            found[matrix] = read_matrix(file, matrix) if file.is_file() else {}
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
    known: Mapping[str, Record] = MappingProxyType({}),
    apart: bool = False,
) -> Iterator[Measured | CaseError]:
    """Yield each case's measurement or error, in order, from up to ``jobs`` processes (-1: one per
    core); with ``apart`` from other processes only.

    ``known`` has the records of the baselines. With them, several processes start with the case of
    the most ops, so that it does not come last, and omit draws that no verdict reads.
    """
    groups = [
        tuple(group)
        for _, group in groupby(cases, key=lambda c: (c.matrix, c.workload if c.matrix else c.name))
    ]
    count = min(len(groups), cores() if jobs == -1 else jobs)
    answers = (
        (_attempts(group, kept) for group in groups)
        if count < 2 and not apart
        else _in_processes(groups, count, kept, known)
    )
    for case, now in zip(cases, chain.from_iterable(answers), strict=True):
        tell(case.name)
        yield now


def _in_processes(
    groups: Sequence[Sequence[Case]], count: int, kept: Path | None, known: Mapping[str, Record]
) -> Iterator[list[_Answer]]:
    """Yield the answers of each group, in order. A process that is killed ends its pool; each group
    without an answer then gets its own pool.
    """
    from concurrent.futures.process import BrokenProcessPool

    ops = {name: record.durations.count for name, record in known.items()}
    size = [sum(ops.get(case.name, 0) or _OPS for case in group) for group in groups]
    settled = [
        tuple([_decided(known[case.name]) if case.name in known else None for case in group])
        for group in groups
    ]
    started: dict[int, futures.Future[list[_Answer]]] = {}
    with _pool(count) as pool:
        with suppress(BrokenProcessPool), without_ctrl_c():
            for k in sorted(range(len(groups)), key=lambda k: -size[k]):
                started[k] = pool.submit(_to_send, groups[k], kept, settled[k])
        for k, group in enumerate(groups):
            there = k in started and not isinstance(started[k].exception(), BrokenProcessPool)
            yield started[k].result() if there else _alone(group, kept, settled[k])


_Decided = tuple[str | None, int | None]
"""The plan and the makespan; a measurement that equals its baseline in both is judged without
draws.
"""


def _decided(record: Record) -> _Decided:
    return record.fingerprints.get("plan"), record.metrics.get(MAKESPAN)


def _to_send(
    group: Sequence[Case], kept: Path | None, settled: Sequence[_Decided | None]
) -> list[_Answer]:
    """Return the answers of :func:`_attempts` from another process, with draws only if a verdict
    needs them: they take as long as 20 replays.
    """
    return [
        replace(now, record=replace(now.record, draws=None))
        if isinstance(now, Measured) and now.record and _decided(now.record) == before
        else now
        for now, before in zip(_attempts(group, kept), settled, strict=True)
    ]


def _alone(
    group: Sequence[Case], kept: Path | None, settled: Sequence[_Decided | None]
) -> list[_Answer]:
    from concurrent.futures.process import BrokenProcessPool

    with suppress(BrokenProcessPool), _pool(1) as pool:
        with without_ctrl_c():
            started = pool.submit(_to_send, group, kept, settled)
        return started.result()
    return [
        CaseError(case.name, "the process that measured it was killed, perhaps for lack of memory")
        for case in group
    ]


@contextmanager
def _pool(count: int) -> Iterator[futures.ProcessPoolExecutor]:
    from concurrent import futures
    from multiprocessing import active_children, get_context

    others = active_children()
    with futures.ProcessPoolExecutor(
        count, get_context("spawn"), initializer=belong_to, initargs=(os.getpid(),)
    ) as pool:
        try:
            yield pool
        except KeyboardInterrupt:  # an interrupt should not wait for running cases
            for child in active_children():
                if child not in others:
                    child.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _attempts(group: Sequence[Case], kept: Path | None) -> list[_Answer]:
    """Return the measurements of one case, or of a matrix's cases that share a workload; an error
    replaces the measurement that raised it.
    """
    found = (
        measure_lines(group, kept) if group[0].matrix is not None else [_attempt(group[0], kept)]
    )
    return [
        CaseError(case.name, str(now)) if isinstance(now, HosimError) else now
        for case, now in zip(group, found, strict=True)
    ]


def _attempt(case: Case, kept: Path | None) -> Measured | HosimError:
    try:
        return measure(case, kept)
    except HosimError as error:
        return error


# -- baselines of another revision ------------------------------------------------------------------


Writing = Callable[[Suite, Iterable[str]], object]
"""A function that writes the baselines of the named cases of a suite."""


@contextmanager
def baselines_at(
    revision: str, suite: Suite, names: Sequence[str], kept: Path | None, write: Writing
) -> Iterator[tuple[Suite, str]]:
    """Yield the suite with the baselines of a revision, and a text on the cases that could not be
    measured there, if any.

    ``names`` selects cases; without names, all cases of the revision are measured. Raises
    :class:`InputError` if there is no git or no such revision, or the suite is in no repository.
    """
    config = Path(suite.source).resolve()
    root = Path(_git(config.parent, "rev-parse", "--show-toplevel").decode().strip())
    tree = (
        _git(
            root,
            "rev-parse",
            "--verify",
            "--end-of-options",
            f"{revision}^{{tree}}",
            said=f"no revision {revision!r}",
        )
        .decode()
        .strip()
    )
    ours = [
        shipped.hardware_path(shipped.hardware()[0]).parent,
        shipped.workload_path(shipped.workloads()[0]).parent,
    ]
    key = digest(
        tree,
        code_digest(),
        *map(source_digest, ours),
        config.relative_to(root).as_posix(),
        *sorted(names),
    )
    with TemporaryDirectory(prefix="hosim-") as folder:
        made = Path(folder) / "baselines"
        text = kept_text(kept, key) if kept is not None else None
        made.mkdir()
        failed = ""
        if text is None:
            failed = _measure(
                root, tree, config.relative_to(root), names, made, Path(folder) / "tree", write
            )
        for name, content in json.loads(text or "{}").items():
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(content)
        if text is None and kept is not None and not failed:
            keep_text(
                json.dumps(
                    {
                        path.relative_to(made).as_posix(): path.read_text()
                        for path in sorted(made.rglob("*.toml"))
                    }
                ),
                kept,
                key,
            )
        yield replace(suite, baselines=made), failed


def _measure(
    root: Path,
    tree: str,
    config: Path,
    names: Sequence[str],
    made: Path,
    place: Path,
    write: Writing,
) -> str:
    """Write the baselines of a tree into ``made``, and return the text of the errors."""
    with tarfile.open(fileobj=BytesIO(_git(root, "archive", "--format=tar", tree))) as packed:
        packed.extractall(place, filter="data")
    if not (place / config).is_file():
        return f"it has no {config.as_posix()}"
    try:
        there = replace(load_suite(place / config), baselines=made)
        if listed := [case.name for case in there.cases if not names or case.name in names]:
            write(there, listed)
    except HosimError as error:
        return str(error).replace(f"{place}{os.sep}", "")
    return ""


def _git(folder: Path, *arguments: str, said: str = "") -> bytes:
    source = "--against"
    try:
        done = subprocess.run(
            ["git", "-C", os.fspath(folder), *arguments], capture_output=True, check=False
        )
    except OSError as error:
        raise InputError(f"git cannot be run: {error.strerror}", source=source) from None
    if done.returncode:
        told = said or (done.stderr.decode(errors="replace").strip().splitlines() or ["failed"])[-1]
        raise InputError(
            f"{told}; expected a branch, tag or commit of the repository that {folder} is in",
            source=source,
        )
    return done.stdout

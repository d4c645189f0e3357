"""The cases that a gate measures."""

from __future__ import annotations

import os
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from hosim.errors import InputError
from hosim.extensions import added
from hosim.gate.judged_metrics import MetricVerdict, Tolerance, parse_tolerances
from hosim.gate.records import SUFFIX, Measured, Record, confined, is_baseline
from hosim.io import gate_files
from hosim.io.options import OPTIONS, check_together
from hosim.limits import within
from hosim.plain_text import written

FILES = ("hosim.toml", "pyproject.toml")
"""The files that may list cases, in the order of the search."""

FOLDER = "hosim-baselines"
"""The folder of the baseline files, beside the file of the cases."""

_NAME = re.compile(r"\w[\w.-]*")
_ENTRY = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True)
class Case:
    """One workload (a path or a shipped name, or a Python ``entry``), one machine, one policy or
    plan file, one budget; or requests for a machine.

    For requests, ``serve`` has the model, the requests and the options (:class:`CaseKind`). Paths
    are relative to ``folder``, which may also contain an entry's package. A case of a matrix has
    the name ``MATRIX/WORKLOAD/HARDWARE/POLICY/BUDGET``. ``strict`` refuses a plan
    file that was made for another workload, machine or budget; ``rescale`` scales durations that
    were measured on another machine (:mod:`hosim.analysis.costmodel.rescaled`).
    """

    name: str
    hardware: str
    folder: str = "."
    workload: str | None = None
    entry: str | None = None
    policy: str = OPTIONS["policy"].default
    plan: str | None = None
    budget: str | None = None
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    matrix: str | None = None
    serve: Mapping[str, Any] | None = None
    strict: bool = False
    rescale: bool = False

    def asked(self) -> dict[str, str]:
        """The question as the file has it."""
        if self.serve is not None:
            return {
                "hardware": self.hardware,
                **{f"serve.{key}": written(value) for key, value in self.serve.items()},
            }
        what = {
            "workload": self.workload,
            "entry": self.entry,
            "hardware": self.hardware,
            "budget": self.budget,
        }
        how = {"plan": self.plan} if self.plan is not None else {"policy": self.policy}
        how |= {"rescale": written(True)} if self.rescale else {}
        return {key: text for key, text in {**what, **how}.items() if text is not None}

    def beside(self, text: str) -> str:
        """Return the path ``text`` in the case's folder if it exists, else ``text``."""
        path = os.path.join(self.folder, text)
        return (
            path
            if os.path.exists(path) and not (os.path.isdir(path) and os.sep not in text)
            else text
        )


@dataclass(frozen=True)
class CaseKind:
    """A kind of case with its own key, such as ``serve``, and more than one step; a room beside the
    core handles it.

    ``check`` gets the case, its source and its place there, and raises :class:`InputError` if it is
    invalid. ``measure`` returns its record. ``explain`` returns lines with the reasons of a
    regression, as :func:`hosim.gate.verdicts.causes.explain` does for a step.
    """

    check: Callable[[Mapping[str, Any], str, str], None]
    measure: Callable[[Case], Measured]
    explain: Callable[[Record, Measured, Sequence[MetricVerdict]], list[str]]


def kind_of(key: str) -> CaseKind:
    """Return the kind of case of a key. Raises :class:`InputError` if no room has one."""
    kinds: Mapping[str, CaseKind] = ChainMap(*added("case_kinds"))
    if key not in kinds:
        raise InputError(
            f"this installation of hosim cannot {key}: install hosim as a whole", source="cases"
        )
    return kinds[key]


@dataclass(frozen=True)
class Suite:
    """The cases of a file, in its order, and the folder of their baselines: one file per case, and
    one per matrix.
    """

    source: str
    baselines: Path
    cases: tuple[Case, ...]

    def baseline(self, name: str) -> Path:
        """Return the path of the baseline file of a case or a matrix."""
        return self.baselines / f"{name.partition('/')[0]}{SUFFIX}"

    def without_case(self) -> list[str]:
        """Return the sorted names of baseline files that belong to no case and no matrix; files
        that hosim did not write do not count.
        """
        named = {case.matrix or case.name for case in self.cases}
        listed = sorted(self.baselines.glob(f"*{SUFFIX}")) if self.baselines.is_dir() else []
        return [
            path.name.removesuffix(SUFFIX)
            for path in listed
            if path.name.removesuffix(SUFFIX) not in named and is_baseline(path)
        ]

    def named(self, names: Iterable[str]) -> tuple[Case, ...]:
        """Return the cases with these names, or all cases without names; the name of a matrix or a
        pattern (``*``, ``?``) selects several.

        Raises :class:`InputError` for a name that matches no case.
        """
        from hosim.base.files import unknown_name

        wanted: set[str] = set()
        for name in (given := tuple(names)):
            found = {
                case.name
                for case in self.cases
                if name in (case.name, case.matrix) or fnmatchcase(case.name, name)
            }
            if not found:
                known = dict.fromkeys(case.matrix or case.name for case in self.cases)
                raise InputError(unknown_name("case", name, known), source=self.source)
            wanted |= found
        return tuple(case for case in self.cases if not given or case.name in wanted)


def find_suite(
    path: str | os.PathLike[str] | None = None, start: str | os.PathLike[str] = "."
) -> Suite:
    """Load the suite in the file ``path``, or else in the nearest ``hosim.toml`` or
    ``pyproject.toml`` with cases, from ``start`` up.

    Raises :class:`InputError` if there is none, and for an invalid file.
    """
    if path is not None:
        return load_suite(path)
    for folder in (Path(start).resolve(), *Path(start).resolve().parents):
        for name in FILES:
            file = folder / name
            if file.is_file() and (name != "pyproject.toml" or _has_table(file)):
                return load_suite(os.path.relpath(file))
    raise InputError(
        f"no {FILES[0]} here or above, and no [tool.hosim] in a {FILES[1]}; 'hosim ci init' writes "
        "one that lists the cases",
        source="cases",
    )


def load_suite(path: str | os.PathLike[str]) -> Suite:
    """Load the suite in a file. Raises :class:`InputError`."""
    source = os.fspath(path)
    data = gate_files.load_cases(source)
    folder = Path(source).parent
    general = parse_tolerances(data.get("tolerance", {}), source)
    cases = []
    if not data.get("cases") and not data.get("matrix"):
        raise InputError(
            "expected at least one case, such as [cases.NAME]", source=source, where="cases"
        )
    for name, given in data.get("cases", {}).items():
        where = _named(f"cases.{name}", name, source)
        if sum(key in given for key in ("workload", "entry", "serve")) != 1:
            raise InputError(
                "expected one of workload, entry and serve", source=source, where=where
            )
        if not _ENTRY.fullmatch(given.get("entry", "module:function")):
            raise InputError(
                "expected package.module:function, such as shop.model:example, got "
                f"{given['entry']!r}",
                source=source,
                where=f"{where}.entry",
            )
        check_together(gate_files.CASE, given, source, where)
        if "serve" in given:
            kind_of("serve").check(given, source, where)
        cases.append(
            Case(
                name,
                folder=os.fspath(folder),
                tolerances={**general, **parse_tolerances(given.get("tolerance", {}), source)},
                **{
                    option.name: given[option.name]
                    for option in gate_files.CASE
                    if option.name in given
                },
            )
        )
    for name, matrix in data.get("matrix", {}).items():
        where = _named(f"matrix.{name}", name, source)
        if name in data.get("cases", {}):
            raise InputError(
                "a case has this name too: choose another, because baseline files are named after "
                "them",
                source=source,
                where=where,
            )
        tolerances = {**general, **parse_tolerances(matrix.get("tolerance", {}), source)}
        try:
            cases += combinations(name, matrix, os.fspath(folder), tolerances)
        except ValueError as error:
            raise InputError(str(error), source=source, where=where) from None
        except InputError as error:
            raise InputError(error.message, source=source, where=where) from None
    kept = confined(folder / data.get("baselines", FOLDER), folder, source, "baselines")
    return Suite(source, kept, tuple(cases))


def combinations(
    name: str, given: gate_files.MatrixModel, folder: str, tolerances: Mapping[str, Tolerance]
) -> list[Case]:
    """Return the cases of a matrix, in the listed order of workloads, machines, policies and
    budgets. Raises :class:`ValueError` for repetitions.
    """
    axes = [given["workloads"], given["hardware"], given["policies"]]
    for listed in (*axes, given.get("budgets", [])):
        twice = next((text for text in listed if listed.count(text) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is listed twice")
    budgets = given.get("budgets", [None])
    lengths = sorted(map(len, axes))
    within(
        "grid_points",
        (prod(lengths[1:]) if given.get("cover") == "pairs" else prod(lengths)) * len(budgets),
    )
    return [
        Case(
            "/".join(filter(None, (name, workload, machine, policy, budget))),
            machine,
            folder,
            workload,
            None,
            policy,
            None,
            budget,
            tolerances,
            name,
            rescale=given.get("rescale", False),
        )
        for workload, machine, policy in (
            pairs(axes) if given.get("cover") == "pairs" else product(*axes)
        )
        for budget in budgets
    ]


def pairs(axes: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return combinations of three axes with pairwise coverage: all pairs of the two longest axes,
    with the values of the third in turn.

    Appending to the longest axis keeps the existing combinations.

    >>> pairs(["ab", "xy", "12"])
    [('a', 'x', '1'), ('a', 'y', '2'), ('b', 'x', '2'), ('b', 'y', '1')]
    """
    first, second, *others = sorted(range(len(axes)), key=lambda k: -len(axes[k]))
    found = []
    for i, j in product(range(len(axes[first])), range(len(axes[second]))):
        at = {first: i, second: j, **{k: (i + j) % len(axes[k]) for k in others}}
        found.append(tuple(at[k] for k in range(len(axes))))
    return [tuple(axis[k] for axis, k in zip(axes, at, strict=True)) for at in sorted(found)]


def _named(where: str, name: str, source: str) -> str:
    """Return ``where``. Raises :class:`InputError` for a name that is no valid file name."""
    if not _NAME.fullmatch(name):
        raise InputError(
            "expected a name of letters, digits, '_', '-' and '.', because a file is named after "
            "it",
            source=source,
            where=where,
        )
    return where


def _has_table(file: Path) -> bool:
    tool = gate_files.read_toml(os.fspath(file)).get("tool", {})
    return isinstance(tool, dict) and "hosim" in tool

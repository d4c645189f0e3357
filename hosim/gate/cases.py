"""Cases: what a gate measures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hosim.errors import InputError
from hosim.gate.baseline import SUFFIX
from hosim.gate.metrics import Tolerance, parse_tolerances

FILES = ("hosim.toml", "pyproject.toml")
"""Where cases are looked for, in this order."""

FOLDER = "hosim-baselines"
"""Where baseline files lie, beside the file of the cases."""

POLICY = "hyperoffload"

_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class Case:
    """One workload (a path or a shipped name, or a Python ``entry``), one machine, one policy or plan file, one budget.

    Paths are relative to ``folder``, which is also where an entry's package is looked for.
    """

    name: str
    hardware: str
    folder: str = "."
    workload: str | None = None
    entry: str | None = None
    policy: str = POLICY
    plan: str | None = None
    budget: str | None = None
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)

    def asked(self) -> dict[str, str]:
        """The question as it was asked."""
        what = {"workload": self.workload, "entry": self.entry, "hardware": self.hardware, "budget": self.budget}
        how = {"plan": self.plan} if self.plan is not None else {"policy": self.policy}
        return {key: text for key, text in {**what, **how}.items() if text is not None}


@dataclass(frozen=True)
class Suite:
    """The cases of a file, in its order, and the folder of their baselines."""

    source: str
    baselines: Path
    cases: tuple[Case, ...]

    def baseline(self, name: str) -> Path:
        """The baseline file of a case."""
        return self.baselines / f"{name}{SUFFIX}"

    def without_case(self) -> list[str]:
        """Names of baseline files that belong to no case, sorted."""
        named = {case.name for case in self.cases}
        listed = sorted(self.baselines.glob(f"*{SUFFIX}")) if self.baselines.is_dir() else []
        return [path.name.removesuffix(SUFFIX) for path in listed if path.name.removesuffix(SUFFIX) not in named]

    def named(self, names: Iterable[str]) -> tuple[Case, ...]:
        """The cases of these names, all if there are none. Raises :class:`InputError` for an unknown one."""
        from hosim.io.files import unknown_name

        by_name = {case.name: case for case in self.cases}
        for name in names:
            if name not in by_name:
                raise InputError(unknown_name("case", name, by_name), source=self.source)
        wanted = set(names)
        return tuple(case for case in self.cases if not wanted or case.name in wanted)


def find_suite(path: str | os.PathLike[str] | None = None, start: str | os.PathLike[str] = ".") -> Suite:
    """The suite in the file ``path``; if none is given, in the nearest ``hosim.toml`` or ``pyproject.toml`` with cases, from ``start`` up.

    Raises :class:`InputError` if there is none, and for a file with something wrong in it.
    """
    if path is not None:
        return load_suite(path)
    for folder in (Path(start).resolve(), *Path(start).resolve().parents):
        for name in FILES:
            file = folder / name
            if file.is_file() and (name != "pyproject.toml" or _has_table(file)):
                return load_suite(os.path.relpath(file))
    raise InputError(f"no {FILES[0]} here or above, and no [tool.hosim] in a {FILES[1]}; write one that lists the cases", source="cases")


def load_suite(path: str | os.PathLike[str]) -> Suite:
    """The suite in a file. Raises :class:`InputError`."""
    from hosim.io.cases import load_cases

    source = os.fspath(path)
    data = load_cases(source)
    folder = Path(source).parent
    general = parse_tolerances(data.get("tolerance", {}), source)
    cases = []
    if not data["cases"]:
        raise InputError("expected at least one case, such as [cases.NAME]", source=source, where="cases")
    for name, given in data["cases"].items():
        where = f"cases.{name}"
        if not _NAME.fullmatch(name):
            raise InputError("expected a name of letters, digits, '_', '-' and '.', since a file is named so", source=source, where=where)
        if ("workload" in given) == ("entry" in given):
            raise InputError("expected either a workload or an entry", source=source, where=where)
        if "plan" in given and "policy" in given:
            raise InputError("expected either a policy or a plan", source=source, where=where)
        own = parse_tolerances(given.get("tolerance", {}), source)
        cases.append(
            Case(
                name,
                given["hardware"],
                os.fspath(folder),
                given.get("workload"),
                given.get("entry"),
                given.get("policy", POLICY),
                given.get("plan"),
                given.get("budget"),
                {**general, **own},
            )
        )
    return Suite(source, folder / data.get("baselines", FOLDER), tuple(cases))


def _has_table(file: Path) -> bool:
    from hosim.io.cases import read_toml

    tool = read_toml(os.fspath(file)).get("tool", {})
    return isinstance(tool, dict) and "hosim" in tool

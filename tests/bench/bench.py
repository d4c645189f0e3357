"""``make bench``: every figure that hosim aims at, measured on this machine, as one table.

``python tests/bench/bench.py [--strict] [--only TEXT]``. Each figure is measured by a process of
its own, one after the other. One that fails is a row that says so. The table goes to
``build/bench.md`` and, with what machine this is, to ``build/bench.json``. With ``--strict`` the
exit code is 1 unless all bounds are held.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
if __name__ == "__main__":
    sys.path[:0] = [
        str(ROOT),
        str(HERE.parent),
        *(str(HERE.parent / room) for room in ("lower", "packing", "policies")),
    ]

from measures import Measure  # noqa: E402

SUBJECTS = (
    "starting",
    "loading",
    "refusing",
    "analysing",
    "replaying",
    "many_devices",
    "packing",
    "judging",
    "planning",
    "searching",
    "serving_costs",
    "sweep_costs",
    "exporting",
    "executing",
)
LONGEST_S = 1800
"""A measurement that takes longer has failed."""


@dataclass(frozen=True)
class Row:
    """One line of the table; ``figure`` is None where the measurement failed, and ``failure`` says
    why.
    """

    subject: str
    what: str
    unit: str
    most: float | None
    figure: float | None
    failure: str = ""

    @property
    def held(self) -> bool:
        return self.figure is not None and self.most is not None and self.figure <= self.most

    @property
    def verdict(self) -> str:
        return "yes" if self.held else "no" if self.figure is not None else "failed"


def measures(subject: str) -> dict[str, Measure]:
    """The measures of a subject, by name, in the order of its file."""
    return {
        name: value
        for name, value in vars(importlib.import_module(subject)).items()
        if isinstance(value, Measure)
    }


def rows(only: str) -> Iterator[Row]:
    """A row for each measure whose subject and name, or description, has ``only`` in it."""
    for subject in SUBJECTS:
        try:
            found = measures(subject)
        except Exception as error:  # whatever a subject's imports raise must not stop the others
            yield Row(subject, "all of it", "", None, None, f"{type(error).__name__}: {error}")
            continue
        for name, of in found.items():
            if only in f"{subject}.{name}" or only in of.what:
                figure, failure = taken(subject, name)
                yield Row(subject, of.what, of.unit, of.most, figure, failure)


def taken(subject: str, name: str) -> tuple[float | None, str]:
    """The figure that a process measures, or None and why there is none."""
    command = [sys.executable, str(Path(__file__).resolve()), "--take", f"{subject}.{name}"]
    try:
        ended = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=LONGEST_S, check=False
        )
        if ended.returncode == 0:
            return float(ended.stdout.splitlines()[-1]), ""
    except subprocess.TimeoutExpired:
        return None, f"not done after {LONGEST_S} s"
    except (ValueError, IndexError):
        return None, "it printed no figure"
    return None, f"exit code {ended.returncode}"


def machine() -> dict[str, object]:
    """What the figures are from."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": load,
    }


def table(found: Sequence[Row], of: dict[str, object]) -> str:
    """The rows as Markdown."""
    lines = ["| subject | what | figure | at most | held |", "|---|---|--:|--:|---|"]
    for row in found:
        figure = "" if row.figure is None else f"{row.figure:.3g} {row.unit}"
        most = "" if row.most is None else f"{row.most:.4g} {row.unit}"
        lines.append(
            f"| {row.subject} | {row.what} | {figure} | {most} | "
            f"{row.verdict}{': ' * bool(row.failure)}{row.failure} |"
        )
    held = sum(row.held for row in found)
    summary = (
        f"{held} of {len(found)} bounds held, on {of['cpu']}, {of['cores']} cores, Python "
        f"{of['python']}; load before: {of['load']}"
    )
    return "\n".join([*lines, "", summary]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 unless all bounds are held"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="only measures with this in subject.name, or in what they say they measure",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "build",
        help="folder of bench.md and bench.json (default: build)",
    )
    parser.add_argument("--take", metavar="SUBJECT.NAME", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.take:
        subject, _, name = given.take.partition(".")
        print(measures(subject)[name].take())
        return 0
    of, found = machine(), []
    for row in rows(given.only):
        found.append(row)
        shown = (
            row.failure
            if row.figure is None
            else f"{row.figure:.3g} {row.unit} (at most {row.most:.4g})"
        )
        print(f"{row.verdict:6} {row.subject}: {row.what}: {shown}", flush=True)
    if not found:
        parser.error(
            f"no measure has {given.only!r} in its subject.name, or in what it says it measures"
        )
    given.out.mkdir(parents=True, exist_ok=True)
    text = table(found, of)
    (given.out / "bench.md").write_text(text)
    figures = [{**asdict(row), "held": row.held} for row in found]
    (given.out / "bench.json").write_text(
        json.dumps({"machine": of, "figures": figures}, indent=2) + "\n"
    )
    print(f"\n{text}")
    return int(given.strict and not all(row.held for row in found))


if __name__ == "__main__":
    sys.exit(main())

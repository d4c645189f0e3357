"""Runtimes as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from hosim.data.runtime import Runtime
from hosim.report.printing import NOTHING, open_table, paragraph
from hosim.units import human_percent


def runtimes(found: Sequence[Runtime]) -> Table:
    """One row per runtime: how fast its kernels are in a whole step, what it sets, and of what
    software it is.
    """
    table = open_table("Runtimes", "name", "speed", "sets", "software", left=1, spare=("software",))
    for one in found:
        table.add_row(
            one.name, f"{one.speed.value:.2f}", set_by(one) or NOTHING, one.software or NOTHING
        )
    return table


def runtime(
    found: Runtime, written: Mapping[str, Any], left: Mapping[str, float] | None = None
) -> RenderableType:
    """A runtime: what it sets, and each of its figures with its spread and source; ``written`` is
    it as in its file, and ``left`` the time that a fitted one gives each run over that which was
    measured.
    """
    table = open_table("", "figure", "value", "spread", "rests on", left=1)
    for cells in figures_of(found, written):
        table.add_row(*cells)
    lines = [f"{found.name}: {found.software}", f"sets       {set_by(found) or NOTHING}"]
    lines += [f"{verb:<10} {what}" for verb, what in of_host(found)]
    sources = [f"{name}: {figure.source}" for name, figure in found.known.items() if figure.source]
    sources += [f"Source: {found.source.strip()}"] if found.source else []
    runs = open_table("What is left", "run", "fitted over measured", left=1)
    for name, ratio in (left or {}).items():
        runs.add_row(name, human_percent(ratio - 1, signed=True))
    after = [paragraph(*sources)] * bool(sources) + [runs] * bool(left)
    return Group(paragraph(*lines), table, *after)


def figures_of(found: Runtime, written: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Each figure of a runtime: its name, what is ``written``, its spread and what it rests on."""
    return [
        (
            name,
            str(written[name]["value"]),
            f"{figure.spread:.2f}",
            "one measurement" if figure.one_row else NOTHING,
        )
        for name, figure in found.known.items()
    ]


def of_host(found: Runtime) -> list[tuple[str, str]]:
    """What a runtime's host waits for, and what it pins."""
    once = ("once",) if found.pins_once else ()
    said = ("waits for", found.blocks), ("pins for", (*found.pins, *once))
    return [(verb, ", ".join(what)) for verb, what in said if what]


def set_by(one: Runtime) -> str:
    """What a runtime sets of a workload, as in a spec."""
    return ", ".join(
        [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in one.options.items()
        ]
    )

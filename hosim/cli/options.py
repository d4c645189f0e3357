"""Helpers of commands: the question that they are asked, notes, pictures and JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hosim import api, engine, io
from hosim.base import files
from hosim.base.collector import no_collection
from hosim.cli.progress import progress
from hosim.cli.terminal import note, notes, say
from hosim.io.options import OPTIONS, Given
from hosim.report import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from hosim.graph import Graph
    from hosim.hardware import Hardware
    from hosim.study.runs import Question

WIDTH = 120
"""The width of tables that are not printed to a terminal."""


def graph_of(text: str) -> Graph:
    """The graph of a WORKLOAD argument."""
    with progress(f"reading {text}"), no_collection():
        return io.load_named(text)


def hardware_of(text: str) -> Hardware:
    """The machine of a HW argument."""
    from hosim.shipped import find_hardware

    return io.load_hardware(find_hardware(text))


def say_notes(lines: Sequence[object]) -> None:
    """Print what a reader of the figures has to know, as notes on stderr."""
    for each in lines:
        note(str(each))


def questions_of(given: Given, machines: Sequence[str] | None = None) -> list[Question]:
    """The questions that a command is asked, one for each policy (and machine, of several).

    A note on stderr says so where a machine has less memory than the budget.
    """
    asked = dict(vars(given))
    workload, hardware = asked.pop("workload"), asked.pop("hardware")
    policies = asked.pop("policies", [asked.pop("policy", OPTIONS["policy"].default)])
    budget = asked.pop("budget", None)
    with progress(f"reading {workload}"), no_collection():
        found = api.questions(workload, machines or [hardware], policies, budget, **asked)
    if machines is None:
        say_budget(budget, found[0].graph, found[0].hardware)
    return found


def say_budget(budget: str | None, graph: Graph, hardware: Hardware) -> int:
    """The bytes of a budget that may be used, with a note on stderr if the device has less."""
    from hosim.units import human_size

    wanted, allowed = engine.read_budget(budget).of(graph, hardware)
    if wanted > allowed:
        note(f"using {human_size(allowed)}, all that the device has")
    return allowed


def question_of(given: Given) -> Question:
    """The one question that a command is asked, with notes that a reader of the answer needs."""
    (asked,) = questions_of(given)
    say_notes(asked.notes)
    return asked


def check_drawn(given: Given) -> None:
    """Raise :class:`InputError` for a picture or a trace whose name says another format."""
    if given.plot is not None:
        drawn.image_kind(given.plot)
    check_trace(getattr(given, "trace", None))


def check_trace(path: Path | None) -> None:
    """Raise :class:`InputError` for a trace that is no .json or .json.gz."""
    from hosim.errors import InputError

    if path is not None and not path.name.endswith((".json", ".json.gz")):
        raise InputError("expected a trace whose name ends in .json or .json.gz", source=str(path))


def write_picture(path: Path, figure: Figure) -> None:
    """Write a figure to a file in the format that its name ends in, with a note on stderr."""
    files.write_bytes(path, drawn.image(figure, drawn.image_kind(path)))
    say(f"wrote {path}")


def write_page(path: Path, text: str) -> None:
    """Write a page to a file, with a note on stderr."""
    files.write_bytes(path, text.encode())
    say(f"wrote {path}")


def print_json(data: Mapping[str, Any]) -> None:
    """Print JSON on stdout: with ``notes``, those of the answer and those that the command has
    said, where there are some.
    """
    from hosim.notes import each_once

    said = each_once((*data.get("notes", ()), *notes()))
    typer.echo(
        io.to_json(
            {
                **{key: value for key, value in data.items() if key != "notes"},
                **({"notes": said} if said else {}),
            }
        )
    )


def console() -> Console:
    """The console for tables: stdout, as wide as the terminal, or :data:`WIDTH` if there is
    none.
    """
    from rich.console import Console

    given = os.environ.get("COLUMNS")
    nothing = given is not None and not given.strip(
        "0"
    )  # empty or 0, in which nothing can be shown
    return Console(
        width=None if not nothing and (sys.stdout.isatty() or given) else WIDTH, highlight=False
    )

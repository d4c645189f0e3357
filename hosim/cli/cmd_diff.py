"""``hosim diff``: two plans, or two results, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hosim.cli.answers import show_answer
from hosim.cli.commands import command
from hosim.cli.options import (
    check_drawn,
    graph_of,
    hardware_of,
    say_budget,
    say_notes,
    write_picture,
)
from hosim.cli.progress import progress
from hosim.errors import InputError
from hosim.io.options import OPTIONS, REQUIRED, Given, Option, declared

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hosim.hardware import Hardware
    from hosim.study import Side

_MOST = 40
"""Rows of each table that --detail shows."""

_OPTIONS = declared(
    "a b workload hardware budget top detail plot json",
    Option(
        "a",
        default=REQUIRED,
        argument=True,
        metavar="A",
        help="A plan file, a result file (--json of 'hosim replay'), or a policy.",
    ),
    Option(
        "b",
        default=REQUIRED,
        argument=True,
        metavar="B",
        help="The other plan file, result file or policy.",
    ),
    Option(
        "workload",
        flags=("--workload", "-w"),
        metavar="WORKLOAD",
        help="The workload that plans and policies are for.",
    ),
    replace(
        OPTIONS["hardware"],
        default=None,
        help="Replay plans on this hardware as well, to compare times op by op; required for "
        "policies.",
    ),
    replace(
        OPTIONS["top"],
        help="Show at most N rows of each table.  [default: 5, with --detail 40]",
    ),
)


@command(*_OPTIONS)
def diff(given: Given) -> None:
    """Show how two plans or two results differ.

    Compares figure by figure, tensor by tensor and op by op, and shows only differences: the first figures, or
    with --detail all of these. --plot
    draws both replays on one axis of time.
    """
    from hosim.devices_of_graph import on_devices
    from hosim.report.answers import ROWS, diff_answer
    from hosim.report.of_studies import diff
    from hosim.study import diff as differ
    from hosim.study import side_of

    a, b = given.a, given.b
    graph = None if given.workload is None else graph_of(given.workload)
    machine = None if given.hardware is None else hardware_of(given.hardware)
    budget_bytes = None
    if graph is not None and machine is not None:
        machine = on_devices(graph, machine)
        budget_bytes = say_budget(given.budget, graph, machine)
    check_drawn(given)
    with progress(f"{a} and {b}"):
        sides = [side_of(text, graph, machine, budget_bytes) for text in (a, b)]
        found = differ(*sides)
    if given.plot is not None:
        _draw(given.plot, sides, machine)
    say_notes(found.notes)
    names, others = (found.a, found.b), bool(found.tensors or found.ops)
    answer = diff_answer(str(found), found.figures, names, others, given.top or ROWS)
    every = list(found.figures), list(found.tensors), list(found.ops)
    data = {
        "format": "hosim.diff/1",
        "answer": answer.verdict,
        "a": found.a,
        "b": found.b,
        **dict(zip(("figures", "tensors", "ops"), every, strict=True)),
    }

    def tables() -> Iterator[RenderableType]:
        yield diff(*every, str(found), names, given.top or _MOST, found.parts)

    show_answer(answer, given, lambda: data, tables)


def _draw(path: Path, sides: Sequence[Side], machine: Hardware | None) -> None:
    """Write the picture of both replays. Raises :class:`InputError` where one has no timeline."""
    from hosim.report.drawn import Shown, side_by_side_figure

    shown = [
        Shown(side.label, side.plan, side.result)
        for side in sides
        if side.plan is not None and side.result is not None and side.result.timeline is not None
    ]
    if machine is None or len(shown) < len(sides):
        raise InputError(
            "--plot draws two plans or policies that are replayed: name a workload and a machine",
            source="diff",
        )
    write_picture(path, side_by_side_figure(shown, machine))

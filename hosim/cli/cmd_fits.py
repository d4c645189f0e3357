"""``hosim fits``: whether a step fits a device, and what would make it fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hosim.base.collector import no_collection
from hosim.cli.commands import command
from hosim.cli.options import console, print_json, say_notes
from hosim.cli.progress import progress
from hosim.errors import InfeasibleError, InputError
from hosim.io.options import OPTIONS, Given, declared

if TYPE_CHECKING:
    from hosim.graph import Graph

_ENTRY = re.compile(r"(?P<module>[\w./-]+\.py|[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")

_OPTIONS = declared(
    "workload hardware batch sequence optimizer runtime devices json",
    replace(
        OPTIONS["workload"],
        help="A model's name, also that of the Hugging Face hub; any other workload; or "
        "module.py:function, which returns a model, its inputs, and for a training step the loss "
        "and the optimizer.",
    ),
)


@command(*_OPTIONS)
def fits(given: Given) -> None:
    """Say if a step fits a device, and what would help.

    Shows the peak of device memory by module and kind of tensor, the largest batch and sequence
    that fit, and what checkpointing, smaller states, states in host memory and offload need and
    cost. With --runtime, as torch and nvidia-smi show it, with intervals. Exit code 3 if it does
    not fit.
    """
    asked = dict(vars(given))
    text, hardware, as_json = asked.pop("workload"), asked.pop("hardware"), asked.pop("json")
    with progress(f"reading {text}") as tell, no_collection():
        from hosim.api import fit_question
        from hosim.data.seen_peaks import DOES_NOT_FIT
        from hosim.report.listed import memory_fit, memory_fit_to_dict
        from hosim.study.searches import memory_fit as fitted

        question = fit_question(_entry(text) or text, hardware, asked)
        found = fitted(question, tell)
    say_notes(question.notes)
    if as_json:
        print_json(memory_fit_to_dict(found))
    else:
        console().print(memory_fit(found), crop=False)
    if found.verdict == DOES_NOT_FIT:
        raise typer.Exit(InfeasibleError.exit_code)


def _entry(text: str) -> Graph | None:
    """The graph of a function in a module of the user's, as the gate takes it; ``None`` for
    anything else.
    """
    from hosim.io import names_model

    found = _ENTRY.fullmatch(text)
    if found is None or names_model(text):
        return None
    from hosim.gate import graph_of_entry

    module = Path(found["module"])
    if module.suffix != ".py":
        return graph_of_entry(text, ".")
    if not module.is_file():
        raise InputError("no such file", source=str(module))
    return graph_of_entry(f"{module.stem}:{found['function']}", str(module.parent))

"""Answers at the shell: rows as they end, the answer itself, and the commands that ask on."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from hosim.cli.options import console, print_json, say_notes
from hosim.cli.progress import FIRST_S, SWITCH
from hosim.cli.terminal import say
from hosim.errors import InfeasibleError
from hosim.io.options import OPTIONS, Given, Option, Options, is_given

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hosim.report.answers import Answer
    from hosim.study.runs import Question

SHOWS = "policies policy plot html json detail all enough"
"""Options that change what is shown, or that a following command chooses anew."""
OF_PLANS = "workload hardware budget devices no_recompute rescale"
"""The options of a question that all commands which plan have."""


def study_title(what: str, question: Question, *, policy: bool = True) -> str:
    """A study's question in a line: what is wanted, of which workload, where, and by which
    policy.
    """
    from hosim.units import human_size

    by = f" by {question.choice.label}" if policy else ""
    return (
        f"{question.graph.name} on {question.hardware.name} within "
        f"{human_size(question.budget_bytes)}{by}: {what}"
    )


def begin_answer(title: str, given: Given) -> None:
    """The first line of an answer, as soon as the question is read."""
    if not given.json and not given.detail:
        from hosim.report.printing import paragraph

        console().print(paragraph(title))
        sys.stdout.flush()


def print_answer(
    answer: Answer,
    given: Given,
    tables: Callable[[], Iterable[RenderableType]],
    *,
    title: bool = True,
) -> None:
    """The answer, or the ``tables`` behind it where they are asked for; without its ``title`` where
    that is there already.
    """
    from hosim.report.answers import answered

    if given.detail:
        for part in tables():
            console().print(part)
        return
    say_notes(answer.notes)
    every, shows = getattr(given, "all", None), "--detail"
    if every is not None:
        shows = "--all"
    console().print(answered(answer, title=title, every=bool(every), shows=shows), crop=False)


def show_answer(
    answer: Answer,
    given: Given,
    data: Callable[[], Mapping[str, Any]],
    tables: Callable[[], Iterable[RenderableType]],
    *,
    fits: bool = True,
) -> None:
    """Show an answer as it is asked for: ``data`` as JSON, or as :func:`print_answer` does. Exit
    code 3 unless something ``fits``.
    """
    if given.json:
        print_json(data())
    else:
        print_answer(answer, given, tables)
    if not fits:
        raise typer.Exit(InfeasibleError.exit_code)


def following(
    given: Given, options: Options, command: str, takes: str = OF_PLANS, **chosen: str
) -> list[str]:
    """The line that asks ``command`` about the same question, with options that are ``chosen``;
    none where the command does not take something that is given.
    """
    asked = [one for one in options if is_given(one, getattr(given, one.name))]
    if any([one.name not in f"{takes} {SHOWS}".split() for one in asked]):
        return []
    words = ["hosim", command]
    for one in asked:
        if one.name in takes.split() and one.name not in chosen:
            words += _words(one, getattr(given, one.name))
    for name, value in chosen.items():
        words += _words(OPTIONS[name], value)
    return [shlex.join(words)]


def _words(option: Option, value: object) -> list[str]:
    flag = [] if option.argument else [option.flags[-1] if option.flags else option.flag]
    return flag if value is True else [*flag, str(value)]


def rows_as_they_end() -> Callable[[str], None]:
    """A function that takes a line for each row when it ends. They are shown on stderr once the
    command has taken as long as a terminal waits for progress: a short one shows its answer alone.
    """
    begun, waiting = time.monotonic(), list[str]()

    def ended(line: str) -> None:
        waiting.append(line)
        if os.environ.get(SWITCH) != "off" and time.monotonic() - begun > FIRST_S:
            for each in waiting:
                say(f"  {each}")
            waiting.clear()

    return ended

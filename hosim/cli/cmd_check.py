"""``hosim check``: the gate."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import typer

from hosim.cli.commands import command
from hosim.cli.options import console
from hosim.cli.progress import progress
from hosim.cli.terminal import say_to_service
from hosim.io.options import OPTIONS, Given, Option, declared

CASES = (
    Option(
        "cases",
        of=list[str],
        argument=True,
        metavar="[CASE]...",
        help="Names of cases.  [default: all]",
        shows_default=False,
    ),
    Option(
        "config",
        of=Path,
        flags=("--config", "-c"),
        metavar="FILE",
        help="The file of the cases.  [default: the nearest hosim.toml or pyproject.toml]",
    ),
    Option(
        "no_cache",
        of=bool,
        default=False,
        help="Import every workload again instead of using the cache.",
    ),
)
"""The options that choose cases, and those that say how they are read."""

_OPTIONS = declared(
    "cases config strict json junit sarif summary html github jobs no_cache against",
    *CASES,
    Option(
        "strict",
        of=bool,
        default=False,
        help="Also fail if a case has become better than its baseline.",
    ),
    Option("junit", of=Path, endings=(), help="Write JUnit XML."),
    Option("sarif", of=Path, endings=(), help="Write SARIF 2.1.0."),
    Option("summary", of=Path, endings=(), help="Write a Markdown summary."),
    replace(
        OPTIONS["html"], help="Write an HTML page: verdicts, what changed, memory before and after."
    ),
    Option(
        "github",
        of=bool,
        default=False,
        help="Print annotations for GitHub Actions on stderr, and add to the step summary.",
    ),
    Option(
        "against",
        default="",
        metavar="REVISION",
        help="Compare with the cases of another revision in git, such as origin/main.",
        shows_default=False,
    ),
)


@command(*_OPTIONS)
def check(given: Given) -> None:
    """Fail if a step needs more than its baseline.

    It plans and replays each case of hosim.toml and compares the result with the baseline. Exit
    code 1 for a regression or a missing baseline, 2 if a case cannot be read (the others are
    judged), 3 if one does not fit.
    """
    from hosim import gate
    from hosim.base.files import write_bytes
    from hosim.gate import CaseError, errors_in_one, find_suite, kept_in
    from hosim.gate import check as checked
    from hosim.gate.verdicts import ERROR, exit_code
    from hosim.io import to_json
    from hosim.study.runs import processes

    count = processes(given.jobs)
    suite = find_suite(given.config)
    with progress() as tell:
        verdicts = checked(
            suite,
            given.cases or (),
            jobs=count,
            kept=None if given.no_cache else kept_in(),
            tell=tell,
            against=given.against,
        )
    if given.junit is not None:
        write_bytes(given.junit, gate.junit(verdicts, given.strict).encode())
    if given.sarif is not None:
        write_bytes(given.sarif, (to_json(gate.sarif(verdicts, given.strict)) + "\n").encode())
    if given.summary is not None:
        write_bytes(given.summary, gate.markdown(verdicts, given.strict).encode())
    if given.html is not None:
        from hosim.cli.options import write_page
        from hosim.gate import check_page

        write_page(given.html, check_page(verdicts, given.strict))
    if given.github:
        for line in gate.github(verdicts, given.strict):
            say_to_service(line)
        step = os.environ.get("GITHUB_STEP_SUMMARY")
        if step:
            with Path(step).open("a", encoding="utf-8") as stream:
                stream.write(gate.markdown(verdicts, given.strict))
    if given.json:
        typer.echo(to_json(gate.to_dict(verdicts, given.strict)))
    else:
        from hosim import gate

        console().print(
            gate.verdicts(verdicts, given.strict), crop=False
        )  # a line of an explanation may be longer than the terminal is wide
    if errors := [CaseError(v.case, v.note) for v in verdicts if v.verdict == ERROR]:
        raise errors_in_one(errors)
    raise typer.Exit(exit_code(verdicts, given.strict))

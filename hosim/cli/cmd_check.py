"""``hosim check``: the gate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import Json, console
from hosim.cli.progress import progress
from hosim.cli.targets import PAGE, written
from hosim.cli.terminal import say_to_service

Cases = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CASE]...", help="Names of cases.  [default: all]", show_default=False),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The file of the cases.  [default: the nearest hosim.toml or pyproject.toml]",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        help="How many processes.  [default: one per core]",
        show_default=False,
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Import every workload again instead of using the cache.")
]
Against = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="REVISION",
        help="Compare with the cases of another revision in git, such as origin/main.",
        show_default=False,
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Also fail if a case has become better than its baseline.")
]
JUnit = Annotated[Path | None, written("--junit", says="Write JUnit XML.")]
Sarif = Annotated[Path | None, written("--sarif", says="Write SARIF 2.1.0.")]
Summary = Annotated[Path | None, written("--summary", says="Write a Markdown summary.")]
Html = Annotated[
    Path | None,
    written(
        "--html",
        says="Write an HTML page: verdicts, what changed, memory before and after.",
        endings=PAGE,
    ),
]
GitHub = Annotated[
    bool,
    typer.Option(
        "--github",
        help="Print annotations for GitHub Actions on stderr, and add to the step summary.",
    ),
]


def check(
    cases: Cases = None,
    config: Config = None,
    strict: Strict = False,
    json: Json = False,
    junit: JUnit = None,
    sarif: Sarif = None,
    summary: Summary = None,
    html: Html = None,
    github: GitHub = False,
    jobs: Jobs = -1,
    no_cache: NoCache = False,
    against: Against = "",
) -> None:
    """Fail if a step needs more than its baseline.

    It plans and replays each case of hosim.toml and compares the result with the baseline. Exit
    code 1 for a regression or a missing baseline, 2 if a case cannot be read (the others are
    judged), 3 if one does not fit.
    """
    from hosim import gate
    from hosim.files import write_bytes
    from hosim.gate import CaseError, errors_in_one, find_suite, kept_in
    from hosim.gate import check as checked
    from hosim.gate.verdicts import ERROR, exit_code
    from hosim.io import to_json
    from hosim.study.runs import processes

    count = processes(jobs)
    suite = find_suite(config)
    with progress() as tell:
        verdicts = checked(
            suite,
            cases or (),
            jobs=count,
            kept=None if no_cache else kept_in(),
            tell=tell,
            against=against,
        )
    if junit is not None:
        write_bytes(junit, gate.junit(verdicts, strict).encode())
    if sarif is not None:
        write_bytes(sarif, (to_json(gate.sarif(verdicts, strict)) + "\n").encode())
    if summary is not None:
        write_bytes(summary, gate.markdown(verdicts, strict).encode())
    if html is not None:
        from hosim.cli.options import write_page
        from hosim.gate import check_page

        write_page(html, check_page(verdicts, strict))
    if github:
        for line in gate.github(verdicts, strict):
            say_to_service(line)
        step = os.environ.get("GITHUB_STEP_SUMMARY")
        if step:
            with Path(step).open("a", encoding="utf-8") as stream:
                stream.write(gate.markdown(verdicts, strict))
    if json:
        typer.echo(to_json(gate.to_dict(verdicts, strict)))
    else:
        from hosim import gate

        console().print(
            gate.verdicts(verdicts, strict), crop=False
        )  # a line of an explanation may be longer than the terminal is wide
    if errors := [CaseError(v.case, v.note) for v in verdicts if v.verdict == ERROR]:
        raise errors_in_one(errors)
    raise typer.Exit(exit_code(verdicts, strict))

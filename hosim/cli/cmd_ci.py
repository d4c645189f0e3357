"""``hosim ci``: the files with which the gate runs on every change."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hosim.cli.cmd_check import Config
from hosim.cli.options import HardwareName
from hosim.cli.terminal import say

app = typer.Typer(help="Write the files with which CI runs the gate.", no_args_is_help=True)

Entry = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODULE:FUNCTION]",
        help="A function that returns a model: the case of a first hosim.toml.",
        show_default=False,
    ),
]
Install = Annotated[
    str,
    typer.Option(
        "--install",
        metavar="REQUIREMENT",
        help="Where CI installs hosim from, such as 'hosim @ git+URL@REVISION'.  [default: from "
        "where this one was]",
        show_default=False,
    ),
]


@app.command()
def init(
    entry: Entry = None,
    hardware: HardwareName = "h100-80gb-sxm",
    config: Config = None,
    install: Install = "",
) -> None:
    """Write a workflow of GitHub and a hook of pre-commit.

    The workflow compares a pull request with its base and keeps one comment up to date. Files that
    are there stay as they are.
    """
    from hosim.gate import find_suite
    from hosim.gate.ci import begin_cases, ci_files, installed_from, root_of, write_ci_files

    requirement = install or installed_from()
    if entry is not None:
        config = begin_cases(config, entry, hardware)
        say(f"wrote {config}")
    suite = find_suite(config)
    root = root_of(suite)
    files = ci_files(suite, root, requirement, "{}.{}".format(*sys.version_info))
    written, hook = write_ci_files(files, root)
    for path in written:
        say(f"wrote {path}")
    if hook:
        say("pre-commit has a configuration already: add this to its repos")
        typer.echo(hook, nl=False)

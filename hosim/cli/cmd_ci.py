"""``hosim ci``: the files with which the gate runs on every change."""

from __future__ import annotations

import sys
from dataclasses import replace

import typer

from hosim.cli.cmd_check import CASES
from hosim.cli.commands import command
from hosim.cli.terminal import say
from hosim.io.options import OPTIONS, Given, Option, declared

app = typer.Typer(help="Write the files with which CI runs the gate.", no_args_is_help=True)

_OPTIONS = declared(
    "entry hardware config install",
    *CASES,
    replace(OPTIONS["hardware"], default="h100-80gb-sxm"),
    Option(
        "entry",
        argument=True,
        metavar="[MODULE:FUNCTION]",
        help="A function that returns a model: the case of a first hosim.toml.",
    ),
    Option(
        "install",
        default="",
        metavar="REQUIREMENT",
        help="Where CI installs hosim from, such as 'hosim==0.2.0' or './hosim'.  [default: from "
        "where this one was]",
        shows_default=False,
    ),
)


@app.command()
@command(*_OPTIONS)
def init(given: Given) -> None:
    """Write a workflow of GitHub and a hook of pre-commit.

    The workflow compares a pull request with its base and keeps one comment up to date. Files that
    are there stay as they are.
    """
    from hosim.gate import find_suite
    from hosim.gate.ci import begin_cases, ci_files, installed_from, root_of, write_ci_files

    requirement = given.install or installed_from()
    config = given.config
    if given.entry is not None:
        config = begin_cases(config, given.entry, given.hardware)
        say(f"wrote {config}")
    suite = find_suite(config)
    root = root_of(suite.source)
    files = ci_files(suite, root, requirement, "{}.{}".format(*sys.version_info))
    written, hook = write_ci_files(files, root)
    for path in written:
        say(f"wrote {path}")
    if not files.workflow:
        say(
            "no workflow: this hosim is installed from a folder, which CI does not have. "
            "hosim ci init --install ./hosim writes it, for a copy of hosim in the repository"
        )
    if hook:
        say("pre-commit has a configuration already: add this to its repos")
        typer.echo(hook, nl=False)

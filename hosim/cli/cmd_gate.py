"""The commands of the gate: ``hosim check``, ``baseline`` and ``ci``."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import typer

from hosim import gate, io
from hosim.cli.answers import print_answer
from hosim.cli.commands import command
from hosim.cli.options import console, print_json, write_page
from hosim.cli.progress import progress
from hosim.cli.terminal import say, say_to_service
from hosim.io.options import OPTIONS, REQUIRED, Given, Option, declared
from hosim.study import runs

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

_CHECK = declared(
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


@command(*_CHECK)
def check(given: Given) -> None:
    """Fail if a step needs more than its baseline.

    It plans and replays each case of hosim.toml and compares the result with the baseline. Exit
    code 1 for a regression or a missing baseline, 2 if a case cannot be read (the others are
    judged), 3 if one does not fit.
    """
    from hosim.base.files import write_bytes
    from hosim.gate.verdicts import ERROR, exit_code

    count = runs.processes(given.jobs)
    suite = gate.find_suite(given.config)
    with progress() as tell:
        verdicts = gate.check(
            suite,
            given.cases or (),
            jobs=count,
            kept=None if given.no_cache else gate.kept_in(),
            tell=tell,
            against=given.against,
        )
    if given.junit is not None:
        write_bytes(given.junit, gate.junit(verdicts, given.strict).encode())
    if given.sarif is not None:
        write_bytes(given.sarif, (io.to_json(gate.sarif(verdicts, given.strict)) + "\n").encode())
    if given.summary is not None:
        write_bytes(given.summary, gate.markdown(verdicts, given.strict).encode())
    if given.html is not None:
        write_page(given.html, gate.check_page(verdicts, given.strict))
    if given.github:
        for line in gate.github(verdicts, given.strict):
            say_to_service(line)
        step = os.environ.get("GITHUB_STEP_SUMMARY")
        if step:
            with Path(step).open("a", encoding="utf-8") as stream:
                stream.write(gate.markdown(verdicts, given.strict))
    if given.json:
        typer.echo(io.to_json(gate.to_dict(verdicts, given.strict)))
    else:
        console().print(
            gate.verdicts(verdicts, given.strict), crop=False
        )  # a line of an explanation may be longer than the terminal is wide
    if errors := [gate.CaseError(v.case, v.note) for v in verdicts if v.verdict == ERROR]:
        raise gate.errors_in_one(errors)
    raise typer.Exit(exit_code(verdicts, given.strict))


baseline_app = typer.Typer(help="Write, update or show the gate's baselines.", no_args_is_help=True)

_WRITE = declared("cases config jobs no_cache", *CASES)
_NAME = Option("case", default=REQUIRED, argument=True, metavar="CASE", help="The name of a case.")


@baseline_app.command("write")
@command(*_WRITE)
def write_baselines(given: Given) -> None:
    """Write the missing baselines.

    Existing ones stay as they are.
    """
    _write(given, only_new=True)


@baseline_app.command("update")
@command(*_WRITE)
def update_baselines(given: Given) -> None:
    """Rewrite every baseline.

    Remove those whose case no longer exists.
    """
    _write(given, only_new=False)


@baseline_app.command("show")
@command(*declared("case config detail json", _NAME, *CASES))
def show_baseline(given: Given) -> None:
    """Show a baseline: its metrics, and what each peak consists of.

    --detail shows all.
    """
    from hosim.errors import InputError

    suite = gate.find_suite(given.config)
    known = gate.known_baseline(suite, given.case)
    if known is None:
        suite.named([given.case])
        raise InputError(
            "no such baseline; 'hosim baseline write' writes it",
            source=str(suite.baseline(given.case)),
        )
    if known.record is None:
        raise InputError(known.error or "does not fit", source=given.case)
    record = known.record
    if given.json:
        print_json(
            {
                "case": record.case,
                "asked": dict(record.asked),
                "metrics": dict(record.metrics),
                "notes": record.notes,
            }
        )
    else:
        answer, tables = gate.baseline(record)
        print_answer(answer, given, lambda: [tables])


def _write(given: Given, only_new: bool) -> None:

    count = runs.processes(given.jobs)
    suite = gate.find_suite(given.config)
    with progress() as tell:
        changed = gate.write(
            suite,
            given.cases or (),
            only_new=only_new,
            jobs=count,
            kept=None if given.no_cache else gate.kept_in(),
            tell=tell,
        )
    for path in changed:
        say(f"{'wrote' if path.is_file() else 'removed'} {path}")
    if not changed:
        say("nothing to write: every baseline exists" if only_new else "no baseline changed")


ci_app = typer.Typer(help="Write the files with which CI runs the gate.", no_args_is_help=True)

_INIT = declared(
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


@ci_app.command("init")
@command(*_INIT)
def init_ci(given: Given) -> None:
    """Write a workflow of GitHub and a hook of pre-commit.

    The workflow compares a pull request with its base and keeps one comment up to date. Files that
    are there stay as they are.
    """
    from hosim.gate.ci import begin_cases, ci_files, installed_from, root_of, write_ci_files

    requirement = given.install or installed_from()
    config = given.config
    if given.entry is not None:
        config = begin_cases(config, given.entry, given.hardware)
        say(f"wrote {config}")
    suite = gate.find_suite(config)
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

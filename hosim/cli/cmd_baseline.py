"""``hosim baseline``: the baselines that the gate compares with."""

from __future__ import annotations

import typer

from hosim.cli.answers import print_answer
from hosim.cli.cmd_check import CASES
from hosim.cli.commands import command
from hosim.cli.options import print_json
from hosim.cli.progress import progress
from hosim.cli.terminal import say
from hosim.io.options import REQUIRED, Given, Option, declared

app = typer.Typer(help="Write, update or show the gate's baselines.", no_args_is_help=True)

_WRITE = declared("cases config jobs no_cache", *CASES)
_NAME = Option("case", default=REQUIRED, argument=True, metavar="CASE", help="The name of a case.")


@app.command()
@command(*_WRITE)
def write(given: Given) -> None:
    """Write the missing baselines.

    Existing ones stay as they are.
    """
    _write(given, only_new=True)


@app.command()
@command(*_WRITE)
def update(given: Given) -> None:
    """Rewrite every baseline.

    Remove those whose case no longer exists.
    """
    _write(given, only_new=False)


@app.command()
@command(*declared("case config detail json", _NAME, *CASES))
def show(given: Given) -> None:
    """Show a baseline: its metrics, and what each peak consists of.

    --detail shows all.
    """
    from hosim.errors import InputError
    from hosim.gate import baseline, find_suite, known_baseline

    suite = find_suite(given.config)
    known = known_baseline(suite, given.case)
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
        answer, tables = baseline(record)
        print_answer(answer, given, lambda: [tables])


def _write(given: Given, only_new: bool) -> None:
    from hosim.gate import find_suite, kept_in
    from hosim.gate import write as written
    from hosim.study.runs import processes

    count = processes(given.jobs)
    suite = find_suite(given.config)
    with progress() as tell:
        changed = written(
            suite,
            given.cases or (),
            only_new=only_new,
            jobs=count,
            kept=None if given.no_cache else kept_in(),
            tell=tell,
        )
    for path in changed:
        say(f"{'wrote' if path.is_file() else 'removed'} {path}")
    if not changed:
        say("nothing to write: every baseline exists" if only_new else "no baseline changed")

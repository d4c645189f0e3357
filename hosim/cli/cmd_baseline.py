"""``hosim baseline``: the baselines that the gate compares with."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.cmd_check import Cases, Config, Jobs, NoCache
from hosim.cli.options import Json, console, print_json
from hosim.cli.progress import progress
from hosim.cli.terminal import say

app = typer.Typer(help="Write, update or show the gate's baselines.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="CASE", help="The name of a case.")]


@app.command()
def write(
    cases: Cases = None, config: Config = None, jobs: Jobs = -1, no_cache: NoCache = False
) -> None:
    """Write the missing baselines.

    Existing ones stay as they are.
    """
    _write(cases, config, jobs, no_cache, only_new=True)


@app.command()
def update(
    cases: Cases = None, config: Config = None, jobs: Jobs = -1, no_cache: NoCache = False
) -> None:
    """Rewrite every baseline.

    Remove those whose case no longer exists.
    """
    _write(cases, config, jobs, no_cache, only_new=False)


@app.command()
def show(case: Name, config: Config = None, json: Json = False) -> None:
    """Show a baseline: its metrics, and what each peak consists of."""
    from hosim.errors import InputError
    from hosim.gate import baseline, find_suite, known_baseline

    suite = find_suite(config)
    known = known_baseline(suite, case)
    if known is None:
        suite.named([case])
        raise InputError(
            "no such baseline; 'hosim baseline write' writes it", source=str(suite.baseline(case))
        )
    if known.record is None:
        raise InputError(known.error or "does not fit", source=case)
    record = known.record
    if json:
        print_json(
            {
                "case": record.case,
                "asked": dict(record.asked),
                "metrics": dict(record.metrics),
                "notes": record.notes,
            }
        )
    else:
        console().print(baseline(record))


def _write(cases: Cases, config: Config, jobs: int, no_cache: bool, only_new: bool) -> None:
    from hosim.gate import find_suite, kept_in
    from hosim.gate import write as written
    from hosim.study.runs import processes

    count = processes(jobs)
    suite = find_suite(config)
    with progress() as tell:
        changed = written(
            suite,
            cases or (),
            only_new=only_new,
            jobs=count,
            kept=None if no_cache else kept_in(),
            tell=tell,
        )
    for path in changed:
        say(f"{'wrote' if path.is_file() else 'removed'} {path}")
    if not changed:
        say("nothing to write: every baseline exists" if only_new else "no baseline changed")

"""``hosim replay``: replay any plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hosim.cli.answers import print_answer
from hosim.cli.commands import command
from hosim.cli.options import (
    check_drawn,
    print_json,
    questions_of,
    write_page,
    write_picture,
)
from hosim.cli.progress import progress
from hosim.cli.terminal import note, say, warn
from hosim.errors import InfeasibleError
from hosim.io.options import REQUIRED, Given, Option, declared

if TYPE_CHECKING:
    from hosim.analysis.verifying import Finding
    from hosim.cache_plan import Plan
    from hosim.hardware import Hardware
    from hosim.result import Result
    from hosim.study.runs import Question

_LISTED = 3
"""The number of places of each broken rule that are listed; the others are counted."""

_OPTIONS = declared(
    "plan workload hardware budget allocator account devices rescale strict op_sigma "
    "transfer_sigma seed detail plot trace memory_viz "
    "certificate html json",
    Option(
        "plan",
        of=Path,
        default=REQUIRED,
        argument=True,
        metavar="PLAN",
        help="A plan file, written by 'hosim plan' or by hand.",
    ),
    Option(
        "strict",
        of=bool,
        default=False,
        help="Refuse a plan that was made for another workload, machine or budget.",
    ),
    Option(
        "memory_viz",
        of=Path,
        endings=(),
        help="Write a snapshot (a pickle) for pytorch.org/memory_viz; its addresses are "
        "synthetic, placed by --allocator.",
    ),
    Option(
        "certificate",
        of=Path,
        endings=(".json",),
        help="Write plan, events and lower bound as a file that hosim/check_certificate.py proves "
        "without hosim.",
    ),
)


@command(*_OPTIONS)
def replay(given: Given) -> None:
    """Replay a plan, whoever made it.

    Warns on stderr about the rules that the plan breaks. --detail prints every table. Exit code 3 if it runs out of memory.
    """
    from dataclasses import replace

    from hosim.analysis.remarks import changed_line, check_made_for
    from hosim.analysis.verifying import verify
    from hosim.engine import resident_step
    from hosim.io import check_tiers, load_plan
    from hosim.io.certificates import check_certifiable, to_certificate
    from hosim.study.asked import check_pinning
    from hosim.study.runs import replay

    check_drawn(given)
    plan, certificate = given.plan, given.certificate
    written = given.plot, given.trace, given.memory_viz, certificate, given.html
    recorded = any(path is not None for path in written)
    asked = questions_of(given)[0]
    graph, machine, budget_bytes = asked.graph, asked.hardware, asked.budget_bytes
    counting, jitter = asked.counting, None if asked.jitter.is_none else asked.jitter
    loaded = load_plan(plan, graph)
    if given.strict:
        check_made_for(loaded, machine, budget_bytes, source=str(plan))
    elif (changed := changed_line(loaded, machine, budget_bytes)) is not None:
        note(f"plan: {changed}")
    check_tiers(loaded, machine, source=str(plan))
    findings = verify(loaded, machine, budget_bytes)
    for line in _warnings(findings):
        warn(f"warning: {line}")
    if certificate is not None:
        check_certifiable(loaded, counting.allocator, jitter)
    with progress("replaying"):
        result = replay(
            loaded,
            machine,
            budget_bytes,
            repeats=not findings,
            counting=counting,
            jitter=jitter,
            record=recorded,
        )
        check_pinning(machine, [result])
        result = replace(result, ideal_ns=resident_step(graph, machine).makespan_ns)
    _export(given, loaded, machine, result)
    if certificate is not None and result.feasible:
        from hosim.base.files import write

        write(certificate, to_certificate(loaded, machine, result, repeats=not findings))
        say(f"wrote {certificate}")
    elif certificate is not None:
        warn(f"no {certificate}: a plan that does not fit has no certificate")
    if given.html is not None or not given.json:
        _show(given, asked, loaded, result)
    if given.json:
        from hosim.io import result_to_dict

        print_json(result_to_dict(result))
    if not result.feasible:
        raise typer.Exit(InfeasibleError.exit_code)


def _export(given: Given, loaded: Plan, machine: Hardware, result: Result) -> None:
    """Write the picture, the trace and the memory history that are asked for."""
    from hosim.base.files import write, write_bytes
    from hosim.report import timelines

    if given.plot is not None:
        from hosim.report.drawn import replay_figure

        write_picture(given.plot, replay_figure(loaded.graph, machine, result))
    if given.trace is not None:
        write(given.trace, timelines.trace(loaded, machine, result))
        say(f"wrote {given.trace}")
    if given.memory_viz is not None:
        history = timelines.memory_viz(loaded, machine, result, given.allocator)
        write_bytes(given.memory_viz, timelines.to_pickle(history))
        say(f"wrote {given.memory_viz}, with synthetic addresses")


def _show(given: Given, asked: Question, plan: Plan, result: Result) -> None:
    """Write the page, and print the answer, or the tables behind it."""
    from hosim.engine import resident_step
    from hosim.report import of_replays
    from hosim.report.answers import comparison_answer, comparison_title

    graph, machine = asked.graph, asked.hardware
    alone = resident_step(graph, machine)
    title = comparison_title(graph.name, machine, asked.budget_bytes, alone.peak_bytes)
    answer = comparison_answer(title, machine, [result])
    shown = [of_replays.replay(graph, machine, alone.breakdown, result)]
    if machine.devices > 1:
        shown.append(of_replays.devices([result], machine))
    if given.html is not None:
        from hosim.report import replay_page

        write_page(given.html, replay_page(answer, plan, machine, result, shown))
    if not given.json:
        print_answer(answer, given, lambda: shown)


def _warnings(findings: Sequence[Finding]) -> Iterator[str]:
    """The first places of each broken rule, and how many more there are."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, found in by_rule.items():
        yield from map(str, found[:_LISTED])
        if len(found) > _LISTED:
            yield f"{rule}: and {len(found) - _LISTED:,} more like these"

"""``hosim compare-policies``: one row per policy, or per machine."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from hosim.cli.commands import command
from hosim.cli.options import (
    check_drawn,
    console,
    print_json,
    questions_of,
    say_notes,
    write_page,
    write_picture,
)
from hosim.cli.progress import progress
from hosim.cli.terminal import note
from hosim.data.draws import FEW_DRAWS, Regret
from hosim.errors import HosimError, InfeasibleError, InputError
from hosim.options import OPTIONS, Given, Options, declared, refuse_others

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from hosim.cache_plan import Plan
    from hosim.hardware import Hardware
    from hosim.result import Result
    from hosim.study.asked import PolicyChoice


# -- several machines ------------------------------------------------------------------------------


FITTING = "workload hardware policies budget runtime devices no_recompute rescale json"
"""The options that several machines can be compared with."""


def compare_on_machines(options: Options, given: Given) -> None:
    """Print one table over machines. ``options`` are those of the command."""
    from hosim.report.listed import machine_comparison
    from hosim.report.of_replays import in_draws
    from hosim.study import NEAR, compare_machines, machine_rows

    names = [name.strip() for name in given.hardware.split(",") if name.strip()]
    if not names:
        raise InputError(
            f"expected machines separated by commas, such as h100,a100; got {given.hardware!r}",
            source="hardware",
        )
    why = "works on one machine: give a single --hardware, or leave it out"
    refuse_others(options, vars(given), FITTING, why, "compare-policies")
    given.policies = given.policies or "hyperoffload"
    asked = questions_of(given, list(dict.fromkeys(names)))
    with progress() as tell:
        found = compare_machines(asked, tell)
    say_notes(found.notes)
    rows, profiles = machine_rows(found), {one.hardware.name: one.hardware for one in asked}
    if given.json:
        paired = [each.row for each in found.paired]
        more = {"paired": paired, "ranks": found.ranks} if paired else {}
        print_json({"format": "hosim.machines/1", "rows": rows, **more})
    else:
        console().print(machine_comparison(rows, profiles, NEAR, str(found)))
        if found.paired:
            ranked = [line.result for line in found.lines], found.names, found.ranks
            console().print(in_draws(*ranked))
    if any(line.result.failed for line in found.lines):
        raise typer.Exit(HosimError.exit_code)
    if not any(line.result.feasible for line in found.lines):
        raise typer.Exit(InfeasibleError.exit_code)


# -- the command -----------------------------------------------------------------------------------


_OPTIONS = declared(
    "workload hardware policies budget runtime routing steps execution_trace allocator account "
    "plan_against devices no_recompute "
    "rescale within time work regret op_sigma transfer_sigma seed plot html json",
    replace(
        OPTIONS["hardware"],
        metavar="HW[,HW...]",
        help=OPTIONS["hardware"].help + " Or several, which are compared.",
    ),
)


@command(*_OPTIONS)
def compare_policies(given: Given) -> None:
    """Compare policies: which fit, how fast, and why.

    Plans and replays the workload under each policy, one row each. With several machines, as in -H
    h100,a100, it compares these instead: the time of a step on each, and the smallest budget whose
    slowdown is at most 5 %. Ctrl-C prints the results so far. Exit code 3 if none fits, 2 if a
    policy of yours fails.
    """
    if "," in given.hardware and not os.path.exists(given.hardware):
        compare_on_machines(_OPTIONS, given)
        return
    from hosim.analysis.remarks import fastest_with_ours, least_in_parts, no_offload
    from hosim.engine import resident_step
    from hosim.study import Mispredictions, compare, mispredictions, predicts, regret
    from hosim.study.asked import searching

    check_drawn(given)
    if given.regret > FEW_DRAWS:
        raise InputError(f"expected at most {FEW_DRAWS}, got {given.regret}", source="--regret")
    html = given.html
    asked = questions_of(given)
    graph, machine, budget_bytes = asked[0].graph, asked[0].hardware, asked[0].budget_bytes
    predictions: list[Mispredictions] = []
    regrets: list[Regret] = []
    recorded: list[tuple[Plan, Result]] = []

    def keep(choice: PolicyChoice, plan: Plan, result: Result) -> None:
        if html is not None and result.feasible:
            recorded.append((plan, result))
        if predicts(plan) and result.feasible:
            begins(f"{choice.label}: replaying with wrong predictions")
            row = mispredictions(plan, machine, budget_bytes, choice.label)
            predictions.extend([row] if row else [])
        if given.regret and result.draws is not None:
            begins(f"{choice.label}: planning in {given.regret} draws")
            question = next(one for one in asked if one.choice is choice)
            found = regret(question, plan, given.regret)
            regrets.extend([found] if found else [])

    with progress() as tell, searching(asked[0].ends, tell) as (control, begins):
        results = compare(asked, begins, keep, record=html is not None)
    if control.interrupted and len(results) < len(asked):
        note(
            "interrupted: no result of "
            f"{', '.join(one.choice.label for one in asked[len(results) :])}"
        )
    _say_what_is_pinned(machine, results)
    alone = resident_step(graph, machine)
    moved = fastest_with_ours(results), least_in_parts(results)
    answer = no_offload(graph, alone.makespan_ns, alone.peak_bytes, budget_bytes, *moved)
    if given.plot is not None:
        from hosim.report.drawn import comparison_figure

        write_picture(given.plot, comparison_figure(results, machine.device_tier))
    if html is not None or not given.json:
        from hosim.report import listed, no_offload_sentence, of_replays, of_studies
        from hosim.report.printing import paragraph

        shown: list[RenderableType] = []
        if answer is not None:
            shown.append(
                paragraph(no_offload_sentence(answer, budget_bytes), style="bold", space=True)
            )
        shown.append(of_replays.comparison(graph, machine, alone.breakdown, results))
        if machine.devices > 1:
            shown.append(listed.devices(results, machine))
        if predictions:
            shown.append(of_studies.predictions(predictions))
        if regrets:
            shown.append(of_replays.regrets(regrets))
        if html is not None:
            from hosim.report import comparison_page

            write_page(html, comparison_page(machine, results, recorded, shown))
        for part in shown if not given.json else ():
            console().print(part)
    if given.json:
        from dataclasses import asdict

        from hosim.io import comparison_to_dict

        rows = map(asdict, predictions), answer, map(asdict, regrets)
        print_json(comparison_to_dict(results, *rows))
    if control.interrupted:
        raise KeyboardInterrupt
    if any(result.failed for result in results):
        raise typer.Exit(HosimError.exit_code)
    if not any(result.feasible for result in results):
        raise typer.Exit(InfeasibleError.exit_code)


def _say_what_is_pinned(machine: Hardware, results: Sequence[Result]) -> None:
    """A note for each host memory whose copies in some result are timed as pinned, for want of a
    rate for others.
    """
    from hosim.costmodel.transfers import taken_as_pinned

    moved = {
        name for result in results for name, figures in result.channels.items() if figures.bytes
    }
    for tier in machine.tiers:
        if line := taken_as_pinned(machine, tier, moved):
            note(f"pinned: {line}")

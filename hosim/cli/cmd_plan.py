"""``hosim plan``: write the plan of one policy, or explain it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import (
    RESERVED,
    Account,
    Allocator,
    Budget,
    Devices,
    HardwareName,
    Json,
    NoRecompute,
    PlanAgainst,
    Policy,
    Rescale,
    Workload,
    budget_of,
    choice_of,
    console,
    counting_of,
    graph_of,
    hardware_of,
    print_json,
)
from hosim.cli.progress import progress
from hosim.cli.targets import DATA, written
from hosim.cli.terminal import note, say
from hosim.errors import InputError

Output = Annotated[Path | None, written("--output", "-o", says="Where to write the plan: .json, .json.gz or .yaml.", endings=DATA)]
Explain = Annotated[bool, typer.Option("--explain", help="Explain why each tensor moves or stays.")]
Top = Annotated[int | None, typer.Option("--top", metavar="N", min=1, help="With --explain: every table, with at most N rows each.")]
All = Annotated[bool, typer.Option("--all", help="With --explain: every table, with every row.")]


def plan(
    workload: Workload,
    hardware: HardwareName,
    policy: Policy = "hyperoffload",
    output: Output = None,
    budget: Budget = None,
    explain: Explain = False,
    top: Top = None,
    all_rows: All = False,
    plan_against: PlanAgainst = "allocated",
    allocator: Allocator = "ledger",
    account: Account = "time",
    devices: Devices = None,
    no_recompute: NoRecompute = False,
    rescale: Rescale = False,
    json: Json = False,
) -> None:
    """Write the plan of one policy, or explain it.

    -o writes the plan, --explain shows why each tensor moves or stays; give one or both. --explain prints the 20 tensors that matter most;
    --top N and --all print every table, --json prints all figures. Exit code 3 if the policy finds no plan, or the plan to explain does
    not fit.
    """
    from dataclasses import replace

    from hosim.analysis.remarks import NO_RIVALS, fastest_with_ours, least_in_parts, no_offload
    from hosim.cache_plan import counted_cache_ops
    from hosim.devices_of_graph import on_devices
    from hosim.engine import replay, resident_step, with_slack
    from hosim.io import save_plan
    from hosim.plain_text import counted
    from hosim.report import no_offload_sentence
    from hosim.study import plan_against_reserved, reserved_line
    from hosim.study.runs import check, make_plan

    if output is None and not explain:
        raise InputError("nothing to do: give -o plan.json to write the plan, --explain to explain it, or both", source="plan")
    if not explain and (top is not None or all_rows or json):
        raise InputError(f"{'--json' if json else '--all' if all_rows else '--top'} requires --explain", source="plan")
    if top is not None and all_rows:
        raise InputError("--top and --all exclude each other: give one of them", source="plan")
    if plan_against != RESERVED and (allocator, account) != ("ledger", "time"):
        raise InputError("--allocator and --account require --plan-against reserved", source="plan")
    counting = counting_of(allocator, account, plan_against)
    profile = hardware_of(hardware)
    choice = choice_of(policy, no_recompute)
    graph = graph_of(workload, rescaled_to=profile if rescale else None)
    machine = on_devices(graph, profile, devices)
    budget_bytes = budget_of(budget, graph, machine)
    said = None
    with progress(f"{choice.label}: planning"):
        if plan_against == RESERVED:
            found = plan_against_reserved(graph, machine, choice, budget_bytes, counting)
            made, said = found.plan, reserved_line(found)
        else:
            made = make_plan(graph, machine, choice, budget_bytes)
            check(made, machine, budget_bytes)
    if said is not None:
        note(said)
    replayed = replay(made, machine, budget_bytes)
    for line in replayed.notes:
        note(line)
    results = [replayed] if made.policy in NO_RIVALS else []
    alone = resident_step(graph, machine)
    moved = fastest_with_ours(results), least_in_parts(results)
    answer = no_offload(graph, alone.makespan_ns, alone.peak_bytes, budget_bytes, *moved)
    if answer is not None:
        note(no_offload_sentence(answer, budget_bytes))
    if output is not None:
        again = f"; runs {counted(made.recomputes, 'op')} again, so it needs a runtime that repeats ops" if made.recomputes else ""
        again += f"; {counted(made.moved_ops, 'op')} on another processor than the workload's first choice" if made.moved_ops else ""
        made_for = machine, budget_bytes
        save_plan(replace(with_slack(made, *made_for), made_for=made_for), output)
        say(f"wrote {output}: {counted_cache_ops(made)}{again}")
    if explain:
        from hosim.planner.hyperoffload.explanations import explain as explained
        from hosim.report import explanation, summary, to_dict
        from hosim.report.of_studies import chosen_processors

        if made.processors and not json:
            console().print(chosen_processors(made, machine))
        if made.processors and made.graph.elsewhere and not json:
            note("why tensors move is explained for plans with all ops on the device alone")
            return
        with progress(f"{choice.label}: explaining"):
            why = explained(made, machine, budget_bytes)
        if json:
            print_json(to_dict(why, top))
        elif top is None and not all_rows:
            console().print(summary(why))
        else:
            console().print(explanation(why, top))

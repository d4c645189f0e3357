"""``hosim plan``: write the plan of one policy, or explain it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    SearchTime,
    SearchWork,
    Within,
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

if TYPE_CHECKING:
    from hosim.cache_plan import Plan
    from hosim.graph import Graph
    from hosim.hardware import Hardware
    from hosim.result import Result
    from hosim.study.asked import PolicyChoice, SearchEnds
    from hosim.study.runs import Counting

Output = Annotated[
    Path | None,
    written(
        "--output", "-o", says="Where to write the plan: .json, .json.gz or .yaml.", endings=DATA
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Explain why each tensor moves or stays.")]
Top = Annotated[
    int | None,
    typer.Option(
        "--top", metavar="N", min=1, help="With --explain: every table, with at most N rows each."
    ),
]
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
    within: Within = None,
    time: SearchTime = None,
    work: SearchWork = None,
    json: Json = False,
) -> None:
    """Write the plan of one policy, or explain it.

    -o writes the plan, --explain shows why each tensor moves or stays; give one or both. --explain
    prints the 20 most important tensors; --top N and --all print every table, --json prints all
    figures. --within, --time, --work and Ctrl-C end the search; the plan records the work done.
    Exit code 3 if the policy finds no plan, or the plan to explain does not fit.
    """
    from hosim.devices_of_graph import on_devices
    from hosim.engine import replay
    from hosim.study.asked import SearchEnds, read_search_ends

    if output is None and not explain:
        raise InputError(
            "nothing to do: give -o plan.json to write the plan, --explain to explain it, or both",
            source="plan",
        )
    if not explain and (top is not None or all_rows or json):
        raise InputError(
            f"{'--json' if json else '--all' if all_rows else '--top'} requires --explain",
            source="plan",
        )
    if top is not None and all_rows:
        raise InputError("--top and --all exclude each other: give one of them", source="plan")
    if plan_against != RESERVED and (allocator, account) != ("ledger", "time"):
        raise InputError("--allocator and --account require --plan-against reserved", source="plan")
    ends = read_search_ends(within, time, work)
    if plan_against == RESERVED and ends != SearchEnds():
        raise InputError(
            "--within, --time and --work end one search; --plan-against reserved makes several: "
            "leave them out",
            source="plan",
        )
    reserving = counting_of(allocator, account, plan_against)
    profile = hardware_of(hardware)
    (choice,) = ends.of([choice_of(policy, no_recompute)])
    graph = graph_of(workload, rescaled_to=profile if rescale else None)
    machine = on_devices(graph, profile, devices)
    budget_bytes = budget_of(budget, graph, machine)
    made, interrupted = _made(
        graph, machine, choice, budget_bytes, reserving if plan_against == RESERVED else None, ends
    )
    replayed = replay(made, machine, budget_bytes)
    for line in replayed.notes:
        note(line)
    _say_whether_to(graph, machine, budget_bytes, replayed, made.policy)
    if output is not None:
        _write(made, machine, budget_bytes, output)
    if explain:
        _explain(made, machine, budget_bytes, choice.label, 0 if all_rows else top, json)
    if interrupted:
        raise KeyboardInterrupt


def _made(
    graph: Graph,
    machine: Hardware,
    choice: PolicyChoice,
    budget_bytes: int,
    counting: Counting | None,
    ends: SearchEnds,
) -> tuple[Plan, bool]:
    """The plan, and whether Ctrl-C has ended its search; ``counting`` is that of a plan against
    reserved bytes.
    """
    from hosim.study import plan_against_reserved, reserved_line
    from hosim.study.asked import searching
    from hosim.study.runs import check, make_plan

    with progress(doing := f"{choice.label}: planning") as tell:
        if counting is None:
            with searching(ends, tell) as (control, begins):
                begins(doing)
                made = make_plan(graph, machine, choice, budget_bytes)
            check(made, machine, budget_bytes)
            return made, control.interrupted
        found = plan_against_reserved(graph, machine, choice, budget_bytes, counting)
    note(reserved_line(found))
    return found.plan, False


def _say_whether_to(
    graph: Graph, machine: Hardware, budget_bytes: int, replayed: Result, policy: str
) -> None:
    """A note where offloading gains nothing."""
    from hosim.analysis.remarks import NO_RIVALS, fastest_with_ours, least_in_parts, no_offload
    from hosim.engine import resident_step
    from hosim.report import no_offload_sentence

    results = [replayed] if policy in NO_RIVALS else []
    alone = resident_step(graph, machine)
    moved = fastest_with_ours(results), least_in_parts(results)
    answer = no_offload(graph, alone.makespan_ns, alone.peak_bytes, budget_bytes, *moved)
    if answer is not None:
        note(no_offload_sentence(answer, budget_bytes))


def _write(made: Plan, machine: Hardware, budget_bytes: int, output: Path) -> None:
    """Write the plan, and say what it has."""
    from dataclasses import replace

    from hosim.cache_plan import counted_cache_ops
    from hosim.engine import with_slack
    from hosim.io import save_plan
    from hosim.plain_text import counted

    said = (
        f"; recomputes {counted(made.recomputes, 'op')}, so it needs a runtime that can do so"
        if made.recomputes
        else ""
    )
    said += (
        f"; {counted(made.moved_ops, 'op')} on another processor than the workload's first choice"
        if made.moved_ops
        else ""
    )
    said += f"; search: {made.search.work:,} of work" if made.search is not None else ""
    made_for = machine, budget_bytes
    save_plan(replace(with_slack(made, *made_for), made_for=made_for), output)
    say(f"wrote {output}: {counted_cache_ops(made)}{said}")


def _explain(
    made: Plan, machine: Hardware, budget_bytes: int, label: str, top: int | None, json: bool
) -> None:
    """Print why tensors move: a summary, every table with ``top`` rows, or with all of them where
    it is 0.
    """
    from hosim.planner.hyperoffload.explanations import explain as explained
    from hosim.report import explanation, summary, to_dict
    from hosim.report.of_studies import chosen_processors

    if made.processors and not json:
        console().print(chosen_processors(made, machine))
    if made.processors and made.graph.elsewhere and not json:
        note("plans are explained only if all ops run on the device")
        return
    with progress(f"{label}: explaining"):
        why = explained(made, machine, budget_bytes)
    if json:
        print_json(to_dict(why, top or None))
    elif top is None:
        console().print(summary(why))
    else:
        console().print(explanation(why, top or None))

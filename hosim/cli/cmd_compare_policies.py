"""``hosim compare-policies``: one row per policy, or per machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from hosim.cli.options import (
    RESERVED,
    Account,
    Allocator,
    Budget,
    Devices,
    ExecutionTrace,
    Html,
    Json,
    NoRecompute,
    OpSigma,
    PlanAgainst,
    Plot,
    Rescale,
    RoutingFile,
    RuntimeName,
    SearchTime,
    SearchWork,
    Seed,
    Steps,
    TransferSigma,
    Within,
    Workload,
    budget_of,
    choices_of,
    console,
    counting_of,
    graph_of,
    hardware_names,
    hardware_of,
    jitter_of,
    print_json,
    realised,
    write_page,
    write_picture,
)
from hosim.cli.progress import progress
from hosim.cli.several_machines import compare_on_machines
from hosim.cli.terminal import note
from hosim.errors import HosimError, InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from hosim.cache_plan import Plan
    from hosim.hardware import Hardware
    from hosim.result import Result
    from hosim.study.asked import PolicyChoice

Machines = Annotated[
    str,
    typer.Option(
        "--hardware",
        "-H",
        metavar="HW[,HW...]",
        help="A hardware profile: a path, or a shipped name (see 'hosim hardware list'). Or "
        "several, which are compared.",
        autocompletion=hardware_names,
    ),
]
Policies = Annotated[
    str | None,
    typer.Option(
        "--policies",
        "-p",
        metavar="A,B,...",
        help="Policies to compare, separated by commas; set a parameter as in lookahead:k=4.  "
        "[default: all of 'hosim policies' except models of whole systems, hybrid and optimal]",
    ),
]


def compare_policies(
    workload: Workload,
    hardware: Machines,
    policies: Policies = None,
    budget: Budget = None,
    runtime: RuntimeName = None,
    routing: RoutingFile = None,
    steps: Steps = None,
    execution_trace: ExecutionTrace = None,
    allocator: Allocator = "ledger",
    account: Account = "time",
    plan_against: PlanAgainst = "allocated",
    devices: Devices = None,
    no_recompute: NoRecompute = False,
    rescale: Rescale = False,
    within: Within = None,
    time: SearchTime = None,
    work: SearchWork = None,
    op_sigma: OpSigma = 0.0,
    transfer_sigma: TransferSigma = 0.0,
    seed: Seed = 0,
    plot: Plot = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Compare policies: which fit, how fast, and why.

    Plans and replays the workload under each policy, one row each. With several machines, as in -H
    h100,a100, it compares these instead: the time of a step on each, and the smallest budget whose
    slowdown is at most 5 %. Ctrl-C prints the results so far. Exit code 3 if none fits, 2 if a
    policy of yours fails.
    """
    if "," in hardware and not os.path.exists(hardware):
        from hosim.result import IN_TIME, LEDGER

        others = {
            "--routing": routing is not None or steps is not None,
            "--execution-trace": execution_trace is not None,
            "--allocator": allocator != LEDGER or account != IN_TIME or plan_against != "allocated",
            "--within, --time or --work": any(
                [option is not None for option in (within, time, work)]
            ),
            "--op-sigma": bool(op_sigma or transfer_sigma),
            "--plot": plot is not None,
            "--html": html is not None,
        }
        names = [name.strip() for name in hardware.split(",") if name.strip()]
        if not names:
            raise InputError(
                f"expected machines separated by commas, such as h100,a100; got {hardware!r}",
                source="hardware",
            )
        compare_on_machines(
            workload,
            names,
            policies,
            budget,
            devices=devices,
            no_recompute=no_recompute,
            rescale=rescale,
            json=json,
            others=others,
            runtime=runtime,
        )
        return
    from hosim.analysis.remarks import fastest_with_ours, least_in_parts, no_offload
    from hosim.devices_of_graph import on_devices
    from hosim.engine import resident_step
    from hosim.study import Mispredictions, compare, mispredictions, predicts
    from hosim.study.asked import SearchEnds, read_search_ends, searching

    if plot is not None:
        from hosim.report.drawn import image_kind

        image_kind(plot)
    ends = read_search_ends(within, time, work)
    if plan_against == RESERVED and ends != SearchEnds():
        raise InputError(
            "--within, --time and --work end one search; --plan-against reserved makes several: "
            "leave them out",
            source="compare",
        )
    counting = counting_of(allocator, account, plan_against)
    profile = hardware_of(hardware)
    graph = realised(
        graph_of(workload, execution_trace, profile if rescale else None, runtime), routing, steps
    )
    machine = on_devices(graph, profile, devices)
    choices = ends.of(choices_of(policies, no_recompute, routed=routing is not None, graph=graph))
    budget_bytes = budget_of(budget, graph, machine)
    predictions: list[Mispredictions] = []
    recorded: list[tuple[Plan, Result]] = []

    def keep(choice: PolicyChoice, plan: Plan, result: Result) -> None:
        if html is not None and result.feasible:
            recorded.append((plan, result))
        if predicts(plan) and result.feasible:
            begins(f"{choice.label}: replaying with wrong predictions")
            row = mispredictions(plan, machine, budget_bytes, choice.label)
            predictions.extend([row] if row else [])

    with progress() as tell, searching(ends, tell) as (control, begins):
        jitter = jitter_of(op_sigma, transfer_sigma, seed)
        results = compare(
            graph,
            machine,
            choices,
            budget_bytes,
            begins,
            keep,
            counting=counting,
            against_reserved=plan_against == RESERVED,
            jitter=jitter,
            record=html is not None,
        )
    if control.interrupted and len(results) < len(choices):
        note(
            "interrupted: no result of "
            f"{', '.join([choice.label for choice in choices[len(results) :]])}"
        )
    _say_what_is_pinned(machine, results)
    alone = resident_step(graph, machine)
    moved = fastest_with_ours(results), least_in_parts(results)
    answer = no_offload(graph, alone.makespan_ns, alone.peak_bytes, budget_bytes, *moved)
    if plot is not None:
        from hosim.report.drawn import comparison_figure

        write_picture(plot, comparison_figure(results, machine.device_tier))
    if html is not None or not json:
        from hosim.report import listed, no_offload_sentence, of_studies
        from hosim.report.of_replays import comparison
        from hosim.report.printing import paragraph

        shown: list[RenderableType] = []
        if answer is not None:
            shown.append(
                paragraph(no_offload_sentence(answer, budget_bytes), style="bold", space=True)
            )
        shown.append(comparison(graph, machine, alone.breakdown, results))
        if machine.devices > 1:
            shown.append(listed.devices(results, machine))
        if predictions:
            shown.append(of_studies.predictions(predictions))
        if html is not None:
            from hosim.report import comparison_page

            write_page(html, comparison_page(machine, results, recorded, shown))
        for part in shown if not json else ():
            console().print(part)
    if json:
        from dataclasses import asdict

        from hosim.io import comparison_to_dict

        print_json(comparison_to_dict(results, map(asdict, predictions), answer))
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

"""``hosim replay``: replay any plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hosim.cli.options import (
    Account,
    Allocator,
    Budget,
    Devices,
    HardwareName,
    Html,
    Json,
    OpSigma,
    Plot,
    Rescale,
    Seed,
    Trace,
    TransferSigma,
    Workload,
    budget_of,
    check_trace,
    console,
    counting_of,
    graph_of,
    hardware_of,
    jitter_of,
    print_json,
    write_page,
    write_picture,
)
from hosim.cli.progress import progress
from hosim.cli.targets import written
from hosim.cli.terminal import note, say, warn
from hosim.errors import InfeasibleError

if TYPE_CHECKING:
    from hosim.analysis.verifying import Finding

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A plan file, written by 'hosim plan' or by hand.")
]

Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Refuse a plan that was made for another workload, machine or budget."
    ),
]

MemoryViz = Annotated[
    Path | None,
    written(
        "--memory-viz",
        says="Write a snapshot (a pickle) for pytorch.org/memory_viz; its addresses are "
        "synthetic, placed by --allocator.",
    ),
]

Certificate = Annotated[
    Path | None,
    written(
        "--certificate",
        says="Write plan, events and lower bound as a file that hosim/check_certificate.py proves "
        "without hosim.",
        endings=(".json",),
    ),
]

_LISTED = 3
"""How many places of each broken rule are listed; the others are counted."""


def replay(
    plan: PlanFile,
    workload: Workload,
    hardware: HardwareName,
    budget: Budget = None,
    allocator: Allocator = "ledger",
    account: Account = "time",
    devices: Devices = None,
    rescale: Rescale = False,
    strict: Strict = False,
    op_sigma: OpSigma = 0.0,
    transfer_sigma: TransferSigma = 0.0,
    seed: Seed = 0,
    plot: Plot = None,
    trace: Trace = None,
    memory_viz: MemoryViz = None,
    certificate: Certificate = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Replay a plan.

    Warns on stderr about the rules that the plan breaks. Exit code 3 if it runs out of memory.
    """
    from dataclasses import replace

    from hosim.analysis.remarks import changed_line, check_made_for
    from hosim.analysis.verifying import verify
    from hosim.devices_of_graph import on_devices
    from hosim.engine import resident_step
    from hosim.io import check_tiers, load_plan
    from hosim.io.certificates import check_certifiable, to_certificate
    from hosim.study.asked import check_pinning
    from hosim.study.runs import replay

    if plot is not None:
        from hosim.report.drawn import image_kind

        image_kind(plot)
    check_trace(trace)
    recorded = any(path is not None for path in (plot, trace, memory_viz, certificate, html))
    counting = counting_of(allocator, account)
    profile = hardware_of(hardware)
    graph = graph_of(workload, rescaled_to=profile if rescale else None)
    machine = on_devices(graph, profile, devices)
    budget_bytes = budget_of(budget, graph, machine)
    loaded = load_plan(plan, graph)
    if strict:
        check_made_for(loaded, machine, budget_bytes, source=str(plan))
    elif (changed := changed_line(loaded, machine, budget_bytes)) is not None:
        note(f"plan: {changed}")
    check_tiers(loaded, machine, source=str(plan))
    findings = verify(loaded, machine, budget_bytes)
    for line in _warnings(findings):
        warn(f"warning: {line}")
    jitter = jitter_of(op_sigma, transfer_sigma, seed)
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
    if plot is not None:
        from hosim.report.drawn import replay_figure

        write_picture(plot, replay_figure(loaded.graph, machine, result))
    if trace is not None:
        from hosim.files import write
        from hosim.report import timelines

        write(trace, timelines.trace(loaded, machine, result))
        say(f"wrote {trace}")
    if memory_viz is not None:
        from hosim.files import write_bytes
        from hosim.report import timelines

        write_bytes(
            memory_viz,
            timelines.to_pickle(timelines.memory_viz(loaded, machine, result, allocator)),
        )
        say(f"wrote {memory_viz}, with synthetic addresses")
    if certificate is not None and result.feasible:
        from hosim.files import write

        write(certificate, to_certificate(loaded, machine, result, repeats=not findings))
        say(f"wrote {certificate}")
    elif certificate is not None:
        warn(f"no {certificate}: a plan that does not fit has no certificate")
    if html is not None or not json:
        from hosim.report import listed, of_replays

        shown = [of_replays.replay(graph, machine, resident_step(graph, machine).breakdown, result)]
        if machine.devices > 1:
            shown.append(listed.devices([result], machine))
        if html is not None:
            from hosim.report import replay_page

            write_page(html, replay_page(loaded, machine, result, shown))
        for part in shown if not json else ():
            console().print(part)
    if json:
        from hosim.io import result_to_dict

        print_json(result_to_dict(result))
    if not result.feasible:
        raise typer.Exit(InfeasibleError.exit_code)


def _warnings(findings: Sequence[Finding]) -> Iterator[str]:
    """The first places of each broken rule, and how many more there are."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, found in by_rule.items():
        yield from map(str, found[:_LISTED])
        if len(found) > _LISTED:
            yield f"{rule}: and {len(found) - _LISTED:,} more like these"

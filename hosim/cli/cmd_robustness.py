"""``hosim robustness``: each policy's figures when op and transfer times vary."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.cmd_compare_policies import Policies
from hosim.cli.options import (
    Budget,
    Devices,
    HardwareName,
    Json,
    NoRecompute,
    OpSigma,
    Rescale,
    Seed,
    TransferSigma,
    Workload,
    budget_of,
    choices_of,
    console,
    graph_of,
    hardware_of,
    print_json,
    say_notes,
)
from hosim.cli.progress import progress
from hosim.errors import InfeasibleError

Runs = Annotated[
    int,
    typer.Option(
        "--runs",
        "-n",
        metavar="N",
        min=1,
        help="How many random variations to replay for each policy.",
    ),
]

Order = Annotated[
    bool,
    typer.Option(
        "--order",
        help="Draw the order of the ops, too: each follows its producers, and so do its cache ops.",
    ),
]


def robustness(
    workload: Workload,
    hardware: HardwareName,
    policies: Policies = None,
    budget: Budget = None,
    runs: Runs = 20,
    op_sigma: OpSigma = 0.05,
    transfer_sigma: TransferSigma = 0.1,
    seed: Seed = 0,
    order: Order = False,
    devices: Devices = None,
    no_recompute: NoRecompute = False,
    rescale: Rescale = False,
    json: Json = False,
) -> None:
    """Replay policies with varied times or orders of ops.

    Each policy plans once, on nominal times. Its plan is then replayed under N random variations of
    op and transfer times, the same ones for all policies; with --order, under N orders of the ops
    as well. Exit code 3 if nothing fits on nominal times.
    """
    from hosim.devices_of_graph import on_devices
    from hosim.engine import resident_step
    from hosim.jitter import Jitter
    from hosim.report.of_studies import reasons, robustness, to_dict
    from hosim.study import failures, percentiles
    from hosim.study import robustness as drawn

    jitter = Jitter(seed, op_sigma, transfer_sigma)
    profile = hardware_of(hardware)
    graph = graph_of(workload, rescaled_to=profile if rescale else None)
    machine = on_devices(graph, profile, devices)
    choices = choices_of(policies, no_recompute, graph=graph)
    budget_bytes = budget_of(budget, graph, machine)
    say_notes(graph, machine)
    with progress() as tell:
        frame = drawn(graph, machine, choices, budget_bytes, jitter, runs, tell, order)
        figures, failed = percentiles(frame), failures(frame)
        alone_ns = resident_step(graph, machine).makespan_ns
    if json:
        print_json(to_dict(figures, failed, graph, machine, budget_bytes, jitter, alone_ns, order))
    else:
        console().print(robustness(figures, jitter, alone_ns, order))
        if failed:
            console().print(reasons(figures, failed))
    if figures["nominal"].isna().all():
        raise typer.Exit(InfeasibleError.exit_code)

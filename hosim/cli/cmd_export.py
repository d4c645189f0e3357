"""``hosim export``: the settings that bring a runtime's own planner closest to hosim's plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import Budget, HardwareName, Json, Policy, Workload, budget_of, graph_of, hardware_of
from hosim.cli.progress import progress
from hosim.cli.targets import written
from hosim.cli.terminal import say
from hosim.errors import InfeasibleError, InputError
from hosim.units import human_percent

MindSpore = Annotated[
    bool, typer.Option("--mindspore", help="Export to MindSpore 2.10: environment settings for its own offload strategies.")
]
Output = Annotated[Path | None, written("--output", "-o", says="Where to write the settings: shell lines, or JSON if named .json.")]
Trials = Annotated[int, typer.Option("--trials", metavar="N", min=1, help="How many settings to try.")]
SearchSeed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Random seed for search restarts.")]


def export(
    workload: Workload,
    hardware: HardwareName,
    mindspore: MindSpore = False,
    policy: Policy = "hyperoffload",
    budget: Budget = None,
    trials: Trials = 100,
    seed: SearchSeed = 0,
    output: Output = None,
    json: Json = False,
) -> None:
    """Find the runtime settings closest to a plan.

    MindSpore cannot take a plan, but its strategies have settings. The command plans and replays each setting, and prints the fastest one
    that fits as export lines, with its distance from hosim's plan. Ctrl-C ends the search with the best so far. Exit code 3 if none fits.
    """
    from hosim.devices_of_graph import on_devices
    from hosim.engine import replay
    from hosim.io import to_json
    from hosim.io.reading import write_bytes
    from hosim.lower.mindspore_search import Tried, export_to_dict, search
    from hosim.report.mindspore_settings import shell
    from hosim.study.policy_choice import RECOMPUTE, REORDER, parse_choice, without
    from hosim.study.run_policy import make_plan

    if not mindspore:
        raise InputError("name a runtime: --mindspore", source="export")
    choice = without(parse_choice(policy), RECOMPUTE, REORDER)  # settings cannot change the graph
    profile = hardware_of(hardware)
    graph = graph_of(workload)
    machine = on_devices(graph, profile)
    budget_bytes = budget_of(budget, graph, machine)
    best: Tried | None = None
    tried, interrupted = 0, False
    with progress() as tell:
        tell(f"planning {choice.label}")
        target = replay(make_plan(graph, machine, choice, budget_bytes), machine, budget_bytes)
        if not target.feasible:
            raise InfeasibleError(f"{choice.label}: {target.error}")
        try:
            for best in search(graph, machine, budget_bytes, trials=trials, seed=seed):
                tried += 1
                tell(f"{tried:,} of {trials:,} settings: {best.setting.strategy} {_against(best.makespan_ns, target.makespan_ns)}")
        except KeyboardInterrupt:
            if best is None or not best.fits:
                raise
            interrupted = True
    assert best is not None
    data = export_to_dict(best, target, machine.device_tier, tried)
    if output is not None:
        write_bytes(output, (to_json(data) + "\n" if output.suffix == ".json" else shell(data)).encode())
        say(f"wrote {output}: {data['strategy']} {_against(data['of_settings']['makespan_ns'], target.makespan_ns)}")
    if json or output is None:
        typer.echo(to_json(data) if json else shell(data), nl=json)
    if interrupted:
        say(f"the best of the {tried:,} settings tried so far")
        raise KeyboardInterrupt


def _against(makespan_ns: int | None, target_ns: int | None) -> str:
    """A makespan against the plan's, for people."""
    if makespan_ns is None:
        return "does not fit"
    return f"makespan {human_percent(makespan_ns / target_ns - 1, signed=True)} against the plan" if target_ns else "makespan 0"

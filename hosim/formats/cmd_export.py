"""``hosim export``: the settings that bring a runtime's own planner closest to hosim's plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hosim.cli.commands import command
from hosim.cli.options import questions_of
from hosim.cli.progress import progress
from hosim.cli.terminal import say
from hosim.errors import InfeasibleError
from hosim.formats import bridges
from hosim.io.options import OPTIONS, Given, Option, declared
from hosim.units import human_percent

if TYPE_CHECKING:
    from hosim.graph import Graph
    from hosim.hardware import Hardware
    from hosim.result import Result

_OPTIONS = declared(
    "workload hardware mindspore llama_cpp policy budget trials seed output json",
    Option(
        "mindspore",
        of=bool,
        default=False,
        unless=("llama_cpp",),
        help="Export to MindSpore 2.10: environment settings for its own offload strategies.",
    ),
    Option(
        "llama_cpp",
        of=bool,
        default=False,
        excludes={"mindspore": ""},
        help="Export to llama.cpp: -ngl, --n-cpu-moe and -ot.",
    ),
    replace(
        OPTIONS["output"], help="Where to write the settings: shell lines, or JSON if named .json."
    ),
    Option("trials", of=int, default=100, metavar="N", least=1, help="How many settings to try."),
    replace(OPTIONS["seed"], help="Random seed for search restarts."),
)


@command(*_OPTIONS)
def export(given: Given) -> None:
    """Find the runtime settings closest to a plan.

    MindSpore cannot take a plan, but its strategies have settings. The command plans and replays
    each setting, and prints the fastest one that fits as export lines, with its gap to hosim's
    plan. Ctrl-C ends the search with the best so far. Exit code 3 if none fits.

    llama.cpp places weights and moves none: the command prints the options that match the plan's
    placement at the start of the step, their gap to the plan, and the parts of the plan that they
    cannot express.
    """
    from hosim.engine import replay
    from hosim.study.asked import RECOMPUTE, REORDER, without
    from hosim.study.runs import make_plan

    (asked,) = questions_of(given)
    graph, machine, budget_bytes = asked.graph, asked.hardware, asked.budget_bytes
    choice = without(asked.choice, RECOMPUTE, REORDER)  # settings cannot change the graph
    output, json = given.output, given.json
    with progress() as tell:
        tell(f"planning {choice.label}")
        plan = make_plan(graph, machine, choice, budget_bytes)
        target = replay(plan, machine, budget_bytes)
        if not target.feasible:
            raise InfeasibleError(f"{choice.label}: {target.error}")
        if given.mindspore:
            _to_mindspore(
                graph, machine, budget_bytes, target, given.trials, given.seed, tell, output, json
            )
            return
    data = bridges.exported(plan, machine, budget_bytes, target)
    theirs = data["of_options"] or {"makespan_ns": None}
    said = f"-ngl {data['n_gpu_layers']} {_against(theirs['makespan_ns'], target.makespan_ns)}"
    _give(data, bridges.command_line, said, output, json)


def _to_mindspore(
    graph: Graph,
    machine: Hardware,
    budget_bytes: int,
    target: Result,
    trials: int,
    seed: int,
    tell: Callable[[str], None],
    output: Path | None,
    json: bool,
) -> None:
    """Search settings of MindSpore, and print or write the best one."""
    best: bridges.Tried | None = None
    tried, interrupted = 0, False
    try:
        for best in bridges.search(graph, machine, budget_bytes, trials=trials, seed=seed):
            tried += 1
            tell(
                f"{tried:,} of {trials:,} settings: {best.setting.strategy} "
                f"{_against(best.makespan_ns, target.makespan_ns)}"
            )
    except KeyboardInterrupt:
        if best is None or not best.fits:
            raise
        interrupted = True
    assert best is not None
    data = bridges.export_to_dict(best, target, machine.device_tier, tried)
    _give(
        data,
        bridges.shell,
        f"{data['strategy']} {_against(data['of_settings']['makespan_ns'], target.makespan_ns)}",
        output,
        json,
    )
    if interrupted:
        say(f"the best of the {tried:,} settings tried so far")
        raise KeyboardInterrupt


def _give(
    data: Mapping[str, Any],
    lines: Callable[[Mapping[str, Any]], str],
    said: str,
    output: Path | None,
    json: bool,
) -> None:
    """Write the settings to a file, and report ``said``; or print them."""
    from hosim.base.files import write_bytes
    from hosim.io import to_json

    if output is not None:
        write_bytes(
            output, (to_json(data) + "\n" if output.suffix == ".json" else lines(data)).encode()
        )
        say(f"wrote {output}: {said}")
    if json or output is None:
        typer.echo(to_json(data) if json else lines(data), nl=json)


def _against(makespan_ns: int | None, target_ns: int | None) -> str:
    """Return a makespan relative to the plan's, as text."""
    if makespan_ns is None:
        return "does not fit"
    return (
        f"makespan {human_percent(makespan_ns / target_ns - 1, signed=True)} against the plan"
        if target_ns
        else "makespan 0"
    )

"""``hosim workload list``, ``models`` and ``show``."""

from __future__ import annotations

from dataclasses import replace

import typer

from hosim.cli.answers import print_answer
from hosim.cli.commands import command
from hosim.cli.options import console, graph_of, hardware_of, print_json
from hosim.io.options import OPTIONS, Given, Option, declared

app = typer.Typer(help="List the shipped workloads, or show one.", no_args_is_help=True)


@app.command("list")
@command(*declared("detail json"))
def list_(given: Given) -> None:
    """List the shipped workloads."""
    from hosim import shipped
    from hosim.io.models import PRESETS
    from hosim.report import listed as listings

    names = shipped.workloads()
    if given.json:
        graphs = [graph_of(name) for name in names]
        print_json({"workloads": [listings.workload_figures(graph) for graph in graphs]})
    else:
        asked_on = (("hosim workload list --detail", "ops, work and memory of each"),)
        short = listings.workloads_in_short(names, PRESETS, asked_on)
        print_answer(short, given, lambda: [listings.workloads(map(graph_of, names))])


@app.command()
@command(*declared("detail json"))
def models(given: Given) -> None:
    """List the models that hosim can build by name."""
    from hosim.io.models import FAMILIES, PRESETS, listed_models
    from hosim.report import listed as listings

    if given.json:
        print_json({"models": [listings.model_figures(model) for model in listed_models()]})
    else:
        runs = {name: FAMILIES[type(sizes)].phases for name, sizes in PRESETS.items()}
        asked_on = (("hosim workload models --detail", "parameters, weights, what is left out"),)
        short = listings.models_in_short(runs, asked_on)
        print_answer(short, given, lambda: [listings.models(listed_models())])


_SHOW = declared(
    "workload hardware ops detail json",
    replace(
        OPTIONS["hardware"],
        default=None,
        help="Show how long ops take on this machine, and where that is from.",
    ),
    Option(
        "ops",
        of=bool,
        default=False,
        needs=("hardware",),
        help="With --hardware: a row for each op.",
    ),
    replace(OPTIONS["json"], excludes={"hardware": "it shows a workload alone"}),
)


@app.command()
@command(*_SHOW)
def show(given: Given) -> None:
    """Show a workload: its live memory, tensors, ops and source.

    --detail prints every table.
    """
    from hosim.devices_of_graph import on_devices
    from hosim.report import listed as listings
    from hosim.report.listed import op_times

    width, graph = console().width, graph_of(given.workload)
    if given.json:
        print_json(listings.workload_figures(graph))
        return
    where = on_devices(graph, hardware_of(given.hardware)) if given.hardware is not None else None
    given.detail = given.detail or given.ops
    print_answer(
        listings.workload_in_short(graph, width, where),
        given,
        lambda: [
            listings.workload(graph, width),
            *([] if where is None else [op_times(graph, where, given.ops)]),
        ],
    )

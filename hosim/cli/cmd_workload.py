"""``hosim workload list``, ``models`` and ``show``."""

from __future__ import annotations

from dataclasses import replace

import typer

from hosim.cli.commands import command
from hosim.cli.options import console, graph_of, hardware_of, print_json
from hosim.options import OPTIONS, Given, Option, declared

app = typer.Typer(help="List the shipped workloads, or show one.", no_args_is_help=True)


@app.command("list")
@command(*declared("json"))
def list_(given: Given) -> None:
    """List the shipped workloads."""
    from hosim import shipped
    from hosim.report import listed as listings

    graphs = [graph_of(name) for name in shipped.workloads()]
    if given.json:
        print_json({"workloads": [listings.workload_figures(graph) for graph in graphs]})
    else:
        console().print(listings.workloads(graphs))


@app.command()
@command(*declared("json"))
def models(given: Given) -> None:
    """List the models that hosim can build by name."""
    from hosim.models import listed_models
    from hosim.report import listed as listings

    listed = list(listed_models())
    if given.json:
        print_json({"models": [listings.model_figures(model) for model in listed]})
    else:
        console().print(listings.models(listed))


_SHOW = declared(
    "workload hardware ops json",
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
    """Show a workload: its live memory, tensors, ops and source."""
    from hosim.devices_of_graph import on_devices
    from hosim.report import listed as listings
    from hosim.report.listed import op_times

    out, graph = console(), graph_of(given.workload)
    if given.json:
        print_json(listings.workload_figures(graph))
        return
    out.print(listings.workload(graph, out.width))
    if given.hardware is not None:
        out.print(op_times(graph, on_devices(graph, hardware_of(given.hardware)), given.ops))

"""``hosim workload list``, ``models`` and ``show``."""

from __future__ import annotations

from typing import Annotated

import typer

from hosim.cli.options import Json, Workload, console, graph_of, hardware_of, print_json

app = typer.Typer(help="List the shipped workloads, or show one.", no_args_is_help=True)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the shipped workloads."""
    from hosim import shipped
    from hosim.report import listed as listings

    graphs = [graph_of(name) for name in shipped.workloads()]
    if json:
        print_json({"workloads": [listings.workload_figures(graph) for graph in graphs]})
    else:
        console().print(listings.workloads(graphs))


@app.command()
def models(json: Json = False) -> None:
    """List the models that hosim can build by name."""
    from hosim.models import listed_models
    from hosim.report import listed as listings

    listed = list(listed_models())
    if json:
        print_json({"models": [listings.model_figures(model) for model in listed]})
    else:
        console().print(listings.models(listed))


Machine = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        "-H",
        metavar="HW",
        help="Show the times of ops on this machine, and their sources.",
    ),
]
EveryOp = Annotated[bool, typer.Option("--ops", help="With --hardware: a row for each op.")]


@app.command()
def show(
    workload: Workload, hardware: Machine = None, ops: EveryOp = False, json: Json = False
) -> None:
    """Show a workload: its live memory, tensors, ops and source."""
    from hosim.devices_of_graph import on_devices
    from hosim.errors import InputError
    from hosim.report import listed as listings
    from hosim.report.listed import op_times

    if ops and hardware is None:
        raise InputError("--ops requires --hardware", source="workload show")
    if json and hardware is not None:
        raise InputError(
            "--json shows a workload alone: leave out --hardware", source="workload show"
        )
    out, graph = console(), graph_of(workload)
    if json:
        print_json(listings.workload_figures(graph))
        return
    out.print(listings.workload(graph, out.width))
    if hardware is not None:
        out.print(op_times(graph, on_devices(graph, hardware_of(hardware)), ops))

"""``hosim workload list`` and ``show``."""

from __future__ import annotations

import typer

from hosim.cli.options import Workload, console, graph_of

app = typer.Typer(help="List the shipped workloads, or show one.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the shipped workloads."""
    from hosim.io import shipped
    from hosim.report import listings

    console().print(listings.workloads([graph_of(name) for name in shipped.workloads()]))


@app.command()
def show(workload: Workload) -> None:
    """Show a workload: its live memory, tensors, ops and source."""
    from hosim.report import listings

    out = console()
    out.print(listings.workload(graph_of(workload), out.width))

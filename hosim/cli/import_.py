"""``hosim import``: any supported format to a workload file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_SOURCES = "A workload, a spec of one, or another tool's file: torch.export (.pt2), PyTorch trace or profile, Chakra, inductor graph, G10."
Source = Annotated[Path, typer.Argument(metavar="SOURCE", help=_SOURCES)]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the workload: .json, .json.gz or .yaml.")]


def import_(source: Source, output: Output) -> None:
    """Turn a model's graph into a workload file."""
    from hosim.importers import load_any
    from hosim.io import save_workload
    from hosim.report.catalogue import workload_line

    graph = load_any(source)
    save_workload(graph, output)
    typer.echo(f"wrote {output}: {workload_line(graph)}", err=True)
    missing = graph.meta.get("missing")
    for line in missing if isinstance(missing, list) else ():
        typer.echo(f"not in the file: {line}", err=True)

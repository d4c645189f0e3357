"""``hosim import``: any supported format to a workload file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[Path, typer.Argument(metavar="SOURCE", help="A workload spec, an exported program (.pt2), or a workload file.")]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the workload: .json, .json.gz or .yaml.")]


def import_(source: Source, output: Output) -> None:
    """Turn a model's graph into a workload file."""
    from hosim.importers import load_any
    from hosim.io import save_workload
    from hosim.report.catalogue import workload_line

    graph = load_any(source)
    save_workload(graph, output)
    typer.echo(f"wrote {output}: {workload_line(graph)}", err=True)

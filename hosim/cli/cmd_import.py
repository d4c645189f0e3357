"""``hosim import``: convert any supported format to a workload file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import written
from hosim.cli.progress import progress
from hosim.cli.terminal import say

_SOURCES = (
    "A workload, a workload spec, or another tool's file: torch.export (.pt2), ONNX, MindIR, PyTorch trace or profile, Chakra, inductor "
    "graph, hyper-parallel trace, G10."
)
Source = Annotated[Path, typer.Argument(metavar="SOURCE", help=_SOURCES)]
Output = Annotated[Path, written("--output", "-o", says="Where to write the workload: .json, .json.gz or .yaml.")]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", metavar="NAME=SIZE", help="Size of a free dimension of a torch.export program or an ONNX model; may be repeated."
    ),
]


def import_(source: Source, output: Output, dim: Dim = None) -> None:
    """Convert a model's graph to a workload file."""
    from hosim.importers import load_any
    from hosim.io import save_workload
    from hosim.left_out import left_out
    from hosim.report.listings import workload_line
    from hosim.unknown_ops import unknown_ops

    sizes = dict(map(_size, dim or ()))
    with progress(f"reading {source}"):
        graph = load_any(source, sizes)
    save_workload(graph, output)
    say(f"wrote {output}: {workload_line(graph)}")
    if unknown := unknown_ops(graph):
        say(f"unknown: {unknown}")
    for line in left_out(graph):
        say(f"left out: {line}")
    missing = graph.meta.get("missing")
    for line in missing if isinstance(missing, list) else ():
        say(f"not in the file: {line}")


def _size(text: str) -> tuple[str, int]:
    """``batch=4`` as a name and a size."""
    from hosim.errors import InputError

    name, _, size = text.rpartition("=")
    if not name or not size.isdecimal() or not size.isascii() or len(size) > 18:
        raise InputError(f"expected a name and a whole number of at least 0, such as batch=4, got {text!r}", source="--dim")
    return name, int(size)

"""``hosim import``: convert any supported format to a workload file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import ExecutionTrace, graph_of
from hosim.cli.progress import progress
from hosim.cli.targets import DATA, written
from hosim.cli.terminal import say

_SOURCES = (
    "A workload or its spec, the name of one or of a model, or another tool's file: torch.export "
    "(.pt2), ONNX, MindIR, PyTorch trace or "
    "profile, Chakra, inductor graph, hyper-parallel trace, G10."
)
Source = Annotated[Path, typer.Argument(metavar="SOURCE", help=_SOURCES)]
Output = Annotated[
    Path,
    written(
        "--output",
        "-o",
        says="Where to write the workload: .json, .json.gz or .yaml.",
        endings=DATA,
    ),
]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=SIZE",
        help="Size of a free dimension of a torch.export program or an ONNX model; may be "
        "repeated.",
    ),
]


def import_(
    source: Source, output: Output, dim: Dim = None, execution_trace: ExecutionTrace = None
) -> None:
    """Convert a model's graph to a workload file."""
    from hosim.errors import InputError
    from hosim.io import load_any, save_workload
    from hosim.notes import notes
    from hosim.report.listed import workload_line

    sizes = dict(map(_size, dim or ()))
    if execution_trace is not None:
        if dim:
            raise InputError(
                "--dim and --execution-trace are of different formats: give one of them",
                source="import",
            )
        graph = graph_of(str(source), execution_trace)
    elif dim or source.exists():
        with progress(f"reading {source}"):
            graph = load_any(source, sizes)
    else:
        graph = graph_of(str(source))
    save_workload(graph, output)
    say(f"wrote {output}: {workload_line(graph)}")
    for each in notes(graph):
        say(str(each))


def _size(text: str) -> tuple[str, int]:
    """``batch=4`` as a name and a size."""
    from hosim.errors import InputError

    name, _, size = text.rpartition("=")
    if not name or not size.isdecimal() or not size.isascii() or len(size) > 18:
        raise InputError(
            f"expected a name and a whole number of at least 0, such as batch=4, got {text!r}",
            source="--dim",
        )
    return name, int(size)

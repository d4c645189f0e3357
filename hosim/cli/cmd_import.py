"""``hosim import``: convert any supported format to a workload file."""

from __future__ import annotations

from pathlib import Path

from hosim.cli.commands import command
from hosim.cli.progress import progress
from hosim.cli.targets import DATA
from hosim.cli.terminal import say
from hosim.io.options import REQUIRED, Given, Option, declared

_SOURCES = (
    "A workload or its spec, the name of one or of a model, or another tool's file: torch.export "
    "(.pt2), ONNX, MindIR, PyTorch trace or "
    "profile, Chakra, inductor graph, hyper-parallel trace, G10."
)
_OPTIONS = declared(
    "source output dim execution_trace",
    Option("source", of=Path, default=REQUIRED, argument=True, metavar="SOURCE", help=_SOURCES),
    Option(
        "output",
        of=Path,
        default=REQUIRED,
        flags=("--output", "-o"),
        endings=DATA,
        help="Where to write the workload: .json, .json.gz or .yaml.",
    ),
    Option(
        "dim",
        of=list[str],
        metavar="NAME=SIZE",
        excludes={"execution_trace": "they are of different formats"},
        help="Size of a free dimension of a torch.export program or an ONNX model; may be "
        "repeated.",
    ),
)


@command(*_OPTIONS)
def import_(given: Given) -> None:
    """Convert a model's graph to a workload file."""
    from hosim.io import load_any, load_named, save_workload
    from hosim.io.importers.recordings import import_kineto
    from hosim.notes import notes
    from hosim.report.listed import workload_line

    source, output, execution_trace = given.source, given.output, given.execution_trace
    sizes = dict(map(_size, given.dim or ()))
    with progress(f"reading {source}"):
        if execution_trace is not None:
            graph = import_kineto(source, execution_trace)
        elif sizes or source.exists():
            graph = load_any(source, sizes)
        else:
            graph = load_named(str(source))
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

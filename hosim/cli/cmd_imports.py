"""The commands that convert files of other programs: ``hosim import`` and ``import-kernels``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hosim.cli.commands import command
from hosim.cli.progress import progress
from hosim.cli.targets import DATA
from hosim.cli.terminal import say
from hosim.errors import InputError
from hosim.io.options import REQUIRED, Given, Option, declared

_SOURCES = (
    "A workload or its spec, the name of one or of a model, or another tool's file: torch.export "
    "(.pt2), ONNX, MindIR, PyTorch trace or "
    "profile, Chakra, inductor graph, hyper-parallel trace, G10."
)
_WORKLOAD = declared(
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


@command(*_WORKLOAD)
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


if TYPE_CHECKING:
    from hosim.io.importers.recordings import KernelTable

_KERNELS = (
    Option(
        "sources",
        of=list[Path],
        default=REQUIRED,
        argument=True,
        metavar="TABLE...",
        help="CSV or Parquet files: those of aiconfigurator or LLMServingSim, or hosim's own.",
    ),
    Option(
        "output",
        of=Path,
        default=REQUIRED,
        flags=("--output", "-o"),
        endings=(".csv",),
        help="Where to write the table: .csv or .csv.gz.",
    ),
    Option("machine", metavar="NAME", help="Keep the times of this machine alone."),
    Option(
        "model",
        metavar="MODEL",
        help="The model whose layers files of LLMServingSim have: llama-3.1-70b:tensor=4.",
    ),
)


def _reader(model: str | None) -> Callable[[Path], list[KernelTable]]:
    """The function that reads a file: a table of kernels, or of the layers of a model."""
    from hosim.io import load_named
    from hosim.io.importers.recordings import read_kernel_tables

    if model is None:
        return lambda source: read_kernel_tables(source, say)
    recipe = load_named(model).meta.get("builder")
    if not isinstance(recipe, Mapping):
        raise InputError(f"expected a model of a builder, got {model}", source="--model")
    return lambda source: read_kernel_tables(source, say, recipe)


@command(*_KERNELS)
def import_kernels(given: Given) -> None:
    """Convert measured kernel times to a table of a profile."""
    from hosim.base.files import compressed, write_bytes
    from hosim.io.importers.recordings import of_machine, tables_text

    sources, output, machine = given.sources, given.output, given.machine
    read = _reader(given.model)
    tables = of_machine(
        [table for source in sources for table in read(source)], machine, "--machine"
    )
    text = tables_text(tables).encode()
    write_bytes(output, compressed(text) if output.name.endswith(".gz") else text)
    for table in tables:
        named = ", ".join(
            part
            for part in (table.machine, table.kernel, table.dtype, table.distribution)
            if part not in ("", "uniform")
        )
        say(f"{named}: {len(table):,} times")
    say(f"wrote {output}")

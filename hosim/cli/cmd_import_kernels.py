"""``hosim import-kernels``: measured kernel times as a table that a hardware profile can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hosim.cli.commands import command
from hosim.cli.terminal import say
from hosim.errors import InputError
from hosim.io.options import REQUIRED, Given, Option

if TYPE_CHECKING:
    from hosim.io.importers.recordings import KernelTable

_OPTIONS = (
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


@command(*_OPTIONS)
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

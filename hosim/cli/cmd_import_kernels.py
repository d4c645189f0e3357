"""``hosim import-kernels``: measured kernel times as a table that a hardware profile can name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.targets import written
from hosim.cli.terminal import say

Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="TABLE...", help="CSV or Parquet files: those of aiconfigurator, or hosim's own."
    ),
]
Output = Annotated[
    Path,
    written("--output", "-o", says="Where to write the table: .csv or .csv.gz.", endings=(".csv",)),
]
Machine = Annotated[
    str | None,
    typer.Option("--machine", metavar="NAME", help="Keep the times of this machine alone."),
]


def import_kernels(sources: Sources, output: Output, machine: Machine = None) -> None:
    """Convert measured kernel times to a table of a profile."""
    from hosim.files import compressed, write_bytes
    from hosim.importers.recordings import of_machine, read_kernel_tables, tables_text

    tables = of_machine(
        [table for source in sources for table in read_kernel_tables(source, say)],
        machine,
        "--machine",
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

"""``hosim import-kernels``: measured kernel times as a table that a hardware profile can name."""

from __future__ import annotations

from pathlib import Path

from hosim.cli.commands import command
from hosim.cli.terminal import say
from hosim.options import REQUIRED, Given, Option

_OPTIONS = (
    Option(
        "sources",
        of=list[Path],
        default=REQUIRED,
        argument=True,
        metavar="TABLE...",
        help="CSV or Parquet files: those of aiconfigurator, or hosim's own.",
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
)


@command(*_OPTIONS)
def import_kernels(given: Given) -> None:
    """Convert measured kernel times to a table of a profile."""
    from hosim.files import compressed, write_bytes
    from hosim.importers.recordings import of_machine, read_kernel_tables, tables_text

    sources, output, machine = given.sources, given.output, given.machine
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

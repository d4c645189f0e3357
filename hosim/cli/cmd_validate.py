"""``hosim validate``: how far a replay is from a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import Json, console

Recording = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="A trace of PyTorch's profiler, an SQLite export of Nsight Systems, a torch.cuda.memory snapshot, or a hosim.record folder.",
    ),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report with pictures, in one file.")]
Accelerator = Annotated[
    int | None, typer.Option("--device", metavar="N", min=0, help="Whose memory to replay.  [default: the busiest one's]")
]


def validate(trace: Recording, html: Html = None, device: Accelerator = None, json: Json = False) -> None:
    """Say how far a replay is from a recording of a real GPU.

    In time, launches, streams, waits and synchronisations, with their recorded durations, predict when each kernel and copy starts. In
    memory, allocations and frees go through hosim's ledger and its caching allocator, in the host's program order. Of a folder that
    'python -m hosim.record' wrote, each offload scheme is predicted from the resident run and the sweep of the channels.
    """
    from hosim.report import validation_table as report

    if trace.is_dir():
        _schemes(trace, html, json)
        return
    from hosim.validate.validation import validate as replayed
    from hosim.validate.validation import validation_to_dict

    validation = replayed(trace, device)
    data = validation_to_dict(validation)
    if html is not None:
        from hosim.io.reading import write_bytes
        from hosim.report.validation_page import validation_page

        write_bytes(html, validation_page(data, validation.drawn_ops, validation.drawn_memory).encode())
        typer.echo(f"wrote {html}", err=True)
    if json:
        from hosim.io import to_json

        typer.echo(to_json(data))
    else:
        console().print(report.validation(data))


def _schemes(folder: Path, html: Path | None, json: bool) -> None:
    from hosim.errors import InputError
    from hosim.report import validation_table as report
    from hosim.validate.scheme_report import validate_schemes

    if html is not None:
        raise InputError("a folder of recordings has no page; leave --html out", source=str(folder))
    data = validate_schemes(folder)
    if json:
        from hosim.io import to_json

        typer.echo(to_json(data))
    else:
        console().print(report.schemes(data))

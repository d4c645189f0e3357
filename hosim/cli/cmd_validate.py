"""``hosim validate``: compare a replay with a recording."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hosim.cli.options import Json, console, written
from hosim.cli.progress import progress
from hosim.cli.terminal import say

Recording = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="A trace of PyTorch's profiler, an SQLite export of Nsight Systems, a torch.cuda.memory snapshot, or a hosim.record folder.",
    ),
]
Html = Annotated[Path | None, written("--html", says="Write a report with pictures, in one file.")]
Accelerator = Annotated[
    int | None, typer.Option("--device", metavar="N", min=0, help="The device whose memory to replay.  [default: the busiest]")
]


def validate(trace: Recording, html: Html = None, device: Accelerator = None, json: Json = False) -> None:
    """Compare a replay with a recording of a real GPU.

    Times: from the recorded durations of launches, kernels, copies, waits and synchronisations, hosim predicts when each kernel and copy
    starts. Memory: it replays allocations and frees in its ledger and its caching allocator, in the host's program order. For a folder
    written by 'python -m hosim.record', it predicts each offload scheme from the resident run and the bandwidth sweep.
    """
    from hosim.report import validation_table as report

    if os.path.isdir(trace):
        _schemes(trace, html, json)
        return
    from hosim.validate.validation import validate as replayed
    from hosim.validate.validation import validation_to_dict

    with progress(f"replaying {trace}"):
        validation = replayed(trace, device)
    data = validation_to_dict(validation)
    if html is not None:
        from hosim.io.reading import write_bytes
        from hosim.report.validation_page import validation_page

        write_bytes(html, validation_page(data, validation.drawn_ops, validation.drawn_memory).encode())
        say(f"wrote {html}")
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
        raise InputError("--html works for a single recording, not for a folder: leave it out", source=str(folder))
    with progress(f"replaying {folder}"):
        data = validate_schemes(folder)
    if json:
        from hosim.io import to_json

        typer.echo(to_json(data))
    else:
        console().print(report.schemes(data))

"""``hosim validate``: compare a replay with a recording."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import typer

from hosim.cli.answers import show_answer
from hosim.cli.commands import command
from hosim.cli.options import console, print_json, write_page
from hosim.cli.progress import progress
from hosim.cli.terminal import say
from hosim.errors import InputError
from hosim.io.options import OPTIONS, REQUIRED, Given, Option, declared, refuse_others

_OPTIONS = declared(
    "traces html device max_error detail json",
    Option(
        "traces",
        of=list[Path],
        default=REQUIRED,
        argument=True,
        metavar="TRACE...",
        help="A trace of PyTorch's profiler, an SQLite export of Nsight Systems, a "
        "torch.cuda.memory snapshot, or a folder that "
        "hosim.record or python -m hosim.gpu wrote. Several traces are ranks of one program.",
    ),
    replace(OPTIONS["html"], help="Write a report with pictures, in one file."),
    Option(
        "device",
        of=int,
        metavar="N",
        least=0,
        help="The device whose memory to replay.  [default: the busiest]",
    ),
    Option(
        "max_error",
        metavar="SHARE",
        help="Exit with 1 if the recording is not validated, or if makespan or starts are off by "
        "more than this share of it (1%).",
    ),
)
_SINGLE = "works for a single recording, not for {}: leave it out"


@command(*_OPTIONS)
def validate(given: Given) -> None:
    """Compare a replay with a recording of a real GPU.

    Times: from the recorded durations of launches, kernels, copies, waits and synchronisations,
    hosim predicts when each kernel and copy starts, and says whether the recording is validated, or
    which spans differ and why. Memory: it replays allocations and frees in its
    ledger and its caching allocator, in the host's program order. For a folder that 'python -m
    hosim.gpu' wrote, it predicts each offload scheme from the resident run and the bandwidth sweep,
    and compares hosim's plans with their runs. Several recordings are ranks of one program:
    their collectives wait for each other. --detail prints every figure.
    """
    from hosim.report import of_studies
    from hosim.report.answers import validation_answer
    from hosim.units import parse_share

    bound = parse_share(given.max_error) if given.max_error is not None else None
    traces, html = given.traces, given.html
    if len(traces) > 1:
        refuse_others(
            _OPTIONS, vars(given), "traces max_error json", _SINGLE.format("ranks"), "validate"
        )
        _ranks(traces, bound, given.json)
        return
    (trace,) = traces
    if os.path.isdir(trace):
        if not (trace / "trace.json.gz").is_file():
            refuse_others(
                _OPTIONS, vars(given), "traces json", _SINGLE.format("a folder"), str(trace)
            )
            _schemes(trace, given.json)
            return
        trace /= "trace.json.gz"  # what hosim.record writes
    from hosim.validate import validate as replayed
    from hosim.validate import validation_to_dict
    from hosim.validate.replay_verdicts import complaint

    with progress(f"replaying {trace}"):
        validation = replayed(trace, given.device)
    data = validation_to_dict(validation)
    if html is not None:
        from hosim.report import validation_page

        write_page(
            html,
            validation_page(
                data, validation.drawn_ops, validation.drawn_memory, validation.drawn_spans
            ),
        )
    tables = of_studies.validation
    show_answer(validation_answer(data), given, lambda: data, lambda: [tables(data)])
    if bound is not None and (said := complaint(validation.verdict, bound)):
        say(f"{trace}: {said}")
        raise typer.Exit(1)


def _ranks(traces: list[Path], bound: float | None, json: bool) -> None:
    from hosim.report.of_studies import ranks_table
    from hosim.validate import (
        rank_complaint,
        ranks_to_dict,
        read_trace,
        refuse_damage,
        replay_ranks,
    )

    with progress(f"replaying {len(traces)} ranks"):
        read = [read_trace(trace) for trace in traces]
        for path, recorded in zip(traces, read, strict=True):
            refuse_damage(recorded, str(path))
        ranks = replay_ranks(read)
    data = ranks_to_dict(ranks)
    if json:
        print_json(data)
    else:
        console().print(ranks_table(data))
    said = []
    if bound is not None:
        complaints = (
            (trace, rank_complaint(rank, bound)) for trace, rank in zip(traces, ranks, strict=True)
        )
        said = [f"{trace}: {line}" for trace, line in complaints if line]
    for line in said:
        say(line)
    if said:
        raise typer.Exit(1)


_NAMED = 3
"""The number of files of a folder that are named."""


def _holds(folder: Path) -> str:
    from hosim.plain_text import counted

    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return "this one is empty"
    more = f" and {counted(len(names) - _NAMED, 'other file')}" if len(names) > _NAMED else ""
    return f"this one has {', '.join(names[:_NAMED])}{more}: name a recording in it"


def _schemes(folder: Path, json: bool) -> None:
    from hosim.base.files.formats import unexpected
    from hosim.report import of_studies
    from hosim.validate import validate_schemes

    expected = "a folder that python -m hosim.gpu has written, with its meta.json"
    if not (folder / "meta.json").is_file():
        raise unexpected(str(folder), expected) or InputError(
            f"expected {expected}; {_holds(folder)}", source=str(folder)
        )
    with progress(f"replaying {folder}"):
        data = validate_schemes(folder)
    if json:
        print_json(data)
    else:
        console().print(of_studies.schemes(data))

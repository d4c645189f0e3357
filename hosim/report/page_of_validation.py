"""The report of ``hosim validate`` as one HTML file, with a zoomable timeline of the recording and
its replay, and pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosim.report import page_parts as page
from hosim.report.drawn import (
    DrawnOp,
    Span,
    blank,
    recorded_memory,
    recorded_widget,
    start_errors,
    style,
)
from hosim.report.of_studies import (
    CONSTANTS,
    RIVALS,
    constant_rows,
    rival_rows,
    rows,
    short_name,
    signed_time,
    taken_from_recording,
    verdict_lines,
)
from hosim.units import human_time

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def validation_page(
    data: Mapping[str, Any],
    ops: Sequence[DrawnOp],
    memory: tuple[npt.NDArray[np.int64], Mapping[str, npt.NDArray[np.int64] | None]] | None,
    unexplained: Sequence[Span] = (),
) -> str:
    """The page for a ``hosim.validation/1``, its ops, its curves of bytes by name over one axis of
    nanoseconds, and what is unexplained.
    """
    device = f" on {data['device']}" if data["device"] else ""
    parts = []
    if data["errors"]:
        verdict, *reasons = verdict_lines(data)
        parts.append(page.verdict(f"{verdict[:1].upper()}{verdict[1:]}", bad=not data["explained"]))
        parts += [page.lines(map(str.strip, reasons))] if reasons else []
    parts.append(page.table(("figure", "measured", "simulated", "error"), rows(data)))
    parts += [page.paragraph(f"Not in the recording: {line}") for line in data["missing"]]
    if ops:
        parts += [page.heading("Timeline"), recorded_widget(ops, unexplained)]
    if data["worst"]:
        parts.append(page.heading("Ops whose start is furthest off"))
        worst = [
            (
                short_name(op["name"]),
                str(op["stream"]),
                human_time(op["measured_start_ns"]),
                signed_time(op["start_error_ns"]),
            )
            for op in data["worst"]
        ]
        parts.append(page.table(("op", "stream", "measured start", "error"), worst))
    if ops:
        starts = [recorded[0] for *_, recorded, _ in ops]
        errors = [simulated[0] - recorded[0] for *_, recorded, simulated in ops]
        with style():
            figure, (axes,) = blank([3.5])
            start_errors(axes, starts, errors)
        parts += [page.heading("Errors of starts"), page.picture(figure, "Errors of starts")]
    if data["errors"]:
        parts += [
            page.heading("Beside two predictions without a model"),
            page.table(RIVALS, rival_rows(data["errors"])),
        ]
    if data["given"]:
        parts += [
            page.heading("What the replay was given"),
            page.paragraph(taken_from_recording(data)),
        ]
        parts.append(page.table(CONSTANTS, constant_rows(data["given"])))
    if memory is not None:
        with style():
            figure, (axes,) = blank([4.0])
            recorded_memory(axes, *memory)
        parts += [
            page.heading("Memory"),
            page.picture(figure, "Memory over time, recorded and simulated"),
        ]
    return page.page(f"{data['trace']}{device}: recording and replay", parts)

"""Table of what ``hosim validate`` finds: measured beside simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from hosim.plain_text import counted
from hosim.report.printed import open_table, paragraph
from hosim.report.tables import NOTHING
from hosim.units import human_size, human_time

Row = tuple[str, str, str, str]


def validation(data: Mapping[str, Any]) -> RenderableType:
    """Everything ``hosim validate`` shows of a ``hosim.validation/1``: the figures, the ops furthest off, and what is missing."""
    parts: list[RenderableType] = [_figures(data)]
    if data["worst"]:
        parts.append(_worst(data))
    parts += [paragraph(f"not in the recording: {line}", style="yellow") for line in data["missing"]]
    parts += [paragraph(f"contradiction in the recording: {line}", style="yellow") for line in data["memory"].get("mismatches", ())]
    if data["given"]:
        parts.append(paragraph(taken_from_recording(data)))
    return Group(*parts)


def rows(data: Mapping[str, Any]) -> list[Row]:
    """Figure, measured, simulated and error, for people."""
    makespan, start, copies, waits, memory = (data[key] for key in ("makespan", "kernel_start", "copies", "stream_waits", "memory"))
    listed: list[Row] = []
    if makespan["measured_ns"] is not None:
        listed.append(("makespan", human_time(makespan["measured_ns"]), human_time(makespan["simulated_ns"]), f"{makespan['error']:+.2%}"))
        listed.append(("start of a kernel, mean error", NOTHING, NOTHING, _of_span(start["mean_error_ns"], makespan)))
        listed.append(("start of a kernel, P95 error", NOTHING, NOTHING, _of_span(start["p95_error_ns"], makespan)))
    if copies["count"]:
        pair = copies["measured_overlap_ns"], copies["simulated_overlap_ns"]
        name = f"copies under kernels ({copies['count']:,}, {human_size(copies['bytes'])}, {human_time(copies['total_ns'])})"
        listed.append((name, human_time(pair[0]), human_time(pair[1]), _error(*pair)))
    if waits["count"]:
        pair = waits["measured_ns"], waits["simulated_ns"]
        listed.append((f"waits for other streams ({waits['count']:,})", human_time(pair[0]), human_time(pair[1]), _error(*pair)))
    if memory.get("allocations"):
        pair = memory["measured_peak_bytes"], memory["simulated_peak_bytes"]
        listed.append((f"allocated peak ({memory['account']} order)", _size(pair[0]), _size(pair[1]), _error(*pair)))
        furthest = memory["max_abs_error_bytes"]
        listed.append(("allocated, furthest after any event", NOTHING, NOTHING, NOTHING if furthest is None else f"{furthest:,} B"))
        pair = memory["measured_reserved_peak_bytes"], memory["reserved_peak_bytes"]
        listed.append(("reserved peak", _size(pair[0]), _size(pair[1]), _error(*pair)))
    return listed


def schemes(data: Mapping[str, Any]) -> RenderableType:
    """A ``hosim.schemes/1`` as a table: a row a scheme, predicted beside measured."""
    device = f" on {data['device']}" if data["device"] else ""
    columns = [f"{figure}\n{of}" for figure in ("makespan", "peak") for of in ("measured", "predicted", "error")]
    table = open_table(
        f"{data['recording']}{device}: predicted from the resident run and the sweep", "run", "scheme", *columns, "stall\npredicted"
    )
    for run in data["runs"]:
        makespan, peak = run["makespan"], run["peak"]
        cells = [
            _time(makespan["measured_ns"]),
            _time(makespan["simulated_ns"]),
            _error(makespan["measured_ns"], makespan["simulated_ns"]),
            _size(peak["measured_bytes"]),
            _size(peak["simulated_bytes"]),
            _error(peak["measured_bytes"], peak["simulated_bytes"]),
            _time(run["stall"]["simulated_ns"]),
        ]
        table.add_row(f"{run['mode']} {run['length']:,}", run["scheme"], *cells)
    return table


def taken_from_recording(data: Mapping[str, Any]) -> str:
    """One line on what the replay in time was given of the recording: no op's start is among it unless it says so."""
    given, waits = data["given"], data["stream_waits"]
    dropped = f"; {waits['contradicted']:,} inferred waits dropped, as a recorded start contradicts them" if waits["contradicted"] else ""
    return (
        f"given: durations of {counted(given['device_durations'], 'device op')} and {counted(given['host_segments'], 'host segment')}, "
        f"{counted(given['overlaps'], 'overlap')}, {counted(given['starts'], 'start')}, "
        f"{counted(len(given['constants']), 'fitted constant')}{dropped}"
    )


def _figures(data: Mapping[str, Any]) -> RenderableType:
    device = f" on {data['device']}" if data["device"] else ""
    title = f"{data['trace']}{device}: {counted(data['kernels'], 'kernel')}"
    table = open_table(title, "figure", "measured", "simulated", "error")
    table.columns[0].no_wrap = False
    for row in rows(data):
        table.add_row(*row)
    return table


def _worst(data: Mapping[str, Any]) -> RenderableType:
    table = open_table("Furthest off", "op", "stream", "measured start", "error")
    for op in data["worst"]:
        table.add_row(_short(op["name"]), str(op["stream"]), human_time(op["measured_start_ns"]), signed_time(op["start_error_ns"]))
    return table


def signed_time(nanoseconds: int) -> str:
    """A time with its sign."""
    return f"{'-' if nanoseconds < 0 else '+'}{human_time(abs(nanoseconds))}"


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."


def _of_span(error: int, makespan: Mapping[str, Any]) -> str:
    return f"{human_time(error)} ({error / makespan['measured_ns']:.2%} of the span)"


def _error(measured: int | None, simulated: int | None) -> str:
    return f"{simulated / measured - 1:+.2%}" if measured and simulated is not None else NOTHING


def _time(nanoseconds: int | None) -> str:
    return NOTHING if nanoseconds is None else human_time(nanoseconds)


def _size(size: int | None) -> str:
    return NOTHING if size is None else human_size(size)

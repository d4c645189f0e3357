"""Table of what ``hosim validate`` finds: measured beside simulated."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from hosim.plain_text import counted
from hosim.report.printing import NOTHING, open_table, paragraph
from hosim.units import human_percent, human_size, human_time

Row = tuple[str, ...]


def validation(data: Mapping[str, Any]) -> RenderableType:
    """Everything ``hosim validate`` shows of a ``hosim.validation/1``: the figures, the ops
    furthest off, and what is missing.
    """
    parts: list[RenderableType] = [_figures(data)]
    if data["errors"]:
        parts += [
            open_table(
                "Beside predictions without a model",
                *RIVALS,
                wraps=RIVALS[:1],
                rows=rival_rows(data["errors"]),
            ),
            *(
                paragraph(line, style="" if data["explained"] else "yellow")
                for line in verdict_lines(data)
            ),
        ]
    if data["worst"]:
        parts.append(_worst(data))
    parts += [
        paragraph(f"not in the recording: {line}", style="yellow") for line in data["missing"]
    ]
    parts += [
        paragraph(f"contradiction in the recording: {line}", style="yellow")
        for line in data["memory"].get("mismatches", ())
    ]
    if data["given"]:
        parts.append(paragraph(taken_from_recording(data)))
        parts.append(open_table("", *CONSTANTS, rows=constant_rows(data["given"])))
    return Group(*parts)


CONSTANTS = ("fitted constant", "value", "nine tenths of samples", "samples")
"""The header of :func:`constant_rows`."""


def constant_rows(given: Mapping[str, Any]) -> list[Row]:
    """The fitted constants with their spread, for people; what has no samples is that of another
    kind. Recurring delays come last.
    """
    named = [
        *given["constants"].items(),
        *((f"before {short_name(one['name'])}", one) for one in given["recurring"]),
    ]
    return [
        (
            name,
            signed_time(one["ns"]),
            NOTHING
            if one["low_ns"] is None
            else f"{signed_time(one['low_ns'])} to {signed_time(one['high_ns'])}",
            f"{one['samples']:,}",
        )
        for name, one in named
    ]


def rows(data: Mapping[str, Any]) -> list[Row]:
    """Figure, measured, simulated and error, for people."""
    makespan, start, copies, waits, memory = (
        data[key] for key in ("makespan", "kernel_start", "copies", "stream_waits", "memory")
    )
    listed: list[Row] = []
    if makespan["measured_ns"] is not None:
        times = _time(makespan["measured_ns"]), _time(makespan["simulated_ns"])
        listed.append(("makespan", *times, human_percent(makespan["error"], 2, signed=True)))
        listed += [
            (f"start of a kernel, {name} error", NOTHING, NOTHING, _of_span(start[key], makespan))
            for name, key in (("mean", "mean_error_ns"), ("P95", "p95_error_ns"))
        ]
    if copies["count"]:
        sizes = f"{human_size(copies['bytes'])}, {human_time(copies['total_ns'])}"
        name = f"copies under kernels ({copies['count']:,}, {sizes})"
        pair = copies["measured_overlap_ns"], copies["simulated_overlap_ns"]
        listed.append((name, *map(_time, pair), _error(*pair)))
    if waits["count"]:
        pair = waits["measured_ns"], waits["simulated_ns"]
        name = f"waits for other streams ({waits['count']:,})"
        listed.append((name, *map(_time, pair), _error(*pair)))
    return [*listed, *(_of_memory(memory) if memory.get("allocations") else ())]


def _of_memory(memory: Mapping[str, Any]) -> Iterator[Row]:
    pair = memory["measured_peak_bytes"], memory["simulated_peak_bytes"]
    yield f"allocated peak ({memory['account']} order)", *map(_size, pair), _error(*pair)
    if memory.get("requested_peak_bytes") is not None:
        requested = _size(memory["requested_peak_bytes"])
        yield "requested peak, in whole blocks", requested, NOTHING, NOTHING
    furthest = memory["max_abs_error_bytes"]
    most = NOTHING if furthest is None else f"{furthest:,} B"
    yield "allocated, furthest after any event", NOTHING, NOTHING, most
    yield "reserved peak", *_reserved(memory)


def _reserved(memory: Mapping[str, Any]) -> tuple[str, str, str]:
    """The reserved peak as measured, as simulated or bounded, and the error, or whether it lies
    within the bounds.
    """
    measured, simulated = memory["measured_reserved_peak_bytes"], memory["reserved_peak_bytes"]
    low, high = memory.get("reserved_low_bytes"), memory.get("reserved_high_bytes")
    if simulated is not None or low is None:
        return _size(measured), _size(simulated), _error(measured, simulated)
    allowed = f"at least {_size(low)}" if high is None else f"{_size(low)} to {_size(high)}"
    verdict = NOTHING
    if measured is not None:
        verdict = "within" if low <= measured <= (high or measured) else "outside"
    return _size(measured), allowed, verdict


def time_and_share(ns: int, span_ns: int) -> str:
    """A time, and its share of a recording's span."""
    return f"{human_time(ns)} ({human_percent(ns / max(span_ns, 1), 2)})"


def rival_rows(errors: Mapping[str, Any]) -> list[Row]:
    """Errors of the replay, of launches alone, and of launches with synchronisations, for
    people.
    """
    listed = [errors[key] for key in ("replay", "by_launches", "by_held_host")]

    def shares(key: str) -> list[str]:
        return [NOTHING if one[key] is None else human_percent(one[key], 2) for one in listed]

    def times(key: str) -> list[str]:
        return [time_and_share(one[key], one["span_ns"]) for one in listed]

    return [
        ("makespan", *(human_percent(one["makespan"], 2, signed=True) for one in listed)),
        ("start of a kernel, P95", *times("p95_start_ns")),
        ("the same, first op aligned", *times("p95_start_aligned_ns")),
        ("the same, of the time without any op", *shares("p95_start_aligned_of_idle")),
        ("gap between ops of a stream, P95", *times("p95_gap_ns")),
        ("all gaps, of the time in them", *shares("gaps_of_waiting")),
    ]


RIVALS = ("error of", "the replay", "launches alone", "launches and waits")
"""The header of :func:`rival_rows`."""


def verdict_lines(data: Mapping[str, Any]) -> list[str]:
    """The verdict in one line, and a line for each cause of what is not validated."""
    if data["explained"]:
        return [
            "validated: makespan and starts are within 1 % of the span, and no trivial prediction "
            "is closer by more than 0.3 %"
        ]
    if not data["errors"]["rest_explained"]:
        rest = "; even with their recorded times the rest is not: a cause is not known"
    else:
        rest = (
            "; with their recorded times the rest is within "
            f"{human_percent(data['errors']['rest']['worst_of_span'], 2)} of the span"
        )
    reasons = data["reasons"]
    named = (
        sum(_count(reason["ops"]) for reason in reasons),
        sum(_count(reason["calls"]) for reason in reasons),
    )
    what = (
        " and ".join(counted(n, name) for n, name in zip(named, ("op", "call"), strict=True) if n)
        or "nothing can be named"
    )
    lines = [f"not validated: {what}{rest if reasons else ''}"]
    for cause in list(dict.fromkeys(reason["cause"] for reason in reasons)):
        of_cause = [reason for reason in reasons if reason["cause"] == cause]
        largest = max(of_cause, key=lambda reason: reason["off_ns"])
        names = f" ({short_name(largest['names'][0])})" if largest["names"] else ""
        begin, end = human_time(largest["start_ns"]), human_time(largest["end_ns"])
        lines.append(
            f"  {cause}: {counted(len(of_cause), 'span')}, the worst from {begin} to {end}{names}"
        )
    return lines


def _count(runs: Sequence[Sequence[int]]) -> int:
    return sum(last - first + 1 for first, last in runs)


def schemes(data: Mapping[str, Any]) -> RenderableType:
    """A ``hosim.schemes/2`` as tables: a row a scheme and a row a plan, predicted beside
    measured.
    """
    device = f" on {data['device']}" if data["device"] else ""
    parts: list[RenderableType] = []
    if data["runs"]:
        table = open_table(
            f"{data['recording']}{device}: predicted from the resident run and the sweep",
            "run",
            "scheme",
            *_BESIDE,
            "stall\npredicted",
        )
        for run in data["runs"]:
            makespan, peak = run["makespan"], run["peak"]
            times, sizes = (
                (makespan["measured_ns"], makespan["simulated_ns"]),
                (peak["measured_bytes"], peak["simulated_bytes"]),
            )
            table.add_row(
                f"{run['model']} {run['mode']} {run['length']:,}",
                run["scheme"],
                *_cells(*times, *sizes),
                _time(run["stall"]["simulated_ns"]),
            )
        parts.append(table)
    if data["plans"]:
        table = open_table(
            f"{data['recording']}{device}: hosim's plans, predicted and run",
            "plan",
            "budget",
            *_BESIDE,
            "same bits",
        )
        for row in data["plans"]:
            said, got = row["predicted"], row["measured"]
            cells = _cells(
                got["step_ns"], said["step_ns"], got["allocated_bytes"], said["allocated_bytes"]
            )
            same = {None: "-", True: "yes", False: "no"}[row["same_results"]]
            budget = "resident" if row["share_percent"] == 100 else _size(row["budget_bytes"])
            table.add_row(row["name"], budget, *cells, same)
        parts.append(table)
        parts += [
            paragraph(f"{row['name']}: {row['error']}")
            for row in data["plans"]
            if row["error"] is not None
        ]
    if data["dry_run"]:
        parts.append(paragraph(_DRY))
    return Group(*parts)


_DRY = (
    "A dry run: on a CPU there are no peaks to measure, no kernels to predict schemes from, "
    "and times that say nothing about a GPU."
)
_BESIDE = tuple(
    f"{figure}\n{of}"
    for figure in ("makespan", "peak")
    for of in ("measured", "predicted", "error")
)


def _cells(
    measured_ns: int | None, ns: int | None, measured_bytes: int | None, size: int | None
) -> tuple[str, ...]:
    times = _time(measured_ns), _time(ns), _error(measured_ns, ns)
    return *times, _size(measured_bytes), _size(size), _error(measured_bytes, size)


def taken_from_recording(data: Mapping[str, Any]) -> str:
    """One line on what the replay in time was given of the recording: no op's start is among it
    unless it says so.
    """
    given, waits = data["given"], data["stream_waits"]
    dropped = (
        f"; {waits['contradicted']:,} inferred waits dropped, as a recorded start contradicts them"
        if waits["contradicted"]
        else ""
    )
    return (
        f"given: durations of {counted(given['device_durations'], 'device op')} and "
        f"{counted(given['host_segments'], 'host segment')}, "
        f"{counted(given['overlaps'], 'overlap')}, {counted(given['starts'], 'start')}, "
        f"{counted(len(given['constants']), 'fitted constant')}, "
        f"{counted(len(given['recurring']), 'recurring delay')}{dropped}"
    )


def _figures(data: Mapping[str, Any]) -> RenderableType:
    device = f" on {data['device']}" if data["device"] else ""
    title = f"{data['trace']}{device}: {counted(data['kernels'], 'kernel')}"
    return open_table(
        title, "figure", "measured", "simulated", "error", wraps=("figure",), rows=rows(data)
    )


def _worst(data: Mapping[str, Any]) -> RenderableType:
    return open_table(
        "Furthest off",
        "op",
        "stream",
        "measured start",
        "error",
        rows=[
            (
                short_name(op["name"]),
                str(op["stream"]),
                human_time(op["measured_start_ns"]),
                signed_time(op["start_error_ns"]),
            )
            for op in data["worst"]
        ],
    )


def signed_time(nanoseconds: int) -> str:
    """A time with its sign."""
    return f"{'-' if nanoseconds < 0 else '+'}{human_time(abs(nanoseconds))}"


def short_name(name: str) -> str:
    """The beginning of a kernel's name, which may be a page long."""
    return name if len(name) <= 60 else f"{name[:57]}..."


def _of_span(error: int, makespan: Mapping[str, Any]) -> str:
    return f"{human_time(error)} ({human_percent(error / makespan['measured_ns'], 2)} of the span)"


def _error(measured: int | None, simulated: int | None) -> str:
    return (
        human_percent(simulated / measured - 1, 2, signed=True)
        if measured and simulated is not None
        else NOTHING
    )


def _time(nanoseconds: int | None) -> str:
    return NOTHING if nanoseconds is None else human_time(nanoseconds)


def _size(size: int | None) -> str:
    return NOTHING if size is None else human_size(size)


def ranks_table(data: Mapping[str, Any]) -> RenderableType:
    """A ``hosim.ranks/1`` as a table: a row a rank, replayed with the others and alone, beside the
    two predictions without a model.
    """
    columns = (
        "makespan",
        *(
            f"{of}\nstart, P95"
            for of in ("together:", "alone:", "launches alone:", "launches and waits:")
        ),
    )
    return open_table(
        "Ranks that wait for each other",
        *("rank", "clock", "collectives", "validated", *columns),
        rows=[
            (
                rank["trace"],
                signed_time(rank["offset_ns"]),
                f"{rank['collectives']:,}",
                "yes" if rank["explained"] else "no",
                human_percent(rank["errors"]["makespan"], 2, signed=True),
                *[
                    time_and_share(rank[key]["p95_start_ns"], rank[key]["span_ns"])
                    for key in ("errors", "alone", "by_launches", "by_held_host")
                ],
            )
            for rank in data["ranks"]
        ],
    )

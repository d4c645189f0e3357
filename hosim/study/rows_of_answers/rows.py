"""Rows: the figures of one result as a flat table row, with integers whose names end in ``_ns`` and
``_bytes``, and the slowdown.

Rows omit the seconds of planning and replaying (``planning_s``, ``replay_s``), so that a row
depends only on its question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hosim.data.draws import Draws, LaterDraws
from hosim.errors import InputError
from hosim.hardware import Hardware
from hosim.notes import Note, each_once
from hosim.result import STALL_CAUSES, Result
from hosim.study.asked import Settings, Value, as_integer

if TYPE_CHECKING:
    from pandas import DataFrame

Row = Mapping[str, Value]

TEXTS = ("point", "workload", "hardware", "policy", "error")
"""The text columns. ``feasible`` is true or false, the slowdown is a number, and all other columns
have whole numbers or nothing.
"""
FEASIBLE = "feasible"
SLOWDOWN = "slowdown"
"""The makespan divided by the one with everything resident."""
FIRST_COLUMNS = (
    "workload",
    "hardware",
    "policy",
    "budget_bytes",
    FEASIBLE,
    "makespan_ns",
    "makespan_low_ns",
    "makespan_high_ns",
)
"""The first columns of every table of results."""
DEVICE_TIER = "device_tier"
"""The entry of a comparison's ``attrs`` that names the device tier."""

VARIED = "varied"
"""The entry of a sweep's ``attrs`` with the column of each varied field."""

PEAK = "_peak_bytes"
"""The ending of the columns with the peaks of tiers."""


def figure_columns(hardware: Hardware) -> list[str]:
    """Return the columns of :func:`figures`, in order; they depend only on the machine's tiers and
    channels.
    """
    return [
        *FIRST_COLUMNS,
        "busy_ns",
        *(f"{cause}_stall_ns" for cause in STALL_CAUSES),
        "drain_ns",
        "lower_bound_ns",
        "ideal_ns",
        SLOWDOWN,
        *(f"{tier.name}{PEAK}" for tier in hardware.tiers),
        *(
            f"{channel.name}_{figure}"
            for channel in hardware.channels
            for figure in ("moved_bytes", "busy_ns", "exposed_ns")
        ),
        "prefetches",
        "stores",
        "detaches",
        "error",
    ]


def figures(result: Result, hardware: Hardware) -> dict[str, Value]:
    """Return the figures of one result by the names of :func:`figure_columns`; times are missing if
    it does not fit.
    """
    row: dict[str, Value] = {
        "workload": result.workload,
        "hardware": result.hardware,
        "policy": result.policy,
        "budget_bytes": result.budget_bytes,
        FEASIBLE: result.feasible,
        "makespan_ns": result.makespan_ns,
        "makespan_low_ns": result.makespan_low_ns,
        "makespan_high_ns": result.makespan_high_ns,
        "busy_ns": result.busy_ns,
        "drain_ns": result.drain_ns,
        "lower_bound_ns": result.lower_bound_ns,
        "ideal_ns": result.ideal_ns,
        SLOWDOWN: result.slowdown,
        "error": " ".join(result.error.split()) if result.error else None,
    }
    if result.feasible:
        row |= {f"{cause}_stall_ns": result.stall_ns.get(cause, 0) for cause in STALL_CAUSES}
    row |= {f"{tier}{PEAK}": peak for tier, peak in result.peak_bytes.items()}
    for name, channel in result.channels.items():
        row |= {
            f"{name}_moved_bytes": channel.bytes,
            f"{name}_busy_ns": channel.busy_ns,
            f"{name}_exposed_ns": channel.exposed_ns,
        }
    for figure in ("prefetches", "stores", "detaches"):
        row[figure] = result.plan.get(figure)
    return {column: row.get(column) for column in figure_columns(hardware)}


def records(table: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as mappings from column names; missing values are ``None``."""
    return [
        {str(column): value for column, value in row.items()}
        for row in table.astype(object).where(table.notna(), None).to_dict("records")
    ]


def results_of(table: object) -> tuple[list[Result], str]:
    """Return the results in a frame of :func:`hosim.compare`, without channels, streams and notes,
    and the name of the device tier.

    Raises :class:`InputError` for anything else.
    """
    if "enough_bytes" in getattr(table, "columns", ()):
        raise InputError(
            "this frame compares machines; hosim.plot draws the policies of one: "
            "hosim.compare(workload, machine)",
            source="plot",
        )
    tier = getattr(table, "attrs", {}).get(DEVICE_TIER)
    needed = {
        "workload",
        "hardware",
        "policy",
        "budget_bytes",
        FEASIBLE,
        "makespan_ns",
        "lower_bound_ns",
        f"{tier}{PEAK}",
    }
    if tier is None or not needed <= set(getattr(table, "columns", ())) or not len(table):  # type: ignore[arg-type]
        raise InputError(
            "expected a plan, the result of hosim.replay(..., record=True), the answer of "
            "hosim.frontier, the frame of hosim.sweep, or the frame of hosim.compare with all its "
            "columns",
            source="plot",
        )
    return [_result_of(row) for row in records(cast("DataFrame", table))], tier


def _result_of(row: Mapping[str, Any]) -> Result:
    peaks = {
        column.removesuffix(PEAK): peak
        for column, peak in row.items()
        if column.endswith(PEAK) and peak is not None
    }
    low, high = row.get("makespan_low_ns"), row.get("makespan_high_ns")
    return Result(
        workload=row["workload"],
        hardware=row["hardware"],
        policy=row["policy"],
        budget_bytes=row["budget_bytes"],
        feasible=row[FEASIBLE],
        error=row.get("error"),
        makespan_ns=row["makespan_ns"],
        busy_ns=row.get("busy_ns"),
        stall_ns={},
        drain_ns=row.get("drain_ns"),
        lower_bound_ns=row["lower_bound_ns"],
        peak_bytes=peaks,
        peak_at_ns={},
        peak_breakdown={},
        channels={},
        plan={},
        ideal_ns=row.get("ideal_ns"),
        draws=None if low is None or high is None else LaterDraws.of(Draws.of_ends(low, high)),
    )


def varied_columns(points: Sequence[Settings]) -> dict[str, str]:
    """Return the column of each varied field: the field's name, with a unit suffix if all its
    values are quantities of one kind.

    The budget column has the given text, in addition to ``budget_bytes``; the policy is left out,
    because every table has its column.

    >>> varied_columns([{"channels.h2d.bandwidth": "25 GB/s", "policy.k": 4}])
    {'channels.h2d.bandwidth': 'channels.h2d.bandwidth_bytes_per_s', 'policy.k': 'policy.k'}
    """
    columns = {}
    for field in dict.fromkeys(field for point in points for field in point if field != "policy"):
        found = {read[0] if read else "" for point in points for read in [as_integer(point[field])]}
        columns[field] = field if field == "budget" or len(found) > 1 else f"{field}{found.pop()}"
    return columns


def varied(settings: Settings, columns: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings of a point by column, with quantities as integers."""
    row: dict[str, Value] = {}
    for field, column in columns.items():
        read = as_integer(settings[field]) if column != field else None
        row[column] = read[1] if read else settings[field]
    return row


def frame(
    rows: Iterable[Row], columns: Sequence[str], notes: Iterable[str | Note] = ()
) -> DataFrame:
    """Return the rows as a pandas frame; whole numbers are ``Int64``, which stays exact with
    missing values.

    ``attrs["notes"]`` has the notes on the figures, each once.
    """
    import pandas as pd

    made = pd.DataFrame(
        [[row.get(column) for column in columns] for row in rows],
        columns=list(columns),
        dtype=object,
    )
    for column in columns:
        values: list[Any] = [value for value in made[column] if value is not None]
        if column == FEASIBLE:
            made[column] = made[column].astype(bool)
        elif column == SLOWDOWN:
            made[column] = made[column].astype(float)
        elif column in TEXTS:
            made[column] = made[column].astype("str" if len(values) == len(made) else object)
        elif column.endswith(("_ns", "_bytes")) or (
            values and all(type(value) is int for value in values)
        ):
            made[column] = made[column].astype("Int64")
        else:
            made[column] = made[column].infer_objects()
    made.attrs["notes"] = each_once(notes)
    return made

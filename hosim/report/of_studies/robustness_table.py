"""The table of ``hosim robustness``, and what its ``--json`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.jitter import Jitter
from hosim.plain_text import counted
from hosim.report.printing import NOTHING, multiple, open_table, paragraph, percent
from hosim.result import slowdown
from hosim.units import human_size, human_time

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN = (
    ("makespan_ns", "makespan", human_time),
    ("stall_ns", "stall", human_time),
    ("peak_bytes", "peak", human_size),
)
_NONE: Mapping[str, str] = {}
_COLUMNS = ("nominal", "p50", "p95")


def robustness(
    percentiles: DataFrame,
    jitter: Jitter,
    ideal_ns: int,
    order: bool = False,
    failures: Mapping[str, str] = _NONE,
) -> RenderableType:
    """One row per policy: how many runs fit, nominal, P50 and P95 of makespan, stall and peak, and
    P95 of the slowdown.

    ``percentiles`` is the result of :func:`hosim.study.robustness.percentiles`, ``ideal_ns`` the
    makespan with everything resident and nominal times, which the slowdown is against. A percentile
    that falls on a run that does not fit says so, and ``failures`` why by policy.
    """
    sigmas = (
        f"sigma of op times {percent(jitter.op_sigma, 1)}, of transfer times "
        f"{percent(jitter.transfer_sigma, 1)}"
    )
    title = (
        f"Robustness ({'order of ops drawn; ' if order else ''}{sigmas}; seed {jitter.seed}; "
        f"baseline {human_time(ideal_ns)})"
    )
    names = [f"{label}\n{column}" for _, label, _ in _SHOWN for column in _COLUMNS]
    after = len(_COLUMNS)
    columns = ("policy", "runs\nthat fit", *names[:after], "slowdown\np95", *names[after:])
    table = open_table(title, *columns, spare=("peak\np50", "stall\np50"))
    for policy, group in percentiles.groupby("policy", sort=False):
        figures = group.set_index("figure")
        runs, infeasible = int(group["runs"].iloc[0]), int(group["infeasible"].iloc[0])
        cells = [
            human(value)
            if (value := _whole(figures.loc[figure, column])) is not None
            else "does not fit"
            for figure, _, human in _SHOWN
            for column in _COLUMNS
        ]
        cells.insert(after, multiple(slowdown(_whole(figures.loc["makespan_ns", "p95"]), ideal_ns)))
        nothing = infeasible == runs and _whole(figures.loc["makespan_ns", "nominal"]) is None
        row = [NOTHING] * len(cells) if nothing else cells
        table.add_row(
            str(policy), f"{runs - infeasible} of {runs}", *row, style="red" if infeasible else None
        )
    return Group(table, _reasons(percentiles, failures)) if failures else table


def _reasons(percentiles: DataFrame, failures: Mapping[str, str]) -> Text:
    """Return, for each policy with runs that do not fit, how many these are and why the first of
    them does not.
    """
    lines = []
    for policy, group in percentiles.groupby("policy", sort=False):
        infeasible, runs = int(group["infeasible"].iloc[0]), int(group["runs"].iloc[0])
        if infeasible:
            lines.append(
                f"{policy}: {infeasible} of {counted(runs, 'run')} fail, the first as follows: "
                f"{failures[str(policy)]}"
            )
    return paragraph(*lines)


def to_dict(
    percentiles: DataFrame,
    failures: Mapping[str, str],
    graph: Graph,
    hardware: Hardware,
    budget_bytes: int,
    jitter: Jitter,
    ideal_ns: int,
    order: bool = False,
) -> dict[str, Any]:
    """The report as ``hosim robustness --json`` prints it; a figure is null where the run, or as
    many runs, do not fit.

    ``error`` is why the first run that does not fit does not.
    """
    policies = []
    for policy, group in percentiles.groupby("policy", sort=False):
        figures = group.set_index("figure")
        row: dict[str, Any] = {
            "policy": policy,
            "runs": int(group["runs"].iloc[0]),
            "infeasible": int(group["infeasible"].iloc[0]),
        }
        for figure, _, _ in _SHOWN:
            row[figure] = {column: _whole(figures.loc[figure, column]) for column in _COLUMNS}
        row["error"] = failures.get(str(policy))
        row["slowdown"] = {
            column: slowdown(makespan, ideal_ns) for column, makespan in row["makespan_ns"].items()
        }
        policies.append(row)
    return {
        "format": "hosim.robustness/1",
        "workload": graph.name,
        "hardware": hardware.name,
        "devices": hardware.devices,
        "budget_bytes": budget_bytes,
        "ideal_ns": ideal_ns,
        **({"order": True} if order else {}),
        "jitter": {
            "seed": jitter.seed,
            "op_sigma": jitter.op_sigma,
            "transfer_sigma": jitter.transfer_sigma,
        },
        "policies": policies,
    }


def _whole(value: Any) -> int | None:
    from pandas import isna

    return None if isna(value) else int(value)

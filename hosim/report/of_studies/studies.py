"""Tables of the what-if studies, as rich renderables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hosim.cache_plan import Plan
from hosim.data.folded_parts import folded, tensors_of
from hosim.data.stages import StagesResult
from hosim.graph import Tensor
from hosim.hardware import Hardware
from hosim.notes import sentence
from hosim.plain_text import counted, printable
from hosim.report.of_replays import failures
from hosim.report.printing import (
    NOTHING,
    Row,
    above,
    by_makespan,
    cell,
    column_title,
    interval,
    known_in,
    open_table,
    paragraph,
    percent,
    table_of,
    time_or_nothing,
)
from hosim.units import human_percent, human_size, human_time

if TYPE_CHECKING:
    from hosim.study import Mispredictions


def machine_comparison(
    rows: Sequence[Row], profiles: Mapping[str, Hardware], near: float, verdict: str
) -> RenderableType:
    """One row per machine, or per machine and policy: makespan, slowdown against everything
    resident, and the smallest budget near that.

    ``profiles`` are the machines by their names, ``near`` is how many times the makespan with
    everything resident counts as near it.
    """
    several = ["policy"] if len({row["policy"] for row in rows}) > 1 else []
    listed = [_on_machine(row, profiles[row["hardware"]].device.capacity_bytes) for row in rows]
    names = ("hardware", *several, "memory_bytes", "budget_bytes", "makespan_ns", "slowdown")
    table = table_of(
        f"{rows[0]['workload']} on {counted(len(profiles), 'machine')}",
        [*names, "gap_to_bound", "peak_bytes", "enough_bytes", "of_memory"],
        listed,
        left=1 + len(several),
        titles={
            "hardware": "machine",
            "enough_bytes": f"within\n{human_percent(near - 1, 0)}\nof resident",
        },
        spare=("gap_to_bound", "of_memory", "peak_bytes"),
        style=by_makespan(listed),
    )
    why_not = [
        f"{row['hardware']}, {row['policy']}: {row['error']}" for row in rows if row["error"]
    ]
    return Group(
        table, paragraph(*why_not, style="red", space=True), paragraph(f"{verdict}.", style="bold")
    )


def _on_machine(row: Row, capacity: int) -> Row:
    """The columns of a machine whose device has this capacity in bytes."""
    asked = {name: row[name] for name in ("hardware", "policy", "budget_bytes")}
    asked["memory_bytes"] = capacity
    if row["makespan_ns"] is None:
        return {**asked, "makespan_ns": "failed" if row["failed"] else "does not fit"}
    least = row["enough_bytes"]
    return {
        **asked,
        "makespan_ns": row["makespan_ns"],
        "slowdown": row["slowdown"],
        "gap_to_bound": above(row["makespan_ns"], row["lower_bound_ns"]),
        "peak_bytes": row["peak_bytes"] or 0,
        "enough_bytes": least,
        "of_memory": None if least is None else least / capacity,
    }


def predictions(rows: Sequence[Mispredictions]) -> RenderableType:
    """One row per policy with predictions: where the chosen experts' tensors came from, and what
    right and wrong predictions cost.
    """
    figures = (
        "chosen",
        "resident",
        "prefetched",
        "missed",
        "wrong",
        "wrong\nbytes",
        "wrong\ntime",
        "harm",
        "lost",
        "gained",
    )
    table = open_table(
        "Predictions (experts' tensors)",
        "policy",
        *figures,
        wraps=("policy",),
        rows=[
            (
                row.policy,
                f"{row.chosen:,}",
                percent(row.resident, row.chosen),
                percent(row.prefetched, row.chosen),
                percent(row.missed, row.chosen),
                f"{row.wrong:,}" if row.wrong else NOTHING,
                human_size(row.wrong_bytes) if row.wrong else NOTHING,
                human_time(row.wrong_ns) if row.wrong else NOTHING,
                _difference(row.harm_ns),
                _difference(row.lost_ns),
                _difference(row.gained_ns),
            )
            for row in rows
        ],
    )
    lines = (
        "wrong: prefetched for a gate that did not choose it, with the time of these transfers. "
        "In makespan: what these took (harm), what "
        "perfect prediction would save (lost), what predicting saved over fetching when the gate "
        "has decided (gained)."
    )
    return Group(table, paragraph(lines, style="dim", space=True))


def _difference(value: int | None) -> str:
    if value is None:
        return NOTHING
    return f"-{human_time(-value)}" if value < 0 else human_time(value)


_WHOLE: Mapping[str, Tensor] = {}
"""No parts."""


def sweep(rows: Sequence[Row], fields: Sequence[str], hardware: Hardware) -> RenderableType:
    """One row per point: the varied fields, makespan, slowdown, stalls, peak of the device tier;
    the fastest is green, errors are below.
    """
    columns = varied_columns(rows, fields)
    listed = [_figures(row, hardware) for row in rows]
    names = ["budget_bytes", "makespan_ns", *known_in(listed, "interval"), "slowdown", "stalls"]
    table = table_of(
        "Sweep",
        [*columns, *names, "peak_bytes"],
        listed,
        left=len(columns),
        titles={c: "budget\nasked" if c == "budget" else _short(c) for c in columns}
        | {"peak_bytes": f"peak\n{hardware.device_tier}"},
        style=by_makespan(listed),
    )
    return Group(table, errors(rows))


def _figures(row: Row, hardware: Hardware) -> Row:
    """A row of a study with the columns that are made from others; of one that does not fit only
    what was asked.
    """
    if not row["feasible"]:
        return {
            **row,
            "makespan_ns": "does not fit" if row["budget_bytes"] else "error",
            "slowdown": None,
        }
    return {
        **row,
        **_interval(row),
        "stalls": time_or_nothing(
            sum(value for column, value in row.items() if column.endswith("_stall_ns"))
        ),
        "peak_bytes": row[f"{hardware.device_tier}_peak_bytes"],
    }


def varied_columns(rows: Sequence[Row], fields: Sequence[str]) -> list[str]:
    """The columns in which the points of a sweep differ: those of its fields, and the policy where
    there are several.
    """
    varied = [
        c
        for c in rows[0]
        if any(c.startswith(field) for field in fields) and c not in ("policy", "budget_bytes")
    ]
    return [*varied, *(["policy"] if len({row["policy"] for row in rows}) > 1 else [])]


def _interval(row: Row) -> Row:
    return {"interval": interval(row.get("makespan_low_ns"), row.get("makespan_high_ns"))}


def errors(rows: Sequence[Row]) -> Text:
    """Each error once, with the number of rows that have it."""
    return paragraph(
        *[
            f"{error}{f' ({count} rows)' if count > 1 else ''}"
            for error, count in Counter(
                str(row["error"]) for row in rows if row.get("error")
            ).items()
        ],
        style="red",
        space=True,
    )


def _short(column: str) -> str:
    """A column's title, broken if it is long."""
    title = column_title(column)
    return title.replace(".", ".\n") if len(title) > 14 else title


def frontier(rows: Sequence[Row], hardware: Hardware, verdict: str) -> RenderableType:
    """One row per budget, with those on the curve marked, and below it the ``verdict``, if any."""
    listed = [
        {
            **_figures(row, hardware),
            "step_cost": _price(row.get("cost")),
            "token_cost": _price(row.get("cost_per_million_tokens")),
            "on_curve": "*" if row["pareto"] else "" if row["feasible"] else None,
        }
        for row in rows
    ]
    names = ["budget_bytes", "peak_bytes", "makespan_ns", *known_in(listed, "interval")]
    names += ["slowdown", "stalls", *known_in(listed, "token_cost", "step_cost")[:1], "on_curve"]
    table = table_of(
        f"Peak memory against makespan (baseline {human_time(rows[0]['ideal_ns'])})",
        names,
        listed,
        left=0,
        titles={"peak_bytes": f"peak\n{hardware.device_tier}"},
        style=lambda row: "red" if not row["feasible"] else "green" if row["pareto"] else None,
    )
    return Group(table, paragraph(f"{verdict}.", style="bold")) if verdict else table


def _price(of: float | None) -> str | None:
    return None if of is None else f"{of:.4g}"


def fit(rows: Sequence[Row], verdict: str, found: bool) -> RenderableType:
    """One row per value tried, and below it the ``verdict``, if any."""
    name = next(iter(rows[0]))
    first, *others = name.split(" + ")
    listed = [{**row, **_interval(row), "within": "yes" if row["within"] else "no"} for row in rows]
    table = table_of(
        "Tried",
        [name, "within", "makespan_ns", *known_in(listed, "interval"), "slowdown", "why"],
        listed,
        titles={name: first + (f"\nand {len(others)} more" if others else ""), "why": "why not"},
        prose=("why",),
        style=lambda row: "green" if row["within"] == "yes" else None,
    )
    style = "bold" if found else "bold red"
    return Group(table, paragraph(f"{verdict}.", style=style)) if verdict else table


def blame(
    rows: Sequence[Row],
    count: int,
    by_cause: Mapping[tuple[str, str], int],
    prices: Sequence[str],
    verdict: str,
) -> RenderableType:
    """The longest stalls, stalls by cause and channel, and what more of each resource would
    save.
    """
    listed = [
        {
            "before": str(row["op"]) or "(the end)",
            "at_ns": row["start_ns"],
            "stall_ns": row["stall_ns"],
            "waits_for": str(row["tensor"] or row["cause"]),
            "on": str(row["channel"] or row["processor"] or NOTHING),
            "queued_behind": time_or_nothing(row["occupied_ns"]),
            "prevented_by": str(row["prevented_by"]),
        }
        for row in rows
    ]
    table = table_of(
        f"Stalls (the longest {len(rows)} of {count:,})",
        list(listed[0]) if listed else (),
        listed,
        titles={"queued_behind": "queued\nbehind"},
        prose=("prevented_by",),
    )
    of_causes = [
        {"cause": cause, "on": on or NOTHING, "time_ns": spent}
        for (cause, on), spent in by_cause.items()
    ]
    causes = table_of("Stalls by cause", ("cause", "on", "time_ns"), of_causes, left=2)
    parts: list[RenderableType] = [table, causes] if rows else []
    return Group(*parts, paragraph(*prices, space=True), paragraph(f"{verdict}.", style="bold"))


def diff(
    figures: Sequence[Row],
    tensors: Sequence[Row],
    ops: Sequence[Row],
    verdict: str,
    names: tuple[str, str],
    top: int,
    parts: Mapping[str, Tensor] = _WHOLE,
) -> RenderableType:
    """The figures, tensors and ops that differ, at most ``top`` of each; tensors that are
    ``parts``, by name, and alike are one row.
    """
    shown: list[RenderableType] = []
    if figures:
        columns = "figure", *names, "change"
        cells = [
            (
                column_title(name),
                cell(name, row["a"]),
                cell(name, row["b"]),
                _change(name, row["change"]),
            )
            for row in figures[:top]
            for name in [str(row["figure"])]
        ]
        title = f"Figures{_first(figures, top)}"
        shown.append(open_table(title, *columns, wraps=names, rows=cells))
    shown += [
        _sides(title, rows, top, left, parts)
        for title, rows, left in (("Tensors", tensors, 2), ("Ops", ops, 1))
        if rows
    ]
    return Group(*shown, paragraph(f"{verdict}.", style="bold"))


def _first(rows: Sequence[Row], top: int) -> str:
    return f" (the first {top} of {len(rows):,})" if len(rows) > top else ""


def _change(name: str, value: Any) -> str:
    return NOTHING if value is None else ("+" if value > 0 else "") + cell(name, value)


def _sides(
    title: str, listed: Sequence[Row], top: int, left: int, parts: Mapping[str, Tensor]
) -> Table:
    """Rows with columns of both sides: the short ones; where these are equal in some row, the cache
    ops as well; and else all.
    """
    few = {
        "tensor",
        "kind",
        "size_bytes",
        "op",
        *(f"{name}_{side}" for name in _SHOWN for side in "ab"),
    }
    every = list(listed[0])
    made = [
        (columns, _alike(listed, columns, parts))
        for columns in (
            [c for c in every if c in few],
            [c for c in every if c in few or c in _CACHE_OPS],
            every,
        )
    ]
    chosen, rows = next(
        (
            (columns, rows)
            for columns, rows in made
            if all(_differs(row, columns) for row in rows[:top])
        ),
        made[-1],
    )
    columns = sorted(chosen, key=_CACHE_OPS.__contains__)  # the longest last
    title += f"{_first(rows, top)}{_IN_ALL if len(rows) < len(listed) else ''}"
    titles = {column: _side_title(column) for column in columns}
    prose = [titles[column] for column in columns if column in _CACHE_OPS]
    table = open_table(title, *titles.values(), left=left, spare=("kind",), prose=prose)
    for row in rows[:top]:
        own = _own(
            *(row.get(column) for column in _CACHE_OPS), parts=parts if "op" in row else _WHOLE
        )
        named = {column: cell(_both(column), row[column]) for column in columns}
        table.add_row(*(own.get(column, text) for column, text in named.items()))
    return table


_IN_ALL = ". Of several parts: bytes and counts in all, times on average."


def _alike(
    rows: Sequence[Row], columns: Sequence[str], parts: Mapping[str, Tensor]
) -> Sequence[Row]:
    """The rows of tensors, of which those of parts that are alike in these columns, but for times,
    are one.
    """
    if "tensor" not in columns or not parts:
        return rows
    named = [_tensor(str(row["tensor"]), parts) for row in rows]
    says = [
        tuple([row[c] is None if _is_time(c) else row[c] for c in columns if c != "tensor"])
        for row in rows
    ]
    return [
        _of_all(row.name, [rows[k] for k in row.places], columns)
        for row in folded(zip(named, says, strict=True))
    ]


def _of_all(name: str, rows: Sequence[Row], columns: Sequence[str]) -> Row:
    """A row for those of several parts: the sums of bytes and counts, and the means of times."""
    if len(rows) == 1:
        return rows[0]
    whole = {column: rows[0][column] for column in columns}
    for column, value in whole.items():
        if isinstance(value, int):
            total = sum([row[column] for row in rows])
            whole[column] = round(total / len(rows)) if _is_time(column) else total
    return {**whole, "tensor": name}


def _is_time(column: str) -> bool:
    return _both(column).endswith("_ns")


def _tensor(name: str, parts: Mapping[str, Tensor]) -> Tensor:
    return parts.get(name) or Tensor(name, 0)


def _both(column: str) -> str:
    """A column's name without its side."""
    return column.removesuffix("_a").removesuffix("_b")


def _differs(row: Row, columns: Sequence[str]) -> bool:
    return any(
        row[column] != row.get(f"{column[:-1]}b") for column in columns if column.endswith("_a")
    )


def _own(*sides: Any, parts: Mapping[str, Tensor]) -> dict[str, str]:
    """The first cache ops that only one side has, those of parts together, and how many more these
    are.
    """
    of = [Counter(str(side).split(", ") if side else ()) for side in sides]
    texts = {}
    for column, own, other in zip(_CACHE_OPS, of, reversed(of), strict=True):
        listed = [op.partition(" ") for op in ((own - other) or own).elements()]
        rows = folded((_tensor(name, parts), (op + space,)) for op, space, name in listed)
        left = tensors_of(rows[_MOST:])
        more = f" and {left:,} more" if left else ""
        texts[column] = (
            ", ".join([f"{row.says[0]}{row.name}" for row in rows[:_MOST]]) + more
        ) or NOTHING
    return texts


_SHOWN = (
    "moved_bytes",
    "copied_bytes",
    "resident_ns",
    "start_ns",
    "stall_ns",
    "prefetches",
    "stores",
)
"""The columns of tensors and ops that are shown if they differ; the JSON has all of them."""
_CACHE_OPS = ("cache_ops_a", "cache_ops_b")
_MOST = 3
"""Cache ops that a row names."""


def _side_title(column: str) -> str:
    name, _, side = column.rpartition("_")
    return f"{column_title(name)}\n{side}" if side in ("a", "b") else column_title(column)


def stages(result: StagesResult, plans: Sequence[Plan]) -> RenderableType:
    """A row for each stage of the result of ``plans``: its times, its peak in each tier, and how
    long it waits for others.
    """
    whole = result.whole
    tiers = [tier for tier, size in whole.peak_bytes.items() if size]
    columns = (
        "busy",
        "bubble",
        "of the\nstep",
        "dependency\nstall",
        "transfer\nstall",
        "capacity\nstall",
        *[f"peak\n{tier}" for tier in tiers],
    )
    took = f"; the step takes {human_time(result.step_ns)}" if result.step_ns is not None else ""
    table = open_table(
        f"{counted(len(plans), 'stage')} of {_model(plans)} on {whole.hardware}{took}",
        "stage",
        "ends at",
        *columns,
    )
    for stage, (one, bubble) in enumerate(zip(result.stages, result.bubble_ns, strict=True)):
        times = [NOTHING] * 7
        if result.feasible and one.makespan_ns is not None:
            stalls = [
                time_or_nothing(one.stall_ns[cause])
                for cause in ("dependency", "transfer", "capacity")
            ]
            times = [
                human_time(one.makespan_ns),
                time_or_nothing(one.busy_ns),
                time_or_nothing(bubble),
                percent(bubble, result.step_ns or 0),
                *stalls,
            ]
        peaks = [
            human_size(one.peak_bytes[tier]) if one.peak_bytes[tier] else NOTHING for tier in tiers
        ]
        table.add_row(str(stage), *times, *peaks, style=None if one.feasible else "red")
    policy = printable(plans[0].policy)
    said = [
        f"{policy} decides while the stages run."
        if plans[0].runtime is not None
        else f"Planned by {policy}, each stage alone: the plans know nothing of the waits for "
        "other stages.",
        "The bubble is what other stages cause of the dependency stall, and of the time from the "
        "end of the stage to that of the step.",
    ]
    if result.bubble is not None:
        said[1] += f" Here it is {percent(result.bubble, 1)} of the time of all stages."
    if not any(op.message for plan in plans for op in plan.graph.ops):
        said.append("No op of these workloads has a message, so no stage waits for another one.")
    said += [sentence(line) for line in result.notes]
    return Group(table, *[paragraph(line) for line in said], failures([whole]))


def _model(plans: Sequence[Plan]) -> str:
    """The model of the stages; for stages of somebody's own the names of the first and the last."""
    names = list(
        dict.fromkeys(
            [plan.graph.name.removesuffix(f":stage={stage}") for stage, plan in enumerate(plans)]
        )
    )
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def stages_to_dict(result: StagesResult) -> dict[str, Any]:
    """The figures as ``hosim pipeline --json`` prints them; times are null where some stage does
    not fit.
    """
    whole = result.whole
    return {
        "format": "hosim.stages/1",
        "hardware": whole.hardware,
        "feasible": result.feasible,
        "error": result.error,
        "step_ns": result.step_ns,
        "bubble": result.bubble,
        "peak_bytes": dict(whole.peak_bytes),
        "stages": list(result.rows()),
        "notes": result.notes,
    }

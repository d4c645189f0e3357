"""The reason why what was varied changes nothing: studies whose rows all take the same time, by
what their replays read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hosim.engine import resident_step
from hosim.plain_text import counted
from hosim.study.asked import Settings, Value
from hosim.study.rows_of_answers import PEAK
from hosim.study.runs import BUDGET, HARDWARE, POLICY, Question, rate_of
from hosim.units import human_size, human_time

Rows = Sequence[Mapping[str, Any]]


def same_everywhere(
    question: Question, points: Sequence[Settings], rows: Sequence[Mapping[str, Value]]
) -> str | None:
    """Return the reason why every row has the same makespan, in a sentence: which of the varied
    fields no replay read. ``None`` where there is no reason.
    """
    makespans: set[Any] = {row["makespan_ns"] for row in rows}
    if len(rows) < 2 or len(makespans) > 1 or None in makespans:
        return None
    fields = dict.fromkeys(field for point in points for field in point)
    varied = [
        field
        for field in fields
        if len({(type(point.get(field)), point.get(field)) for point in points}) > 1
    ]
    found = [_unread(question, field.removeprefix(HARDWARE), rows) for field in varied]
    reasons = list(dict.fromkeys([reason for reason in found if reason is not None]))
    moved = any(
        [
            row.get(f"{channel.name}_moved_bytes")
            for channel in question.hardware.channels
            for row in rows
        ]
    )
    fits = None if moved else _fits(question, rows)
    if not reasons and fits is None:
        return None
    if fits is not None and not all(_reads_times(question, field) for field in varied):
        reasons = [*(reason for reason in reasons if reason != fits), fits]
    return f"every row takes {human_time(makespans.pop())}: {'; '.join(reasons)}"


def _unread(question: Question, field: str, rows: Rows) -> str | None:
    """Return the reason that no replay read a field, or none waited for what it says; ``None`` if
    it may have.
    """
    hardware = question.hardware
    first, _, rest = field.partition(".")
    name, _, what = rest.partition(".")
    if field == BUDGET or (
        first == "tiers" and name == hardware.device_tier and what == "capacity"
    ):
        return _fits(question, rows)
    if _reads_times(question, field):
        return _given(question, rate_of(field, hardware) or "")
    if first == "channels":
        return _unused([name], name, question.graph.main_stream, rows)
    if first == "fabrics":
        over = [
            channel
            for fabric in hardware.fabrics
            if fabric.name == name
            for channel in fabric.channels
        ]
        collectives = any(
            [fabric.collectives for fabric in hardware.fabrics if fabric.name == name]
        )
        return (
            None
            if collectives
            else _unused(over, f"a channel of {name}", question.graph.main_stream, rows)
        )
    if first == "tiers" and not any([row.get(f"{name}{PEAK}") for row in rows]):
        return f"no tensor was in {name}"
    return None


def _reads_times(question: Question, field: str) -> bool:
    """Return whether a field, of a profile, says how fast ops are."""
    return (
        not field.startswith(POLICY)
        and rate_of(field.removeprefix(HARDWARE), question.hardware) is not None
    )


def _given(question: Question, processor: str) -> str | None:
    """That the times of all ops of a processor are given, or that it has none."""
    ops = [op for op in question.graph.ops if op.processor == processor]
    tier = processor or question.hardware.device_tier
    if not ops:
        return f"no op runs on {tier}"
    if any([op.duration_ns is None for op in ops]):
        return None
    return (
        f"the times of the {counted(len(ops), 'op')} on {tier} are given, so they read no "
        "compute rate and no bandwidth of it"
    )


def _unused(channels: Sequence[str], of: str, stream: str, rows: Rows) -> str | None:
    """That no transfer used these channels, or that nothing waited for those that did."""
    if not any([row.get(f"{channel}_moved_bytes") for row in rows for channel in channels]):
        return f"no transfer used {of}"
    waits = any([row.get(f"{channel}_exposed_ns") for row in rows for channel in channels])
    return (
        None
        if waits or any([row["drain_ns"] for row in rows])
        else f"no op of {stream} waited for {of}"
    )


def _fits(question: Question, rows: Rows) -> str | None:
    """That everything fits in every row."""
    budgets = [row["budget_bytes"] for row in rows]
    peak = resident_step(question.graph, question.hardware).peak_bytes
    if None in budgets or min(budgets) < peak:
        return None
    return (
        f"everything fits within {human_size(min(budgets))} (the resident peak is "
        f"{human_size(peak)}), so that nothing has to move; give a "
        "smaller budget, such as -b 75%"
    )

"""Notes for the reader of a study's rows: the reason why varied fields change nothing, and a
warning if rows differ in more than these fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hosim.analysis.costmodel import copies_compete
from hosim.base.groups import grouped
from hosim.engine import resident_step
from hosim.errors import HosimError
from hosim.hardware import Hardware
from hosim.plain_text import counted
from hosim.study.asked import Settings, Value
from hosim.study.rows_of_answers import FEASIBLE, PEAK
from hosim.study.runs import BUDGET, HARDWARE, POLICY, Question, rate_of
from hosim.units import human_rate, human_size, human_time

Rows = Sequence[Mapping[str, Any]]


def notes_on_rows(
    question: Question, points: Sequence[Settings], rows: Sequence[Mapping[str, Value]]
) -> list[str]:
    """Return a sentence with the reason why every row has the same makespan, and one on rows that
    place tensors in other tiers than the rest; each only if it applies.
    """
    said = [_same_everywhere(question, points, rows), _placed_otherwise(question, points, rows)]
    return [note for note in said if note is not None]


def _placed_otherwise(question: Question, points: Sequence[Settings], rows: Rows) -> str | None:
    """Return a sentence if the rows compare different placements, because a policy chooses the
    lower tiers for each row. ``None`` if all rows that offload use the same tiers.
    """
    lower = [tier.name for tier in question.hardware.tiers]
    lower.remove(question.hardware.device_tier)
    placed = grouped(
        (tuple([tier for tier in lower if row.get(f"{tier}{PEAK}")]), point)
        for point, row in zip(points, rows, strict=True)
        if row.get(FEASIBLE)
    )
    found = {held: those for held, those in placed.items() if held}
    if len(found) < 2:
        return None
    said = [
        f"in {' and '.join(held)} in {counted(len(those), 'row')} "
        f"({'at' if len(those) == 1 else 'first at'} {_settings(those[0])})"
        for held, those in sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]
    choice = question.choice
    free = "placement" in choice.policy.settings and "placement" not in choice.parameters
    return (
        f"the rows compare different placements, as lower tiers are chosen for each row: tensors "
        f"lie {', '.join(said)}"
    ) + ("; the policy's placement=nearest fixes the order of the tiers" if free else "")


def _settings(point: Settings) -> str:
    return ", ".join([f"{field}={value}" for field, value in point.items()])


def _same_everywhere(
    question: Question, points: Sequence[Settings], rows: Sequence[Mapping[str, Value]]
) -> str | None:
    """Return a sentence on the varied fields that no replay read, if that is why every row has the
    same makespan; else ``None``.
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
    """Return the reason why no replay read a field or waited for it; ``None`` if one may have."""
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
        if any([fabric.collectives for fabric in hardware.fabrics if fabric.name == name]):
            return None
        return _unused(over, f"a channel of {name}", question.graph.main_stream, rows)
    if first == "tiers" and not any([row.get(f"{name}{PEAK}") for row in rows]):
        return f"no tensor was in {name}"
    return None


def _reads_times(question: Question, field: str) -> bool:
    """Return whether a field of a profile sets the speed of ops."""
    return (
        not field.startswith(POLICY)
        and rate_of(field.removeprefix(HARDWARE), question.hardware) is not None
    )


def _given(question: Question, processor: str) -> str | None:
    """Return a text if a processor has no ops, or only ops with given times; else ``None``."""
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
    """Return a text if no transfer used these channels or none was waited for, else ``None``."""
    if not any([row.get(f"{channel}_moved_bytes") for row in rows for channel in channels]):
        return f"no transfer used {of}"
    exposed = any([row.get(f"{channel}_exposed_ns") for row in rows for channel in channels])
    if exposed or any([row["drain_ns"] for row in rows]):
        return None
    return f"no op of {stream} waited for {of}"


def _fits(question: Question, rows: Rows) -> str | None:
    """Return a text if everything fits in every row, else ``None``."""
    budgets = [row["budget_bytes"] for row in rows]
    peak = resident_step(question.graph, question.hardware).peak_bytes
    if None in budgets or min(budgets) < peak:
        return None
    return (
        f"everything fits within {human_size(min(budgets))} (the resident peak is "
        f"{human_size(peak)}), so that nothing has to move; give a "
        "smaller budget, such as -b 75%"
    )


# -- bandwidths that others bound
# --------------------------------------------------------------------------------------------------


def capped(question: Question, points: Sequence[Settings]) -> list[str]:
    """Return a line for each channel whose varied bandwidth exceeds that of a memory or fabric at
    some point, with the field to vary with it.

    Memories limit transfers if some op has no measured duration (rule 13). Fabrics were raised with
    the channel, unless the point also sets their bandwidth, or they are narrower in the profile.
    """
    competing = copies_compete(question.graph)
    found: dict[tuple[str, str], int] = {}
    for point in points:
        hardware = {
            f: value
            for f, value in point.items()
            if f.removeprefix(HARDWARE).startswith(("channels.", "fabrics.", "tiers."))
        }
        varied = {
            field.split(".")[-2]
            for field in hardware
            if "channels." in field and field.endswith(".bandwidth")
        }
        try:
            machine = question.with_settings(hardware).hardware if varied else question.hardware
        except HosimError:  # the point's row has the error
            continue
        found |= {
            (channel, bound): carries
            for channel, bound, carries in _above(machine, competing)
            if channel in varied
        }
    return [
        f"channels.{channel}.bandwidth exceeds that of {bound}, {human_rate(carries)}: "
        f"channels.{channel}.bandwidth+{bound}.bandwidth=... varies both"
        for (channel, bound), carries in found.items()
    ]


def _above(hardware: Hardware, competing: bool) -> Iterator[tuple[str, str, int]]:
    """Yield (channel, limiting fabric or memory, its bandwidth) for each channel that is faster
    than one of its fabrics or memories.
    """
    for channel in hardware.channels:
        bounds = [
            (f"fabrics.{f.name}", f.bandwidth_bytes_per_s)
            for f in hardware.fabrics
            if channel.name in f.channels
        ]
        if competing:
            ends = channel.source, channel.destination
            bounds += [
                (f"tiers.{t.name}", t.bandwidth_bytes_per_s)
                for t in hardware.tiers
                if t.name in ends
            ]
        for bound, carries in bounds:
            if channel.bandwidth_bytes_per_s > carries:
                yield channel.name, bound, carries

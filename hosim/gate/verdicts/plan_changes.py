"""The differences between a plan and the baseline's: what it moves, and when it keeps the tensors
that are held at the peak.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hosim.gate.records import Item, Listing, Measured, Record, fold
from hosim.gate.verdicts.pairs import paired
from hosim.units import human_size


@dataclass(frozen=True, slots=True)
class PlanChange:
    """One tensor, or several whose names differ only in numbers; ``by`` (bytes) is the sort key."""

    what: str
    before: str
    now: str
    by: int


def plan_changes(before: Record, now: Measured) -> list[PlanChange]:
    """The changes, the largest first; none if both plans are the same.

    A baseline file has only the largest items of a list: an item that may have been among the
    others does not count as a change.
    """
    assert now.record is not None
    if before.computed == now.record.computed:
        return []
    found: dict[tuple[str, str, str, str], dict[str, int]] = defaultdict(dict)
    for channel in sorted({*before.moved, *now.record.moved}):
        old, new = before.moved.get(channel, Listing()), now.record.moved.get(channel, Listing())
        for was, item in paired(old, new, now.tensors):
            if _value(was) != _value(item):
                one = item or was
                assert one is not None
                found[f"over {channel}", one.label, _moved(was), _moved(item)][one.name] = abs(
                    _value(item) - _value(was)
                )
    tier = now.record.machine.get("device_tier", "")
    peak, was_peak = now.record.peaks.get(tier), before.peaks.get(tier)
    if peak is not None and was_peak is not None:
        for was, item in paired(was_peak.residents, peak.residents, now.tensors):
            if (
                was is not None
                and item is not None
                and (was.since, was.until) != (item.since, item.until)
            ):
                found["at the peak", item.label, _span(was), _span(item)][item.name] = item.value
    rows = []
    for (where, label, old_text, new_text), by_name in found.items():
        for text, count in fold(by_name):
            several = f", {count} tensors" if count > 1 else ""
            share = sum(by_name.values()) * count // len(by_name)
            rows.append(
                PlanChange(
                    f"{text} ({label.replace('_', ' ')}{several}), {where}",
                    old_text,
                    new_text,
                    share,
                )
            )
    return sorted(rows, key=lambda row: (-row.by, row.what, row.before, row.now))


def _value(item: Item | None) -> int:
    return item.value if item is not None else 0


def _moved(item: Item | None) -> str:
    return f"{human_size(item.value)} moved" if item is not None else "not moved"


def _span(item: Item) -> str:
    return f"from {item.since or 'the start'} to {item.until or 'the end'}"

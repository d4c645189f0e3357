"""Why a metric is worse: the difference between a baseline and what was measured, in at most ten lines, the largest first.

The baseline's side is known only as far as its file goes. Names that only one side knows are matched by kind and size, so that a renaming
alone is not shown as a change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hosim.gate.judged_metrics import MAKESPAN, MOVED, PEAK, STALL, MetricVerdict, family
from hosim.gate.records import Item, Listing, Measured, PeakRecord, Record, Stay, fold, relative
from hosim.result import WORKSPACE
from hosim.units import human_size, human_time

LINES = 10
"""The most lines of an explanation."""

_NUMBER = re.compile(r"[0-9]+")
_POSITION = re.compile(r" \(#\d+\)")

_AWAITED = {"dependency": "other ops", "transfer": "a transfer", "capacity": "room", "runtime": "the runtime"}


@dataclass(frozen=True, slots=True)
class _Change:
    """A difference of ``by`` in words; ``name`` is the item's name, if it is about one item."""

    by: int
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Part:
    """The explanation of one metric: its first line, and the changes, in units that ``say`` formats."""

    head: str
    changes: list[_Change]
    say: Callable[[int], str]


def explain(before: Record, now: Measured, worse: Sequence[MetricVerdict]) -> list[str]:
    """What changed in the metrics that are worse: peaks first, then time, then traffic. At most :data:`LINES` lines."""
    assert now.record is not None
    if not before.peaks:
        return _without_listings(before, now.record, worse)
    order = (PEAK, MAKESPAN, STALL, MOVED)
    # several stalls that are worse, or the makespan and a stall, may have the same items: list them once
    told: dict[str, MetricVerdict] = {}
    for metric in sorted(worse, key=lambda m: (order.index(family(m.name)), -m.change, m.name)):
        told.setdefault(metric.name if family(metric.name) in (PEAK, MOVED) else "time", metric)
    causes = _causes(before, now.record)
    parts = [_part(before, now, metric) for metric in told.values()]
    room = LINES - len(causes)
    lines = list(causes)
    for i, part in enumerate(parts):
        if room < 1:
            break
        share = max(room // (len(parts) - i), min(room, 2))
        listed = [part.head, *_cut(part, share - 1)]
        lines += listed
        room -= len(listed)
    return lines


def _without_listings(before: Record, now: Record, worse: Sequence[MetricVerdict]) -> list[str]:
    """The explanation for a baseline of one line: what is worse, what differs, and what the peaks consist of now."""
    another = [key for key in sorted(before.computed) if before.computed[key] != now.computed.get(key)]
    head = f"changed: {', '.join(another)}" if another else "graph, machine and plan are the same: the replay itself has changed"
    lines = [head]
    for metric in worse:
        lines.append(metric.line())
        kind, _, tier = metric.name.partition(".")
        if kind == PEAK and tier in now.peaks:
            held = sorted(now.peaks[tier].composition.items(), key=lambda pair: (-pair[1], pair[0]))
            kinds = [f"{name.replace('_', ' ')} {human_size(b)}" for name, b in held]
            lines.append(f"{tier} holds at its peak: {', '.join(kinds)}")
    return lines[:LINES]


def _part(before: Record, now: Measured, metric: MetricVerdict) -> _Part:
    assert now.record is not None
    kind, _, of = metric.name.partition(".")
    if kind == PEAK:
        peak = now.record.peaks[of]
        at = f" at {_op(peak.op, now)}" if peak.op is not None else ""
        changes = _residents(before.peaks.get(of), peak, of, now)
        return _Part(f"{metric.line()}{at}", changes, human_size)
    if kind == MOVED:
        changes = _moved(of, before.moved.get(of, Listing()), now.record.moved.get(of, Listing()), now)
        return _Part(metric.line(), changes, human_size)
    return _Part(metric.line(), _times(before, now), human_time)


def changed_question(before: Record, now: Record) -> list[str]:
    """What was asked otherwise, and changes of the machine, in at most three lines."""
    changed = [
        f"{what} {key} is {new.get(key, 'not there')}, was {old.get(key, 'not there')}"
        for what, old, new in (("case:", before.asked, now.asked), ("machine:", before.machine, now.machine))
        for key in sorted({*old, *new})
        # the budget in bytes is of interest only if it was asked for as a share
        if old.get(key) != new.get(key) and not (key == "budget" and old is before.machine and before.asked.get(key) != now.asked.get(key))
    ]
    if len(changed) > 3:
        changed = [*changed[:2], f"machine: {len(changed) - 2} more changes"]
    return changed


def _causes(before: Record, now: Record) -> list[str]:
    """Changes in the question, or what a baseline says about the plan where there are none."""
    changed = changed_question(before, now)
    if changed or before.computed == now.computed:
        return changed
    same_graph = before.fingerprints.get("graph") == now.fingerprints.get("graph")
    return ["the workload is the same, but its plan has changed"] if same_graph else []


def _cut(part: _Part, room: int) -> list[str]:
    """The changes in at most ``room`` lines."""
    changes = _together(part)
    texts = [change.text for change in changes]
    if len(texts) <= room or not room:
        return texts[:room]
    left = changes[room - 1 :]
    return [*texts[: room - 1], f"and {len(left)} more: {_signed(sum(change.by for change in left), part.say)}"]


def _together(part: _Part) -> list[_Change]:
    """The changes, the largest first, with equal changes of several layers as one."""
    alike: dict[tuple[int, str, str], list[_Change]] = {}
    changes: list[_Change] = []
    for change in sorted(part.changes, key=lambda change: -change.by):
        if change.name:
            own = _NUMBER.sub("{}", change.name, count=1)
            parts = _POSITION.sub("", change.text).split("`")
            parts[1::2] = [own if name == change.name else relative(name, change.name) for name in parts[1::2]]
            alike.setdefault((change.by, own, "`".join(parts)), []).append(change)
        else:
            changes.append(change)
    for (by, own, text), group in alike.items():
        folded = fold(change.name for change in group)
        if len(group) == 1 or len(folded) > 1:  # numbers such as 007 stand for themselves
            changes += group
            continue
        told = f"{len(group)} x {text.replace(f'`{own}`', f'`{folded[0][0]}`')}"
        changes.append(_Change(by * len(group), f"{told}, together {part.say(by * len(group))}"))
    return sorted(changes, key=lambda change: -change.by)


def _residents(before: PeakRecord | None, now: PeakRecord, tier: str, measured: Measured) -> list[_Change]:
    old = before.residents if before is not None else Listing()
    away = {item.name for item in before.away.items} if before is not None else set()
    device = measured.record is not None and measured.record.machine.get("device_tier") == tier
    moved = before is not None and before.op != now.op
    other_name = renamed(old, now.residents, measured, away)
    was = {(item.label == WORKSPACE, item.name): item for item in old.items}
    changes: list[_Change] = []
    longer: list[_Change] = []
    for item in now.residents.items:
        key = (item.label == WORKSPACE, item.name)
        if key in was:
            by = item.value - was[key].value
            if by > 0:
                grown = f"{_thing(item)} has {human_size(item.value)}, had {human_size(was[key].value)}"
                changes.append(_Change(by, f"{grown}: {_signed(by)} at the peak", item.name))
            elif moved and (item.since, item.until) != (was[key].since, was[key].until):
                longer.append(_Change(item.value, f"{_thing(item)} now stays resident {_other_span(item, was[key], measured)}", item.name))
        elif item.value <= old.least:
            continue  # the baseline may have left it out
        elif not other_name[item.label, item.value]:
            arrival = _arrival(item, tier, away, measured) if device else f"{_thing(item)} lies in {tier}"
            changes.append(_Change(item.value, f"{arrival}: {_signed(item.value)} at the peak", item.name))
        else:
            other_name[item.label, item.value] -= 1
    # a tensor that is held for longer may have moved the peak, but its bytes are no difference
    changes = longer + changes
    there = {(item.label == WORKSPACE, item.name) for item in now.residents.items}
    gone = [item for item in old.items if (item.label == WORKSPACE, item.name) not in there]
    balance = sum(item.value for item in gone)
    if gone and changes:
        first = max(gone, key=lambda item: (item.value, item.name))
        rest = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        changes.append(_Change(-balance, f"no longer held at the peak: {_thing(first)}{rest}: {_signed(-balance)}"))
    return changes


def renamed(old: Listing, new: Listing, measured: Measured, away: set[str] | frozenset[str] = frozenset()) -> Counter[tuple[str, int]]:
    """The number of renamed items by label and size: lost from the graph on one side, unknown to the baseline on the other."""
    known = {item.name for item in old.items} | away
    lost = Counter((i.label, i.value) for i in old.items if i.name not in measured.tensors and i.name not in measured.positions)
    unknown = Counter((i.label, i.value) for i in new.items if i.name not in known)
    return lost & unknown


def _arrival(item: Item, tier: str, away: set[str], measured: Measured) -> str:
    """How an item came to be held at the peak."""
    if item.label == WORKSPACE:
        return f"workspace of {_op(item.name, measured)} is held"
    stay = measured.stays.get((tier, item.name))
    thing = _thing(item)
    if stay is None:
        return f"{thing} is on its way through {tier}"
    if stay.fetched:
        when = f"after {_op(stay.fetched_after, measured)}" if stay.fetched_after is not None else "from the start"
        use = f", for {_op(stay.until, measured)}" if stay.until is not None else ""
        return f"{thing} is fetched earlier, {when}{use}"
    now = "now stays" if item.name in away else "is"
    return f"{thing} {now} resident {_span(stay, measured)}"


def _other_span(item: Item, was: Item, measured: Measured) -> str:
    """Since and until when an item is resident, if that has changed."""
    parts = []
    if item.since != was.since:
        parts.append(f"since {_op(item.since, measured) if item.since else 'the start'}, was since `{was.since or 'the start'}`")
    if item.until != was.until:
        parts.append(f"until {_op(item.until, measured) if item.until else 'the end'}, was until `{was.until or 'the end'}`")
    return ", ".join(parts) + f": {human_size(item.value)}"


def _span(stay: Stay, measured: Measured) -> str:
    if stay.used is not None and stay.until is not None:
        return f"between {_op(stay.used, measured)} and {_op(stay.until, measured)}"
    if stay.until is not None:
        return f"until {_op(stay.until, measured)}"
    return f"from {_op(stay.used, measured)} on" if stay.used is not None else "throughout"


def _moved(channel: str, old: Listing, new: Listing, measured: Measured) -> list[_Change]:
    def say(item: Item, was: int | None, by: int) -> str:
        how = f"moves {human_size(item.value)}" + (f", moved {human_size(was)}" if was else "")
        return f"{_thing(item)} {how} over {channel}: {_signed(by)}"

    return _grown(old, new, measured, say)


def _times(before: Record, now: Measured) -> list[_Change]:
    """Ops that take longer, and longer waits with the tensor waited for."""
    assert now.record is not None

    def longer(item: Item, was: int | None, by: int) -> str:
        how = f"takes {human_time(item.value)}" + (f", took {human_time(was)}" if was is not None else "")
        return f"{_op(item.name, now)} {how}: {_signed(by, human_time)}"

    def waits(item: Item, was: int | None, by: int) -> str:
        tensor = now.waits_for.get(item.name) if item.label == "transfer" else None
        what = f"a transfer of `{tensor}`" if tensor is not None else _AWAITED[item.label]
        how = f"waits {human_time(item.value)} for {what}" + (f", waited {human_time(was)}" if was else "")
        return f"{_op(item.name, now)} {how}: {_signed(by, human_time)}"

    return _grown(before.durations, now.record.durations, now, longer) + _grown(before.stalls, now.record.stalls, now, waits)


def _grown(old: Listing, new: Listing, measured: Measured, say: Callable[[Item, int | None, int], str]) -> list[_Change]:
    """Items that are new or larger than before. An item that the baseline may have left out as too small does not count as new."""
    was = {(item.label, item.name): item.value for item in old.items}
    other_name = renamed(old, new, measured)
    changes = []
    for item in new.items:
        value = was.get((item.label, item.name))
        if value is None and other_name[item.label, item.value]:
            other_name[item.label, item.value] -= 1
            continue
        by = item.value - (old.least if value is None else value)
        if by > 0:
            changes.append(_Change(by, say(item, value, by), item.name))
    return changes


def _thing(item: Item) -> str:
    return f"workspace of `{item.name}`" if item.label == WORKSPACE else f"`{item.name}` ({item.label.replace('_', ' ')})"


def _op(name: str | None, measured: Measured) -> str:
    position = measured.positions.get(name or "")
    return f"op `{name}`" + (f" (#{position})" if position is not None else "")


def _signed(value: int, say: Callable[[int], str] = human_size) -> str:
    text = say(value)
    return text if value < 0 else f"+{text}"

"""The causes of a worse metric, in at most ten lines: what was changed, in the question and in the
graph, then what follows from it.

The baseline's side is known only as far as its file goes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hosim.gate.judged_metrics import MAKESPAN, MOVED, PEAK, STALL, MetricVerdict, family
from hosim.gate.records import Item, Listing, Measured, PeakRecord, Record, Stay, role_of
from hosim.gate.verdicts.changes import Change, in_lines, op_named, signed, thing, was_named
from hosim.gate.verdicts.graph_changes import graph_changes
from hosim.gate.verdicts.pairs import Pair, paired
from hosim.result import WORKSPACE
from hosim.units import human_size, human_time

LINES = 10
"""The most lines of an explanation."""

_OF_GRAPH = 4
"""The most of them that say what was changed in the graph."""

_AWAITED = {
    "dependency": "other ops",
    "transfer": "a transfer",
    "capacity": "room",
    "runtime": "the runtime",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """The explanation of one metric: its first line, and the changes, in units that ``say``
    formats.
    """

    head: str
    changes: list[Change]
    say: Callable[[int], str]


def explain(before: Record, now: Measured, worse: Sequence[MetricVerdict]) -> list[str]:
    """Return the changes, then the metrics that are worse: peaks first, then time, then traffic. At
    most :data:`LINES` lines.
    """
    assert now.record is not None
    if not before.peaks:
        return _without_listings(before, now.record, worse)
    order = (PEAK, MAKESPAN, STALL, MOVED)
    # several stalls that are worse, or the makespan and a stall, may have the same items: list them
    # once
    told: dict[str, MetricVerdict] = {}
    for metric in sorted(worse, key=lambda m: (order.index(family(m.name)), -m.change, m.name)):
        told.setdefault(metric.name if family(metric.name) in (PEAK, MOVED) else "time", metric)
    causes = _causes(before, now)
    parts = [_part(before, now, metric) for metric in told.values()]
    room = LINES - len(causes)
    lines = list(causes)
    for i, part in enumerate(parts):
        if room < 1:
            break
        share = max(room // (len(parts) - i), min(room, 2))
        listed = [part.head, *in_lines(part.changes, share - 1, part.say)]
        lines += listed
        room -= len(listed)
    return lines


def _without_listings(before: Record, now: Record, worse: Sequence[MetricVerdict]) -> list[str]:
    """The explanation for a baseline of one line: what is worse, what differs, and what the peaks
    consist of now.
    """
    another = [
        key for key in sorted(before.computed) if before.computed[key] != now.computed.get(key)
    ]
    lines = [
        f"changed: {', '.join(another)}"
        if another
        else "graph, machine and plan are the same: the replay itself has changed"
    ]
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
        at = f" at {op_named(peak.op, now)}" if peak.op is not None else ""
        changes = _residents(
            before.peaks.get(of), peak, of, now, {item.name for item in before.graph.tensors.items}
        )
        return _Part(f"{metric.line()}{at}", changes, human_size)
    if kind == MOVED:
        changes = _moved(
            of, before.moved.get(of, Listing()), now.record.moved.get(of, Listing()), now
        )
        return _Part(metric.line(), changes, human_size)
    return _Part(metric.line(), _times(before, now), human_time)


def changed_question(before: Record, now: Record) -> list[str]:
    """Return the changes of the question and of the machine, in at most three lines."""
    follows = before.asked.get("budget") != now.asked.get("budget") or _another_graph(before, now)
    changed = [
        f"{what} {key} is {new.get(key, 'not there')}, was {old.get(key, 'not there')}"
        for what, old, new in (
            ("case:", *_told_apart(before.asked, now.asked)),
            ("machine:", before.machine, now.machine),
        )
        for key in sorted({*old, *new})
        # the budget in bytes follows from what was asked for, and as a share from the graph, too
        if old.get(key) != new.get(key)
        and not (key == "budget" and old is before.machine and follows)
    ]
    if len(changed) > 3:
        changed = [*changed[:2], f"machine: {len(changed) - 2} more changes"]
    return changed


def _told_apart(
    before: Mapping[str, str], now: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Two questions in which the options of one model or policy, as in
    ``gpt2:phase=decode:batch=8``, are answers of their own.
    """
    old, new = dict(before), dict(now)
    for key in ("workload", "policy"):
        (name, *options), (other, *others) = (
            side.get(key, "").split(":") for side in (before, now)
        )
        if (
            name == other
            and options != others
            and all("=" in option for option in (*options, *others))
        ):
            for side, listed in ((old, options), (new, others)):
                del side[key]
                side |= {
                    f"{key} {option.partition('=')[0]}": option.partition("=")[2]
                    for option in listed
                }
    return old, new


def _another_graph(before: Record, now: Record) -> bool:
    return before.fingerprints.get("graph") != now.fingerprints.get("graph")


def _causes(before: Record, now: Measured) -> list[str]:
    """Changes in the question and in the graph, or what a baseline says about the plan where there
    are none.
    """
    assert now.record is not None
    changed = edits(before, now)
    if before.computed == now.record.computed or _another_graph(before, now.record):
        return changed
    return changed or ["the workload is the same, but its plan has changed"]


def edits(before: Record, now: Measured) -> list[str]:
    """Return the changes in the question and in the graph, of a case that does not fit, too."""
    record = now.record or now.wanted
    if record is None:
        return []
    changed = changed_question(before, record)
    if not _another_graph(before, record):
        return changed
    return changed + in_lines(
        graph_changes(before.graph, record.graph, now),
        max(_OF_GRAPH - len(changed), 2),
        of=" changes of the graph",
    )


def _residents(
    before: PeakRecord | None, now: PeakRecord, tier: str, measured: Measured, known: set[str]
) -> list[Change]:
    old = before.residents if before is not None else Listing()
    away = {item.name for item in before.away.items} if before is not None else set()
    device = measured.record is not None and measured.record.machine.get("device_tier") == tier
    pairs = paired(old, now.residents, _names(measured), away | known)
    longer = _kept_longer(pairs, measured) if before is not None and before.op != now.op else {}
    instead = {item for _, item in longer.values() if item is not None}
    changes: list[Change] = []
    gone: list[Item] = []
    for was, item in pairs:
        if item is None:
            assert was is not None
            gone.append(was)
        elif item in instead:
            continue
        elif was is None:
            arrival = (
                _arrival(item, tier, away, measured) if device else f"{thing(item)} lies in {tier}"
            )
            changes.append(
                Change(item.value, f"{arrival}: {signed(item.value)} at the peak", item.name)
            )
        elif by := item.value - was.value:
            grown = (
                f"{thing(item)}{was_named(was, item)} has {human_size(item.value)}, had "
                f"{human_size(was.value)}"
            )
            changes.append(Change(by, f"{grown}: {signed(by)} at the peak", item.name))
        elif item in longer:
            span, other = longer[item]
            # it may have moved the peak, but its bytes are a difference only if another is held
            # there, too
            by = 0 if other is None else item.value
            told = f"{signed(by)} at the peak" if by else human_size(item.value)
            said = f"{thing(item)} now stays resident {span}: {told}"
            changes.append(Change(by, said, item.name, weight=item.value))
    if gone and changes:
        first = max(gone, key=lambda item: (item.value, item.name))
        rest = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        balance = -sum(item.value for item in gone)
        changes.append(
            Change(balance, f"no longer held at the peak: {thing(first)}{rest}: {signed(balance)}")
        )
    total = (
        sum(item.value for item in now.residents.items)
        - sum(item.value for item in old.items)
        - old.others_value
    )
    if (small := total - sum(change.by for change in changes)) and changes:
        changes.append(Change(small, f"what the baseline does not list: {signed(small)}", group=1))
    return changes


def _kept_longer(pairs: Sequence[Pair], measured: Measured) -> dict[Item, tuple[str, Item | None]]:
    """Tensors at a peak that has moved which are held for longer: from and until when, and the
    tensor of their role and size that would be held there without them, if there is one.
    """

    def role(item: Item) -> tuple[str, str, int]:
        # torch numbers its names from the second on: add, add_1
        return item.label, role_of(item.name).removesuffix("_{}"), item.value

    arrived = [item for was, item in pairs if was is None and item is not None]
    found: dict[Item, tuple[str, Item | None]] = {}
    for was, item in pairs:
        if was is None or item is None or (was.name, was.value) != (item.name, item.value):
            continue
        if span := _longer(item, was, measured):
            other = next((one for one in arrived if role(one) == role(item)), None)
            if other is not None:
                arrived.remove(other)
            found[item] = span, other
    return found


def _names(measured: Measured) -> set[str]:
    """The tensors and ops that there are now."""
    return {*measured.tensors, *measured.positions}


def _arrival(item: Item, tier: str, away: set[str], measured: Measured) -> str:
    """Return the way in which an item came to be held at the peak."""
    if item.label == WORKSPACE:
        return f"workspace of {op_named(item.name, measured)} is held"
    stay = measured.stays.get((tier, item.name))
    told = thing(item)
    if stay is None:
        return f"{told} is on its way through {tier}"
    if stay.fetched:
        when = (
            f"after {op_named(stay.fetched_after, measured)}"
            if stay.fetched_after is not None
            else "from the start"
        )
        use = f", for {op_named(stay.until, measured)}" if stay.until is not None else ""
        return f"{told} is fetched earlier, {when}{use}"
    now = "now stays" if item.name in away else "is"
    return f"{told} {now} resident {_span(stay, measured)}"


def _longer(item: Item, was: Item, measured: Measured) -> str:
    """The times from and until which a tensor is resident if that is longer than it was; empty if it is
    not.
    """
    since, was_since, until, was_until = (
        measured.positions.get(name) for name in (item.since, was.since, item.until, was.until)
    )
    parts = []
    if was_since is not None and (not item.since or (since is not None and since < was_since)):
        parts.append(
            f"since {op_named(item.since, measured) if item.since else 'the start'}, was since "
            f"`{was.since}`"
        )
    if was_until is not None and (not item.until or (until is not None and until > was_until)):
        parts.append(
            f"until {op_named(item.until, measured) if item.until else 'the end'}, was until "
            f"`{was.until}`"
        )
    return ", ".join(parts)


def _span(stay: Stay, measured: Measured) -> str:
    if stay.used is not None and stay.until is not None:
        return f"between {op_named(stay.used, measured)} and {op_named(stay.until, measured)}"
    if stay.until is not None:
        return f"until {op_named(stay.until, measured)}"
    return f"from {op_named(stay.used, measured)} on" if stay.used is not None else "throughout"


def _moved(channel: str, old: Listing, new: Listing, measured: Measured) -> list[Change]:
    def say(item: Item, was: int | None, by: int) -> str:
        how = f"moves {human_size(item.value)}" + (f", moved {human_size(was)}" if was else "")
        return f"{thing(item)} {how} over {channel}: {signed(by)}"

    return _grown(old, new, measured, say)


def _times(before: Record, now: Measured) -> list[Change]:
    """Ops that take longer, and longer waits with the tensor waited for."""
    assert now.record is not None

    def longer(item: Item, was: int | None, by: int) -> str:
        how = f"takes {human_time(item.value)}" + (
            f", took {human_time(was)}" if was is not None else ""
        )
        return f"{op_named(item.name, now)} {how}: {signed(by, human_time)}"

    def waits(item: Item, was: int | None, by: int) -> str:
        tensor = now.waits_for.get(item.name) if item.label == "transfer" else None
        what = f"a transfer of `{tensor}`" if tensor is not None else _AWAITED[item.label]
        how = f"waits {human_time(item.value)} for {what}" + (
            f", waited {human_time(was)}" if was else ""
        )
        return f"{op_named(item.name, now)} {how}: {signed(by, human_time)}"

    return _grown(before.durations, now.record.durations, now, longer) + _grown(
        before.stalls, now.record.stalls, now, waits
    )


def _grown(
    old: Listing, new: Listing, measured: Measured, say: Callable[[Item, int | None, int], str]
) -> list[Change]:
    """Items that are new, larger or smaller than before. One that the baseline may have left out as
    too small does not count as new.
    """
    changes = []
    for was, item in paired(old, new, _names(measured)):
        if item is not None:
            value = was.value if was is not None else None
            by = item.value - (old.least if value is None else value)
            if by > 0:
                changes.append(Change(by, say(item, value, by), item.name))
    return changes

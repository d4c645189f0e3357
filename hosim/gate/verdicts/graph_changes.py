"""The changes in a graph: the bytes of tensors, what ops take, and what they read and write, by
role.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from urllib.parse import quote

from hosim.base.groups import grouped, summed
from hosim.gate.records import GraphRecord, Item, Listing, Measured, Record, fold, of_word, role_of
from hosim.gate.verdicts.changes import Change, op_named, was_named
from hosim.gate.verdicts.pairs import Pair, paired
from hosim.graph import PERSISTENT_KINDS
from hosim.plain_text import counted
from hosim.units import human_flops, human_size, human_time


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
            rows.append(
                PlanChange(
                    f"{text} ({label.replace('_', ' ')}{several}), {where}",
                    old_text,
                    new_text,
                    sum(by_name.values()) * count // len(by_name),
                )
            )
    return sorted(rows, key=lambda row: (-row.by, row.what, row.before, row.now))


def _value(item: Item | None) -> int:
    return item.value if item is not None else 0


def _moved(item: Item | None) -> str:
    return f"{human_size(item.value)} moved" if item is not None else "not moved"


def _span(item: Item) -> str:
    return f"from {item.since or 'the start'} to {item.until or 'the end'}"


_SIZED = ("parameter", "expert", "input", "kv_cache")
"""Kinds of tensors that a user sizes, so that they come first: what else changes follows from them,
and there the first op that differs.
"""

_KINDS = 3
"""The number of recomputed ops that are named."""

_TIMES = {2: "doubled", 3: "tripled", 4: "quadrupled", Fraction(1, 2): "halved"}

_NEW, _GONE = "is new", "is gone"

_EMPTY = re.compile(r"(new_)?empty(_|$)")
"""The beginnings of names of tensors that have no contents when they are made."""

_COUNTED = re.compile(r"([0-9]+)\*(.*)", re.DOTALL)
_OF_OP = ("as", "in")
"""The fields of which an op has at most one value."""

_VERBS = {
    "reads": "reads",
    "changes": "changes",
    "writes": "writes",
    "after": "waits for",
    "on": "runs on",
    "as": "runs as",
    "in": "computes in",
}


def graph_changes(before: GraphRecord, after: GraphRecord, now: Measured) -> list[Change]:
    """The changes: tensors that a user sizes, then recomputation, then other tensors and
    workspaces, then what ops use, their times and their FLOP.

    None where a baseline keeps no graph.
    """
    if not before.shapes or not after.shapes:
        return []
    first: dict[str, int] = {}
    for i, used in enumerate(now.reads.values()):
        for tensor in used:
            first.setdefault(tensor, i)
    pairs = paired(before.tensors, after.tensors, {item.name for item in after.tensors.items})
    tensors = list(_of_tensors(pairs, first, _fills(now)))
    shapes = list(_of_shapes(before, now, {role_of(c.name) for c in tensors}, _renames(pairs)))
    known = {_words(shape)[1] for shape in before.shapes}
    taken = [
        *_of_ops(
            before.workspaces,
            after.workspaces,
            now,
            known,
            1,
            "has a workspace of",
            "had",
            human_size,
        ),
        *_of_ops(before.times, after.times, now, known, 3, "takes", "took", human_time),
        *_of_ops(before.flops, after.flops, now, known, 4, "has", "had", human_flops),
    ]
    return [*tensors, *_recomputed(before, now, len(first)), *shapes, *taken]


def _recomputed(before: GraphRecord, now: Measured, last: int) -> Iterator[Change]:
    """More or fewer ops than before compute what an earlier one has: a change of the first that
    is more, or ``last`` of those that are there.
    """
    if before.again is None:
        return
    again = now.again
    old, new = Counter(before.again), Counter({what: len(names) for what, names in again.items()})
    if more := new - old:
        first = min([now.positions.get(again[what][0], 0) for what in more])
        said = f"more recomputation (checkpoints): {_listed(more)} run again"
        yield Change(0, said, "", 1, 1, first - 1)
    if less := old - new:
        said = f"less recomputation (checkpoints): {_listed(less)} no longer run again"
        yield Change(0, said, "", 1, 1, last)


def _listed(ops: Counter[str]) -> str:
    listed = sorted(ops.items(), key=lambda pair: (-pair[1], pair[0]))
    rest = sum([n for _, n in listed[_KINDS:]])
    told = ", ".join([f"{n} x `{what}`" for what, n in listed[:_KINDS]])
    return told + (f" and {counted(rest, 'more op')}" if rest else "")


def _fills(now: Measured) -> dict[str, str]:
    """The op that fills each tensor that an op such as ``empty_like`` only makes room for, by the
    tensor's name: dropout is ``bernoulli_``.
    """
    changing = {
        name
        for shape, names in now.shapes.items()
        if any([_EMPTY.match(role.rpartition(".")[2]) for role in _words(shape)[2]["changes"]])
        for name in names
    }
    found: dict[str, str] = {}
    for op, used in now.reads.items():
        for tensor in used if op in changing else ():
            if _EMPTY.match(tensor.rpartition(".")[2]):
                found.setdefault(tensor, role_of(op.rpartition(".")[2]).removesuffix("_{}"))
    return found


def _renames(pairs: Sequence[Pair]) -> dict[str, str]:
    """One role for all those that renamed tensors had and have: what an op reads is the same under
    another name.
    """
    one: dict[str, str] = {}
    for was, item in pairs:
        if was is not None and item is not None:
            old, new = (role_of(side.name) for side in (was, item))
            old, new = one.get(old, old), one.get(new, new)
            if old != new:
                one = {role: new if to == old else to for role, to in one.items()} | {old: new}
    return one


def _with_roles(shape: str, renames: Mapping[str, str]) -> str:
    """The shape with the roles of ``renames``, each quoted as a whole; :func:`_words` reads it."""
    kind, role, *words = shape.split(" ")
    parts: list[tuple[str, Counter[str]]] = []
    for word in words:
        if match := _COUNTED.fullmatch(word):
            used = of_word(match[2])
            one = quote(renames.get(used, used), safe="", errors="surrogatepass")
            parts[-1][1][one] += int(match[1])
        else:
            parts.append((word, Counter()))
    said = [[verb, *(f"{n}*{one}" for one, n in sorted(roles.items()))] for verb, roles in parts]
    return " ".join([kind, role, *chain.from_iterable(said)])


def _of_tensors(
    pairs: Sequence[Pair], first: Mapping[str, int], fills: Mapping[str, str]
) -> Iterator[Change]:
    """Yield the changes of tensors, of which those that are there have a ``first`` op, and some an
    op that ``fills`` them.
    """

    def sized(item: Item, by: int, said: str, how: str = "", was: str = "") -> Change:
        tensor = item.label.partition(" ")[0]
        of_user = tensor in _SIZED
        # no op gives a state its size, and what is learned gets a gradient
        begins = tensor in PERSISTENT_KINDS or (tensor == "gradient" and how == _NEW)
        last = len(first) + 1
        follows = how == _GONE or not by  # of another kind, by what uses it now
        at = 0 if begins else last if follows else first.get(item.name, last)
        kind = f" ({item.label.replace('_', ' ')}){was}"
        rule = f"{kind} {how}" if how else ""
        text = f"`{item.name}`{kind} {said}"
        # what is gone needs nothing: it comes after what is there
        return Change(
            by, text, item.name, int(not of_user), by if how == _GONE else abs(by), at, rule
        )

    sizes: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for was, item in pairs:
        if was is not None and item is not None:
            sizes[item.label, role_of(item.name), item.value - was.value].add(was.value)
    for was, item in pairs:
        if was is not None and item is not None:
            by = item.value - was.value
            # layers of several sizes that have all grown by as much are one line
            alike = len(sizes[item.label, role_of(item.name), by]) < 2
            more = f"has {human_size(abs(by))} {'more' if by > 0 else 'less'}"
            how = _TIMES.get(Fraction(item.value, was.value), "") if was.value else ""
            said = [
                f"has {human_size(item.value)}, had {human_size(was.value)}" if alike else more
            ] * bool(by)
            if said and how:
                said = [f"{said[0]} ({how})"]
            said += [f"was {was.label.replace('_', ' ')}"] * (was.label != item.label)
            if said:
                yield sized(item, by, ", ".join(said), how, was_named(was, item))
        elif item is not None:
            filled = f", filled by `{op}`" if (op := fills.get(item.name)) else ""
            yield sized(item, item.value, f"{_NEW}{filled}: {human_size(item.value)}", _NEW)
        elif was is not None:
            yield sized(was, -was.value, f"{_GONE}: {human_size(was.value)}", _GONE)


def _of_ops(
    old: Listing,
    new: Listing,
    now: Measured,
    known: set[str],
    group: int,
    verb: str,
    past: str,
    say: Callable[[int], str],
) -> Iterator[Change]:
    """Yield the changes of a quantity of ops that the baseline has."""
    for was, item in paired(old, new, now.positions.keys()):
        one = item or was
        assert one is not None
        value, before = (side.value if side is not None else 0 for side in (item, was))
        if (
            value != before
            and (was is not None or role_of(one.name) in known)
            and (item is not None or one.name in now.positions)
        ):
            told = (
                f"{op_named(one.name, now)} {verb} {say(value) if value else 'none'}, {past} "
                f"{say(before) if before else 'none'}"
            )
            by, at = value - before, now.positions.get(one.name, 0) if group == 1 else 0
            yield Change(by, told, one.name, group, abs(by), at)


def _of_shapes(
    before: GraphRecord, now: Measured, told: set[str], renames: Mapping[str, str]
) -> Iterator[Change]:
    """Ops that use something else, and new and lost ones whose tensors are not ``told`` of
    already; ``renames`` are roles that are the same.
    """
    if before.others:
        return
    there = grouped(
        (_with_roles(shape, renames), name) for shape, names in now.shapes.items() for name in names
    )
    known = Counter(
        summed((_with_roles(shape, renames), times) for shape, times in before.shapes.items())
    )
    count = Counter({shape: len(names) for shape, names in there.items()})
    found, lost = count - known, known - count
    by_role: dict[str, list[str]] = defaultdict(list)
    for shape in sorted(lost):
        by_role[_words(shape)[1]] += [shape] * lost[shape]
    new: list[tuple[str, str]] = []
    for shape in sorted(found):
        for name in there[shape][-found[shape] :]:
            if same := by_role[_words(shape)[1]]:
                yield Change(
                    0,
                    f"{op_named(name, now)} {_uses(same.pop(0), shape, now.reads.get(name, ()))}",
                    name,
                    2,
                    1,
                )
            else:
                new.append((name, shape))
    gone = [shape for shapes in by_role.values() for shape in shapes]
    for name, shape in new:
        kind, _, uses = _words(shape)
        if renamed := next((other for other in gone if _words(other)[0] == kind), None):
            gone.remove(renamed)
        elif not told & uses["writes"].keys():
            yield Change(0, f"{op_named(name, now)} ({kind}) is new", name, 2, 1)
    untold: Counter[str] = Counter()
    for shape in gone:
        kind, role, uses = _words(shape)
        if not told & uses["writes"].keys():
            untold[f"op `{role.replace('{}', '#')}` ({kind}) is gone"] += 1
    for said, times in untold.items():
        yield Change(0, f"{times} x {said}" if times > 1 else said, "", 2, 1)


def _uses(was: str, shape: str, names: Sequence[str]) -> str:
    """Return the differences between an op now and before, in words; ``names`` are the tensors that
    it uses, the oldest first.
    """
    (old_kind, _, old), (kind, _, new) = _words(was), _words(shape)
    said = [f"is of kind {kind}, was {old_kind}"] * (kind != old_kind)
    for verb, text in _VERBS.items():
        more, less = new[verb] - old[verb], old[verb] - new[verb]
        if verb in _OF_OP and more and less:
            said.append(f"{text} `{min(more)}`, was `{min(less)}`")
            continue
        said += [
            f"{text} {_named(role, names)}, {_before(old[verb][role])}" for role in sorted(more)
        ]
        said += [f"no longer {text} `{role}`" for role in sorted(less)]
    return ", ".join(said)


def _named(role: str, names: Sequence[str]) -> str:
    """The tensors of a role, or the role."""
    return " and ".join([f"`{name}`" for name in names if role_of(name) == role]) or f"`{role}`"


def _before(count: int) -> str:
    """Return the number of some tensors that an op used."""
    return f"{count} of them before" if count else "did not"


def _words(shape: str) -> tuple[str, str, dict[str, Counter[str]]]:
    """Kind and role of an op, and how often it uses each role, by verb."""
    kind, role, *words = shape.split(" ")
    uses: dict[str, Counter[str]] = {verb: Counter() for verb in _VERBS}
    verb = ""
    for word in words:
        if match := _COUNTED.fullmatch(word):
            uses.setdefault(verb, Counter())[of_word(match[2])] += int(match[1])
        else:
            verb = word
    return of_word(kind), of_word(role), uses

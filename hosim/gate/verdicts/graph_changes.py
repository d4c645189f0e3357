"""The changes in a graph: the bytes of tensors, what ops take, and what they read and write, by
role.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from hosim.gate.records import GraphRecord, Item, Listing, Measured, of_word, role_of
from hosim.gate.verdicts.changes import Change, op_named, thing, was_named
from hosim.gate.verdicts.pairs import paired
from hosim.units import human_flops, human_size, human_time

_SIZED = ("parameter", "expert", "input", "kv_cache")
"""Kinds of tensors that a user sizes, so that they come first: what else changes follows from
them.
"""

_COUNTED = re.compile(r"([0-9]+)\*(.*)", re.DOTALL)
_VERBS = {
    "reads": "reads",
    "changes": "changes",
    "writes": "writes",
    "after": "waits for",
    "on": "runs on",
    "as": "runs as",
    "in": "computes in",
}


def graph_changes(before: GraphRecord, now: Measured) -> list[Change]:
    """The changes: tensors that a user sizes, then others and workspaces, then what ops use, their
    times and their FLOP.

    None where a baseline keeps no graph.
    """
    assert now.record is not None
    after = now.record.graph
    if not before.shapes or not after.shapes:
        return []
    tensors = list(_of_tensors(before.tensors, after.tensors))
    shapes = list(_of_shapes(before, now, {role_of(change.name) for change in tensors}))
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
    return [*tensors, *shapes, *taken]


def _of_tensors(old: Listing, new: Listing) -> Iterator[Change]:
    pairs = paired(old, new, {item.name for item in new.items})
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
            said = [
                f"has {human_size(item.value)}, had {human_size(was.value)}" if alike else more
            ] * bool(by)
            said += [f"was {was.label.replace('_', ' ')}"] * (was.label != item.label)
            if said:
                yield _sized(item, by, f"{thing(item)}{was_named(was, item)} {', '.join(said)}")
        elif item is not None:
            yield _sized(item, item.value, f"{thing(item)} is new: {human_size(item.value)}")
        elif was is not None:
            yield _sized(was, -was.value, f"{thing(was)} is gone: {human_size(was.value)}")


def _sized(item: Item, by: int, text: str) -> Change:
    return Change(by, text, item.name, int(item.label.partition(" ")[0] not in _SIZED), abs(by))


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
            yield Change(value - before, told, one.name, group, abs(value - before))


def _of_shapes(before: GraphRecord, now: Measured, told: set[str]) -> Iterator[Change]:
    """Ops that use something else, and new and lost ones whose tensors are not ``told`` of
    already.
    """
    if before.others:
        return
    count = Counter({shape: len(names) for shape, names in now.shapes.items()})
    found, lost = count - Counter(before.shapes), Counter(before.shapes) - count
    by_role: dict[str, list[str]] = defaultdict(list)
    for shape in sorted(lost):
        by_role[_words(shape)[1]] += [shape] * lost[shape]
    new: list[tuple[str, str]] = []
    for shape in sorted(found):
        for name in now.shapes[shape][-found[shape] :]:
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
    for shape in gone:
        kind, role, uses = _words(shape)
        if not told & uses["writes"].keys():
            yield Change(0, f"op `{role.replace('{}', '#')}` ({kind}) is gone", "", 2, 1)


def _uses(was: str, shape: str, names: Sequence[str]) -> str:
    """Return the differences between an op now and before, in words; ``names`` are the tensors that
    it uses, the oldest first.
    """
    (old_kind, _, old), (kind, _, new) = _words(was), _words(shape)
    said = [f"is of kind {kind}, was {old_kind}"] * (kind != old_kind)
    for verb, text in _VERBS.items():
        more, less = new[verb] - old[verb], old[verb] - new[verb]
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

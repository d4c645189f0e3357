"""The pairs of a baseline's items and today's: by name where names stayed, else by role, else by
what was renamed.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from hosim.base.groups import grouped
from hosim.gate.records import Item, Listing, role_of
from hosim.graph import PERSISTENT_KINDS
from hosim.result import WORKSPACE

_OWNED = {*PERSISTENT_KINDS, "gradient"}
"""Kinds of tensors whose names are those of modules, not of ops."""

_Roles = dict[tuple[str, str], list[Item]]

Pair = tuple[Item | None, Item | None]
"""An item of before and one of now; None: there is none."""


def paired(
    old: Listing, new: Listing, now: Collection[str], before: Collection[str] = ()
) -> list[Pair]:
    """Every item of both sides, once: those of now in their order, then those of before that none
    of now is.

    Within a role (name without numbers) that has the same names on both sides, items are paired by
    name. Otherwise an op or a layer may have been put in, which moves the numbers: equal values are
    paired first, by name where they can be, then the others by name and by value. Then one name may
    have another label now. Last, a role that is lost is one of its label that is new: one of equal
    values, else one whose name has dots and differs in one part between them; then what a module
    owns that is lost is one of equal value that is new, as roles may be split by new numbers
    (``up`` and ``down`` by ``fc1`` and ``fc2``). Names that the graph has ``now`` are not lost, and
    those that it had ``before`` are not new. What a baseline may have left out as too small is
    paired with nothing.
    """
    was, there = _by_role(old.items), _by_role(new.items)
    found: dict[Item, Item | None] = {}
    for key in there:
        _pair(was.get(key, []), there[key], found)
    taken = {item for item in found.values() if item is not None}
    lost = [item for item in old.items if item not in taken]
    _pair_names(lost, [item for item in new.items if item not in found], found)
    taken = {item for item in found.values() if item is not None}
    lost = [item for item in lost if item not in taken and item.name not in now]
    unknown = [item for item in new.items if item not in found and item.name not in before]
    _pair_renamed(_by_role(lost), _by_role(unknown), found)
    _pair_owned(lost, unknown, found)
    taken = {item for item in found.values() if item is not None}
    pairs: list[Pair] = [
        (found.get(item), item) for item in new.items if item in found or item.value > old.least
    ]
    return pairs + [(item, None) for item in old.items if item not in taken and new.complete]


def _by_role(items: Iterable[Item]) -> _Roles:
    return grouped(((item.label, role_of(item.name)), item) for item in items)


def _pair(old: Sequence[Item], new: Sequence[Item], found: dict[Item, Item | None]) -> None:
    """The items of a role."""
    steps: list[Callable[[Item], object]] = [lambda item: item.name]
    if {item.name for item in old} != {item.name for item in new}:
        steps = [
            lambda item: (item.value, item.name),
            lambda item: item.value,
            *steps,
            lambda item: None,
        ]
    left, free = sorted(old, key=_largest), sorted(new, key=_largest)
    taken: set[Item] = set()
    for key in steps:
        by = grouped((key(item), item) for item in left)
        for item in free:
            if by.get(key(item)):
                was = found[item] = by[key(item)].pop(0)
                taken.add(was)
        free = [item for item in free if item not in found]
        left = [item for item in left if item not in taken]


def _pair_names(
    lost: Sequence[Item], unknown: Sequence[Item], found: dict[Item, Item | None]
) -> None:
    """The tensors that have another kind."""
    by_name = {item.name: item for item in lost if item.label != WORKSPACE}
    for item in unknown:
        if item.label != WORKSPACE and item.name in by_name:
            found[item] = by_name[item.name]


def _pair_renamed(lost: _Roles, unknown: _Roles, found: dict[Item, Item | None]) -> None:
    """Roles of one side with those of the other that have their label: equal values first, then
    names that differ in one part. Of what modules own, equal values alone do not decide where more
    roles of one side have them.
    """
    before, now = (
        {role: sorted([item.value for item in items]) for role, items in side.items()}
        for side in (lost, unknown)
    )
    pairs = [(one, other) for one in lost for other in unknown if one[0] == other[0]]
    ranked = sorted(
        [
            (before[one] != now[other], _differing(one[1], other[1]), one, other)
            for one, other in pairs
        ]
    )
    counts = [
        Counter([(role[0], tuple(values[role])) for role in values]) for values in (before, now)
    ]
    for differ, parts, one, other in ranked:
        alike = one[0], tuple(before[one])
        sure = one[0].partition(" ")[0] not in _OWNED or counts[0][alike] == counts[1][alike]
        renamed = parts == 1 and "." in one[1]
        if one in lost and other in unknown and (renamed or (sure and not differ)):
            _pair(lost.pop(one), unknown.pop(other), found)


def _pair_owned(
    lost: Sequence[Item], unknown: Sequence[Item], found: dict[Item, Item | None]
) -> None:
    """Pair tensors that modules own, in the order of their names, where as many of a value are lost
    as new: of more, it is not known which were renamed.
    """
    taken = {item for item in found.values() if item is not None}
    left, free = (
        _by_value([item for item in items if item not in done])
        for items, done in ((lost, taken), (unknown, found))
    )
    for key in sorted(left.keys() & free.keys()):
        if len(left[key]) == len(free[key]):
            found |= dict(zip(free[key], left[key], strict=True))


def _by_value(items: Iterable[Item]) -> dict[tuple[str, int], list[Item]]:
    """Items of modules by label and value."""
    return grouped(
        ((item.label, item.value), item) for item in items if item.label.partition(" ")[0] in _OWNED
    )


def _differing(one: str, other: str) -> int:
    """The number of parts between dots in which two names differ: one, where parts were only put in,
    as by a wrapper; many, where they have not as many parts.

    >>> _differing("blocks.{}.up.weight", "blocks.{}.expand.weight")
    1
    >>> _differing("blocks.{}.up.weight", "inner.blocks.{}.up.weight")
    1
    """
    first, second = sorted((one.split("."), other.split(".")), key=len)
    if len(first) == len(second):
        return sum([a != b for a, b in zip(first, second, strict=True)])
    there = iter(second)
    return 1 if all(part in there for part in first) else len(first) + len(second)


def _largest(item: Item) -> tuple[int, str]:
    return -item.value, item.name

"""A change in words, and how several of them become few lines."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from hosim.gate.records import Item, Measured, fold, relative, role_of
from hosim.result import WORKSPACE
from hosim.units import human_size

_ALTERNATIVES = 3
"""The number of names that are listed where they differ."""

_NUMBER = re.compile(r"[0-9]+")
_POSITION = re.compile(r" \(#\d+\)")


@dataclass(frozen=True, slots=True)
class Change:
    """A difference of ``by`` in words; ``name`` is the item's name, if it is about one.

    Of several, those of the lowest ``group`` come first, then those of the first op (``at``), then
    those of the most ``weight``: without one, ``by``. Changes of different names with one ``how``,
    in words that fit all sizes, are told together.
    """

    by: int
    text: str
    name: str = ""
    group: int = 0
    weight: int | None = None
    at: int = 0
    how: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        """Its place among others."""
        return self.group, self.at, -(self.by if self.weight is None else self.weight)


def in_lines(
    changes: Sequence[Change], room: int, say: Callable[[int], str] = human_size, of: str = ""
) -> list[str]:
    """The changes in at most ``room`` lines, the last of which has the sum of those left out, or
    says of what (``of``) they are.
    """
    listed = _together(changes, say)
    texts = [change.text for change in listed]
    if len(texts) <= room or not room:
        return texts[:room]
    left = listed[room - 1 :]
    rest = of or f": {signed(sum(change.by for change in left), say)}"
    return [*texts[: room - 1], f"and {len(left)} more{rest}"]


def _together(changes: Sequence[Change], say: Callable[[int], str]) -> list[Change]:
    """The changes in their order, with equal changes of several layers as one."""
    alike: dict[tuple[int, str, str], list[Change]] = {}
    found: list[Change] = []
    for change in sorted(changes, key=lambda change: change.order):
        if change.name:
            own = _NUMBER.sub("{}", change.name, count=1)
            parts = _POSITION.sub("", change.text).split("`")
            parts[1::2] = [
                own if name == change.name else relative(name, change.name) for name in parts[1::2]
            ]
            alike.setdefault((change.by, own, "`".join(parts)), []).append(change)
        else:
            found.append(change)
    layers: list[_AlikeChanges] = []
    for (_, own, text), group in alike.items():
        folded = fold(change.name for change in group)
        if len(folded) > 1:  # numbers such as 007 stand for themselves
            found += group
            continue
        one = group[0]
        layers.append(
            _AlikeChanges(one.text if len(group) == 1 else text, own, folded[0][0], group)
        )
    by_how: dict[tuple[str, int, str], list[_AlikeChanges]] = {}
    for line in layers:
        one = line.changes[0]
        if one.how:
            last = line.name.rpartition(".")[2]
            by_how.setdefault((one.how, one.group, last), []).append(line)
        else:
            found.append(line.told(say))
    for lines in by_how.values():
        names = [name for name, _ in fold(c.name for line in lines for c in line.changes)]
        name = _in_common(names) if len(lines) > 1 else ""
        found += [_of_roles(name, lines, say)] if name else [line.told(say) for line in lines]
    return sorted(found, key=lambda change: change.order)


@dataclass(frozen=True, slots=True)
class _AlikeChanges:
    """Equal changes of the layers that ``name`` folds; ``text`` tells one of them, named ``own``
    unless it is the only one.
    """

    text: str
    own: str
    name: str
    changes: Sequence[Change]

    def told(self, say: Callable[[int], str]) -> Change:
        """All of them as one change."""
        if len(self.changes) == 1:
            return self.changes[0]
        return _told(self.text.replace(f"`{self.own}`", f"`{self.name}`"), self.changes, say)


def _of_roles(name: str, lines: Sequence[_AlikeChanges], say: Callable[[int], str]) -> Change:
    """Changes of several roles, which ``name`` has in common, as one."""
    changes = sorted([c for line in lines for c in line.changes], key=lambda c: c.order)
    said = {change.text.replace(f"`{change.name}`", "") for change in changes}
    return _told(f"`{name}`{said.pop() if len(said) == 1 else changes[0].how}", changes, say)


def _told(said: str, changes: Sequence[Change], say: Callable[[int], str]) -> Change:
    one, by = changes[0], sum([change.by for change in changes])
    weight = None if one.weight is None else sum([change.weight or 0 for change in changes])
    text = f"{len(changes)} x {said}" + (f", together {say(by)}" if by else "")
    return Change(by, text, "", one.group, weight, one.at)


def _in_common(names: Sequence[str]) -> str:
    """Folded names as one, with the parts between dots in which they differ as alternatives, or as
    ``*`` if they are many; empty if a few names differ in more than one part.

    >>> _in_common(["blocks.{0-5}.up.weight", "blocks.{0-5}.down.weight"])
    'blocks.{0-5}.{down,up}.weight'
    >>> _in_common(["head.weight", "a.0.up.weight", "a.0.v.weight", "a.0.down.weight"])
    '*.weight'
    """
    if len(names) == 1:
        return names[0]
    rows = [name.split(".") for name in names]
    begin = _alike(rows)
    end = _alike([row[begin:][::-1] for row in rows])
    middles = {tuple(row[begin : len(row) - end]) for row in rows}
    if len(names) > _ALTERNATIVES:
        middle = "*"
    elif all(len(parts) == 1 for parts in middles):
        middle = f"{{{','.join(sorted([parts[0] for parts in middles]))}}}"
    else:
        return ""
    return ".".join([*rows[0][:begin], middle, *rows[0][len(rows[0]) - end :]])


def _alike(rows: Sequence[Sequence[str]]) -> int:
    """The number of parts with which all rows begin."""
    return len(list(takewhile(lambda parts: len(set(parts)) == 1, zip(*rows, strict=False))))


def thing(item: Item) -> str:
    """The tensor or workspace of an item, in words."""
    return (
        f"workspace of `{item.name}`"
        if item.label == WORKSPACE
        else f"`{item.name}` ({item.label.replace('_', ' ')})"
    )


def op_named(name: str | None, measured: Measured) -> str:
    """An op and its position, in words."""
    position = measured.positions.get(name or "")
    return f"op `{name}`" + (f" (#{position})" if position is not None else "")


def was_named(was: Item, item: Item) -> str:
    """The name that an item had, in brackets, without the parts that it shares with the new one;
    empty if its role is the same.

    >>> was_named(
    ...     Item("parameter", "blocks.0.up.weight", 4),
    ...     Item("parameter", "blocks.0.expand.weight", 4),
    ... )
    ' (was `up.weight`)'
    """
    if role_of(was.name) == role_of(item.name):
        return ""
    old, new = was.name.split("."), item.name.split(".")
    while len(old) > 1 and len(new) > 1 and old[0] == new[0]:
        old, new = old[1:], new[1:]
    return f" (was `{'.'.join(old)}`)"


def signed(value: int, say: Callable[[int], str] = human_size) -> str:
    """A difference with its sign."""
    text = say(value)
    return text if value < 0 else f"+{text}"

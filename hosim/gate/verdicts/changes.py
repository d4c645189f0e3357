"""A change in words, and how several of them become few lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hosim.gate.records import Item, Measured, fold, relative, role_of
from hosim.result import WORKSPACE
from hosim.units import human_size

_NUMBER = re.compile(r"[0-9]+")
_POSITION = re.compile(r" \(#\d+\)")


@dataclass(frozen=True, slots=True)
class Change:
    """A difference of ``by`` in words; ``name`` is the item's name, if it is about one.

    Of several, those of the lowest ``group`` come first, then those of the most ``weight``: without
    one, ``by``.
    """

    by: int
    text: str
    name: str = ""
    group: int = 0
    weight: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Its place among others."""
        return self.group, -(self.by if self.weight is None else self.weight)


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
    for (by, own, text), group in alike.items():
        folded = fold(change.name for change in group)
        if len(group) == 1 or len(folded) > 1:  # numbers such as 007 stand for themselves
            found += group
            continue
        told = f"{len(group)} x {text.replace(f'`{own}`', f'`{folded[0][0]}`')}"
        one, several = group[0], len(group)
        weight = None if one.weight is None else one.weight * several
        said = f"{told}, together {say(by * several)}" if by else told
        found.append(Change(by * several, said, "", one.group, weight))
    return sorted(found, key=lambda change: change.order)


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

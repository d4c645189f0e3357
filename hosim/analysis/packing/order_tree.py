"""All orders of some items in which certain groups of them stand together, held as one tree.

This is the PQ-tree of Booth and Lueker (1976) in its simple form: asking for one more group takes
time proportional to the tree. A node's children may stand in any order, or, if it is fixed, in the
order given or its reverse. Trees never change, so a search can go back to an earlier one for
nothing. Each node has a *cause*: bits that say which groups asked for are the reason that its items
stand as they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

_NONE, _SOME, _ALL = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class OrderNode:
    """Items that stand together, for the reasons in ``cause``: its children in any order, or in
    this one or its reverse if ``fixed``.
    """

    children: tuple[OrderTree, ...]
    fixed: bool
    cause: int


OrderTree: TypeAlias = int | OrderNode


class ApartError(Exception):
    """The group asked for stands together in none of the orders; ``cause`` has the reasons."""

    def __init__(self, cause: int) -> None:
        super().__init__(cause)
        self.cause = cause


def any_order(children: Iterable[OrderTree], cause: int = 0) -> OrderTree:
    """The tree of all orders of ``children``, at least one."""
    found = tuple(children)
    return found[0] if len(found) == 1 else OrderNode(found, False, cause)


def items_in_order(tree: OrderTree) -> list[int]:
    """The items in one of the tree's orders."""
    return (
        [tree]
        if isinstance(tree, int)
        else [item for child in tree.children for item in items_in_order(child)]
    )


def gather(
    tree: OrderTree, group: Set[int], cause: int, instead: OrderTree | None = None
) -> OrderTree:
    """The orders of ``tree`` in which the items of ``group`` stand together, with ``instead`` in
    their place if it is given.

    Raises `ApartError` if there is none, with ``cause`` and the causes of all nodes that the group
    takes a part of.
    """
    return _Gathering(tree, group, cause, instead).result


def together(tree: OrderTree, group: Set[int]) -> list[list[int]]:
    """The items of ``group`` in the fewest parts that stand together in all orders of the tree."""
    parts: list[list[int]] = []
    whole = _together(tree, group, parts)
    return parts if whole is None else [whole]


def order_like(tree: OrderTree, positions: Mapping[int, int]) -> list[int]:
    """The items in the tree's order that agrees with ``positions``; there has to be one, up to
    items of one position.
    """
    return _order_like(tree, positions)[2]


def _together(tree: OrderTree, group: Set[int], parts: list[list[int]]) -> list[int] | None:
    """The tree's items if all are in the group; otherwise None, and what stands together within it
    is added to ``parts``.
    """
    if isinstance(tree, int):
        return [tree] if tree in group else None
    of_children = [_together(child, group, parts) for child in tree.children]
    if None not in of_children:
        return [item for part in of_children if part is not None for item in part]
    open_part: list[int] | None = None
    for part in of_children:
        if part is None or not tree.fixed or open_part is None:
            open_part = part
            if part is not None:
                parts.append(part)
        else:
            open_part += part
    return None


def _order_like(tree: OrderTree, positions: Mapping[int, int]) -> tuple[int, int, list[int]]:
    """The lowest and the highest position, and the items."""
    if isinstance(tree, int):
        return positions[tree], positions[tree], [tree]
    children = [_order_like(child, positions) for child in tree.children]
    if not tree.fixed:
        children.sort(key=lambda child: child[:2])
    elif sum(children[0][:2]) > sum(children[-1][:2]):
        children.reverse()
    lowest, highest = min(child[0] for child in children), max(child[1] for child in children)
    return lowest, highest, [item for child in children for item in child[2]]


class _Gathering:
    """One call of `gather`: how much of each node is in the group, and the causes met."""

    def __init__(
        self, tree: OrderTree, group: Set[int], cause: int, instead: OrderTree | None
    ) -> None:
        self._group = group
        self._cause = cause
        self._instead = instead
        self._share: dict[OrderTree, int] = {}
        self._count(tree)
        self.result = self._gathered(tree)

    def _count(self, tree: OrderTree) -> int:
        if isinstance(tree, int):
            share = _ALL if tree in self._group else _NONE
        else:
            shares = [self._count(child) for child in tree.children]
            share = shares[0] if shares.count(shares[0]) == len(shares) else _SOME
        self._share[tree] = share
        return share

    def _gathered(self, tree: OrderTree) -> OrderTree:
        if self._share[tree] == _ALL or isinstance(tree, int):
            return tree if self._instead is None else self._instead
        children = tree.children
        within = [index for index, child in enumerate(children) if self._share[child] != _NONE]
        a, b = within[0], within[-1]
        if a == b:
            return OrderNode(
                (*children[:a], self._gathered(children[a]), *children[a + 1 :]),
                tree.fixed,
                tree.cause,
            )
        self._blame(tree)
        if tree.fixed:
            if any(self._share[child] != _ALL for child in children[a + 1 : b]):
                raise ApartError(self._cause)
            middle = [
                *self._all_last(children[a]),
                *children[a + 1 : b],
                *reversed(self._all_last(children[b])),
            ]
            return self._row([*children[:a], *self._replaced(middle), *children[b + 1 :]])
        none, some, all_ = self._sorted(children)
        if len(some) > 2:
            raise ApartError(self._cause)
        middle = self._all_last(some[0]) if some else []
        middle += [any_order(all_, self._cause)] if all_ else []
        middle += reversed(self._all_last(some[1])) if len(some) == 2 else []
        return any_order([*none, self._row(self._replaced(middle))], tree.cause)

    def _blame(self, tree: OrderNode) -> None:
        """Add the causes of all nodes that the group takes a part of."""
        self._cause |= tree.cause
        for child in tree.children:
            if self._share[child] == _SOME and not isinstance(child, int):
                self._blame(child)

    def _all_last(self, tree: OrderTree) -> list[OrderTree]:
        """The parts of a tree in a row, those in the group at the end."""
        if self._share[tree] != _SOME or isinstance(tree, int):
            return [tree]
        if tree.fixed:
            row = list(tree.children)
            if self._share[row[0]] > self._share[row[-1]]:
                row.reverse()
            shares = [self._share[child] for child in row]
            if shares != sorted(shares) or shares.count(_SOME) > 1:
                raise ApartError(self._cause)
            return [part for child in row for part in self._all_last(child)]
        none, some, all_ = self._sorted(tree.children)
        if len(some) > 1:
            raise ApartError(self._cause)
        row = [any_order(none, self._cause)] if none else []
        row += self._all_last(some[0]) if some else []
        row += [any_order(all_, self._cause)] if all_ else []
        self._share.update((part, _NONE) for part in row[: bool(none)])
        return row

    def _sorted(
        self, children: Sequence[OrderTree]
    ) -> tuple[list[OrderTree], list[OrderTree], list[OrderTree]]:
        none, some, all_ = (
            [child for child in children if self._share[child] == share]
            for share in (_NONE, _SOME, _ALL)
        )
        return none, some, all_

    def _replaced(self, row: list[OrderTree]) -> list[OrderTree]:
        """The row with ``instead`` in the place of the group. A node made on the way that is not
        known holds items of the group alone.
        """
        if self._instead is None:
            return row
        inside = [index for index, part in enumerate(row) if self._share.get(part, _ALL) == _ALL]
        return [*row[: inside[0]], self._instead, *row[inside[-1] + 1 :]]

    def _row(self, parts: list[OrderTree]) -> OrderTree:
        return parts[0] if len(parts) == 1 else OrderNode(tuple(parts), len(parts) > 2, self._cause)

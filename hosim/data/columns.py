"""The tensors and the ops of a graph as columns, the one form in which a graph keeps them.

Most ops of a large graph differ in their names and in what they name alone. So those that are alike
are there once, and a column says which one each is like. Objects for all are made when somebody
first looks at one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import chain, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from hosim.base.collector import no_collection
from hosim.data.graph_parts import Op, Tensor
from hosim.errors import GraphError
from hosim.plain_text import shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


P = TypeVar("P", bound=Tensor | Op)
V = TypeVar("V")

_NOBODY = -1
"""A position that nothing has."""


class Growing(Generic[P]):
    """Columns to which one item after the other is added. ``known`` has the code of each key by
    which the one who adds them tells kinds of items apart; several may be alike.
    """

    __slots__ = ("alike", "codes", "known")

    def __init__(self) -> None:
        self.alike: list[P] = []
        self.codes: list[int] = []
        self.known: dict[Hashable, int] = {}

    def new(self, key: Hashable, item: P) -> None:
        """Note an item that is the first one of its key."""
        with suppress(TypeError):  # a key that has no hash is new each time
            self.known[key] = len(self.alike)
        self.alike.append(item)


class Columns(Sequence[P]):
    """A frozen sequence of tensors or of ops.

    ``names`` are in order, and ``positions`` has the position of each. Items are alike if they
    differ in nothing but their names and the positions in their ``lists``: ``alike`` has the first
    item of each kind, and ``codes`` the kind of each item. ``named`` has the lists of all items, one
    after the other.
    """

    __slots__ = ("_made", "_positions", "alike", "codes", "named", "names")

    of: ClassVar[type[Any]]
    """The class of its items."""
    lists: ClassVar[tuple[str, ...]] = ()
    """The fields that are lists of positions; they come next to each other."""
    _shared: ClassVar[list[str]]
    """The other fields but the name."""

    def __init_subclass__(cls) -> None:
        cls._shared = [f.name for f in fields(cls.of) if f.name not in ("name", *cls.lists)]

    def __init__(
        self,
        names: Iterable[str],
        alike: Sequence[P],
        codes: Iterable[int],
        named: Iterable[int] = (),
        made: tuple[P, ...] | None = None,
    ) -> None:
        """``codes`` index ``alike``, of which several items may be of one kind. ``made`` are the
        items, if they are there. A caller without ``made`` gives names that differ;
        :meth:`distinct` checks those of ``made``. ``names`` may be a dict of their positions.
        """
        lists, shared = _getter(self.lists), attrgetter(*self._shared)
        known: dict[Hashable, int] = {}
        first, kinds = list[P](), list[int]()
        for item in alike:
            code = known.setdefault((*map(len, lists(item)), *shared(item)), len(first))
            if code == len(first):
                first.append(item)
            kinds.append(code)
        if len(first) < len(kinds):
            codes = map(kinds.__getitem__, codes)
        self.names, self.alike = tuple(names), tuple(first)
        self.codes, self.named = [
            memoryview(array("i", each)).toreadonly() for each in (codes, named)
        ]
        self._made = made
        self._positions: dict[str, int] | None = names if isinstance(names, dict) else None

    @classmethod
    def keep(cls, items: Sequence[P], where: str) -> Self:
        """The columns of a tuple or a list of items; raises :class:`GraphError` for anything else.

        ``where`` names the field in the error.
        """
        if isinstance(items, cls):
            return items
        kind = f"hosim.{cls.of.__name__}"
        if not isinstance(items, tuple | list):
            raise GraphError(f"expected a tuple of {kind}, got {shown(items, 60)}", where=where)
        for i, item in enumerate(items):
            if not isinstance(item, cls.of):
                raise GraphError(f"expected a {kind}, got {shown(item, 60)}", where=f"{where}[{i}]")
        names, lists = [item.name for item in items], _getter(cls.lists)
        named = [*chain.from_iterable(chain.from_iterable(map(lists, items)))]
        try:
            kept = array("i", named)
        except OverflowError:
            kept = array("i", [t if 0 <= t < 1 << 31 else _NOBODY for t in named])
        return cls(names, items, range(len(items)), kept, tuple(items))

    @classmethod
    def like_these(
        cls,
        names: Iterable[str],
        kinds: Sequence[P],
        codes: Iterable[int],
        named: Iterable[int] = (),
        made: tuple[P, ...] | None = None,
    ) -> Self:
        """Columns of items that differ from ``kinds`` in their names and lists alone; ``codes``
        index these. The rest is as in the constructor.
        """
        import numpy as np  # here, as it takes longer to import than commands without a graph take

        found = cls(names, kinds, codes, named)
        numbers, places = np.unique(np.asarray(found.codes), return_index=True)
        order = np.argsort(places)
        starts, lists = found.starts(), len(cls.lists)
        first, renumbered = list[P](), np.zeros(len(found.alike), "i")
        renumbered[numbers[order]] = np.arange(len(numbers))
        for code, at in zip(numbers[order].tolist(), places[order].tolist(), strict=True):
            ends = starts[lists * at : lists * (at + 1) + 1].tolist()
            own = [tuple(found.named[begin:end]) for begin, end in pairwise(ends)]
            like = dict[str, Any](zip(cls.lists, own, strict=True))
            first.append(replace(found.alike[code], name=found.names[at], **like))
        return cls(found.names, first, renumbered[np.asarray(found.codes)], found.named, made)

    def __reduce__(self) -> tuple[Any, ...]:
        codes, named = bytes(self.codes), bytes(self.named)
        return type(self), (self.names, self.alike, codes, named)

    @property
    def positions(self) -> Mapping[str, int]:
        """The position of each name."""
        if self._positions is None:
            self._positions = {name: at for at, name in enumerate(self.names)}
        return self._positions

    def distinct(self) -> bool:
        """Return whether each item has a name, and no two have the same. Names of items that are
        not made are taken to differ: whoever listed them has checked that.
        """
        return all(self.names) and (self._made is None or len(self.positions) == len(self))

    def like(self, at: int) -> P:
        """The first item that the one at a position is like; no object has to be made for it."""
        return self.alike[self.codes[at]]

    def each(self) -> Iterator[P]:
        """For each item, the first one that it is like."""
        return map(self.alike.__getitem__, self.codes)

    def column(self, of: Callable[[P], V]) -> list[V]:
        """The results of a function for each item; it looks neither at names nor at positions."""
        return list(map([of(item) for item in self.alike].__getitem__, self.codes))

    def numbers(self, of: Callable[[P], int], code: str) -> npt.NDArray[Any]:
        """The results of such a function for each item, in an array of that type."""
        import numpy as np  # here, as it takes longer to import than commands without a graph take

        return np.asarray(np.array([of(item) for item in self.alike], code)[np.asarray(self.codes)])

    def those(self, test: Callable[[P], object]) -> tuple[int, ...]:
        """The positions of items for which such a function is true."""
        found = {code for code, first in enumerate(self.alike) if test(first)}
        return tuple([i for i, code in enumerate(self.codes) if code in found]) if found else ()

    def starts(self) -> npt.NDArray[np.int32]:
        """Where in ``named`` the lists of each item begin, and the end of the last one."""
        import numpy as np  # here, as it takes longer to import than commands without a graph take

        lengths = self._lengths()
        starts = np.zeros(len(self.lists) * len(self) + 1, "i")
        np.cumsum(np.array(lengths, "i")[np.asarray(self.codes)].ravel(), out=starts[1:])
        return starts

    def listed(self) -> npt.NDArray[np.int64]:
        """In which list each position of ``named`` is. Lists are numbered: those of the first item,
        in the order of ``lists``, then those of the next one.
        """
        import numpy as np

        begin = np.bincount(self.starts()[1:-1], minlength=len(self.named) + 1)
        return np.cumsum(begin[:-1])

    def _lengths(self) -> list[tuple[int, ...]]:
        lists = _getter(self.lists)
        return [tuple(map(len, lists(item))) for item in self.alike]

    @property
    def items(self) -> tuple[P, ...]:
        """All items; they are made once."""
        if self._made is None:
            with no_collection():
                self._made = tuple(self._views())
        return self._made

    def _views(self) -> Iterator[P]:
        """Objects of what the columns have, which has been checked."""
        put = {name: vars(self.of)[name].__set__ for name in ("name", *self.lists, *self._shared)}
        shared = attrgetter(*self._shared)
        rows = [
            (
                [(put[name], length) for name, length in zip(self.lists, lengths, strict=True)],
                [
                    (put[name], value)
                    for name, value in zip(self._shared, shared(item), strict=True)
                ],
            )
            for item, lengths in zip(self.alike, self._lengths(), strict=True)
        ]
        named, end, put_name = tuple(self.named), 0, put["name"]
        for name, code in zip(self.names, self.codes, strict=True):
            item = object.__new__(self.of)
            put_name(item, name)
            for put_list, length in rows[code][0]:
                put_list(item, named[end : (end := end + length)])
            for put_value, value in rows[code][1]:
                put_value(item, value)
            yield item

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int) -> P: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[P, ...]: ...
    def __getitem__(self, at: int | slice) -> P | tuple[P, ...]:
        made = self._made  # quicker than the property, where somebody has looked before
        return (self.items if made is None else made)[at]

    def __iter__(self) -> Iterator[P]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Columns):
            return self is other or self._compared() == other._compared()
        return self.items == other if isinstance(other, tuple) else NotImplemented

    def _compared(self) -> tuple[object, ...]:
        """Return what is equal for equal columns alone."""
        return self.names, self.alike, self.codes, self.named

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return repr(self.items)


class Tensors(Columns[Tensor]):
    """The tensors of a graph."""

    __slots__ = ()
    of = Tensor


class Ops(Columns[Op]):
    """The ops of a graph."""

    __slots__ = ()
    of = Op
    lists = ("inputs", "outputs", "mutates", "deps")

    def permuted(self, order: Sequence[int], place: Sequence[int]) -> Ops:
        """The ops in another order; ``place`` has where each op comes to stand."""
        import numpy as np

        new, starts = np.array(order, "i"), self.starts()
        begins = starts[:: len(self.lists)]
        begin, lengths = begins[:-1][new], np.diff(begins)[new]
        ends = np.cumsum(lengths)
        taken = np.repeat(begin - ends + lengths, lengths) + np.arange(len(self.named))
        named, made = np.asarray(self.named), self._made
        awaited = self.listed() % len(self.lists) == self.lists.index("deps")
        if awaited.any():
            named, made = named.copy(), None
            named[awaited] = np.array(place, "i")[named[awaited]]
        return Ops.like_these(
            map(self.names.__getitem__, order),
            self.alike,
            np.asarray(self.codes)[new],
            named[taken],
            made and tuple(map(made.__getitem__, order)),
        )


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gives these fields of an object, several or none."""
    return attrgetter(*names) if names else lambda item: ()


# -- graph users
# --------------------------------------------------------------------------------------------------
# The ops that use each tensor, in arrays: for a large graph they take a tenth of the memory of
# tuples.

NONE = -1
"""The first and the last user of a tensor that no op uses."""
READS, WRITES = 1, 2
"""Flags of the use of a tensor by an op."""


class CompactUsers:
    """For each tensor, the positions of the ops that use it, ascending: ``users[t]`` makes a tuple
    of them.

    ``first`` and ``last`` are the first and the last one of each tensor, :data:`NONE` if it has
    none. ``listed`` has those of all tensors, one after the other, from ``begin[t]`` on, and
    ``flags`` what each does: :data:`READS`, :data:`WRITES`, or both.
    """

    __slots__ = ("begin", "first", "flags", "last", "listed")

    def __init__(self, tensors: int, ops: Ops) -> None:
        import numpy as np  # here, as it takes longer to import than commands without a graph take

        listed, lists = ops.listed(), len(ops.lists)
        op, field = listed // lists, listed % lists
        used = field < ops.lists.index("deps")
        does = np.array([READS, WRITES, READS | WRITES], "B")[field[used]]
        most = max(1, len(ops))
        uses = (np.asarray(ops.named)[used] * np.int64(most) + op[used]) * 4 + does
        uses.sort()
        uses, does = uses >> 2, (uses & 3).astype("B")
        new = np.flatnonzero(np.diff(uses, prepend=-1))  # numpy.unique takes twenty times as long
        if len(new) < len(uses):
            uses, does = uses[new], np.bitwise_or.reduceat(does, new)
        begin = np.searchsorted(uses, np.arange(tensors + 1) * most)
        users = np.append(uses % most, NONE)  # one more, so that no position is beyond the end
        none = begin[1:] == begin[:-1]
        self.flags = array("B", does.tobytes())
        self.begin, self.listed, self.first, self.last = [
            array("i", numbers.astype("i").tobytes())
            for numbers in (
                begin,
                users,
                np.where(none, NONE, users[begin[:-1]]),
                np.where(none, NONE, users[begin[1:] - 1]),
            )
        ]

    def reads_first(self, t: int) -> bool:
        """Return whether the first user of a tensor reads it; not where it has none."""
        return self.first[t] != NONE and bool(self.flags[self.begin[t]] & READS)

    def reads(self, t: int, op: int) -> bool:
        """Return whether an op reads a tensor."""
        end = self.begin[t + 1]
        k = bisect_left(self.listed, op, self.begin[t], end)
        return k < end and self.listed[k] == op and bool(self.flags[k] & READS)

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, t: int) -> tuple[int, ...]:
        return tuple(self.listed[self.begin[t] : self.begin[t + 1]])

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(self.__getitem__, range(len(self.first)))

"""The ops that use each tensor, in arrays: for a large graph they take a tenth of the memory of
tuples.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from hosim.data.graph_parts import Op

NONE = -1
"""The first and the last user of a tensor that no op uses."""


class CompactUsers:
    """For each tensor, the positions of the ops that use it, ascending: ``users[t]`` makes a tuple
    of them.

    ``first`` and ``last`` are the first and the last one of each tensor, :data:`NONE` if it has
    none. ``_between`` is the one between them of a tensor with three, and of a tensor with more all
    of them.
    """

    __slots__ = ("_between", "first", "last")

    def __init__(self, tensors: int, ops: Sequence[Op]) -> None:
        first, last = [NONE] * tensors, [NONE] * tensors
        between: dict[int, int | list[int]] = {}
        for i, op in enumerate(ops):
            for t in op.inputs + op.outputs + op.mutates if op.mutates else op.inputs + op.outputs:
                before = last[t]
                if before == i:
                    continue
                last[t] = i
                if before < 0:
                    first[t] = i
                elif before != first[t]:
                    known = between.setdefault(t, before)
                    if isinstance(known, list):
                        known.append(i)
                    elif known != before:
                        between[t] = [first[t], known, before, i]
        self.first, self.last = array("i", first), array("i", last)
        self._between = {
            t: known if isinstance(known, int) else tuple(known) for t, known in between.items()
        }

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, t: int) -> tuple[int, ...]:
        between = self._between.get(t)
        if isinstance(between, tuple):
            return between
        first, last = self.first[t], self.last[t]
        if between is not None:
            return first, between, last
        return (first, last) if first != last else (first,) if first >= 0 else ()

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(self.__getitem__, range(len(self.first)))

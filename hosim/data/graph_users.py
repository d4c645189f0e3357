"""The ops that use each tensor, in arrays: for a large graph they take a tenth of the memory of
tuples.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from hosim.data.columns import Ops

NONE = -1
"""The first and the last user of a tensor that no op uses."""


class CompactUsers:
    """For each tensor, the positions of the ops that use it, ascending: ``users[t]`` makes a tuple
    of them.

    ``first`` and ``last`` are the first and the last one of each tensor, :data:`NONE` if it has
    none.
    """

    __slots__ = ("_begin", "_users", "first", "last")

    def __init__(self, tensors: int, ops: Ops) -> None:
        import numpy as np  # here, as it takes longer to import than commands without a graph take

        op, field = ops.naming()
        used = field < ops.lists.index("deps")
        most = max(1, len(ops))
        uses = np.sort(np.asarray(ops.named)[used] * np.int64(most) + op[used])
        uses = uses[np.diff(uses, prepend=-1) > 0]  # numpy.unique takes twenty times as long
        begin = np.searchsorted(uses, np.arange(tensors + 1) * most)
        users = np.append(uses % most, NONE)  # one more, so that no position is beyond the end
        none = begin[1:] == begin[:-1]
        self._begin, self._users, self.first, self.last = [
            array("i", numbers.astype("i").tobytes())
            for numbers in (
                begin,
                users,
                np.where(none, NONE, users[begin[:-1]]),
                np.where(none, NONE, users[begin[1:] - 1]),
            )
        ]

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, t: int) -> tuple[int, ...]:
        return tuple(self._users[self._begin[t] : self._begin[t + 1]])

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(self.__getitem__, range(len(self.first)))

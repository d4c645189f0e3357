"""Gaps: the intervals in which a tensor lies idle, and so may leave the device tier."""

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from hosim.cache_plan import AT_START
from hosim.data.columns import NONE, READS, WRITES
from hosim.graph import Graph

if TYPE_CHECKING:
    import numpy.typing as npt


class Gap(NamedTuple):
    """No op uses ``tensor`` between the ops ``after`` and ``before``: it could spend that time in a
    lower tier.

    ``after`` is :data:`~hosim.cache_plan.AT_START` for the time before the first use of a tensor
    that is there at time 0, ``before`` is the number of ops for the time after its last use; a
    persistent tensor that no op uses has one gap, the whole step. ``returns`` says whether its
    contents must be back at the end of the gap. ``version`` numbers the contents (writes so far),
    which op ``written`` made (:data:`~hosim.cache_plan.AT_START`: those of time 0): one store
    serves every later gap of the same version.
    """

    tensor: int
    after: int
    before: int
    version: int = 0
    returns: bool = True
    written: int = AT_START

    def dead(self, count: int) -> bool:
        """Return whether the op at its end overwrites the contents, so that nothing need be kept;
        ``count`` is the number of ops.
        """
        return not self.returns and self.before < count


def initial_set(graph: Graph) -> frozenset[int]:
    """Tensors that hold a valid copy at time 0 by default."""
    return frozenset(graph.initial)


def tensor_gaps(graph: Graph) -> list[list[Gap]]:
    """The gaps of each tensor in order, if it starts in the device tier where it is there at time
    0; for :meth:`Graph.derived`.

    Each has at least one op inside, except that a persistent tensor has a gap before its first use
    even if op 0 uses it: it may start below, so that op 0 waits for it and the end of the step has
    the room. O(uses).
    """
    import numpy as np  # here, as it takes longer to import than commands without a graph take

    users, count = graph.compact_users, len(graph.ops)
    begin, user = np.array(users.begin), np.array(users.listed)[:-1]
    does = np.array(users.flags)
    persistent = graph.tensors.numbers(lambda tensor: bool(tensor.persistent), "?")
    initial = np.zeros(len(users), bool)
    initial[list(graph.initial)] = True
    of = np.repeat(np.arange(len(users)), np.diff(begin))
    is_last = np.append(of[1:] != of[:-1], True)[: len(of)]
    following = np.where(is_last, count, np.roll(user, -1))
    writes = does & WRITES > 0
    so_far: npt.NDArray[np.int64] = np.cumsum(writes)
    versions: npt.NDArray[np.int64] = so_far - (so_far - writes)[begin[:-1][of]]
    written = np.maximum.accumulate(np.where(writes, np.arange(len(of)), -1))
    written = np.where(versions > 0, user[written], AT_START)
    returns = np.where(is_last, initial[of], np.roll(does, -1) & READS > 0)
    lasts = np.array(graph.survives, bool)[of] & (user + 1 < count)
    inner = np.flatnonzero(np.where(is_last, lasts, following - user > 1))
    first, at_zero = np.array(users.first), initial & (persistent | (np.array(users.first) > 0))
    early = np.flatnonzero(at_zero & ((first != NONE) | (count > 0)))
    unused = first[early] == NONE
    reads_first = np.append(does, 0)[begin[early]] & READS > 0
    columns = [
        (early, of[inner]),
        (np.full(len(early), AT_START), user[inner]),
        (np.where(unused, count, first[early]), following[inner]),
        (np.zeros(len(early), int), versions[inner]),
        (reads_first & ~unused, returns[inner]),
        (np.full(len(early), AT_START), written[inner]),
    ]
    rows = [np.concatenate(parts) for parts in columns]
    order = np.lexsort(rows[1::-1])
    gaps = list(map(Gap, *[column[order].tolist() for column in rows]))
    ends = np.searchsorted(rows[0][order], np.arange(len(users) + 1)).tolist()
    return [gaps[start:end] for start, end in pairwise(ends)]

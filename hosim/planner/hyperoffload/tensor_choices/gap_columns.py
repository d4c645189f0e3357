"""The gaps, tensors and ops of a problem as columns, which sweeps read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from hosim.analysis import Gap
from hosim.cache_plan import AT_START
from hosim.graph import Graph

Numbers = npt.NDArray[Any]


class TensorColumns:
    """The tensors of a graph: their bytes, the ops between which they live, the last op that writes
    them (-1: none does), whether they are the planner's to start below, and whether they are there
    at time 0.
    """

    def __init__(self, graph: Graph) -> None:
        users, count = graph.compact_users, len(graph.ops)
        self.size = graph.tensors.numbers(lambda tensor: tensor.size_bytes, "q")
        self.persistent = graph.tensors.numbers(lambda tensor: bool(tensor.persistent), "B")
        self.initial = np.zeros(len(self.size), "B")
        self.initial[list(graph.initial)] = 1
        writers = [writers[-1] if writers else -1 for writers in graph.writers]
        self.last_writer = np.array(writers, "i")
        self.last_user = np.array(users.last, "i")
        to_end = np.array(graph.survives, "?") | (self.last_user < 0)
        self.last_op = np.where(to_end, count + 1, self.last_user + 1).astype("i")


@dataclass(frozen=True)
class GapColumns:
    """The gaps of a problem: first ``forced`` ones, before the first use of what starts below, the
    latest first, then all others by tensor.

    ``content`` numbers what tensors hold, up to ``contents``; ``sizes`` are those that there are,
    and ``size_class`` and ``last_gap`` have by tensor which one it has, and the gap after its last
    use (-1: there is none).
    """

    forced: int
    tensor: Numbers
    after: Numbers
    before: Numbers
    version: Numbers
    returns: Numbers
    written: Numbers
    content: Numbers
    contents: int
    sizes: Numbers
    size_class: Numbers
    last_gap: Numbers


def gap_columns(graph: Graph, gaps: Sequence[Gap], starts_below: Iterable[int]) -> GapColumns:
    """The columns of ``gaps``, which come by tensor and by op, and of what ``starts_below``."""
    users, tensors = graph.compact_users, graph.derived(TensorColumns)
    first_read = [(users.first[t], t) for t in starts_below if users.reads_first(t)]
    forced = [Gap(t, AT_START, first, 0, True) for first, t in sorted(first_read, reverse=True)]
    width = len(Gap._fields)
    numbers = np.fromiter(
        chain.from_iterable(chain(forced, gaps)), "i", width * (len(forced) + len(gaps))
    ).reshape(-1, width)
    tensor, after, before, version, returns, written = np.ascontiguousarray(numbers.T)
    is_new = (np.diff(tensor, prepend=-1) != 0) | (np.diff(version, prepend=-1) != 0)
    content = np.cumsum(is_new, dtype="i")
    sizes, of_gap = np.unique(tensors.size[tensor], return_inverse=True)
    size_class = np.zeros(len(tensors.size), "i")
    size_class[tensor] = of_gap
    last_gap = np.full(len(tensors.size), -1, "i")
    (last,) = np.nonzero((after >= 0) & (after == tensors.last_user[tensor]))
    last_gap[tensor[last]] = last
    return GapColumns(
        len(forced),
        tensor,
        after,
        before,
        version,
        returns.astype("B"),
        written,
        content,
        1 + len(content),
        sizes,
        size_class,
        last_gap,
    )

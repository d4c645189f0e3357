"""The gaps and tensors of a problem as columns, for sweeps."""

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
    """The tensors of a graph as columns: bytes, persistence, validity at time 0, the last op that
    writes and the last that uses each (-1: none), and the end of its live range.
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
    """The gaps of a problem as columns: first the ``forced`` ones, before the first use of tensors
    that start below, the latest use first; then all others by tensor.

    ``content`` numbers the versions of tensors, and ``contents`` is above all of them. ``sizes``
    are the distinct sizes in bytes. By tensor, ``size_class`` has the position in ``sizes``, and
    ``last_gap`` the gap after the last use (-1: none).
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
    """Return the columns of ``gaps``, sorted by tensor and op, and of tensors that start below."""
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

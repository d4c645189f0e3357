"""Gaps: the intervals in which a tensor lies idle, and so may leave the device tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hosim.analysis.critical_path import earliest_starts
from hosim.graph import Graph


@dataclass(frozen=True, slots=True)
class Gap:
    """The open interval between two consecutive uses of ``tensor``, the ops at positions ``after`` and ``before``.

    ``wraps``: it runs across the step, from the last use (``after``) to the first (``before``) of the next step.
    """

    tensor: int
    after: int
    before: int
    wraps: bool = False


def gaps(graph: Graph) -> tuple[Gap, ...]:
    """Every gap with at least one op in it, by tensor and then by position; of persistent tensors also the wrapping one.

    Two uses by neighbouring ops leave no gap. A persistent tensor that no op uses has none either: it is idle for ever.
    """
    count = len(graph.ops)
    found: list[Gap] = []
    for t, users in enumerate(graph.users):
        found.extend(Gap(t, a, b) for a, b in pairwise(users) if b - a > 1)
        if users and graph.tensors[t].persistent and users[0] + count - users[-1] > 1:
            found.append(Gap(t, users[-1], users[0], wraps=True))
    return tuple(found)


def gap_lengths_ns(graph: Graph, durations: Sequence[int], over: Iterable[Gap]) -> tuple[int, ...]:
    """Nanoseconds of each gap when everything is resident: from the end of op ``after`` to the start of op ``before``.

    On several streams two uses may overlap: that gap is 0 long. A wrapping one goes on in the next step.
    """
    starts = earliest_starts(graph, durations)
    ends = [start + duration for start, duration in zip(starts, durations, strict=True)]
    makespan = max(ends, default=0)
    return tuple(max(0, starts[gap.before] - ends[gap.after] + makespan * gap.wraps) for gap in over)

"""In which order groups of ops leave the device for another processor, and what leaves with
them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction

from hosim.graph import Graph
from hosim.hardware import Hardware
from hosim.processors import others_of

Choice = tuple[str, ...]
"""A processor for each group, in their order."""

_READS_ALL = Fraction(1, 2)
"""The part of what it holds from which on an op counts as reading all of it."""


def by_reading(
    graph: Graph, hardware: Hardware, groups: Sequence[tuple[int, ...]], processor: str
) -> list[tuple[int, ...]]:
    """The groups that may run on ``processor`` and use what outlives the step, by position; those
    together that write the same of it.

    First those that read the smallest part of it, such as an embedding and experts, as these leave
    the most room for the least time. All that read half or more are in the order of the step, so
    that neighbours leave together and little is copied between them.
    """
    written = {
        k: [t for i in group for t in graph.ops[i].uses if graph.survives[t] and graph.writers[t]]
        for k, group in enumerate(groups)
        if processor in others_of(graph.ops[group[0]], hardware)
    }
    keys = {}
    for unit in connected(written):
        used = [i for k in unit for i in groups[k]]
        there = {t for i in used for t in graph.ops[i].uses if graph.survives[t]}
        held = sum([graph.tensors[t].size_bytes for t in there])
        if held:
            share = Fraction(sum([graph.ops[i].bytes_accessed for i in used]), held)
            keys[tuple(unit)] = min(share, _READS_ALL), used[0]
    return sorted(keys, key=keys.__getitem__)


def connected(keys: Mapping[int, Iterable[Hashable]]) -> list[list[int]]:
    """The numbers in groups, each with those that share one of its ``keys`` or are in its group
    through others; in their order.

    >>> connected({1: "ab", 2: "c", 3: "bd", 5: "d"})
    [[1, 3, 5], [2]]
    """
    first_of = {n: n for n in keys}

    def root(n: int) -> int:
        while first_of[n] != n:
            n = first_of[n]
        return n

    holder: dict[Hashable, int] = {}
    for n, own in keys.items():
        for key in own:
            one, other = sorted([root(n), root(holder.setdefault(key, n))])
            first_of[other] = one
    groups: dict[int, list[int]] = {}
    for n in keys:
        groups.setdefault(root(n), []).append(n)
    return list(groups.values())


def beside_neighbours(graph: Graph, groups: Sequence[tuple[int, ...]], choice: Choice) -> Choice:
    """The choice with each op that uses nothing which outlives the step where the ops before and
    after it run, if these run in one place.

    Else it runs where its workload has it first.
    """
    free = {
        group[0]: k
        for k, group in enumerate(groups)
        if len(group) == 1 and not any([graph.survives[t] for t in graph.ops[group[0]].uses])
    }
    of = {i: processor for group, processor in zip(groups, choice, strict=True) for i in group}
    settled = [i for i in range(len(graph.ops)) if i not in free]
    changed = list(choice)
    for i, k in free.items():
        place = bisect_left(settled, i)
        near = {of.get(j, graph.ops[j].processor) for j in settled[max(0, place - 1) : place + 1]}
        own, *others = graph.ops[i].processor, *[name for name, _ in graph.ops[i].also_on]
        changed[k] = near.pop() if len(near) == 1 and near <= {own, *others} else own
    return tuple(changed)

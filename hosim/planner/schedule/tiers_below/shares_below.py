"""Choose the tensors that a static split offloads: a given share of each group of kinds, or
the smallest with which all fits.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

from hosim.errors import InputError
from hosim.graph import Graph

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "weights": ("parameter", "expert"),
    "cache": ("kv_cache",),
    "states": ("optimizer_state",),
    "activations": ("activation", "gradient"),
})  # fmt: skip
"""The kinds of tensors of each group, in the order in which groups go below where no share is
given.
"""

EVEN, FIRST, LAST = SPREADS = ("even", "first", "last")
"""Which tensors of a group are offloaded: some of everywhere, those that are used first, or those
that are used last.
"""

_STEPS = 2048
"""The smallest share is found to one part in so many."""

Lacking = Callable[[Sequence[int], int], int]
"""The bytes that a step with these tensors below lacks, in one of several ways: 0 or less if it
fits.
"""

Choose = Callable[[Sequence[int], float], list[int]]
"""Some of a group's tensors, which come in the order of their first uses, for the bytes that are
wanted; of more bytes never fewer.
"""


def tensors_below(
    graph: Graph,
    shares: Mapping[str, float | None],
    spread: str | Choose,
    ways: int,
    lacking: Lacking,
) -> tuple[list[int], int]:
    """The tensors that are offloaded, in the order of their first uses, and the number of the way
    in which they fit.

    ``shares`` has the part of each group's bytes, ``None`` for the smallest: the groups go below
    one after the other, and of the last of them no more than lets all fit. Of the ``ways``, the
    last of which takes the least room, the first that fits counts, before a further group goes
    below. If nothing fits, all of each group that has no share goes below, the last way. ``spread``
    is of :data:`SPREADS` or, where a system has a rule of its own, the function that chooses.
    Raises :class:`InputError` for a share above 1 or an unknown spread.
    """
    if isinstance(spread, str) and spread not in SPREADS:
        raise InputError(f"expected one of {', '.join(SPREADS)}, got {spread!r}", source="spread")
    groups = {name: _movable(graph, kinds) for name, kinds in GROUPS.items() if name in shares}
    fixed: list[int] = []
    for name, tensors in groups.items():
        share = shares[name]
        if share is not None:
            if share > 1:
                raise InputError(f"expected a share of at most 1, got {share}", source=name)
            fixed += part(graph, tensors, share * _bytes(graph, tensors), spread)
    free = [tensors for name, tensors in groups.items() if shares[name] is None]
    alone = [lacking(_sorted(graph, fixed), 0)]
    while alone[-1] > 0 and not free and len(alone) < ways:
        alone.append(lacking(_sorted(graph, fixed), len(alone)))
    if alone[-1] <= 0:
        return _sorted(graph, fixed), len(alone) - 1
    for group in filter(None, free):
        together = _sorted(graph, [*fixed, *group])
        if lacking(together, ways - 1) <= 0:  # the last way takes the least room
            way, left = next(
                (way, left) for way in range(ways) if (left := -lacking(together, way)) >= 0
            )
            return _least(graph, fixed, group, spread, lacking, way, (max(alone[0], 1), left)), way
        fixed += group
    return _sorted(graph, fixed), ways - 1


def _least(
    graph: Graph,
    fixed: Sequence[int],
    group: Sequence[int],
    spread: str | Choose,
    lacking: Lacking,
    way: int,
    known: tuple[int, int],
) -> list[int]:
    """As little of the group as fits: ``known`` has what is lacking with none of it, about, and
    what is left with all of it.

    What is lacking falls about evenly, so that most steps look where it should be 0, and every
    third one in the middle.
    """
    total = _bytes(graph, group)
    step = max(1, total // _STEPS)
    too_few, enough = 0, total
    lacks, left = known
    found = _sorted(graph, [*fixed, *group])
    for n in range(3 * _STEPS.bit_length()):
        if enough - too_few <= step or left <= step:
            break
        guess = (
            (too_few + enough) // 2
            if n % 3 == 2
            else too_few + (enough - too_few) * lacks // (lacks + left) + step // 2
        )
        guess = min(max(guess, too_few + 1), enough - 1)
        tried = _sorted(graph, [*fixed, *part(graph, group, guess, spread)])
        missing = lacking(tried, way)
        if missing <= 0:
            enough, left, found = guess, -missing, tried
        else:
            too_few, lacks = guess, missing
    evenly = _sorted(
        graph, [*fixed, *part(graph, group, _bytes(graph, found) - _bytes(graph, fixed), spread)]
    )
    return (
        evenly
        if _bytes(graph, evenly) <= _bytes(graph, found) and lacking(evenly, way) <= 0
        else found
    )


def _movable(graph: Graph, kinds: Sequence[str]) -> list[int]:
    """Tensors of these kinds that some op uses, in the order of their first uses."""
    users = graph.users
    found = graph.tensors.those(lambda tensor: tensor.kind in kinds and tensor.size_bytes)
    return _sorted(graph, [t for t in found if users[t]])


def _sorted(graph: Graph, tensors: Sequence[int]) -> list[int]:
    return sorted(sorted(tensors), key=graph.compact_users.first.__getitem__)


def _bytes(graph: Graph, tensors: Sequence[int]) -> int:
    sizes = graph.derived(_sizes)
    return sum([sizes[t] for t in tensors])


def _sizes(graph: Graph) -> list[int]:
    """The bytes of each tensor."""
    return graph.tensors.column(lambda tensor: tensor.size_bytes)


def part(graph: Graph, tensors: Sequence[int], wanted: float, spread: str | Choose) -> list[int]:
    """Some of the tensors, at least ``wanted`` bytes by a spread; of tensors much larger than usual
    as few as possible.
    """
    if not isinstance(spread, str):
        return spread(tensors, wanted)
    sizes = graph.derived(_sizes)
    most = LARGE * usual_size([sizes[t] for t in tensors])
    small = [t for t in tensors if sizes[t] <= most]
    large = [t for t in tensors if sizes[t] > most]
    rest = wanted - _bytes(graph, small)
    if rest > 0:
        return small + [large[k] for k in evenly_spread([sizes[t] for t in large], rest)]
    if spread == EVEN:
        return [small[k] for k in evenly_spread([sizes[t] for t in small], wanted)]
    ordered = small if spread == FIRST else small[::-1]
    before = accumulate([sizes[t] for t in ordered], initial=0)
    return [t for t, held in zip(ordered, before, strict=False) if held < wanted]


# -- an even spread
# --------------------------------------------------------------------------------------------------
# An even spread: which of many tensors are offloaded if so many bytes of them have to be, so that
# their transfers are as far apart as can be.


LARGE = 4
"""Times the usual size: tensors that are larger than that, such as an embedding, make no even
spread.
"""


def evenly_spread(sizes: Sequence[int], wanted_bytes: float) -> Iterator[int]:
    """Positions in ``sizes``, spread evenly by bytes, that together have at least ``wanted_bytes``,
    or all there are.

    >>> list(evenly_spread([10, 10, 10, 10, 10, 10], 20)), list(evenly_spread([10, 10], 99))
    ([0, 3], [0, 1])
    """
    total, taken = sum(sizes), 0
    for k, (size, passed) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        if taken * total < wanted_bytes * passed:
            taken += size
            yield k


def usual_size(sizes: Iterable[int]) -> int:
    """The size of which, or of less, the tensors are that half of all bytes are in.

    >>> usual_size([10, 10, 10, 40]), usual_size([10, 10, 60]), usual_size([])
    (40, 60, 0)
    """
    ordered = sorted(sizes)
    passed = list(accumulate(ordered))
    return ordered[bisect_left(passed, passed[-1] / 2)] if ordered else 0

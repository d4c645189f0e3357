"""The sweep for packings that waste next to nothing, on memory that was cut into tensors."""

from random import Random

import numpy as np
import pytest
from cut_memory import LIKE_I, SIDE, bricks, cut
from hypothesis import given, settings
from hypothesis import strategies as st
from quick_cases import one_in

from hosim.analysis.packing import (
    Exchange,
    Guess,
    Moment,
    SectionEvents,
    Taste,
    TilingSearch,
    any_order,
    exchanges,
    gather,
    guessed_holes,
    improve,
    pack,
)

pytestmark = pytest.mark.slow

EFFORT = 200_000_000
"""About half a second."""


def columns(problem):
    """First and last section and size of each tensor, as arrays; what cut_memory gives are times
    that may be skipped.
    """
    lower, upper, size = (np.array(column, np.int64) for column in problem)
    times = np.unique([lower, upper])
    return np.searchsorted(times, lower), np.searchsorted(times, upper), size


def overlaps(first, last, size, offsets):
    """The pairs of tensors that live together and lie on one another, each against each."""
    meets = (
        (first[:, None] < last)
        & (first < last[:, None])
        & (offsets[:, None] < offsets + size)
        & (offsets < (offsets + size)[:, None])
    )
    return int((meets & ~np.eye(len(size), dtype=bool)).sum())


def most_live(first, last, size):
    return max(int(size[(first <= at) & (at < last)].sum()) for at in range(int(last.max())))


SEEDS = dict.fromkeys(LIKE_I, 0) | {"low bricks": 2, "bricks, 2 % missing": 2}
"""Some take ten times as many steps."""


@pytest.mark.parametrize("kind", one_in(2, LIKE_I))
def test_instances_like_minimallocs_i_are_packed_into_their_capacity(kind):
    first, last, size = columns(LIKE_I[kind](SEEDS[kind]))
    assert most_live(first, last, size) == SIDE
    offsets, _ = TilingSearch(first, last, size, SIDE, 1).run(EFFORT)
    assert (offsets + size).max() == SIDE
    assert not overlaps(first, last, size, offsets)


def test_such_an_instance_is_packed_and_proven_optimal():
    problem = LIKE_I["short lives"](0)
    packing = pack(*problem, effort=EFFORT)
    assert packing.height == SIDE
    assert packing.optimal
    assert not overlaps(*columns(problem), np.array(packing.offsets))


@given(
    st.integers(0, 10_000),
    st.sampled_from([0.3, 0.7]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.0, 0.1]),
)
def test_what_is_found_is_a_packing(seed, by_time, pinwheels, missing):
    first, last, size = columns(
        cut(seed, 30, by_time=by_time, pinwheels=pinwheels, long=2, missing=missing, side=40)
    )
    target = most_live(first, last, size)
    offsets, spent = TilingSearch(first, last, size, target, seed).run(EFFORT // 4)
    assert spent <= EFFORT // 4 + 1_000_000
    if offsets is None:
        assert missing
        return
    assert offsets.min() >= 0
    assert (offsets + size).max() == target
    assert not overlaps(first, last, size, offsets)


@given(st.integers(0, 10_000), st.integers(4, 12))
def test_walls_of_bricks_are_rebuilt(seed, live):
    first, last, size = columns(bricks(seed, 60, live=live, long=2, side=200))
    offsets, _ = TilingSearch(first, last, size, 200, seed).run(EFFORT)
    assert offsets is not None
    assert (offsets + size).max() == 200
    assert not overlaps(first, last, size, offsets)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.floats(0, 0.4), st.sampled_from([0, 10_000_000]))
def test_a_packing_is_never_higher_than_the_greedy_one_nor_lower_than_what_lives(
    seed, missing, effort
):
    problem = cut(seed, 25, by_time=0.6, pinwheels=0.5, long=2, missing=missing, side=30)
    first, last, size = columns(problem)
    duration = np.array(problem[1]) - np.array(problem[0])
    packing = pack(*problem, effort=effort, seed=seed)
    greedy = improve(first, last, size, duration, most_live(first, last, size), seed)
    assert most_live(first, last, size) <= packing.height <= int((greedy + size).max())
    assert not overlaps(first, last, size, np.array(packing.offsets))


def test_the_same_arguments_give_the_same_tiling():
    first, last, size = columns(LIKE_I["bricks"](2))
    (one, spent), (other, spent_again) = (
        TilingSearch(first, last, size, SIDE, 5).run(EFFORT) for _ in range(2)
    )
    assert spent == spent_again
    assert one is not None
    assert (one == other).all()


def test_it_is_not_tried_where_very_many_live_at_once():
    size = np.ones(401, np.int64)
    assert TilingSearch(0 * size, size, size, 401, 0).run(EFFORT) == (None, 0)
    assert TilingSearch(0 * size[1:], size[1:], size[1:], 400, 0).run(EFFORT)[0] is not None


# Sections 0, 1, 2, 3; in memory of 9, a tensor of 4 over all, one of 5 in section 0 and 2 to 3, one
# of 3 and of 2 in section 2.
FIRST, LAST, SIZE = [0, 0, 3, 2], [4, 1, 4, 3], [4, 5, 5, 3]


def test_holes_are_guessed_from_what_becomes_free_and_is_taken():
    events = SectionEvents.of(FIRST, LAST)
    assert events.free(SIZE, 9) == [0, 5, 2, 0]
    # After section 0, 5 become free; 3 of them are taken in section 2, 2 in section 3 (where 3 end
    # and 5 start).
    assert guessed_holes(events, SIZE, 9, Guess.NOTHING, None) == []
    assert guessed_holes(events, SIZE, 9, Guess.PAIRS, None) == []
    assert guessed_holes(events, SIZE, 9, Guess.TRIPLES, None) == [(1, 2, 3), (1, 3, 2)]
    assert guessed_holes(events, SIZE, 9, Guess.ALL, None) == [(1, 2, 3), (1, 3, 2)]
    pairs = SectionEvents.of([0, 0, 2], [3, 1, 3])
    assert guessed_holes(pairs, [4, 5, 5], 9, Guess.PAIRS, None) == [(1, 2, 5)]


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=8
    ),
    st.integers(0, 5),
    st.none() | st.randoms(use_true_random=False),
)
def test_all_guessed_holes_fill_the_memory(rows, above, rng):
    first, last, size = (
        [a for a, _, _ in rows],
        [a + n for a, n, _ in rows],
        [s for _, _, s in rows],
    )
    first = [a - min(first) for a in first] if min(first) else first
    last = [a + n for a, (_, n, _) in zip(first, rows, strict=True)]
    target = most_live(*map(np.array, (first, last, size))) + above
    events = SectionEvents.of(first, last)
    holes = guessed_holes(events, size, target, Guess.ALL, rng)
    filled = SectionEvents.of(first + [a for a, _, _ in holes], last + [b for _, b, _ in holes])
    assert filled.free(size + [s for *_, s in holes], target) == [0] * max(last)
    some = guessed_holes(events, size, target, Guess.TRIPLES, rng)
    filled = SectionEvents.of(first + [a for a, _, _ in some], last + [b for _, b, _ in some])
    assert min(filled.free(size + [s for *_, s in some], target)) >= 0


def found(moment, size, by_chance=0.0):
    tree = any_order(range(len(size)))
    return list(exchanges(moment, tree, size, Taste(by_chance, 0.0, Random(0), {})))


def test_exchanges_of_equal_sums_come_before_those_with_holes():
    # 0 and 1 of 2 and 4 end; 2, 3 and 4 of 4, 2 and 1 start, so that 1 of a hole (5) is filled.
    size = [2, 4, 4, 2, 1, 1, 7]
    moment = Moment(frozenset({0, 1}), frozenset({2, 3, 4}), [5], 0, -1)
    listed = found(moment, size)
    assert listed[0] == Exchange(frozenset({0}), frozenset(), frozenset({3}), 0)
    assert listed[1] == Exchange(frozenset({0, 1}), frozenset(), frozenset({2, 3}), 0)
    assert {len(exchange.filled) for exchange in listed[2:]} == {1}
    for exchange in listed:
        place, taken = exchange.ending | exchange.filled, exchange.starting
        assert (
            sum(size[item] for item in place) == sum(size[item] for item in taken) + exchange.left
        )
        assert exchange.left == 0


def test_what_ends_together_in_all_orders_is_one_exchange():
    size = [2, 4, 4, 2]
    moment = Moment(frozenset({0, 1}), frozenset({2, 3}), [], 0, 0)
    assert list(exchanges(moment, any_order(range(2)), size, Taste(0.0, 0.0, Random(0), {}))) == [
        Exchange(frozenset({0, 1}), frozenset(), frozenset({2, 3}), 0)
    ]


def test_starts_alone_go_into_holes():
    size = [5, 3, 2, 7]
    listed = found(Moment(frozenset(), frozenset({2}), [0, 1], 1, -2), size)
    assert listed == [Exchange(frozenset(), frozenset({1}), frozenset({2}), 1)]


def test_what_stands_together_in_all_orders_is_exchanged_whole():
    """0 and 1 end while 2 stays; 3 and 4 of as many bytes start. Where 2 may stand between, each
    may have another's place.
    """
    size = [2, 2, 5, 2, 2]
    moment = Moment(frozenset({0, 1}), frozenset({3, 4}), [], 0, -1)
    taste = Taste(0.0, 0.0, Random(0), {})
    whole = Exchange(frozenset({0, 1}), frozenset(), frozenset({3, 4}), 0)
    alone = [Exchange(frozenset({0}), frozenset(), frozenset({one}), 0) for one in (3, 4)]
    tree = any_order(range(3))
    assert list(exchanges(moment, tree, size, taste)) == [*alone, whole]
    assert list(exchanges(moment, gather(tree, {0, 1}, 0), size, taste)) == [whole]

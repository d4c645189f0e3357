"""The parts of a storage against its elements one by one: numpy says which of them each view
shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosim.io.importers.stored import (
    ALL,
    MANY,
    NO_BLOCKS,
    OVERLAP,
    Cut,
    Part,
    Roles,
    Use,
    ViewedBytes,
    cut,
    region,
    whole,
)

ITEM = 4


@dataclass(frozen=True)
class Known:
    """A use, and the elements that it touches in truth."""

    op: str
    use: Use
    touches: frozenset[int]


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[ViewedBytes, frozenset[int]]:
    """A slice of the tensor in a storage, turned, with what it shows."""
    elements = np.arange(int(np.prod(shape))).reshape(shape)
    for axis, size in enumerate(shape):
        low = draw(st.integers(0, size - 1))
        high = draw(st.integers(low + 1, size))
        elements = elements[
            (slice(None),) * axis + (slice(low, high, draw(st.sampled_from([1, 1, 1, 2]))),)
        ]
    elements = elements.transpose(draw(st.permutations(range(len(shape)))))
    found = region(
        int(elements.min()),
        elements.shape,
        [n // elements.itemsize for n in elements.strides],
        ITEM,
    )
    assert found is not None
    return found, frozenset(elements.reshape(-1).tolist())


@st.composite
def programs(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Known]]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    all_ = frozenset(range(int(np.prod(shape))))
    indices: dict[tuple[object, ...], frozenset[int]] = {}
    known = []
    for n in range(draw(st.integers(1, 5))):
        place, touches = draw(st.one_of(st.just((whole(ITEM * len(all_)), all_)), views(shape)))
        count, which = None, None
        if draw(st.booleans()) and len(touches) > 1:
            which, size = draw(st.integers(0, 2)), draw(st.integers(1, len(touches) - 1))
            chosen = frozenset(draw(st.permutations(sorted(touches)))[:size])
            touches, count = indices.setdefault((place, which, size), chosen), size * ITEM
        writes = draw(st.booleans())
        fresh = writes and draw(st.booleans())
        known.append(
            Known(
                f"op{draw(st.integers(0, n))}", Use(0, place, count, which, writes, fresh), touches
            )
        )
    return shape, known


def roles(found: Cut, op: str) -> Roles:
    return found.roles.get(op, Roles())


def used(found: Cut, op: str) -> set[str]:
    its = roles(found, op)
    return {*its.reads, *its.overwrites, *its.changes}


@settings(max_examples=120, deadline=None)
@given(programs())
def test_parts_are_what_the_elements_say(drawn: tuple[tuple[int, ...], list[Known]]) -> None:
    shape, known = drawn
    size = ITEM * int(np.prod(shape))
    found = cut(size, shape, [(one.op, one.use) for one in known])
    if not found.parts:  # then it is one tensor, which whoever touches it uses
        return
    sizes = {part.name: part.size_bytes for part in found.parts}
    assert len(sizes) == len(found.parts) > 1
    assert sum(sizes.values()) == size
    assert all(bytes_ > 0 for bytes_ in sizes.values())
    for op in {one.op for one in known}:
        its = [one for one in known if one.op == op]
        assert (
            len(
                {*roles(found, op).reads}
                & {*roles(found, op).overwrites, *roles(found, op).changes}
            )
            == 0
        )
        assert (
            sum(sizes[name] for name in used(found, op))
            >= len(frozenset().union(*[one.touches for one in its])) * ITEM
        )
        if all(one.use.count is None for one in known):  # to the byte
            for writes, names in (
                (None, used(found, op)),
                (True, {*roles(found, op).overwrites, *roles(found, op).changes}),
            ):
                touched = frozenset().union(
                    *[one.touches for one in its if writes is None or one.use.writes]
                )
                assert sum(sizes[name] for name in names) == len(touched) * ITEM
            unread = frozenset().union(
                *[one.touches for one in its if one.use.fresh]
            ) - frozenset().union(*[one.touches for one in its if not one.use.fresh])
            assert sum(sizes[name] for name in roles(found, op).overwrites) == len(unread) * ITEM
    for a in known:
        for b in known:
            if a.use.writes and a.op != b.op and a.touches & b.touches:  # they wait for one another
                written = {*roles(found, a.op).overwrites, *roles(found, a.op).changes}
                also = (
                    {*roles(found, b.op).overwrites, *roles(found, b.op).changes}
                    if b.use.writes
                    else set()
                )
                assert written & used(found, b.op) or also & used(found, a.op)


def sliced(*bounds: tuple[int, int], shape: tuple[int, ...] = (2, 8, 4)) -> ViewedBytes:
    """The bytes of a slice of a tensor of this shape."""
    elements = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)[
        tuple(slice(*one) for one in bounds)
    ]
    found = region(
        int(elements.reshape(-1)[0]), elements.shape, [n // ITEM for n in elements.strides], ITEM
    )
    assert found is not None
    return found


def test_a_token_that_is_written_and_a_cache_that_is_read() -> None:
    """2 heads of 8 tokens of 4 elements: a token is 16 bytes of each head."""
    found = cut(
        256,
        (2, 8, 4),
        [
            ("write", Use(0, sliced((0, 2), (5, 6)), writes=True, fresh=True)),
            ("read", Use(0, whole(256))),
        ],
    )
    assert found.parts == (Part("past", 224), Part("new", 32))
    assert found.roles == {
        "write": Roles(overwrites=("new",)),
        "read": Roles(reads=("past", "new")),
    }


def test_what_is_past_the_token_and_unused_is_the_rest() -> None:
    found = cut(
        256,
        (2, 8, 4),
        [("w", Use(0, sliced((0, 2), (5, 6)), writes=True)), ("r", Use(0, sliced((0, 2), (0, 6))))],
    )
    assert {part.name: part.size_bytes for part in found.parts} == {
        "past": 160,
        "new": 32,
        "rest": 64,
    }
    assert found.roles == {"w": Roles(changes=("new",)), "r": Roles(reads=("past", "new"))}


def test_rows_of_which_each_has_its_op_are_named_by_their_numbers() -> None:
    found = cut(
        64,
        (4, 4),
        [("a", Use(0, sliced((1, 2), shape=(4, 4)))), ("b", Use(0, sliced((2, 4), shape=(4, 4))))],
    )
    assert {part.name: part.size_bytes for part in found.parts} == {"rest": 16, "1": 16, "2:4": 32}


def test_one_index_chooses_the_same_rows_in_every_op_and_two_choose_different_ones() -> None:
    found = cut(
        64,
        (4, 4),
        [
            ("a", Use(0, whole(64), 16, "i")),
            ("b", Use(0, whole(64), 16, "i")),
            ("c", Use(0, whole(64), 16, "j")),
        ],
    )
    assert {part.name: part.size_bytes for part in found.parts} == {
        "read.0": 16,
        "read.1": 16,
        "rest": 32,
    }
    assert (used(found, "a"), used(found, "b"), used(found, "c")) == (
        {"read.0"},
        {"read.0"},
        {"read.1"},
    )


def test_who_reads_where_an_index_says_waits_for_who_wrote_where_another_says() -> None:
    found = cut(
        64,
        (4, 4),
        [
            ("w", Use(0, whole(64), 16, "i", writes=True, fresh=True)),
            ("r", Use(0, whole(64), 32, "j")),
        ],
    )
    assert found.roles == {"w": Roles(overwrites=("new",)), "r": Roles(reads=("new", "past"))}
    assert {part.name: part.size_bytes for part in found.parts} == {
        "new": 16,
        "past": 32,
        "rest": 16,
    }


@pytest.mark.parametrize(
    ("uses", "why"),
    [
        ([Use(0, whole(64), 48, "i"), Use(0, whole(64), 32, "j")], ALL),
        (
            [Use(0, ViewedBytes(0, ((4, 20), (4, 1)))), Use(0, ViewedBytes(0, ((3, 12), (4, 1))))],
            NO_BLOCKS,
        ),
        (
            [Use(0, ViewedBytes(4, ((32, 1),))), Use(0, ViewedBytes(0, ((4, 16), (4, 1))))],
            NO_BLOCKS,
        ),
        ([Use(0, whole(64), why=OVERLAP)], OVERLAP),
        ([*[Use(0, whole(64), 1, n) for n in range(40)], *[Use(0, whole(64))] * 200], MANY),
    ],
)
def test_what_is_not_known_is_said(uses: list[Use], why: str) -> None:
    assert cut(64, (4, 4), [(str(n), use) for n, use in enumerate(uses)]).why == (why,)


def test_overlapping_elements_have_no_region() -> None:
    assert region(0, (3, 2), (1, 1), 4) is None
    assert region(0, (3, 2), (2, 1), 4) == ViewedBytes(0, ((24, 1),))
    assert region(0, (7, 2), (0, 1), 4) == ViewedBytes(0, ((8, 1),))
    assert region(0, (2, 2), (3, 2), 4) == ViewedBytes(
        0, ((2, 12), (2, 8), (4, 1))
    )  # beside one another, in no grid


def test_a_slice_that_is_read_and_rows_that_are_chosen_move_side_by_side() -> None:
    """Of eight rows two are read; which other one is read is not known, nor whether it is
    another.
    """
    uses = [("a", Use(0, sliced((0, 2), shape=(8, 2)))), ("b", Use(0, whole(64), 8, "i"))]
    assert {part.name: part.size_bytes for part in cut(64, (8, 2), uses).parts} == {
        "read.0": 16,
        "read.1": 8,
        "rest": 40,
    }
    full = [("a", Use(0, sliced((0, 7), shape=(8, 2)))), ("b", Use(0, whole(64), 16, "i"))]
    assert cut(64, (8, 2), full).why == (ALL,)

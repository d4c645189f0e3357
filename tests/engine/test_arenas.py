"""The caching allocator under a replay: when a place is found, and when it is not asked for
again.
"""

from __future__ import annotations

from typing import Any

import pytest

from hosim.engine import make_arena, streams_of_tensors
from hosim.errors import InputError
from hosim.graph import Graph, GraphBuilder

MIB = 1 << 20


def toy() -> Graph:
    """Tensors of 12 MiB, which have a segment each; ``g`` runs on another stream."""
    b = GraphBuilder("toy")
    for name in ("a", "b", "c", "unused"):
        b.tensor(name, 12 * MIB)
    b.op("f", "op", outputs=["a", "b"], duration_ns=1, workspace_bytes=12 * MIB)
    b.op("g", "op", outputs=["c"], duration_ns=1, stream="side")
    return b.build()


def arena(capacity: int) -> Any:
    return make_arena("caching", toy(), [0, 1], capacity)


def reserved(made: Any) -> tuple[int, int]:
    """MiB allocated and reserved."""
    state = made.state()
    return state.allocated_bytes // MIB, state.reserved_bytes // MIB


def test_an_op_gets_all_of_its_places_or_none() -> None:
    roomy = arena(36 * MIB)
    assert roomy.begin_op(0, [0, 1])
    assert reserved(roomy) == (36, 36)
    roomy.end_op(0)
    assert reserved(roomy) == (24, 36)
    roomy.drop(0)
    roomy.drop(1)
    assert reserved(roomy) == (0, 36)
    tight = arena(35 * MIB)
    assert not tight.begin_op(0, [0, 1])  # no place for the workspace
    assert reserved(tight)[0] == 0
    tight = arena(23 * MIB)
    assert not tight.begin_op(0, [0, 1])  # no place for b
    assert reserved(tight)[0] == 0
    assert tight.take(0)
    assert reserved(tight)[0] == 12


def test_what_was_refused_is_asked_for_again_when_something_was_released() -> None:
    made = arena(24 * MIB)
    asked: list[int] = []
    malloc = made._allocator.try_malloc

    def counted(size: int, stream: int) -> int | None:
        asked.append(stream)
        return malloc(size, stream)

    made._allocator.try_malloc = counted  # type: ignore[method-assign]
    assert made.take(0)
    assert made.take(1)
    assert (made.take(2), made.take(2), made.stage(2, 12 * MIB)) == (False, False, False)
    assert asked == [0, 0, 1]
    assert not made.begin_op(0, [])  # the workspace of op 0 has no place either
    assert not made.begin_op(0, [])
    assert asked == [0, 0, 1, 0]
    made.drop(0)
    assert made.begin_op(1, [2])  # and a workspace of no bytes
    assert asked == [0, 0, 1, 0, 1, 1]
    assert not made.stage(0, 12 * MIB)
    assert not made.stage(0, 12 * MIB)
    assert asked == [0, 0, 1, 0, 1, 1, 0]
    made.end_op(1)
    assert not made.stage(0, 12 * MIB)
    assert asked == [0, 0, 1, 0, 1, 1, 0, 0]


def test_staged_bytes_are_released_in_their_order() -> None:
    made = arena(40 * MIB)
    assert made.stage(0, 12 * MIB)
    assert made.stage(0, 12 * MIB)
    assert made.stage(0, 16 * MIB)
    assert not made.stage(1, 12 * MIB)
    assert reserved(made) == (40, 40)
    first, second = made._staged[0, 12 * MIB]
    made.unstage(0, 12 * MIB)
    assert made._staged[0, 12 * MIB] == [second]
    assert reserved(made) == (28, 40)
    assert made.stage(1, 12 * MIB)
    assert made._staged[1, 12 * MIB] == [first]
    made.unstage(0, 16 * MIB)
    assert reserved(made) == (24, 40)


def test_figures_say_what_was_held_when_it_failed() -> None:
    made = arena(24 * MIB)
    assert made.take(0)
    figures = made.figures(failed=True)
    assert (
        figures.name,
        figures.account,
        figures.peak_allocated_bytes,
        figures.peak_reserved_bytes,
    ) == (
        "caching",
        "time",
        12 * MIB,
        12 * MIB,
    )
    assert figures.out_of_memory == made.state()
    assert (figures.at_peak.allocated_bytes, figures.at_peak.reserved_bytes) == (12 * MIB, 12 * MIB)
    assert made.figures(failed=False).out_of_memory is None
    assert made.failure() is None


def test_arenas_by_name() -> None:
    graph = toy()
    assert make_arena("ledger", graph, [0, 1], MIB) is None
    names = [
        made.name
        for made in (
            make_arena(name, graph, [0, 1], MIB)
            for name in ("static", "caching", "caching-expandable")
        )
        if made
    ]
    assert names == ["static", "caching", "caching-expandable"]
    with pytest.raises(
        InputError,
        match=r"no allocator 'best' \(allocators: ledger, caching, caching-expandable, static\)",
    ):
        make_arena("best", graph, [0, 1], MIB)
    assert streams_of_tensors(graph, [3, 5]) == [3, 3, 5, 0]

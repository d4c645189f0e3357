"""Vector clocks over streams, on a graph whose order is plain to see."""

from __future__ import annotations

from hosim.analysis.verifying import StreamClocks
from hosim.cache_plan import AT_START
from hosim.graph import Graph, GraphBuilder


def ops_on(*streams: str) -> Graph:
    """Ops without tensors, one on each of these streams."""
    b = GraphBuilder("ops")
    for i, stream in enumerate(streams):
        b.op(f"f{i}", "op", duration_ns=1, stream=stream)
    return b.build()


def ended(clocks: StreamClocks, count: int) -> list[set[int]]:
    """By op, those that have ended when it has."""
    return [{e for e in range(count) if clocks.ended_by(e, op)} for op in range(count)]


def test_what_has_ended_when_an_op_has() -> None:
    # a: 0, 2, 4, 6; b: 1, 3; c: 5. Op 3 follows 2; op 4 follows nothing else, 5 follows 3, 6
    # follows 1
    clocks = StreamClocks(ops_on("a", "b", "a", "b", "a", "c", "a"))
    for followed in ((), (), (), (2, AT_START), (), (3,), (1,)):
        clocks.advance(followed)
    assert ended(clocks, 7) == [
        {0},
        {1},
        {0, 2},
        {0, 1, 2, 3},
        {0, 2, 4},
        {0, 1, 2, 3, 5},
        {0, 1, 2, 4, 6},
    ]
    assert clocks.ended_by(AT_START, 0)
    assert clocks.ended_by(AT_START, AT_START)
    assert not clocks.ended_by(0, AT_START)


def test_one_stream_is_an_order() -> None:
    clocks = StreamClocks(ops_on("a", "a", "a"))
    assert ended(clocks, 3) == [{0}, {0, 1}, {0, 1, 2}]
    assert not clocks.ended_by(0, AT_START)

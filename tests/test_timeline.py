"""The answers of :mod:`hosim.timeline`, instant by instant."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from strategies import cases

from hosim.engine import replay
from hosim.result import Stall, Timeline, Transfer
from hosim.timeline import (
    Spans,
    Traffic,
    blamed,
    busy,
    last_ns,
    occupancy,
    occupancy_by_kind,
    occupied_ns,
    queued_bytes,
    residence,
    stalls_by_transfer,
    steps,
)

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)
INSTANTS = range(31)


def covers(intervals, at):
    return any(start <= at < end for start, end in intervals)


@given(INTERVALS, st.integers(0, 30), st.integers(0, 30))
def test_spans_are_sets_of_instants(intervals, start, end):
    spans = Spans(intervals)
    instants = {at for at in INSTANTS if covers(intervals, at)}
    assert spans.within(start, end) == len(instants & set(range(start, end)))
    assert spans.total_ns == len(instants)
    assert {at for a, b in spans.intervals for at in range(a, b)} == instants
    assert all(
        one[1] < other[0] for one, other in zip(spans.intervals, spans.intervals[1:], strict=False)
    )


@given(INTERVALS, st.sampled_from((1, 2, 3, 5, 6, 10)))
def test_shares_are_the_covered_part_of_each_column(intervals, parts):
    width = 30 // parts
    expected = [
        sum(covers(intervals, at) for at in range(k * width, (k + 1) * width)) / width
        for k in range(parts)
    ]
    assert all(
        abs(a - b) < 1e-9 for a, b in zip(Spans(intervals).shares(30, parts), expected, strict=True)
    )


def test_shares_of_no_time():
    assert Spans([(0, 3)]).shares(0, 2) == [0.0, 0.0]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 9)), max_size=8),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_steps_are_the_sum_at_each_instant(parts, start, end):
    amount = steps(parts)
    expected = [sum(size for a, b, size in parts if a <= at < b) for at in INSTANTS]
    assert [amount.at(at) for at in INSTANTS] == expected
    assert amount.largest(start, end) == max(expected[start:end], default=expected[start])


def test_steps_at_their_edges():
    """What begins at the end of an interval is not in it, and what lasts for no time is nowhere."""
    amount = steps([(0, 4, 1), (4, 6, 5), (2, 2, 9)])
    assert (amount.at_ns, amount.values) == ((0, 4, 6), (1, 5, 0))
    assert (
        amount.largest(0, 4),
        amount.largest(0, 5),
        amount.largest(4, 4),
        amount.largest(6, 9),
    ) == (1, 5, 5, 0)


@given(cases(max_ops=8, max_streams=2))
def test_a_tier_holds_what_lies_in_it(case):
    """Counted anew for each stretch between two changes, over everything that is held there
    then.
    """
    graph, machine, plan = case
    result = replay(plan, machine, record=True)
    for tier in machine.tiers:
        held, by_kind = (
            occupancy(result.timeline, tier.name),
            occupancy_by_kind(graph, result.timeline, tier.name),
        )
        assert max(held.values, default=0) <= result.peak_bytes[tier.name]
        for at in held.at_ns:
            there = [
                r
                for r in result.timeline.residencies
                if r.tier == tier.name and r.start_ns <= at < r.end_ns
            ]
            assert held.at(at) == sum(r.bytes for r in there)
            kinds = {
                graph.tensors[r.tensor].kind if r.tensor >= 0 else "workspace"
                for r in there
                if r.bytes
            }
            assert {kind for kind, own in by_kind.items() if own.at(at)} == kinds
            assert sum(own.at(at) for own in by_kind.values()) == held.at(at)


def moves(*transfers):
    """A timeline of transfers of 10 bytes on one channel: (issue, start, end)."""
    return Timeline(
        (),
        (),
        (),
        tuple(Transfer(k, k, "h2d", 10, *times, 0) for k, times in enumerate(transfers)),
        (),
    )


def test_a_channel_is_busy_while_it_carries_anything():
    timeline = moves((0, 0, 4), (0, 2, 6), (7, 8, 9))
    assert {name: spans.intervals for name, spans in busy(timeline).items()} == {
        "h2d": [(0, 6), (8, 9)]
    }
    assert last_ns(timeline) == 9
    assert last_ns(moves()) == 0


def test_what_queues_is_issued_and_has_not_started():
    queued = queued_bytes(moves((0, 0, 4), (0, 2, 6), (1, 6, 9)), "h2d")
    assert [queued.at(at) for at in range(8)] == [10, 20, 10, 10, 10, 10, 0, 0]
    assert queued_bytes(moves((0, 1, 2)), "d2h").values == ()


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), min_size=1, max_size=6), st.data()
)
def test_what_is_beside_a_transfer(given_moves, data):
    timeline = moves(*((start, start, start + length) for start, length in given_moves))
    x = data.draw(st.sampled_from(timeline.transfers))
    start, end = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30))
    engines = data.draw(st.integers(1, 3))
    beside = Traffic(timeline, {"h2d": "h2d"}).beside(x, start, end)
    expected = [
        y
        for y in timeline.transfers
        if y is not x and any(y.start_ns <= at < y.end_ns for at in range(start, end))
    ]
    assert sorted(y.cache_op for y in beside if y.start_ns < y.end_ns) == [
        y.cache_op for y in expected
    ]
    assert [y.start_ns for y in beside] == sorted(y.start_ns for y in beside)
    held = [sum(y.start_ns <= at < y.end_ns for y in beside) for at in range(start, end)]
    assert occupied_ns(beside, start, end, engines) == sum(count >= engines for count in held)


def test_stalls_are_blamed_on_transfers():
    timeline = moves((0, 0, 4), (0, 4, 6))
    stalls = (
        Stall(0, "transfer", 1, 4, 0),
        Stall(1, "dependency", 4, 5),
        Stall(2, "transfer", 5, 6, 1),
        Stall(3, "transfer", 0, 6, 1),
    )
    timeline = Timeline((), (), stalls, timeline.transfers, ())
    assert [blamed(timeline, stall) for stall in stalls] == [
        timeline.transfers[k] if k is not None else None for k in (0, None, 1, 1)
    ]
    assert stalls_by_transfer(timeline) == {0: [stalls[0]], 1: [stalls[2], stalls[3]]}
    assert [stall.stall_ns for stall in stalls] == [3, 1, 1, 6]


def test_residence_leaves_out_workspaces_and_other_tiers():
    from hosim.result import Residency

    held = (
        Residency(0, "hbm", 0, 3, 5),
        Residency(0, "hbm", 3, 5, 5),
        Residency(-1, "hbm", 0, 9, 1, op=0),
        Residency(1, "ddr", 0, 9, 5),
    )
    found = residence(Timeline((), (), (), (), held), "hbm")
    assert {t: spans.intervals for t, spans in found.items()} == {0: [(0, 5)]}


def test_channels_of_one_queue_are_beside_each_other():
    timeline = moves((0, 0, 4), (0, 4, 6), (1, 6, 9))
    first, second, third = timeline.transfers
    timeline = replace(timeline, transfers=(first, replace(second, channel="d2h"), third))
    traffic = Traffic(timeline, {"h2d": "h2d", "d2h": "h2d"})
    assert traffic.beside(third, 1, 6) == [first, timeline.transfers[1]]
    assert Traffic(timeline, {"h2d": "h2d", "d2h": "d2h"}).beside(third, 1, 6) == [first]

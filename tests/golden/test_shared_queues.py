"""Rule 24: channels that share a queue. A byte takes a nanosecond on each."""

from dataclasses import replace

import pytest
from by_hand import machine, plan, replayed, workload

from hosim.errors import HardwareError

PARAMETERS = {
    "w": (60, "parameter", "ddr"),
    "v": (10, "parameter", "ddr"),
    "p": (30, "parameter", "hbm"),
    "q": (20, "parameter", "hbm"),
}


def one_queue(engines=1, **given):
    """The machine of by_hand, whose channels to ddr and back are one queue."""
    usual = machine(engines=engines, **given)
    return replace(usual, channels=tuple(replace(c, queue="copies") for c in usual.channels))


def test_both_directions_take_turns_in_order_of_issue():
    # At 0 w, p and v are issued, at 10 q. w 0..60, p 60..90, v 90..100, q 100..120. Channels of
    # their own would have p 0..30 and q 30..50 on d2h, and v 60..70 on h2d.
    graph = workload(
        PARAMETERS,
        {"f": {"ns": 10, "outputs": []}, "g": {"ns": 5, "inputs": ["w", "v", "p", "q"]}},
    )
    moves = plan(
        graph,
        ("prefetch w", None),
        ("store p", None),
        ("prefetch v", None),
        ("store q", "f"),
        ("detach w", "g"),
        ("detach v", "g"),
    )
    r = replayed(moves, one_queue(hbm=200))
    assert r.moves == [
        ("prefetch", "w", 0, 0, 60),
        ("store", "p", 0, 60, 90),
        ("prefetch", "v", 0, 90, 100),
        ("store", "q", 10, 100, 120),
    ]
    assert r.ops == {"f": (0, 10), "g": (100, 105)}
    h2d, d2h = r.result.channels["h2d"], r.result.channels["d2h"]
    assert (h2d.busy_ns, h2d.queue_ns, h2d.exposed_ns) == (70, 90, 90)
    assert (d2h.busy_ns, d2h.queue_ns, d2h.exposed_ns) == (50, 60 + 90, 0)
    apart = replayed(moves, machine(hbm=200))
    assert {move[1]: move[2:] for move in apart.moves} == {
        "w": (0, 0, 60),
        "v": (0, 60, 70),
        "p": (0, 0, 30),
        "q": (10, 30, 50),
    }


def test_the_head_holds_back_the_other_direction():
    # hbm 100 holds p (30), q (20) and until 40 a (40), of f: w (60) waits at the head, and behind
    # it the store of p, which would have room below. At 40 a dies; w 40..90 does not fit yet: 50
    # are free. So nothing can go on: the store that would make room is behind w.
    graph = workload(
        {**PARAMETERS, "a": (40,)},
        {"f": {"ns": 40, "outputs": ["a"]}, "g": {"ns": 1, "inputs": ["w", "q"]}},
    )
    moves = plan(
        graph,
        ("prefetch w", None),
        ("store p", None),
        ("detach p", None),
        ("detach w", "g"),
        ("prefetch p", "g"),
    )
    assert replayed(moves, machine()).moves[:2] == [
        ("store", "p", 0, 0, 30),
        ("prefetch", "w", 0, 40, 100),
    ]
    stuck = replayed(moves, one_queue()).result
    assert stuck.error is not None
    assert "prefetch of 'w'" in stuck.error


def test_two_engines_carry_two_whatever_their_channels():
    # With two engines w 0..60 beside p 0..30; then v joins w on h2d, whose byte a nanosecond they
    # share: w has 30 left and v 10 at 30, so v 30..50 and w, with 20 left, until 70.
    graph = workload(PARAMETERS, {"g": {"ns": 5, "inputs": ["w", "v", "p"]}})
    moves = plan(
        graph,
        ("prefetch w", None),
        ("store p", None),
        ("prefetch v", None),
        ("detach w", "g"),
        ("detach v", "g"),
    )
    r = replayed(moves, one_queue(engines=2, hbm=200))
    assert {move[1]: move[2:] for move in r.moves} == {
        "w": (0, 0, 70),
        "p": (0, 0, 30),
        "v": (0, 30, 50),
    }
    assert r.result.channels["h2d"].busy_ns == 70


def test_what_shares_no_queue():
    usual = machine(nvme=100)
    up, down, *others = usual.channels
    with pytest.raises(HardwareError, match="join the same two tiers"):
        replace(usual, channels=(up, replace(others[0], queue="x"), replace(down, queue="x")))
    with pytest.raises(HardwareError, match="equally many engines"):
        replace(usual, channels=(replace(up, queue="x"), replace(down, queue="x", engines=2)))

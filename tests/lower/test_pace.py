"""The pace of transfers on a clock that stands still but for waiting: every end is exact."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import time
from contextlib import ExitStack

from slow_clock import Clock

from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.on_torch.lower.devices import paces

MS = 1_000_000
SLICE = 200_000
"""Bytes of 2 ms at 100 MB/s: 10 ns a byte."""


def machine(latency_ns: int = 0, engines: int = 1, shared: bool = False) -> Hardware:
    tiers = (Tier("hbm", 1 << 30, 10**12, "device"), Tier("ddr", 1 << 30, 10**11))
    ends = (("h2d", "ddr", "hbm"), ("d2h", "hbm", "ddr"))
    channels = tuple(Channel(name, a, b, 100 * 10**6, latency_ns, engines) for name, a, b in ends)
    fabrics = (Fabric("pcie", 100 * 10**6, ("h2d", "d2h")),) if shared else ()
    return Hardware("small", tiers, channels, Compute({}), fabrics=fabrics)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    still = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", still.perf_counter_ns)
    return still


def test_a_transfer_takes_its_latency_and_then_its_bytes(clock: Clock) -> None:
    ends = []
    with paces(machine(latency_ns=30 * MS), clock.sleep)["h2d"].transfer(
        5 * SLICE, None, 0
    ) as moved:
        for _ in range(5):
            moved(SLICE)
            ends.append(clock.now_ns)
    # 30 ms of latency, 2 ms a slice
    assert ends == [32 * MS, 34 * MS, 36 * MS, 38 * MS, 40 * MS]


def test_a_thread_that_wakes_up_late_makes_its_transfer_no_later(clock: Clock) -> None:
    clock.late_s = [0.003]
    ends = []
    with paces(machine(), clock.sleep)["h2d"].transfer(5 * SLICE, None, 0) as moved:
        for _ in range(5):
            moved(SLICE)
            ends.append(clock.now_ns)
    # The first slice is over at 2 and seen at 5; the second was over at 4; the third is over at 6,
    # as if nothing had been.
    assert ends == [5 * MS, 5 * MS, 6 * MS, 8 * MS, 10 * MS]


def test_at_most_fifty_milliseconds_are_made_up_for(clock: Clock) -> None:
    clock.late_s = [0.1]
    ends = []
    with paces(machine(), clock.sleep)["h2d"].transfer(30 * SLICE, None, 0) as moved:
        for _ in range(30):
            moved(SLICE)
            ends.append(clock.now_ns)
    # Seen at 102, 50 ms of which count: what would be over at 54, 56, ..., 102 is over at once,
    # then it goes on by 2 ms.
    assert ends == [102 * MS] * 26 + [104 * MS, 106 * MS, 108 * MS, 110 * MS]


def test_a_transfer_that_was_taken_up_late_ends_as_if_it_had_not_been(clock: Clock) -> None:
    of = paces(machine(latency_ns=MS), clock.sleep)["h2d"]
    clock.now_ns = 2 * MS
    with of.transfer(SLICE, None, ready_ns=0) as moved:
        moved(SLICE)
    assert clock.now_ns == 3 * MS


@pytest.mark.parametrize(("shared", "end_ms"), [(False, 8), (True, 16)])
def test_what_shares_a_fabric_shares_its_bandwidth(clock: Clock, shared: bool, end_ms: int) -> None:
    made = paces(machine(shared=shared), clock.sleep)
    with ExitStack() as both:
        down = both.enter_context(made["d2h"].transfer(4 * SLICE, None, 0))
        up = both.enter_context(made["h2d"].transfer(4 * SLICE, None, 0))
        for _ in range(4):
            down(SLICE)
            up(SLICE)
    assert clock.now_ns == end_ms * MS


def test_each_engine_has_one_transfer_at_a_time_and_all_share_the_channel(clock: Clock) -> None:
    of = paces(machine(latency_ns=MS, engines=2), clock.sleep)["h2d"]
    with ExitStack() as both:
        first = both.enter_context(of.transfer(2 * SLICE, None, 0))
        second = both.enter_context(of.transfer(2 * SLICE, None, 0))
        assert clock.now_ns == MS  # both latencies at once
        ends = []
        for moved in (first, second, first, second):
            moved(SLICE)
            ends.append(clock.now_ns)
    assert ends == [3 * MS, 5 * MS, 7 * MS, 9 * MS]
    with of.transfer(
        SLICE, None, 0
    ) as third:  # on the engine that was free first, at 7; its latency was over at 8
        third(SLICE)
    assert clock.now_ns == 11 * MS

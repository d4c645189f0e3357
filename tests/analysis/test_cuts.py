"""Routes and cuts."""

from __future__ import annotations

import pytest
from hypothesis import given
from strategies import hardware as machines

from hosim.analysis.cuts import cut_of, fastest_ns, routes
from hosim.costmodel import alone_ns
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier

GB = 10**9
TIERS = tuple(Tier(name, 1000, 1000 * GB) for name in ("hbm", "ddr", "pool", "nvme"))


def machine(*channels, fabrics=()):
    return Hardware("m", TIERS, channels, Compute({}), fabrics=fabrics)


def test_routes_keep_what_is_best_for_small_and_for_large():
    direct, first, second = (
        Channel("n2h", "nvme", "hbm", GB, 2),
        Channel("n2d", "nvme", "ddr", 4 * GB, 5),
        Channel("d2h", "ddr", "hbm", 9 * GB, 6),
    )
    m = machine(direct, first, second, Channel("n2p", "nvme", "pool", GB, 50), Channel("p2h", "pool", "hbm", GB))
    # direct 2 ns at 1 GB/s; over ddr 11 ns at 4 GB/s; over the pool 50 ns at 1 GB/s is worse in both
    assert routes(m, "nvme", "hbm") == [(2, GB), (11, 4 * GB)]
    assert fastest_ns(m, "nvme", "hbm", 4) == 6
    assert fastest_ns(m, "nvme", "hbm", 400) == 111
    assert fastest_ns(m, "hbm", "nvme", 4) is None


def test_a_cut_adds_channels_and_respects_their_fabric():
    a, b = Channel("a", "ddr", "hbm", 3 * GB, 4), Channel("b", "pool", "hbm", 2 * GB, 6)
    assert cut_of(machine(a, b), [a, b]).earliest_ns(50) == 4 + 10
    shared = machine(a, b, fabrics=(Fabric("root", 4 * GB, ("a", "b")),))
    assert cut_of(shared, [a, b]).earliest_ns(50) == 4 + 13  # 50 / 4 = 12.5
    assert cut_of(shared, []) is None


def test_a_channel_in_two_fabrics_is_counted_once():
    a, b, c = (Channel(name, "ddr", "hbm", 10 * GB) for name in "abc")
    fabrics = (Fabric("f", 4 * GB, ("a", "b")), Fabric("g", 5 * GB, ("b", "c")))
    # f saves 4 of a and b (alone 4 each), g then only c: at most 4 + 5; no count is below what a 4 and c 5 carry
    assert cut_of(machine(a, b, c, fabrics=fabrics), [a, b, c]).earliest_ns(90) == 10


def test_an_engine_pays_each_latency():
    a = Channel("a", "ddr", "hbm", GB, 10)
    assert cut_of(machine(a), [a]).earliest_ns(50, transfers=3) == 80
    assert cut_of(machine(a), [a]).earliest_ns(50, transfers=0) == 0
    two = Channel("a", "ddr", "hbm", GB, 10, engines=2)
    # two engines hide all latencies but the first behind the other's flow: 10 + 50
    assert cut_of(machine(two), [two]).earliest_ns(50, transfers=3) == 60


@given(machines(fabrics=True))
def test_one_transfer_is_never_faster_than_floor_and_cut(m):
    for channel in m.channels:
        for size in (0, 1, 13, 999):
            alone = alone_ns(m, channel.name, size)
            assert fastest_ns(m, channel.source, channel.destination, size) <= alone
            assert cut_of(m, [channel]).earliest_ns(size) == alone
            assert cut_of(m, m.channels).earliest_ns(size) <= alone


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_of_routes_with_one_latency_the_widest_is_kept_and_of_equal_ones_one(order):
    found = Channel("a", "nvme", "hbm", GB, 2), Channel("b", "nvme", "hbm", 3 * GB, 2), Channel("c", "nvme", "hbm", 3 * GB, 2)
    assert routes(machine(*(found[i] for i in order)), "nvme", "hbm") == [(2, 3 * GB)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_routes_with_one_bandwidth_the_quickest_is_kept(order):
    found = Channel("a", "nvme", "hbm", GB, 2), Channel("b", "nvme", "hbm", GB, 3)
    assert routes(machine(*(found[i] for i in order)), "nvme", "hbm") == [(2, GB)]

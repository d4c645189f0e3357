"""Transfer times on an idle machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hosim
from hosim.analysis.costmodel.transfers import (
    alone_ns,
    channel_bandwidth,
    may_be_slower,
    taken_as_pinned,
    transfer_ns,
)
from hosim.errors import HardwareError
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier

MACHINE = Hardware(
    "m",
    (Tier("hbm", 100, 10**12, "device"), Tier("ddr", 1000, 10**11)),
    (Channel("h2d", "ddr", "hbm", 2 * 10**9, 5), Channel("d2h", "hbm", "ddr", 10**9)),
    Compute({"bf16": 10**12}),
    fabrics=(Fabric("root", 1_500_000_000, ("d2h", "h2d")), Fabric("bus", 1_600_000_000, ("h2d",))),
)


def test_latency_comes_first_then_the_bytes():
    assert transfer_ns(40, 10**9) == 40
    assert transfer_ns(40, 4 * 10**9, 11) == 21
    assert transfer_ns(0, 10**9, 11) == 11


def test_it_ends_at_the_first_whole_nanosecond():
    assert transfer_ns(10, 3 * 10**9) == 4  # 3.33 ns
    assert transfer_ns(9, 3 * 10**9) == 3


def test_alone_means_the_narrowest_of_channel_and_fabrics():
    assert channel_bandwidth(MACHINE, "h2d") == 1_500_000_000
    assert channel_bandwidth(MACHINE, "d2h") == 10**9
    assert alone_ns(MACHINE, "h2d", 30) == 25  # 5 + 30 / 1.5
    assert alone_ns(MACHINE, "d2h", 30) == 30


def test_an_unknown_channel_is_named():
    with pytest.raises(HardwareError, match=r"no channel 'p2p' in 'm' \(channels: d2h, h2d\)"):
        alone_ns(MACHINE, "p2p", 1)


@given(size=st.integers(0, 2**62), bandwidth=st.integers(1, 10**13), latency=st.integers(0, 10**9))
def test_the_bytes_are_through_then_and_not_a_nanosecond_before(size, bandwidth, latency):
    flowing = transfer_ns(size, bandwidth, latency) - latency
    assert flowing * bandwidth >= size * 10**9
    assert flowing == 0 or (flowing - 1) * bandwidth < size * 10**9


def test_what_is_taken_as_pinned_is_said_with_the_rate_of_what_is_not() -> None:
    machine = hosim.load_hardware(hosim.find_hardware("rtx-4090"))
    ddr = machine.tiers[machine.tier_index["ddr"]]
    assert taken_as_pinned(machine, ddr, ["h2d"]).endswith("reach 8.80 GB/s over h2d")
    assert taken_as_pinned(machine, ddr, []) == ""
    toy = hosim.load_hardware(hosim.find_hardware("toy"))
    line = taken_as_pinned(toy, toy.tiers[1], ["h2d", "d2h"])
    assert line.endswith("(channels.h2d.pageable, channels.d2h.pageable)")
    assert not may_be_slower(machine, machine.channels[0])
    slow = replace(ddr, pageable=("parameter",))
    tiers = tuple([slow if tier is ddr else tier for tier in machine.tiers])
    assert may_be_slower(replace(machine, tiers=tiers), machine.channels[0])

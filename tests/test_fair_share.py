"""What a machine of several devices gives to one of them, and which of its channels joins two
tiers.
"""

from dataclasses import replace
from fractions import Fraction
from math import ceil

from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier

TIERS = (
    Tier(
        "hbm", 101, 1000, "global"
    ),  # of the device tier, each device has its own, whatever the profile says
    Tier("ddr", 101, 1001, "host", ("parameter",), 7, True),
    Tier("pool", 103, 1002, "global"),
    Tier("nvme", 105, 1003, "device"),
    Tier("crumb", 1, 1004, "global"),
)
CHANNELS = (
    Channel("down", "hbm", "ddr", 51, 3, 2, ((5, 20), (18, 51)), 33, (("up", 21),)),
    Channel("up", "ddr", "hbm", 60, 0, 1),
    Channel("across", "ddr", "pool", 51, 3, 2, ((5, 20), (18, 51)), 33, (("up", 41),)),
    Channel("far", "pool", "crumb", 51, 3, 2, ((5, 20), (18, 51)), 12, (("up", 21),)),
    Channel("slow up", "ddr", "hbm", 59),
)
MACHINE = Hardware(
    "four",
    TIERS,
    CHANNELS,
    Compute({"fp32": 9}),
    "hbm",
    (
        Fabric("own", 91, ("down",), "device"),
        Fabric("root", 91, ("down", "up")),
        Fabric("switch", 91, ("far",), "global"),
    ),
    devices=4,
    devices_per_host=2,
)


def test_what_is_shared_is_divided_and_rounded_down() -> None:
    """Two devices share what is a host's, four what is global; at least 1 is left; small and
    pageable transfers get no more than all.
    """
    share = MACHINE.fair_share
    assert (share.devices, share.devices_per_host) == (1, None)
    assert [tier.capacity_bytes for tier in share.tiers] == [101, 50, 25, 105, 1]
    assert [tier.bandwidth_bytes_per_s for tier in share.tiers] == [1000, 500, 250, 1003, 251]
    alike = [
        [replace(a, capacity_bytes=0, bandwidth_bytes_per_s=0) for a in tiers]
        for tiers in (share.tiers, TIERS)
    ]
    assert alike[0] == alike[1]
    assert share.channels == (
        CHANNELS[0],
        CHANNELS[1],
        Channel("across", "ddr", "pool", 25, 3, 2, ((5, 20), (18, 25)), 25, (("up", 20),)),
        Channel("far", "pool", "crumb", 12, 3, 2, ((5, 12), (18, 12)), 12, (("up", 5),)),
        CHANNELS[4],
    )
    assert [fabric.bandwidth_bytes_per_s for fabric in share.fabrics] == [91, 45, 22]
    assert (
        replace(
            share,
            tiers=TIERS,
            channels=CHANNELS,
            fabrics=MACHINE.fabrics,
            devices=4,
            devices_per_host=2,
        )
        == MACHINE
    )
    assert share.fair_share is share


def test_who_shares() -> None:
    assert [MACHINE.tier_scope(tier.name) for tier in TIERS] == [
        "device",
        "host",
        "global",
        "device",
        "global",
    ]
    assert [MACHINE.channel_scope(channel) for channel in CHANNELS] == [
        "device",
        "device",
        "host",
        "global",
        "device",
    ]
    scopes = ("device", "host", "global")
    assert [MACHINE.sharers(scope) for scope in scopes] == [1, 2, 4]
    assert [replace(MACHINE, devices_per_host=None).sharers(scope) for scope in scopes] == [1, 4, 4]
    assert [replace(MACHINE, devices_per_host=9).sharers(scope) for scope in scopes] == [1, 4, 4]
    assert [[MACHINE.instance(scope, device) for device in range(4)] for scope in scopes] == [
        [0, 1, 2, 3],
        [0, 0, 1, 1],
        [0, 0, 0, 0],
    ]


def test_the_fastest_of_two_channels_joins_two_tiers() -> None:
    both = MACHINE.channel_between
    assert {ends: channel.name for ends, channel in both.items()} == {
        ("hbm", "ddr"): "down",
        ("ddr", "hbm"): "up",
        ("ddr", "pool"): "across",
        ("pool", "crumb"): "far",
    }
    equal = replace(MACHINE, channels=(*CHANNELS, replace(CHANNELS[1], name="as fast")))
    assert equal.channel_between["ddr", "hbm"].name == "up"


def test_what_a_small_or_pageable_transfer_reaches() -> None:
    """(5 B, 20 B/s) is a quarter of a second, (18, 45) is 0.4 s; between them the time is linear,
    beyond them a byte takes 1/60 s.
    """
    channel = Channel("c", "hbm", "ddr", 60, curve=((5, 20), (18, 45)), pageable_bytes_per_s=30)
    assert [channel.ceiling(size) for size in (0, 1, 5, 18)] == [None, 20, 20, 45]
    assert (
        channel.ceiling(8)
        == ceil(Fraction(8) / (Fraction(1, 4) + Fraction(3, 20) * Fraction(3, 13)))
        == 29
    )  # whole bytes a second
    assert channel.ceiling(24) == 24 / (Fraction(18, 45) + Fraction(6, 60))
    assert [channel.ceiling(size, pageable=True) for size in (0, 1, 18)] == [30, 20, 30]
    assert replace(channel, pageable_bytes_per_s=None).ceiling(18, pageable=True) == 45
    assert replace(channel, curve=()).ceiling(18) is None

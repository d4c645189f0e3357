"""The check of several devices finds what is wrong: replays of one machine, held against another,
and figures that were changed.
"""

from dataclasses import replace

import pytest
from timeline_check import check_result

from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.jitter import Jitter
from hosim.result import Spread

GB = 10**9
MACHINE = Hardware(
    "four",
    (
        Tier("hbm", 100, 10**12, "device"),
        Tier("ddr", 400, 10**11, "host"),
        Tier("nvme", 1000, 10**10, "host"),
    ),
    (Channel("h2d", "ddr", "hbm", GB), Channel("n2h", "nvme", "ddr", GB)),
    Compute({}),
    fabrics=(Fabric("root", GB, ("h2d",), "host"),),
    devices=4,
    devices_per_host=2,
)


def plan(home="ddr"):
    b = GraphBuilder("one")
    b.tensor("w", 40, "parameter", home)
    b.op("f", "any", inputs=["w"], duration_ns=10)
    staged = (CacheOp("prefetch", 0, "nvme", "ddr"),) if home == "nvme" else ()
    return Plan(b.build(), "by hand", (*staged, CacheOp("prefetch", 0, "ddr", "hbm")))


def right(machine=MACHINE, home="ddr", **options):
    return replay(plan(home), machine, record=True, **options)


def rules(result, machine=MACHINE, home="ddr"):
    return {finding.rule for finding in check_result(plan(home), machine, result)}


@pytest.mark.parametrize("home", ["ddr", "nvme"])
def test_what_is_right(home):
    assert rules(right(home=home), home=home) == set()
    assert rules(right(home=home, fold=False), home=home) == set()


def test_more_bandwidth_than_a_shared_fabric_has():
    private = replace(MACHINE, fabrics=(Fabric("root", GB, ("h2d",), "device"),))
    assert rules(right(private), private) == set()
    assert rules(right(private)) == {"bandwidth"}  # each device by itself is right
    everyones = replace(MACHINE, fabrics=(Fabric("root", GB, ("h2d",), "global"),))
    assert rules(right(), everyones) == {"bandwidth"}
    assert rules(right(everyones)) == set()  # slower than it need be is no matter of this check


def test_more_bandwidth_than_a_channel_between_shared_tiers_has():
    one_each = replace(MACHINE, devices_per_host=1)
    assert rules(right(one_each, "nvme"), one_each, "nvme") == set()
    assert "bandwidth" in rules(right(one_each, "nvme"), MACHINE, "nvme")


def test_more_room_than_a_shared_tier_has():
    cramped = replace(
        MACHINE,
        tiers=(MACHINE.tiers[0], replace(MACHINE.tiers[1], capacity_bytes=79), MACHINE.tiers[2]),
    )
    assert rules(right(), cramped) == {"capacity"}
    enough = replace(
        MACHINE,
        tiers=(MACHINE.tiers[0], replace(MACHINE.tiers[1], capacity_bytes=80), MACHINE.tiers[2]),
    )
    assert rules(right(), enough) == set()


def test_figures_over_all_devices():
    result = right()
    assert result.devices.makespan_ns == Spread(90, 90, 90)
    assert rules(replace(result, makespan_ns=91)) == {"devices"}
    assert rules(replace(result, devices=replace(result.devices, stall_ns=Spread(79, 80, 80)))) == {
        "devices"
    }
    assert rules(replace(result, devices=None)) == {"devices"}
    assert rules(replace(result, peak_bytes={**result.peak_bytes, "ddr": 40})) == {"peak"}
    failed = replace(
        result.by_device[1],
        feasible=False,
        error="out of memory",
        makespan_ns=None,
        busy_ns=None,
        drain_ns=None,
    )
    assert rules(
        replace(result, by_device=(result.by_device[0], failed, *result.by_device[2:]))
    ) == {"devices"}


def test_a_device_of_its_own_duration():
    drawn = right(jitter=Jitter(1, 0.3))
    assert rules(drawn) == set()
    one, other, *rest = drawn.by_device
    assert "duration" in rules(replace(drawn, by_device=(other, one, *rest)))


def test_results_of_too_few_devices():
    with pytest.raises(InputError, match="expected the results of 4 devices, got 3"):
        check_result(plan(), MACHINE, replace(right(), by_device=right().by_device[:3]))

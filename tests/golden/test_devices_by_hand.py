"""Several devices that run one plan together: what they share and what they do not
(docs/contract.md), worked out by hand.

A byte takes a nanosecond on every channel (1 GB/s).
"""

from dataclasses import replace

import pytest
from both_engines import replay
from by_hand import GB, machine, plan, workload

from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.result import DeviceFigures, DeviceLine, Spread


def ran(the_plan, hardware):
    """The result, that of each device, and for each the times of its ops and (tensor, issue, start,
    end) of its transfers.
    """
    result = replay(the_plan, hardware, record=True)
    assert replay(the_plan, hardware) == replay(the_plan, hardware, fold=False) == result
    names = [t.name for t in the_plan.graph.tensors]
    ops, moves = [], []
    for device in result.by_device:
        timeline = device.timeline
        ops.append(list(zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)))
        moves.append(
            [(names[x.tensor], x.issue_ns, x.start_ns, x.end_ns) for x in timeline.transfers]
        )
    return result, ops, moves


def prefetched(**ns):
    """One op per name, each with a 40-byte parameter of its own that comes from below at time 0."""
    graph = workload(
        {f"w{name}": (40, "parameter", "ddr") for name in ns},
        {name: {"inputs": [f"w{name}"], "ns": length} for name, length in ns.items()},
    )
    return plan(graph, *((f"prefetch w{name}", None) for name in ns))


def test_two_devices_share_a_root_and_the_third_has_one_for_itself():
    # Hosts of two. Devices 0 and 1 move 40 B each over a root of 1 B/ns: half a byte a nanosecond
    # each, 80 ns instead of 40. Device 2 is alone on its host: 40 ns. Then f, 50 ns.
    the_plan = prefetched(f=50)
    hardware = replace(machine(fabric=GB), devices=3, devices_per_host=2)
    result, ops, moves = ran(the_plan, hardware)
    assert moves == [[("wf", 0, 0, 80)], [("wf", 0, 0, 80)], [("wf", 0, 0, 40)]]
    assert ops == [[(80, 130)], [(80, 130)], [(40, 90)]]
    assert [r.makespan_ns for r in result.by_device] == [130, 130, 90]
    assert [r.channels["h2d"].contention_ns for r in result.by_device] == [40, 40, 0]
    # the result is that of the device which ended last, and a tier's peak the largest of its
    # instances: host 0's holds two copies
    assert (result.makespan_ns, result.stall_ns["transfer"]) == (130, 80)
    assert result.peak_bytes == {"hbm": 40, "ddr": 80}
    assert [r.peak_bytes["ddr"] for r in result.by_device] == [40, 40, 40]
    assert result.devices == DeviceFigures(
        count=3,
        feasible=3,
        makespan_ns=Spread(90, 130, 130),
        stall_ns=Spread(40, 80, 80),
        peak_bytes={"hbm": Spread(40, 40, 40), "ddr": Spread(40, 40, 40)},
        each=tuple(DeviceLine(end, end - 50, {"hbm": 40, "ddr": 40}) for end in (130, 130, 90)),
    )


def test_the_peak_is_told_at_the_first_instant_at_which_any_device_reaches_it():
    # As above, f's and g's 40 B one behind the other: g's are reserved when f's have come, at 80 on
    # devices 0 and 1, at 40 on device 2. So hbm first holds 80 at 40, on device 2, which is not the
    # one that ends last.
    hardware = replace(machine(fabric=GB), devices=3, devices_per_host=2)
    result, _, moves = ran(prefetched(f=50, g=50), hardware)
    assert [listed[1] for listed in moves] == [
        ("wg", 0, 80, 160),
        ("wg", 0, 80, 160),
        ("wg", 0, 40, 80),
    ]
    assert [r.peak_at_ns["hbm"] for r in result.by_device] == [80, 80, 40]
    assert (result.makespan_ns, result.peak_bytes["hbm"], result.peak_at_ns["hbm"]) == (210, 80, 40)


@pytest.mark.parametrize(("scope", "end"), [("device", 40), ("host", 160), ("global", 320)])
def test_eight_devices_of_a_host_on_one_root(scope, end):
    # 16 devices, 8 a host, a root of 2 B/ns. Of scope host, the 8 have a quarter of a byte a
    # nanosecond each: 40 B take 160 ns. Were it one for all, 16 would have an eighth, 320 ns; were
    # it each device's own, it would not be felt (the channel carries 1 B/ns).
    hardware = replace(
        machine(hbm=1000, ddr=10_000),
        devices=16,
        devices_per_host=8,
        fabrics=(Fabric("root", 2 * GB, ("h2d", "d2h"), scope),),
    )
    result, ops, _ = ran(prefetched(f=50), hardware)
    assert ops == [[(end, end + 50)]] * 16
    assert [r.makespan_ns for r in result.by_device] == [end + 50] * 16


@pytest.mark.parametrize(("devices", "end"), [(4, 120), (3, 90), (2, 80), (1, 60)])
def test_host_uplinks_and_a_pool_switch(devices, end):
    # Each device moves 60 B from the pool, at most 1 B/ns on its channel, 1.5 on its host's uplink
    # (2 devices), 2 on the switch (all).
    # 4 devices: the uplink gives 3/4 each, the switch 1/2: 120 ns.   3: the switch gives 2/3, host 1's only device could have 1: 90 ns.
    # 2: the uplink gives 3/4, the switch 1: 80 ns.                   1: its channel's 1: 60 ns.
    graph = workload({"w": (60, "parameter", "pool")}, {"f": {"inputs": ["w"], "ns": 10}})
    tiers = (Tier("hbm", 100, 10**12, "device"), Tier("pool", 240, 10**12, "global"))
    fabrics = (
        Fabric("uplink", 3 * GB // 2, ("read",), "host"),
        Fabric("switch", 2 * GB, ("read",), "global"),
    )
    hardware = Hardware(
        "pooled",
        tiers,
        (Channel("read", "pool", "hbm", GB),),
        Compute({}),
        "hbm",
        fabrics,
        0,
        devices,
        2,
    )
    result = replay(plan(graph, ("prefetch w pool hbm", None)), hardware)
    assert result == replay(plan(graph, ("prefetch w pool hbm", None)), hardware, fold=False)
    assert result.makespan_ns == end + 10
    assert [r.makespan_ns for r in result.by_device] == [end + 10] * (devices if devices > 1 else 0)
    assert result.peak_bytes["pool"] == 60 * devices


def test_room_in_a_shared_tier_goes_to_who_asked_first():
    # ddr holds 60 B, for both devices together. Both store w (40 B) after f, at 10: device 0 first,
    # 10..50; for device 1 there is no room. Both drop the copy below after g, at 60. Device 0's
    # leaves room: device 1's store runs 60..100, and its drop takes effect at 100.
    graph = workload(
        {"w": (40, "parameter", "hbm")}, {"f": {"inputs": ["w"], "ns": 10}, "g": {"ns": 50}}
    )
    the_plan = plan(graph, ("store w", "f"), ("detach w ddr", "g"))
    result, ops, moves = ran(the_plan, replace(machine(ddr=60), devices=2))
    assert ops == [[(0, 10), (10, 60)]] * 2
    assert moves == [[("w", 10, 10, 50)], [("w", 10, 60, 100)]]
    assert [r.makespan_ns for r in result.by_device] == [60, 100]
    assert [r.channels["d2h"].queue_ns for r in result.by_device] == [0, 50]
    assert (result.peak_bytes["ddr"], result.peak_at_ns["ddr"]) == (40, 10)
    assert (result.makespan_ns, result.drain_ns) == (100, 40)


def test_out_of_memory_names_the_device():
    # As above without the drops: device 1's store never starts.
    graph = workload({"w": (40, "parameter", "hbm")}, {"f": {"inputs": ["w"], "ns": 10}})
    result, _, _ = ran(plan(graph, ("store w", "f")), replace(machine(ddr=60), devices=2))
    assert not result.feasible
    assert result.error == (
        "out of memory on device 1: store of 'w' (hbm to ddr) wants 40 B of ddr at 50 ns, where "
        "40 B of 60 B are held (0 B by this "
        "device); largest residents: none"
    )
    assert [r.feasible for r in result.by_device] == [True, False]
    assert result.by_device[0].makespan_ns == 50


def test_out_of_memory_of_all_names_the_first():
    graph = workload(
        {"w": (40, "parameter", "hbm")}, {"f": {"inputs": ["w"], "workspace_bytes": 80, "ns": 10}}
    )
    result, _, _ = ran(plan(graph), replace(machine(), devices=2))
    assert [r.error.split(":")[0] for r in (result, *result.by_device)] == [
        f"out of memory on device {d}" for d in (0, 0, 1)
    ]
    crowded, _, _ = ran(
        plan(workload({"w": (40, "parameter", "ddr")}, {})), replace(machine(ddr=100), devices=3)
    )
    assert crowded.error == (
        "out of memory on device 0: the initial residents of ddr take 120 B (40 B by this "
        "device), its capacity is 100 B; "
        "largest residents: w 40 B"
    )


def test_a_channel_between_shared_tiers_is_one_for_all():
    # Stores go hbm -> ddr on each device's own channel: 30 ns each. From ddr to nvme there is one
    # path for the host: two at half a byte a nanosecond, 60 ns.
    graph = workload({"w": (30, "parameter", "hbm")}, {"f": {"inputs": ["w"], "ns": 10}})
    hardware = replace(machine(nvme=1000), devices=2)
    hardware = replace(hardware, channels=(*hardware.channels, Channel("h2n", "ddr", "nvme", GB)))
    the_plan = plan(graph, ("store w", "f"), ("store w nvme", "f"))
    two_hops = replace(
        the_plan, cache_ops=(the_plan.cache_ops[0], replace(the_plan.cache_ops[1], source="ddr"))
    )
    _, _, moves = ran(two_hops, hardware)
    assert moves == [[("w", 10, 10, 40), ("w", 10, 40, 100)]] * 2

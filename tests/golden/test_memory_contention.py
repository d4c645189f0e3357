"""Ops and copies that use the same memory, by hand: hbm carries 10 bytes a nanosecond, ddr 6 or
more, channels as said.

Ops have no duration: 100 bytes accessed are 10 ns of the roofline. Copies come first.
"""

from dataclasses import replace

from both_engines import replay
from by_hand import GB, machine, plan, workload
from timeline_check import check_result

from hosim.hardware import Compute, Fabric, Hardware


def small(
    h2d: int = 5,
    d2h: int = 5,
    ddr: int = 100,
    launch: int = 0,
    efficiency: float = 1.0,
    latency: int = 0,
    **given,
) -> Hardware:
    hardware = machine(hbm=1000, h2d=h2d * GB, d2h=d2h * GB, latency=latency, **given)
    tiers = (
        replace(hardware.tiers[0], bandwidth_bytes_per_s=10 * GB),
        replace(hardware.tiers[1], bandwidth_bytes_per_s=ddr * GB),
    )
    tiers += hardware.tiers[2:]
    return replace(hardware, tiers=tiers, compute=Compute({"bf16": GB}, efficiency, launch))


def beside(hardware: Hardware, ops: dict, *moves: str, ns: int | None = None, **option):
    """(start, end) of ops that run while the moves do, (start, end) of these, and what the ops took
    longer.
    """
    graph = workload(
        {
            "w": (20, "parameter", "ddr"),
            "p": (20, "parameter"),
            "q": (40, "parameter", "ddr"),
            "y": (25,),
            "z": (50,),
        },
        {
            name: {"ns": ns, "inputs": ["p"], "bytes_accessed": 100} | fields
            for name, fields in ops.items()
        },
    )
    the_plan = plan(
        graph, *((move, None) if "@" not in move else tuple(move.split("@")) for move in moves)
    )
    result = replay(the_plan, hardware, record=True, **option)
    assert check_result(the_plan, hardware, result) == ()
    assert replay(the_plan, hardware, **option) == result
    timeline = result.timeline
    transfers = {graph.tensors[x.tensor].name: (x.start_ns, x.end_ns) for x in timeline.transfers}
    return (
        list(zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)),
        transfers,
        result.slowed_ns,
    )


def test_a_memory_bound_op_is_slowed_while_a_copy_flows():
    # w's 20 at 5 flow 0..4. f gets 5 of 10: half of its speed, 2 of 10 ns done by 4; the 8 left at
    # full speed: 12.
    assert beside(small(), {"f": {}}, "prefetch w") == ([(0, 12)], {"w": (0, 4)}, 2)


def test_channels_that_share_their_links_and_have_other_tiers():
    # n2h (nvme to ddr) and h2d have 1 each of a fabric of 1. w comes to ddr 0..20, which takes
    # nothing of hbm, and then to hbm 20..40, which takes 1 of its 10. f's 1000 bytes take 100 ns
    # alone: 20 done by 20, 18 by 40, and 62 are left: 102.
    hardware = small(nvme=1000, h2d=1)
    hardware = replace(hardware, fabrics=(Fabric("pcie", GB, ("n2h", "h2d")),))
    graph = workload({"w": (20, "parameter", "nvme")}, {"f": {"ns": None, "bytes_accessed": 1000}})
    result = replay(
        plan(graph, ("prefetch w nvme ddr", None), ("prefetch w ddr hbm", None)),
        hardware,
        record=True,
    )
    assert (result.timeline.op_end_ns, result.slowed_ns) == ((102,), 2)


def test_an_op_bound_by_computation_is_not():
    # 20 FLOP at 1 a nanosecond: 20 ns, in which 100 bytes pass at 5 as well.
    assert beside(small(), {"f": {"flops": 20}}, "prefetch w") == ([(0, 20)], {"w": (0, 4)}, 0)


def test_an_op_that_is_bound_by_computation_until_a_copy_comes():
    # 15 ns of computation; at 5 its bytes take 20: 3/4 of its speed. 3 of 15 ns done by 4, 12 left:
    # 16.
    assert beside(small(), {"f": {"flops": 15}}, "prefetch w") == ([(0, 16)], {"w": (0, 4)}, 1)


def test_a_launch_is_not_slowed():
    # Launch 0..3. Half speed 3..4: 9.5 of 10 ns left, so 13.5, in whole nanoseconds 14; alone it
    # would be 13.
    assert beside(small(launch=3), {"f": {}}, "prefetch w") == ([(0, 14)], {"w": (0, 4)}, 1)


def test_both_directions_take_their_part():
    # 4 in and 4 out leave 2: a fifth of its speed. Both 20 bytes flow 0..5: 1 of 10 ns done, 9
    # left: 14.
    assert beside(small(4, 4), {"f": {}}, "prefetch w", "store p") == (
        [(0, 14)],
        {"w": (0, 5), "p": (0, 5)},
        4,
    )


def test_speeds_change_when_a_transfer_starts_or_ends():
    # w (20) in at 5: 0..4. p (20) out at 2: 0..10. f gets 3 of 10 until 4: 1.2 of 10 ns; then 8 of
    # 10: 4.8 more by 10; 4 left alone: 14.
    assert beside(small(5, 2), {"f": {}}, "prefetch w", "store p") == (
        [(0, 14)],
        {"w": (0, 4), "p": (0, 10)},
        4,
    )


def test_latency_takes_no_bandwidth():
    # w flows 6..10: 6 ns done before, 2 while, 2 after: 12.
    assert beside(small(latency=6), {"f": {}}, "prefetch w") == ([(0, 12)], {"w": (0, 10)}, 2)


def test_what_kernels_reach():
    # Efficiency 1/2: ops reach 5, and 100 bytes take 20 ns alone. At 2, w's 20 flow 0..10 and leave
    # 3: 6 of 20 ns by 10, 14 left: 24.
    assert beside(small(2, efficiency=0.5), {"f": {}}, "prefetch w") == (
        [(0, 24)],
        {"w": (0, 10)},
        4,
    )
    # At 5 they leave nothing until 4.
    assert beside(small(efficiency=0.5), {"f": {}}, "prefetch w") == ([(0, 24)], {"w": (0, 4)}, 4)
    # One that moves 10 in its time reaches them: half of its speed until 4.
    assert beside(small(efficiency=0.5), {"f": {}}, "prefetch w", ns=10, compete=True) == (
        [(0, 12)],
        {"w": (0, 4)},
        2,
    )


def test_what_ops_keep_while_copies_flow():
    # 8 of 10 while any copy flows, of which w takes 5 and leaves 3: 1.2 of 10 ns by 4, 8.8 left:
    # 12.8, so 13.
    hardware = small()
    hardware = replace(hardware, compute=replace(hardware.compute, beside_copies=0.8))
    assert beside(hardware, {"f": {}}, "prefetch w") == ([(0, 13)], {"w": (0, 4)}, 3)
    # Of 100 bytes 25 are written: 9 while a copy flows, 4 beside w, 1.6 of 10 ns by 4. Of 50
    # nothing is lost: as without it.
    quarter, half = ({"outputs": [name]} for name in ("y", "z"))
    assert beside(hardware, {"f": quarter}, "prefetch w") == ([(0, 13)], {"w": (0, 4)}, 3)
    assert beside(hardware, {"f": half}, "prefetch w") == ([(0, 12)], {"w": (0, 4)}, 2)
    # 25 ns of computation, in which 100 bytes are 4 a nanosecond: 3/4 of its speed, 3 of 25 ns by
    # 4. 40 ns need 2.5: no loss.
    assert beside(hardware, {"f": {"flops": 25}}, "prefetch w") == ([(0, 26)], {"w": (0, 4)}, 1)
    assert beside(hardware, {"f": {"flops": 40}}, "prefetch w") == ([(0, 40)], {"w": (0, 4)}, 0)


def test_the_next_op_and_the_rest_of_a_copy():
    # q (40) flows 0..8. f (100 bytes) does 4 of 10 ns by 8, 6 left: 14. g, alone: 24. With f and g
    # of 20 bytes each, 2 ns alone and 4 beside q: 0..4 and 4..8.
    assert beside(small(), {"f": {}, "g": {}}, "prefetch q") == (
        [(0, 14), (14, 24)],
        {"q": (0, 8)},
        4,
    )
    short = {"bytes_accessed": 20}
    assert beside(small(), {"f": short, "g": short}, "prefetch q") == (
        [(0, 4), (4, 8)],
        {"q": (0, 8)},
        4,
    )


def test_a_copy_that_takes_all_of_it_stops_the_op():
    # w at 10 flows 0..2: f does nothing until then: 12.
    assert beside(small(10), {"f": {}}, "prefetch w") == ([(0, 12)], {"w": (0, 2)}, 2)


def test_host_memory_is_shared_by_copies():
    # ddr carries 6 for both directions: 3 each instead of 5: 20 bytes take 6.67, so 7. f gets 4 of
    # 10 until 7: 2.8 of 10 ns, 7.2 left: 14.2, so 15.
    assert beside(small(ddr=6), {"f": {}}, "prefetch w", "store p") == (
        [(0, 15)],
        {"w": (0, 7), "p": (0, 7)},
        5,
    )
    # Not so where it is left out.
    assert beside(small(ddr=6), {"f": {}}, "prefetch w", "store p", compete=False) == (
        [(0, 10)],
        {"w": (0, 4), "p": (0, 4)},
        None,
    )


def test_measured_ops_are_slowed_if_they_say_what_they_access():
    assert beside(small(), {"f": {}}, "prefetch w", ns=10) == ([(0, 12)], {"w": (0, 4)}, 2)
    assert beside(small(), {"f": {}}, "prefetch w", ns=10, compete=False) == (
        [(0, 10)],
        {"w": (0, 4)},
        None,
    )
    # In 20 ns measured, 100 bytes pass at 5 too. Where nothing is slowed, nothing is told, unless
    # asked.
    assert beside(small(), {"f": {}}, "prefetch w", ns=20) == ([(0, 20)], {"w": (0, 4)}, None)
    assert beside(small(), {"f": {}}, "prefetch w", ns=20, compete=True) == (
        [(0, 20)],
        {"w": (0, 4)},
        0,
    )
    # In 8 ns they could not anyway: f is slowed as if they just could. 2 of 8 ns done by 4, 6 left.
    assert beside(small(), {"f": {}}, "prefetch w", ns=8) == ([(0, 10)], {"w": (0, 4)}, 2)
    # Nothing is known of what it accesses, and neither do copies share the memory below then.
    assert beside(small(ddr=6), {"f": {"bytes_accessed": 0}}, "prefetch w", "store p", ns=10) == (
        [(0, 10)],
        {"w": (0, 4), "p": (0, 4)},
        None,
    )


def test_a_stream_beside_it():
    # f on compute and g on another stream, both beside w: neither slows the other, w slows both.
    ops = {"f": {}, "g": {"stream": "side", "bytes_accessed": 50}}
    assert beside(small(), ops, "prefetch w") == ([(0, 12), (0, 7)], {"w": (0, 4)}, 4)

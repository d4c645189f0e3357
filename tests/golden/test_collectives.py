"""Collectives, by hand: devices wait for the last of them, and their bytes share links with copies
(docs/contract.md, rule 19).

A byte takes a nanosecond on a channel of 1 GB/s. An all-reduce of n bytes between two devices sends
n from each.
"""

from dataclasses import replace

import pytest
from both_engines import replay
from by_hand import GB, machine, plan, workload
from timeline_check import check_result

from hosim.errors import HardwareError
from hosim.hardware import Fabric, Hardware
from hosim.io import hardware_from_dict, hardware_to_dict, result_from_dict, result_to_dict
from hosim.jitter import Jitter

REDUCE = {"kind": "all_reduce", "kernel": "all_reduce"}


def ops_of(the_plan, hardware, **option):
    """The result, and by device (start, end) of its ops and of its transfers."""
    result = replay(the_plan, hardware, record=True, **option)
    assert check_result(the_plan, hardware, result) == ()
    assert (
        replay(the_plan, hardware, **option)
        == replay(the_plan, hardware, fold=False, **option)
        == result
    )
    each = [one.timeline for one in result.by_device or (result,)]
    ops = [list(zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)) for timeline in each]
    return result, ops, [[(x.start_ns, x.end_ns) for x in timeline.transfers] for timeline in each]


@pytest.mark.parametrize(
    ("kind", "sizes", "third"),
    [
        ("all_reduce", (), (40, 130)),  # of all devices: the third waits for the others, 40 ns
        ("all_reduce", (8, 40), (40, 130)),  # five more ranks are not replayed
        (
            "all_reduce",
            (2, 40),
            (40, 90),
        ),  # of two that follow one another: the third has nobody to wait for
        ("wait_tensor", (), (40, 90)),  # for something that is under way on the device
        ("send", (), (40, 90)),  # to another program
        ("matmul", (), (40, 90)),
    ],
)
def test_the_last_device_begins_the_exchange(kind, sizes, third):
    # Hosts of two on a root of 1 B/ns: w arrives at 80 on devices 0 and 1, at 40 on device 2. f
    # takes 50 ns from when all have begun.
    graph = workload(
        {"w": (40, "parameter", "ddr")},
        {
            "f": {
                "ns": 50,
                "inputs": ["w"],
                "kind": kind,
                "kernel": "all_reduce" if sizes else "",
                "sizes": sizes,
            }
        },
    )
    the_plan, hardware = (
        plan(graph, ("prefetch w", None)),
        replace(machine(fabric=GB), devices=3, devices_per_host=2),
    )
    result, ops, _ = ops_of(the_plan, hardware)
    assert ops == [[(80, 130)], [(80, 130)], [third]]
    waited = third[1] - third[0] - 50
    assert [(r.busy_ns, r.peers_ns, r.stall_ns["transfer"]) for r in result.by_device] == [
        (50, 0 if kind == "all_reduce" else None, 80),
        (50, 0 if kind == "all_reduce" else None, 80),
        (50 + waited, waited if kind == "all_reduce" else None, 40),
    ]


def test_with_jitter_the_slowest_device_begins_it():
    jitter = Jitter(seed=3, op_sigma=0.5)
    graph = workload(
        {}, {"f": {"ns": 1000}, "c": {"ns": 1000, "kind": "all_reduce"}, "g": {"ns": 1000}}
    )
    result, ops, _ = ops_of(plan(graph), replace(machine(), devices=4), jitter=jitter)
    first = [round(1000 * jitter.op_factor(d, 0)) for d in range(4)]
    begins = max(first)
    ends = begins + round(1000 * jitter.op_factor(0, 1))  # one exchange: the first device's factor
    assert len(set(first)) == 4
    assert [line[:2] for line in ops] == [[(0, begun), (begun, ends)] for begun in first]
    assert [line[2] for line in ops] == [
        (ends, ends + round(1000 * jitter.op_factor(d, 2))) for d in range(4)
    ]
    assert [r.peers_ns for r in result.by_device] == [begins - begun for begun in first]
    assert [r.stall_ns["dependency"] for r in result.by_device] == [0] * 4


def test_devices_that_are_alike_wait_for_nothing():
    graph = workload({}, {"f": {"ns": 10}, "c": {"ns": 20, "kind": "barrier"}})
    result, ops, _ = ops_of(plan(graph), replace(machine(), devices=3))
    assert (ops, result.peers_ns, result.slowed_ns) == ([[(0, 10), (10, 30)]] * 3, 0, None)
    assert ops_of(plan(graph), machine())[0].peers_ns is None


def crossing(times: int, bandwidth: int = 2 * GB, scope: str = "device") -> Hardware:
    return replace(machine(h2d=2 * GB), fabrics=(Fabric("bus", bandwidth, ("h2d",), scope, times),))


@pytest.mark.parametrize(
    ("ns", "times", "transfer", "slowed"),
    [
        # 60 B in 60 ns, 1 a nanosecond; w, 40 B, could have 2 and gets the other one: 40 ns instead
        # of 20
        (60, 1, 40, 0),
        # 60 B in 40 ns want 1.5, and get 1 beside w: 40 B by 40, the other 20 take 13.3
        (40, 1, 40, 14),
        # Twice on the bus, it wants all of it: 40 B at 1. Beside w both have 2/3: 60 ns each
        (40, 2, 60, 20),
        # It crosses nothing
        (40, 0, 20, 0),
    ],
)
def test_a_collective_and_a_copy_on_one_link(ns, times, transfer, slowed):
    graph = workload(
        {"w": (40, "parameter", "ddr")},
        {"c": {"ns": ns, **REDUCE, "sizes": (2, 60)}, "f": {"ns": 5}},
    )
    result, ops, moves = ops_of(plan(graph, ("prefetch w", None)), crossing(times))
    assert (ops, moves) == ([[(0, ns + slowed), (ns + slowed, ns + slowed + 5)]], [[(0, transfer)]])
    assert (result.slowed_ns, result.busy_ns) == (slowed if times else None, ns + slowed + 5)
    assert result.channels["h2d"].contention_ns == transfer - 20


def test_alone_it_takes_its_duration():
    # 60 B in 7 ns are more than the bus carries, so that what the bus has to do with it is little:
    # it takes 7 ns all the same.
    graph = workload(
        {}, {"c": {"ns": 7, **REDUCE, "sizes": (2, 60)}, "d": {"ns": 0, **REDUCE, "sizes": (2, 60)}}
    )
    _, ops, _ = ops_of(plan(graph), crossing(3))
    assert ops == [[(0, 7), (7, 7)]]


def test_what_a_send_and_a_receive_move():
    # 30 B sent in 15 ns want 2 a nanosecond: 1 beside w. By 30 w has 10 B left, as many as r
    # receives by 40; r's other 20 take 10.
    graph = workload(
        {"w": (40, "parameter", "ddr"), "x": (30, "parameter"), "y": (30,)},
        {
            "s": {"ns": 15, "kind": "send", "inputs": ["x"]},
            "r": {"ns": 15, "kind": "recv", "outputs": ["y"]},
        },
    )
    _, ops, moves = ops_of(plan(graph, ("prefetch w", None)), crossing(1))
    assert (ops, moves) == ([[(0, 30), (30, 50)]], [[(0, 40)]])


def test_devices_share_a_root_with_their_collectives():
    # A root of 4 for two devices, each of whose collectives sends 60 B in 40 ns: 1.5. All four
    # flows have 1: as on a bus of 2 each.
    graph = workload({"w": (40, "parameter", "ddr")}, {"c": {"ns": 40, **REDUCE, "sizes": (2, 60)}})
    hardware = replace(crossing(1, 4 * GB, "host"), devices=2)
    result, ops, moves = ops_of(plan(graph, ("prefetch w", None)), hardware)
    assert (ops, moves) == ([[(0, 54)]] * 2, [[(0, 40)]] * 2)
    assert (result.slowed_ns, result.peers_ns) == (14, 0)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "others",
    [
        (),
        (Fabric("root", 9 * GB, ("h2d",), "device", 1),),
        (Fabric("root", 4 * GB, (), "device", 1),),
    ],
    ids=["none", "wide", "bare"],
)
@pytest.mark.parametrize("of", [(), ("h2d",)], ids=["no channel", "a channel"])
def test_collectives_of_two_streams_share_a_link(of, others, times, devices):
    # A link of 1 byte a nanosecond, or of 2 that each byte crosses twice. c sends 60 B in 60 ns and
    # d 120 B in 120 ns: each wants all of the link and has half of it. c is through by 120; by then
    # d has sent 60 B, and sends the rest alone by 180.
    graph = workload(
        {},
        {
            "c": {"ns": 60, **REDUCE, "sizes": (2, 60)},
            "d": {"ns": 120, **REDUCE, "sizes": (2, 120), "stream": "aux"},
        },
    )
    hardware = replace(
        machine(h2d=2 * GB),
        devices=devices,
        fabrics=(Fabric("link", times * GB, of, "device", times), *others),
    )
    result, ops, _ = ops_of(plan(graph), hardware)
    assert (ops, result.slowed_ns) == ([[(0, 120), (0, 180)]] * devices, 60 + 60)


@pytest.mark.parametrize(
    ("kind", "size", "ends"),
    [
        ("all_reduce", 60, (120, 180)),  # sends 2 x 60 B
        ("all_gather", 120, (120, 180)),
        ("send", 120, (120, 180)),
        ("barrier", 120, (60, 120)),  # sends nothing: d has the link for itself
    ],
)
def test_a_message_without_tensors_crosses_the_link(kind, size, ends):
    # A link of 1 byte a nanosecond. c sends 120 B within 60 ns, so at most 1 B/ns, and d 120 B in
    # 120 ns. Each has half: c does what it would send in 60 ns, 60 B, by 120; by then d has sent
    # 60 B, and sends the rest alone.
    graph = workload(
        {},
        {
            "c": {"ns": 60, "kind": kind, "bytes_accessed": size},
            "d": {"ns": 120, **REDUCE, "sizes": (2, 120), "stream": "aux"},
        },
    )
    link = Fabric("link", GB, (), "device", 1)
    _, ops, _ = ops_of(plan(graph), replace(machine(h2d=2 * GB), fabrics=(link,)))
    assert ops == [[(0, ends[0]), (0, ends[1])]]


def test_the_device_that_cannot_go_on_is_named():
    # There is room below for one of two stores. On device 0 w goes and comes back, and c waits for
    # device 1, which waits for room.
    graph = workload(
        {"w": (40, "parameter")},
        {"f": {"ns": 10}, "c": {"ns": 5, "kind": "all_reduce", "inputs": ["w"]}},
    )
    the_plan = plan(graph, ("store w", "f"), ("detach w", "f"), ("prefetch w", "f"))
    result = replay(the_plan, replace(machine(ddr=60), devices=2))
    assert not result.feasible
    assert result.error == result.by_device[1].error
    assert result.error.startswith(
        "out of memory on device 1: store of 'w' (hbm to ddr) wants 40 B of ddr"
    )
    assert (
        result.by_device[0].error
        == "out of memory on device 0: op 'c' waits in vain for other devices"
    )


def test_how_often_a_fabric_is_crossed():
    with pytest.raises(HardwareError, match="expected a number from 0 to 16, got 17"):
        crossing(17)
    hardware = crossing(2)
    assert hardware_from_dict(hardware_to_dict(hardware)) == hardware
    result = replay(
        plan(workload({}, {"c": {"ns": 2, **REDUCE, "sizes": (2, 4)}})),
        replace(hardware, devices=2),
    )
    assert result_from_dict(result_to_dict(result)).peers_ns == 0

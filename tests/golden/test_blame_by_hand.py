"""Rule 8 by hand: which transfer a stall is blamed on; 1 byte takes 1 ns, and e ends at 10 unless
something else is said.
"""

from by_hand import GB, blames, machine, plan, replayed, workload
from test_routes import from_nvme, line
from timeline_check import check_result

from hosim.graph import Graph


def reads(**tensors: int) -> Graph:
    """``e`` of 10 ns, then ``f``, which reads the tensors of these sizes."""
    return workload(
        {name: (size, "parameter", "ddr") for name, size in tensors.items()},
        {"e": {"ns": 10}, "f": {"ns": 5, "inputs": [*tensors]}},
    )


def blamed(the_plan, hardware) -> list[tuple[str, int, int, str, str]]:
    r = replayed(the_plan, hardware)
    assert check_result(the_plan, hardware, r.result) == ()
    return blames(the_plan, r.result)


def test_a_store_of_what_the_op_only_reads_is_not_waited_for():
    # stored lies in hbm, and its store runs 0..40 as long as the prefetch of fetched does. f, from
    # e's end on, waits for fetched alone.
    graph = workload(
        {"stored": (40, "parameter", "hbm"), "fetched": (40, "parameter", "ddr")},
        {"e": {"ns": 10}, "f": {"ns": 5, "inputs": ["stored", "fetched"]}},
    )
    the_plan = plan(graph, ("store stored", None), ("prefetch fetched", None))
    r = replayed(the_plan, machine())
    assert r.moves == [("store", "stored", 0, 0, 40), ("prefetch", "fetched", 0, 0, 40)]
    assert blamed(the_plan, machine()) == [("f", 10, 40, "fetched", "h2d")]
    assert [r.result.channels[name].exposed_ns for name in ("h2d", "d2h")] == [30, 0]


def test_the_transfer_that_ends_last_is_blamed():
    # Two engines share 1 byte a ns: 20 ns for 10 bytes each, then w's other 30: v 0..20, w 0..50,
    # though v is issued last.
    the_plan = plan(reads(w=40, v=10), ("prefetch w", None), ("prefetch v", None))
    assert blamed(the_plan, machine(engines=2)) == [("f", 10, 50, "w", "h2d")]


def test_of_two_that_end_together_the_one_issued_last_is_blamed():
    # Two engines, half the bandwidth each: both 0..40. What counts is the order in the plan, not
    # that of the op's inputs.
    hardware = machine(engines=2)
    assert blamed(
        plan(reads(v=20, w=20), ("prefetch v", None), ("prefetch w", None)), hardware
    ) == [("f", 10, 40, "w", "h2d")]
    assert blamed(
        plan(reads(v=20, w=20), ("prefetch w", None), ("prefetch v", None)), hardware
    ) == [("f", 10, 40, "v", "h2d")]


def test_on_different_channels_too():
    # v comes from nvme 0..40, w from ddr 10..40, issued at e's end.
    graph = workload(
        {"w": (30, "parameter", "ddr"), "v": (40, "parameter", "nvme")},
        {"e": {"ns": 10}, "f": {"ns": 5, "inputs": ["v", "w"]}},
    )
    hardware = machine(nvme=100)
    assert blamed(plan(graph, ("prefetch v nvme", None), ("prefetch w", "e")), hardware) == [
        ("f", 10, 40, "w", "h2d")
    ]
    assert blamed(plan(graph, ("prefetch w", "e"), ("prefetch v nvme", None)), hardware) == [
        ("f", 10, 40, "w", "h2d")
    ]


def test_a_write_waits_for_the_store_that_reads():
    # s is stored 10..50 after e; w comes 0..30. f changes s: it waits for both, and for the store
    # last.
    graph = workload(
        {"s": (40, "parameter"), "w": (30, "parameter", "ddr")},
        {"e": {"ns": 10}, "f": {"ns": 5, "inputs": ["w"], "mutates": ["s"]}},
    )
    the_plan = plan(graph, ("prefetch w", None), ("store s", "e"))
    assert blamed(the_plan, machine()) == [("f", 10, 50, "s", "d2h")]


def test_residency_lost_while_waiting_for_room_is_blamed_on_the_store():
    # As in test_ops: h waits for room till 50; from 20 to 100 the store of what it writes runs: all
    # of the wait is the store's.
    graph = workload(
        {"w": (80, "parameter"), "b": (60,), "c": (60,)},
        {
            "t": {"ns": 50, "outputs": ["c"], "stream": "side"},
            "u": {"ns": 20, "stream": "third"},
            "h": {"ns": 5, "mutates": ["w"], "outputs": ["b"]},
        },
    )
    assert blamed(plan(graph, ("store w", "u")), machine(hbm=200 - 1, d2h=GB)) == [
        ("h", 0, 100, "w", "d2h")
    ]


def test_a_stall_of_another_stream_is_blamed_too_and_exposes_nothing():
    # w comes 0..40, v behind it 40..60. f (compute) waits for w from 10 on, g (side) for v from 0
    # on. What a channel exposes is the wait of compute alone: 30 of h2d's 60 busy nanoseconds.
    graph = workload(
        {"w": (40, "parameter", "ddr"), "v": (20, "parameter", "ddr")},
        {
            "e": {"ns": 10},
            "f": {"ns": 5, "inputs": ["w"]},
            "g": {"ns": 5, "inputs": ["v"], "stream": "side"},
        },
    )
    the_plan = plan(graph, ("prefetch w", None), ("prefetch v", None))
    assert blamed(the_plan, machine()) == [("f", 10, 40, "w", "h2d"), ("g", 0, 60, "v", "h2d")]
    result = replayed(the_plan, machine()).result
    assert (result.channels["h2d"].exposed_ns, result.channels["h2d"].hidden_ns) == (30, 30)
    assert result.streams["side"].stall_ns["transfer"] == 60


def test_of_a_route_the_chunk_that_arrives_last_is_blamed():
    # w's chunks arrive over h2d at 20, 30 and 40 (test_routes); e ends at 15.
    the_plan = plan(from_nvme(w=30), ("prefetch w nvme hbm", None))
    assert blamed(the_plan, line()) == [("f", 15, 40, "w", "h2d")]
    timeline = replayed(the_plan, line()).result.timeline
    assert timeline.transfers[timeline.stalls[0].transfer].start_ns == 30

"""Tiers without DMA (docs/contract.md, rule 22), by hand: 1 byte takes 1 ns. While a copy flows no
op of the device advances.
"""

from dataclasses import replace

import pytest
from both_engines import replay
from by_hand import machine, plan, replayed, workload
from timeline_check import check_result

from hosim.errors import HardwareError
from hosim.hardware import Compute, Hardware


def without(hardware: Hardware, *names: str) -> Hardware:
    return replace(
        hardware, tiers=tuple(replace(tier, dma=tier.name not in names) for tier in hardware.tiers)
    )


def times(the_plan, hardware):
    """The ends of ops by name, of transfers by tensor, and what ops took longer."""
    result = replayed(the_plan, hardware).result
    assert check_result(the_plan, hardware, result) == ()
    assert replay(the_plan, hardware) == result
    ops = {
        op.name: end for op, end in zip(the_plan.graph.ops, result.timeline.op_end_ns, strict=True)
    }
    moved = {the_plan.graph.tensors[x.tensor].name: x.end_ns for x in result.timeline.transfers}
    return ops, moved, result


W = {"w": (40, "parameter", "ddr"), "x": (20,)}


def test_an_op_stands_still_while_the_copy_flows_and_not_during_its_latency():
    # The contract's example: latency 0..10, in which f does 10 of 100 ns; bytes 10..50; the other
    # 90 to 140. g needs w.
    graph = workload(W, {"f": {"ns": 100}, "g": {"ns": 5, "inputs": ["w"]}})
    the_plan = plan(graph, ("prefetch w", None), ("detach w", "g"))
    ops, moved, result = times(the_plan, without(machine(latency=10), "ddr"))
    assert (ops, moved) == ({"f": 140, "g": 145}, {"w": 50})
    assert (result.slowed_ns, result.busy_ns, result.stall_ns["transfer"]) == (40, 145, 0)
    h2d = result.channels["h2d"]
    assert (h2d.busy_ns, h2d.exposed_ns, h2d.hidden_ns) == (50, 0, 0)
    ops, _, beside = times(the_plan, machine(latency=10))  # with DMA all of it is hidden
    assert (ops, beside.slowed_ns, beside.channels["h2d"].hidden_ns) == (
        {"f": 100, "g": 105},
        None,
        50,
    )


def test_a_copy_that_an_op_waits_for_is_exposed_and_holds_nothing():
    graph = workload(W, {"e": {"ns": 10}, "g": {"ns": 5, "inputs": ["w"]}})
    ops, _, result = times(
        plan(graph, ("prefetch w", "e"), ("detach w", "g")), without(machine(), "ddr")
    )
    assert (ops, result.slowed_ns, result.stall_ns["transfer"]) == ({"e": 10, "g": 55}, None, 40)
    assert (result.channels["h2d"].exposed_ns, result.channels["h2d"].hidden_ns) == (40, 0)


def test_an_op_that_is_done_when_the_bytes_begin_to_flow_has_ended():
    # w spends its latency 0..30. g runs 20..30: it has done all its work when the bytes begin to
    # flow, and waits for none of them.
    graph = workload(W, {"e": {"ns": 20}, "g": {"ns": 10}, "h": {"ns": 5, "inputs": ["w"]}})
    ops, _, result = times(
        plan(graph, ("prefetch w", None), ("detach w", "h")), without(machine(latency=30), "ddr")
    )
    assert (ops, result.slowed_ns) == ({"e": 20, "g": 30, "h": 75}, None)


def test_copies_of_other_tiers_and_ops_of_other_streams_and_processors():
    # From nvme n 0..30 hides. From ddr, which has none, w 0..40 holds f and s, on the device, and
    # not u, on ddr's processor.
    graph = workload(
        {**W, "n": (30, "parameter", "nvme"), "v": (5, "parameter", "ddr")},
        {
            "f": {"ns": 20},
            "s": {"ns": 30, "stream": "side"},
            "u": {"ns": 25, "inputs": ["v"], "stream": "cpu", "processor": "ddr"},
        },
    )
    hardware = without(machine(nvme=1000), "ddr")
    hardware = replace(
        hardware,
        tiers=tuple(
            replace(t, compute=Compute({})) if t.name == "ddr" else t for t in hardware.tiers
        ),
    )
    up = (("prefetch w", None), ("prefetch n nvme", None), ("detach w", "s"), ("detach n", "s"))
    ops, moved, result = times(plan(graph, *up), hardware)
    assert (ops, moved, result.slowed_ns) == ({"f": 60, "s": 70, "u": 25}, {"w": 40, "n": 30}, 80)
    ops, _, result = times(
        plan(graph, *up), without(hardware, "nvme")
    )  # now it is n that holds them
    assert (ops, result.slowed_ns) == ({"f": 50, "s": 60, "u": 25}, 60)


def test_between_two_tiers_below_too():
    # n2h, nvme to ddr, touches no device memory: the processor copies all the same.
    graph = workload({"n": (30, "parameter", "nvme")}, {"f": {"ns": 20}})
    the_plan = plan(graph, ("prefetch n nvme ddr", None), ("detach n ddr", "f"))
    assert times(the_plan, without(machine(nvme=1000), "nvme"))[0] == {"f": 50}
    assert times(the_plan, machine(nvme=1000))[0] == {"f": 20}


def test_where_copies_share_the_memory_too():
    # f reads 100 B at 10 a ns with a launch of 3: 13 ns. w flows 0..40: the launch goes on, 0..3,
    # then nothing until 40; 10 ns more: 50.
    hardware = machine(hbm=1000)
    tiers = (replace(hardware.tiers[0], bandwidth_bytes_per_s=10 * 10**9), hardware.tiers[1])
    hardware = replace(hardware, tiers=tiers, compute=Compute({"bf16": 10**12}, launch_ns=3))
    graph = workload(
        {**W, "p": (100, "parameter")}, {"f": {"ns": None, "inputs": ["p"], "bytes_accessed": 100}}
    )
    the_plan = plan(graph, ("prefetch w", None), ("detach w", "f"))
    ops, _, result = times(the_plan, without(hardware, "ddr"))
    assert (ops, result.slowed_ns) == ({"f": 50}, 37)


def test_the_device_tier_has_its_dma_at_the_other_end():
    with pytest.raises(
        HardwareError, match=r"tiers\.hbm\.dma: it is the tier below that has no DMA"
    ):
        without(machine(), "hbm")

"""What has to cross in a step, in any order of its ops: exact where a hand can show it, never above
what some plan takes.
"""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from processor_strategies import machines, on_processors
from strategies import cases, processor_plans, several, sized

from hosim.analysis.costmodel import op_durations, with_memories
from hosim.analysis.lower_bounds import bounded, free_order_bound_ns, step_traffic_ns
from hosim.analysis.verifying import verify
from hosim.cache_plan import Plan
from hosim.edits import Edits
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.policies import policy_named

GB = 10**9


def updates(count: int, home: str | None = None) -> Graph:
    """``count`` states of 10 B, each changed by an op of 1 ns."""
    b = GraphBuilder("updates")
    for k in range(count):
        b.op(
            f"u{k}", "any", mutates=[b.tensor(f"s{k}", 10, "optimizer_state", home)], duration_ns=1
        )
    return b.build()


def beside(device: int, *others: tuple[str, int, int, int], devices: int = 1) -> Hardware:
    """A device tier and tiers below: name, capacity, bytes a nanosecond up and down."""
    tiers = (
        Tier("hbm", device, 1000 * GB, "device"),
        *[Tier(name, room, 1000 * GB, "host") for name, room, _, _ in others],
    )
    channels = [
        (
            Channel(f"{name}_up", name, "hbm", up * GB),
            Channel(f"{name}_down", "hbm", name, down * GB),
        )
        for name, _, up, down in others
    ]
    return Hardware(
        "beside",
        tiers,
        tuple([channel for both in channels for channel in both]),
        Compute({}),
        devices=devices,
    )


def behind(device: int, host: int, latency: int = 0, devices: int = 1) -> Hardware:
    """10 B/ns between the device and host memory, 1 B/ns up from the disk to host memory and 2 B/ns
    down, which devices share.
    """
    tiers = (
        Tier("hbm", device, 1000 * GB, "device"),
        Tier("ddr", host, 100 * GB, "host"),
        Tier("nvme", 10**6, 100 * GB, "host"),
    )
    channels = (
        Channel("h2d", "ddr", "hbm", 10 * GB, latency),
        Channel("d2h", "hbm", "ddr", 10 * GB, latency),
        Channel("read", "nvme", "ddr", GB, 3 * latency),
        Channel("write", "ddr", "nvme", 2 * GB, 3 * latency),
    )
    return Hardware("behind", tiers, channels, Compute({}), devices=devices)


def traffic(graph: Graph, hardware: Hardware, home: str = "", **options: bool) -> int:
    starts = dict.fromkeys(graph.initial, (home,)) if home else {}
    return step_traffic_ns(graph, hardware, starts, hardware.device.capacity_bytes, **options)


def test_what_starts_in_a_tier_comes_from_it_and_goes_back_to_it():
    """100 B of states. In ddr they come up at 5 B/ns and go back at 2 B/ns, however fast the other
    tier is.
    """
    hardware = beside(1000, ("ddr", 1000, 5, 2), ("pool", 1000, 40, 40))
    graph = updates(10)
    assert traffic(graph, hardware) == 0  # they have room in the device tier
    assert traffic(graph, hardware, "hbm") == 0
    assert traffic(graph, hardware, "ddr") == 50
    assert traffic(graph, hardware, "ddr", repeats=False) == 20
    assert traffic(graph, hardware, "pool") == 3  # 2.5


def test_what_has_no_room_lies_where_it_is_back_soonest():
    """Of 100 B 40 stay. Of the other 60, x go to ddr and back in x / 2 ns down, and 60 - x to the
    pool in (60 - x) / 4: x is 20, 10 ns.
    """
    hardware = beside(40, ("ddr", 1000, 5, 2), ("pool", 1000, 40, 4))
    assert traffic(updates(10), hardware) == 10
    small = beside(
        40, ("ddr", 1000, 5, 2), ("pool", 20, 40, 4)
    )  # 20 at most in the pool: 40 go to ddr
    assert traffic(updates(10), small) == 20
    assert (
        traffic(updates(10), replace(small, devices=2)) == 25
    )  # which two devices share: 10 each, and 50 to ddr
    assert (
        traffic(updates(10), beside(40, ("ddr", 50, 5, 2))) == 0
    )  # nothing fits, which is not for the bound to say


def test_what_fills_host_memory_crosses_the_channel_behind_it():
    """Of 100 B 40 stay, 30 lie in host memory, and 30 on the disk: 30 ns up. Of two devices each
    has room for 15 B there: 45 B each.
    """
    assert traffic(updates(10), behind(40, 30)) == 30
    assert traffic(updates(10), behind(40, 30, latency=7)) == 37
    assert traffic(updates(10), behind(40, 30, devices=2)) == 90
    assert traffic(updates(10), behind(40, 30, devices=2), repeats=False) == 90
    assert traffic(updates(10), behind(40, 60)) == 6


def test_fabrics_and_memories_carry_both_directions():
    """60 B up and 60 B down: over a fabric of 3 B/ns 40 ns, and where copies share memory of 2 B/ns
    60 ns.
    """
    hardware = replace(
        beside(40, ("ddr", 1000, 5, 5)), fabrics=(Fabric("pcie", 3 * GB, ("ddr_up", "ddr_down")),)
    )
    assert traffic(updates(10), hardware) == 40
    slow = replace(hardware, tiers=(hardware.tiers[0], Tier("ddr", 1000, 2 * GB, "host")))
    assert traffic(updates(10), slow) == 40
    assert traffic(updates(10), with_memories(slow)) == 60
    assert traffic(updates(10), with_memories(replace(slow, devices=2))) == 120


def test_what_is_read_alone_comes_in_and_what_is_written_first_goes_out():
    """20 B of weights are read, 30 B of a cache are written whole: with 10 B of room, 20 B come in
    or 20 to 30 B go out.
    """
    b = GraphBuilder("ways")
    b.op("read", "any", inputs=[b.tensor("w", 20, "parameter")], duration_ns=1)
    b.op("write", "any", outputs=[b.tensor("c", 30, "kv_cache")], duration_ns=1)
    graph = b.build()
    hardware = beside(10, ("ddr", 1000, 1, 1))
    assert traffic(graph, hardware) == 20  # the room for 10 B of the cache: 20 in, 20 out
    assert (
        traffic(graph, hardware, repeats=False) == 10
    )  # nothing need be kept: the room for 10 B of the weights
    assert traffic(graph, hardware, "ddr") == 30


@pytest.mark.parametrize("reorder", [False, True])
def test_results_have_it_with_edits_and_without(reorder):
    """40 B come up from ddr at 5 B/ns and go back at 2 B/ns, 20 ns; the first goes back after 2 + 1
    ns, and no op waits as long.
    """
    hardware, graph = beside(30, ("ddr", 1000, 5, 2), ("pool", 1000, 40, 40)), updates(4, "ddr")
    plan = policy_named("hyperoffload").plan(graph, hardware)
    edits = Edits(graph, order=tuple(op.name for op in graph.ops)) if reorder else plan.edits
    plan = replace(plan, edits=edits)
    result = bounded(replay(plan, hardware), plan, hardware, None)
    assert 20 <= result.lower_bound_ns <= result.makespan_ns == 23


def tightened(plan: Plan, machine: Hardware) -> Hardware:
    """The machine with tiers that hold no more than a replay of the plan takes of each."""
    before = replay(plan, machine)
    assume(before.feasible)
    tiers = tuple(
        [
            replace(tier, capacity_bytes=max(1, before.peak_bytes[tier.name]))
            for tier in machine.tiers
        ]
    )
    return replace(machine, tiers=tiers)


@given(st.data())
def test_no_replay_is_faster(data):
    """On machines whose tiers below hold no more than the plan needs of them, and which devices may
    share.
    """
    measured = data.draw(st.booleans())
    graph, machine, plan = data.draw(
        cases(max_ops=8, max_streams=3, fabrics=True, roomy=None, measured=measured, uneven=True)
    )
    if data.draw(st.booleans()):
        machine = data.draw(several(machine))
    tight = tightened(plan, machine)
    compete = data.draw(st.sampled_from((None, True, False)))
    result = replay(plan, tight, compete=compete)
    assume(result.feasible)
    durations = op_durations(graph, tight)
    bound = free_order_bound_ns(graph, durations, tight, compete=compete)
    own = free_order_bound_ns(
        graph, durations, tight, None, plan.residency(tight.device_tier), compete=compete
    )
    assert (
        free_order_bound_ns(graph, durations, tight, repeats=False, compete=compete)
        <= bound
        <= own
        <= result.makespan_ns
    )


@given(st.data())
def test_nor_with_ops_on_other_processors(data):
    machine = data.draw(machines())
    graph = data.draw(on_processors(machine, data.draw(st.booleans())))
    machine = sized(machine, graph)
    plan = data.draw(processor_plans(graph, machine))
    assume(not verify(plan, machine))
    tight = tightened(plan, machine)
    result = replay(plan, tight)
    assume(result.feasible)
    own = free_order_bound_ns(
        graph, op_durations(graph, tight), tight, None, plan.residency(tight.device_tier)
    )
    assert own <= result.makespan_ns

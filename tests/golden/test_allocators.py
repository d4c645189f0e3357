"""Allocators in the loop of a replay where memory is short."""

import pytest
from both_engines import replay
from by_hand import machine, plan, workload

from hosim.cache_plan import AT_START, CacheOp, Plan
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.result import AllocatorState

MIB = 1 << 20


def fragmented():
    """A block of 40 MiB is cut in two by a tensor that stays, q; then one of 30 MiB is wanted."""
    return workload(
        {name: (size * MIB,) for name, size in {"x": 40, "p": 18, "q": 4, "z": 30}.items()},
        {
            "f": {"ns": 10, "outputs": ["x"]},
            "g": {"ns": 10, "outputs": ["p"]},
            "h": {"ns": 10, "inputs": ["p"], "outputs": ["q"]},
            "i": {"ns": 10, "inputs": ["q"], "outputs": ["z"]},
            "j": {"ns": 10, "inputs": ["z", "q"]},
        },
    )


def test_what_fits_by_its_bytes_may_not_fit_where_they_lie():
    # f's 40 MiB are a segment of their own. p takes [0, 18) of it and q [18, 22); at i's start 4 of
    # 62 MiB are held, in a segment that cannot go back, whose free parts have 18 MiB each, and the
    # driver has 22: the 30 of z find no place.
    graph, hardware = fragmented(), machine(hbm=62 * MIB)
    assert replay(plan(graph), hardware).feasible
    result = replay(plan(graph), hardware, allocator="caching")
    assert (result.feasible, result.makespan_ns) == (False, None)
    assert result.error == (
        f"out of memory: op 'i' wants 30.0 MiB ({30 * MIB} B) of hbm at 30 ns, where 4.00 MiB "
        f"({4 * MIB} B) of 62.0 MiB ({62 * MIB} B) "
        f"are held (allocator caching: 4.00 MiB ({4 * MIB} B) allocated, 40.0 MiB ({40 * MIB} B) "
        "reserved, fragmentation 90.0 %, "
        f"largest free block 18.0 MiB ({18 * MIB} B)); largest residents: q 4.00 MiB ({4 * MIB} B)"
    )
    figures = result.allocator
    assert figures.out_of_memory == AllocatorState(4 * MIB, 40 * MIB, 18 * MIB)
    assert figures.out_of_memory.fragmentation == 0.9
    assert figures.at_peak == AllocatorState(40 * MIB, 40 * MIB, 0)
    # An expandable segment grows at its end: from [22, 40), by one page of 20 MiB.
    grown = replay(plan(graph), hardware, allocator="caching-expandable")
    assert (grown.makespan_ns, grown.allocator.peak_reserved_bytes) == (50, 60 * MIB)
    # And a plan of all offsets leaves no hole at all.
    static = replay(plan(graph), hardware, allocator="static")
    assert (static.makespan_ns, static.allocator.peak_reserved_bytes) == (50, 40 * MIB)
    assert static.allocator.at_peak == AllocatorState(40 * MIB, 40 * MIB, 0)


def test_what_finds_no_place_waits_until_something_is_released():
    # By bytes a, b and w are 54 MiB and 2 B: the prefetch of w starts at 0 and is through at 1. But
    # the blocks of a and b have 16 MiB, for a rest of 1 MiB stays with its block, and 56 are more
    # than 55: w waits until b is released at 10, and its segment goes back.
    graph = workload(
        {
            "a": (15 * MIB + 1, "input"),
            "b": (15 * MIB + 1,),
            "w": (24 * MIB, "parameter", "ddr"),
            "y": (512,),
        },
        {
            "f": {"ns": 10, "outputs": ["b"], "inputs": ["a"]},
            "g": {"ns": 10, "inputs": ["w"], "outputs": ["y"]},
        },
    )
    hardware = machine(hbm=55 * MIB, ddr=100 * MIB, h2d=24 * MIB * 10**9)
    steps = plan(graph, ("prefetch w", None), ("detach w", "g"))
    by_bytes = replay(steps, hardware)
    assert (
        by_bytes.makespan_ns,
        by_bytes.stall_ns["transfer"],
        by_bytes.channels["h2d"].queue_ns,
    ) == (20, 0, 0)
    placed = replay(steps, hardware, allocator="caching")
    assert (placed.makespan_ns, placed.stall_ns["transfer"], placed.channels["h2d"].queue_ns) == (
        21,
        1,
        10,
    )
    assert placed.peak_bytes["hbm"] == 39 * MIB + 1 + 512
    assert placed.allocator.peak_reserved_bytes == (16 + 24 + 2) * MIB
    assert placed.allocator.at_peak == AllocatorState(40 * MIB + 512, 42 * MIB, 2 * MIB - 512)
    # A byte more, and nothing waits.
    roomy = replay(
        steps, machine(hbm=56 * MIB, ddr=100 * MIB, h2d=24 * MIB * 10**9), allocator="caching"
    )
    assert (roomy.makespan_ns, roomy.allocator.peak_reserved_bytes) == (20, 56 * MIB)


def test_outputs_that_find_no_place_together_are_given_back_until_they_do():
    # The workspace of e takes a segment of 20 MiB on another stream. At 0 f's p finds 12 MiB more,
    # its q none: 44 are more than 40, so p goes back. At 10 e ends and its segment can go; then
    # both are placed. By bytes all of it fits from the start.
    graph = workload(
        {"p": (12 * MIB,), "q": (12 * MIB,)},
        {
            "f": {"ns": 20, "outputs": ["p", "q"]},
            "e": {"ns": 10, "workspace_bytes": 3 * MIB // 2, "stream": "a"},
        },
    )
    graph = Graph(graph.name, graph.tensors, (graph.ops[1], graph.ops[0]))
    hardware = machine(hbm=40 * MIB)
    assert replay(plan(graph), hardware).makespan_ns == 20
    result = replay(plan(graph), hardware, allocator="caching")
    assert (result.feasible, result.makespan_ns) == (True, 30)
    assert (result.peak_bytes["hbm"], result.allocator.peak_allocated_bytes) == (24 * MIB, 24 * MIB)


def test_a_stream_does_not_reuse_the_blocks_of_another():
    # x dies on stream a before y is allocated on stream b: by bytes 30 MiB are enough, but y needs
    # a segment of its own.
    graph = workload(
        {"x": (30 * MIB,), "y": (30 * MIB,)},
        {
            "f": {"ns": 10, "outputs": ["x"], "stream": "a"},
            "g": {"ns": 10, "outputs": ["y"], "stream": "b", "deps": ["f"]},
        },
    )
    assert (
        replay(
            plan(graph), machine(hbm=70 * MIB), allocator="caching"
        ).allocator.peak_reserved_bytes
        == 60 * MIB
    )
    # With less memory the cached segment goes back to the driver first.
    assert (
        replay(
            plan(graph), machine(hbm=50 * MIB), allocator="caching"
        ).allocator.peak_reserved_bytes
        == 30 * MIB
    )


def test_rounding_alone_may_be_too_much_at_the_start():
    graph = workload(
        {f"w{i}": (MIB + 1, "parameter") for i in range(20)}, {"f": {"ns": 1, "inputs": ["w0"]}}
    )
    # 20 MiB + 20 B by their bytes; 20 blocks of 1 MiB + 512 B, of which a segment of 20 MiB holds
    # 19, the last with the rest.
    result = replay(plan(graph), machine(hbm=39 * MIB), allocator="caching")
    assert not result.feasible
    assert result.error.startswith(
        "out of memory: the initial residents of hbm want more of hbm at 0 ns, where 20.0 MiB"
    )
    assert result.allocator.out_of_memory == AllocatorState(20 * MIB, 20 * MIB, 0)
    assert (
        replay(
            plan(graph), machine(hbm=40 * MIB), allocator="caching"
        ).allocator.peak_reserved_bytes
        == 40 * MIB
    )


def test_a_workspace_is_a_block_while_the_op_runs():
    graph = workload(
        {"x": (4 * MIB,), "y": (4 * MIB,)},
        {
            "f": {"ns": 1, "outputs": ["x"], "workspace_bytes": 6 * MIB},
            "g": {"ns": 1, "inputs": ["x"], "outputs": ["y"]},
        },
    )
    figures = replay(plan(graph), machine(hbm=100 * MIB), allocator="caching").allocator
    assert (figures.peak_allocated_bytes, figures.peak_reserved_bytes) == (10 * MIB, 20 * MIB)
    # Without waste: x, then the workspace or y beside it.
    assert (
        replay(plan(graph), machine(hbm=10 * MIB), allocator="static").allocator.peak_reserved_bytes
        == 10 * MIB
    )


def test_what_passes_through_has_a_block_on_its_way():
    # w goes from nvme over hbm to ddr, for no channel joins these: 4 MiB in one chunk, there over
    # 0..8 Mi ns, while y needs 18 MiB.
    graph = workload(
        {"w": (4 * MIB, "parameter", "nvme"), "y": (18 * MIB,)},
        {"f": {"ns": 4 * MIB, "outputs": ["y"]}, "g": {"ns": 4 * MIB, "inputs": ["y"]}},
    )
    tiers = (
        Tier("hbm", 24 * MIB, 10**12, "device"),
        Tier("ddr", 100 * MIB, 10**11),
        Tier("nvme", 100 * MIB, 10**10),
    )
    channels = (Channel("d2h", "hbm", "ddr", 10**9), Channel("n2d", "nvme", "hbm", 10**9))
    over = Hardware("over", tiers, channels, Compute({}))
    steps = Plan(graph, "over", (CacheOp("store", 0, "nvme", "ddr", AT_START),))
    by_bytes = replay(steps, over)
    assert (by_bytes.makespan_ns, by_bytes.peak_bytes["hbm"]) == (8 * MIB, 22 * MIB)
    static = replay(steps, over, allocator="static")
    assert (static.makespan_ns, static.allocator.peak_reserved_bytes) == (8 * MIB, 22 * MIB)
    # y has a segment of 18 MiB; one of 20 MiB for w does not fit beside it: w sets out when y is
    # dead, and takes y's place.
    placed = replay(steps, over, allocator="caching")
    assert placed.makespan_ns == 16 * MIB
    assert placed.allocator.peak_reserved_bytes == 18 * MIB


def test_a_packing_above_the_capacity_is_out_of_memory():
    # Offsets are multiples of 512 B: 3 tensors of 100 B at once take 1124 B.
    graph = workload(dict.fromkeys("abc", (100,)), {"f": {"ns": 1, "outputs": list("abc")}})
    result = replay(plan(graph), machine(hbm=1000), allocator="static")
    assert result.error == (
        "out of memory: a static plan of 3 allocations takes 1.10 KiB (1124 B) of 1000 B (1000 B), "
        "though at most 300 B (300 B) live at once"
    )
    assert result.allocator.out_of_memory == AllocatorState(300, 1124, 412)
    assert replay(plan(graph), machine(hbm=1124), allocator="static").feasible


def test_an_unknown_allocator_is_named():
    graph = workload({"x": (1,)}, {"f": {"ns": 1, "outputs": ["x"]}})
    with pytest.raises(InputError, match="no allocator 'buddy'"):
        replay(plan(graph), machine(), allocator="buddy")

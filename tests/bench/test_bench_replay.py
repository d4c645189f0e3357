"""What a replay takes in time and memory, next to a bare simpy loop that does the same timeouts.

The graph is a chain with branches: every eighth op is a branch of the chain, which joins it four ops later. Every fourth op reads a
parameter that is prefetched eight ops ahead and detached behind it. On two streams the branches run beside the chain.
"""

import functools
import time

import pytest
import simpy

from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.engine.compiled_plan import compile_plan
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier

GB = 10**9
OPS = 100_000
TIMES_BARE = {1: 4.0, 2: 4.5}
"""By streams: where two wait for one another, a replay finds out who goes on; the bare loop's processes never wait."""
TIMES_TENTH = 12.0
MACHINE = Hardware(
    "bench",
    (Tier("hbm", GB, 10**12, "device"), Tier("ddr", 1000 * GB, 10**11)),
    (Channel("h2d", "ddr", "hbm", GB), Channel("d2h", "hbm", "ddr", GB)),
    Compute({}),
)


@functools.cache
def chain_and_branches(ops: int, streams: int) -> Plan:
    b = GraphBuilder(f"{ops} ops")
    chain, branch = "", ""
    for i in range(ops):
        b.tensor(f"a{i}", 500 + i % 7)
        inputs = [chain] if chain else []
        if i % 4 == 0:
            inputs.append(b.tensor(f"w{i}", 1000, "parameter", "ddr"))
        branches = i % 8 == 3
        if i % 8 == 7:
            inputs.append(branch)
        stream = "side" if branches and streams == 2 else "compute"
        b.op(f"f{i}", "matmul", inputs=inputs, outputs=[f"a{i}"], duration_ns=900 + i % 13, stream=stream)
        if branches:
            branch = f"a{i}"
        else:
            chain = f"a{i}"
    graph = b.build()
    cache_ops = []
    for i in range(0, ops, 4):
        w = graph.tensor_index[f"w{i}"]
        cache_ops += [CacheOp("prefetch", w, "ddr", "hbm", max(i - 8, -1)), CacheOp("detach", w, "hbm", None, i)]
    return Plan(graph, "ahead", tuple(cache_ops))


def bare(graph: Graph) -> int:
    """One simpy process per stream and per channel, with the replay's timeouts and nothing else; returns how many there were."""
    env = simpy.Environment()
    counted = [0]

    def process(durations):
        for duration in durations:
            yield env.timeout(duration)
            counted[0] += 1

    for stream in graph.streams:
        env.process(process([op.duration_ns for op in graph.ops if op.stream == stream]))
    env.process(process([1000] * (len(graph.ops) // 4)))
    env.run()
    return counted[0]


def measured(function, *args) -> float:
    begin = time.process_time()
    function(*args)
    return time.process_time() - begin


def ten_times(plan: Plan) -> None:
    for _ in range(10):
        replay(plan, MACHINE)


def _within(taken, streams: int) -> bool:
    loop, whole, tenth = map(min, zip(*taken, strict=True))
    return whole <= TIMES_BARE[streams] * loop and whole <= TIMES_TENTH * tenth


@pytest.mark.parametrize("streams", [1, 2])
def test_time_next_to_a_bare_loop_and_to_a_tenth(streams, benchmark):
    large, small = chain_and_branches(OPS, streams), chain_and_branches(OPS // 10, streams)
    result = replay(large, MACHINE)  # also pays for what is derived from the graph once
    assert result.feasible
    assert result.channels["h2d"].transfers == OPS // 4
    assert bare(large.graph) == OPS + OPS // 4
    replay(small, MACHINE)
    # the least of several, taken in turn, ten of the small ones together: what else the machine does weighs on all three alike;
    # more of them where it does a lot
    taken: list[tuple[float, float, float]] = []
    while len(taken) < 5 or (len(taken) < 15 and not _within(taken, streams)):
        taken.append((measured(bare, large.graph), measured(replay, large, MACHINE), measured(ten_times, small) / 10))
    loop, whole, tenth = map(min, zip(*taken, strict=True))
    benchmark.extra_info.update(times_bare=round(whole / loop, 2), times_tenth=round(whole / tenth, 2))
    benchmark.pedantic(replay, args=(large, MACHINE), rounds=1)
    print(f"{streams} streams: {whole / loop:.2f} times the bare loop, {whole / tenth:.2f} times a tenth of the ops")
    assert whole <= TIMES_BARE[streams] * loop
    assert whole <= TIMES_TENTH * tenth


def test_what_the_plan_moves_is_all_that_is_tracked():
    program = compile_plan(chain_and_branches(1000, 1), MACHINE, (1,) * 1000)
    assert sum(program.tracked) == len(program.tracked_ops) == 250
    assert not program.closing

"""What a replay of 100,000 ops takes in time and memory, next to a bare simpy loop that does the same timeouts."""

import tracemalloc

import simpy
from long_chain import MACHINE, chain_and_branches
from measures import least, measure

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.graph import Graph

OPS = 100_000


def bare(graph: Graph) -> None:
    """One simpy process per stream and per channel, with the replay's timeouts and nothing else."""
    env = simpy.Environment()

    def process(durations):
        for duration in durations:
            yield env.timeout(duration)

    for stream in graph.streams:
        env.process(process([op.duration_ns for op in graph.ops if op.stream == stream]))
    env.process(process([1000] * (len(graph.ops) // 4)))
    env.run()


def times_bare(streams: int) -> float:
    plan = chain_and_branches(OPS, streams)
    replay(plan, MACHINE)  # pays for what is derived from the graph once
    loop, whole = least([lambda: bare(plan.graph), lambda: replay(plan, MACHINE)])
    return whole / loop


def times_a_tenth(streams: int) -> float:
    large, small = chain_and_branches(OPS, streams), chain_and_branches(OPS // 10, streams)
    replay(large, MACHINE), replay(small, MACHINE)
    whole, ten = least([lambda: replay(large, MACHINE), lambda: [replay(small, MACHINE) for _ in range(10)]])
    return 10 * whole / ten


@measure("100,000 ops on one stream, in bare simpy loops of the same timeouts", most=4.0)
def bare_of_one() -> float:
    return times_bare(1)


@measure("100,000 ops on two streams, in bare simpy loops, which never wait for one another", most=4.5)
def bare_of_two() -> float:
    return times_bare(2)


@measure("100,000 ops on one stream, in replays of 10,000", most=12)
def tenth_of_one() -> float:
    return times_a_tenth(1)


@measure("100,000 ops on two streams, in replays of 10,000", most=12)
def tenth_of_two() -> float:
    return times_a_tenth(2)


@measure("100,000 ops: the most memory while replaying, with all that is derived from the graph", most=1500, unit="B an op")
def memory() -> float:
    plan = chain_and_branches(OPS, 2)
    replay(Plan(plan.graph, "resident", (), dict.fromkeys(plan.graph.initial, ("hbm",))), MACHINE)  # imports what it needs
    fresh = Plan(Graph(plan.graph.name, plan.graph.tensors, plan.graph.ops), plan.policy, plan.cache_ops)
    tracemalloc.start()
    replay(fresh, MACHINE)
    _, peak = tracemalloc.get_traced_memory()
    return peak / OPS

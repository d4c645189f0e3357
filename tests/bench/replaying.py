"""What a replay of 100,000 ops takes in time and memory, next to a bare simpy loop that does the
same timeouts; and one of a million.

``python tests/bench/replaying.py`` prints the replays on each profile, in bare loops, as a table.
"""

import resource
import sys
import time
import tracemalloc
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [
        str(Path(__file__).resolve().parents[1]),
        str(Path(__file__).resolve().parents[2]),
    ]

import simpy
from long_chain import MACHINE, chain_and_branches, modelled, on
from measures import least, measure

from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.graph import Graph, GraphBuilder
from hosim.hardware import Hardware
from hosim.io import load_hardware

OPS = 100_000
MANY = 1_000_000
PROFILES = sorted((Path(__file__).resolve().parents[2] / "hardware_profiles").glob("*.yaml"))
WAYS = ("measured", "compete", "modelled")
"""Times of ops that were measured; the same beside copies that share memory bandwidth; times of the
cost model, which these lengthen.
"""


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
    whole, ten = least(
        [lambda: replay(large, MACHINE), lambda: [replay(small, MACHINE) for _ in range(10)]]
    )
    return 10 * whole / ten


@measure("100,000 ops on one stream, in bare simpy loops of the same timeouts", most=4.0)
def bare_of_one() -> float:
    return times_bare(1)


@measure(
    "100,000 ops on two streams, in bare simpy loops, which never wait for one another", most=4.5
)
def bare_of_two() -> float:
    return times_bare(2)


def in_bare_loops(
    profile: Hardware, streams: int, way: str, ops: int = OPS // 5, rounds: int = 5
) -> tuple[float, float]:
    """What a replay on a profile takes, in bare loops: one of a plan that was replayed before, and
    one of a plan that is new.
    """
    plan = chain_and_branches(ops, streams)
    here, machine = on(profile, modelled(plan) if way == "modelled" else plan)
    compete = True if way == "compete" else None

    def fresh() -> None:
        replay(Plan(here.graph, here.policy, here.cache_ops), machine, compete=compete)

    replay(here, machine, compete=compete)
    loop, again, first = least(
        [lambda: bare(plan.graph), lambda: replay(here, machine, compete=compete), fresh], rounds
    )
    return again / loop, first / loop


def slowest(streams: int, way: str) -> float:
    return max(in_bare_loops(load_hardware(profile), streams, way)[0] for profile in PROFILES)


@measure("on one stream, the slowest of all profiles, in bare simpy loops", most=4.0)
def profiles_of_one() -> float:
    return slowest(1, "measured")


@measure("on two streams, the slowest of all profiles, in bare simpy loops", most=5.0)
def profiles_of_two() -> float:
    return slowest(2, "measured")


@measure(
    "on one stream, beside copies that share memory bandwidth, the slowest of all profiles, in "
    "bare simpy loops",
    most=4.0,
)
def competing_of_one() -> float:
    return slowest(1, "compete")


@measure(
    "on two streams, beside copies that share memory bandwidth, the slowest of all profiles, in "
    "bare simpy loops",
    most=5.0,
)
def competing_of_two() -> float:
    return slowest(2, "compete")


@measure(
    "on one stream, ops that such copies slow down, the slowest of all profiles, in bare simpy "
    "loops",
    most=4.0,
)
def slowed_of_one() -> float:
    return slowest(1, "modelled")


@measure(
    "on two streams, ops that such copies slow down, the slowest of all profiles, in bare simpy "
    "loops",
    most=5.0,
)
def slowed_of_two() -> float:
    return slowest(2, "modelled")


def a_million() -> tuple[float, float, float]:
    """CPU seconds of this machine that it takes to build a graph of a million ops and to replay it
    for the first time on an H100, and the most bytes of both together.

    Of the first, the loop that makes the names takes a quarter, and so do the dictionary and the
    set of 2.25 million names: what is left is what the builder itself can save.
    """
    times: list[float] = []
    build = GraphBuilder.build

    def noted(builder: GraphBuilder) -> Graph:
        graph = build(builder)
        times.append(time.process_time())
        return graph

    GraphBuilder.build = noted  # type: ignore[method-assign]
    begin = time.process_time()
    plan = chain_and_branches(MANY, 1)
    GraphBuilder.build = build  # type: ignore[method-assign]
    profile = next(profile for profile in PROFILES if profile.stem == "h100-80gb-sxm")
    machine = load_hardware(profile)
    before = time.process_time()
    replay(plan, machine)
    return (
        times[0] - begin,
        time.process_time() - before,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


@measure("a million ops with GraphBuilder, made up and built", most=4.0, unit="s")
def million_built() -> float:
    return a_million()[0]


@measure("a million ops on an H100, the first replay", most=1.5, unit="s")
def million_replayed() -> float:
    return a_million()[1]


@measure(
    "a million ops on an H100: the most memory of the process that builds and replays them",
    most=0.7,
    unit="GB",
)
def million_bytes() -> float:
    return a_million()[2] / 1e9


@measure("100,000 ops on one stream, in replays of 10,000", most=12)
def tenth_of_one() -> float:
    return times_a_tenth(1)


@measure("100,000 ops on two streams, in replays of 10,000", most=12)
def tenth_of_two() -> float:
    return times_a_tenth(2)


@measure(
    "100,000 ops: the most memory while replaying, with all that is derived from the graph",
    most=1500,
    unit="B an op",
)
def memory() -> float:
    plan = chain_and_branches(OPS, 2)
    replay(
        Plan(plan.graph, "resident", (), dict.fromkeys(plan.graph.initial, ("hbm",))), MACHINE
    )  # imports what it needs
    fresh = Plan(
        Graph(plan.graph.name, plan.graph.tensors, plan.graph.ops), plan.policy, plan.cache_ops
    )
    tracemalloc.start()
    replay(fresh, MACHINE)
    _, peak = tracemalloc.get_traced_memory()
    return peak / OPS


def main() -> None:
    """Print what replays take on each profile, in bare loops: of a plan again, and of a new
    plan.
    """
    print(
        "| profile | "
        + " | ".join(f"{way}, {n}" for n in (1, 2) for way in WAYS)
        + " |\n|---|"
        + "---|" * 2 * len(WAYS)
    )
    for profile in PROFILES:
        machine = load_hardware(profile)
        cells = [
            in_bare_loops(machine, streams, way, ops=10_000, rounds=5)
            for streams in (1, 2)
            for way in WAYS
        ]
        print(
            f"| {profile.stem} | "
            + " | ".join(f"{again:.2f} ({first:.2f})" for again, first in cells)
            + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()

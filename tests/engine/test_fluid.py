"""The engine's shared bandwidth against linear programs, on random machines and transfers."""

import random
from itertools import pairwise

import pytest
from fluid import Flow, run
from quick_cases import one_in

from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier

pytestmark = pytest.mark.slow

MB_S = 10**6  # bytes a second: a thousandth of a byte a nanosecond


def drawn(seed: int):
    """A machine of channels to the device tier and from it, each with its tier, and transfers
    issued at random instants.
    """
    rng = random.Random(seed)
    names = [f"{'in' if rng.random() < 0.6 else 'out'}{k}" for k in range(rng.randint(2, 4))]
    channels = []
    for name in names:
        source, destination = (
            (f"tier {name}", "hbm") if name.startswith("in") else ("hbm", f"tier {name}")
        )
        bandwidth = rng.choice((250, 500, 700, 1000, 1500, 3000)) * MB_S
        curve = (
            ((rng.choice((8, 20)), bandwidth // rng.choice((2, 4))),) if rng.random() < 0.3 else ()
        )
        channels.append(
            Channel(
                name,
                source,
                destination,
                bandwidth,
                rng.choice((0, 0, 3, 7)),
                rng.choice((1, 1, 2, 3)),
                curve,
            )
        )
    if rng.random() < 0.5:
        k, other = rng.sample(range(len(channels)), 2)
        c = channels[k]
        slower = ((names[other], c.bandwidth_bytes_per_s // rng.choice((2, 4))),)
        channels[k] = Channel(
            c.name,
            c.source,
            c.destination,
            c.bandwidth_bytes_per_s,
            c.latency_ns,
            c.engines,
            c.curve,
            None,
            slower,
        )
    fabrics = [
        Fabric(
            f"fabric {k}",
            rng.choice((400, 600, 1000, 2000)) * MB_S,
            tuple(rng.sample(names, rng.randint(2, len(names)))),
        )
        for k in range(rng.randint(1, 3))
    ]
    tiers = (
        Tier("hbm", 10**6, 10**12, "device"),
        *(Tier(f"tier {name}", 10**6, 10**12) for name in names),
    )
    machine = Hardware("drawn", tiers, tuple(channels), Compute({}), fabrics=tuple(fabrics))
    flows = [
        Flow(rng.choice((0, 0, 5, 13, 40)), rng.randint(1, 60), rng.choice(names))
        for _ in range(rng.randint(3, 8))
    ]
    return machine, sorted(flows, key=lambda f: f.issue)


def through_the_engine(machine: Hardware, flows: list[Flow]) -> list[tuple[int, int]]:
    """(start, end) of each transfer: ops mark the instants at which they are issued."""
    b = GraphBuilder("flows")
    between = {channel.name: (channel.source, channel.destination) for channel in machine.channels}
    names = [
        b.tensor(f"t{k}", f.size, "parameter", between[f.channel][0]) for k, f in enumerate(flows)
    ]
    instants = sorted({0, *(f.issue for f in flows)})
    for start, end in pairwise(instants):
        b.op(f"until {end}", "any", duration_ns=end - start)
    b.op("last", "any", duration_ns=1)
    graph = b.build()
    cache_ops = []
    for name, f in zip(names, flows, strict=True):
        source, destination = between[f.channel]
        op = "prefetch" if destination == "hbm" else "store"
        cache_ops.append(
            CacheOp(op, graph.tensor_index[name], source, destination, instants.index(f.issue) - 1)
        )
    result = replay(Plan(graph, cache_ops=tuple(cache_ops)), machine, record=True)
    times = {x.tensor: (x.start_ns, x.end_ns) for x in result.timeline.transfers}
    return [times[graph.tensor_index[name]] for name in names]


@pytest.mark.parametrize("tens", one_in(4, range(20)))
def test_two_hundred_cases(tens):
    for seed in range(10 * tens, 10 * tens + 10):
        machine, flows = drawn(seed)
        by_name = {c.name: c for c in machine.channels}

        def ceiling(f: Flow, by_name=by_name) -> float:
            c = by_name[f.channel]
            own = c.bandwidth_bytes_per_s / 1e9
            if not c.curve:
                return own
            size, bandwidth = c.curve[0]
            return (
                bandwidth / 1e9
                if f.size <= size
                else f.size / (size / (bandwidth / 1e9) + (f.size - size) / own)
            )

        run(
            flows,
            {
                c.name: (c.bandwidth_bytes_per_s / 1e9, c.latency_ns, c.engines)
                for c in machine.channels
            },
            [(f.bandwidth_bytes_per_s / 1e9, f.channels) for f in machine.fabrics],
            [
                (c.name, other, bandwidth / 1e9)
                for c in machine.channels
                for other, bandwidth in c.beside
            ],
            ceiling,
        )
        assert through_the_engine(machine, flows) == [(f.begin, f.end) for f in flows], seed

"""Routes: the shortest path by time, and its time, against playing it through."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import networkx
from hypothesis import given
from hypothesis import strategies as st

from hosim.analysis.costmodel import with_memories
from hosim.analysis.costmodel.transfers import (
    alone_ns,
    chunks_of,
    route,
    route_ns,
    slowest_hop,
    way_ns,
)
from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier

GB = 10**9


def machine(*channels: Channel, chunk: int = 10, fabrics: tuple[Fabric, ...] = ()) -> Hardware:
    tiers = {end for c in channels for end in (c.source, c.destination)} | {"hbm"}
    return Hardware(
        "m",
        tuple(Tier(t, 10**6, 10**12) for t in sorted(tiers)),
        channels,
        Compute({}),
        fabrics=fabrics,
        chunk_bytes=chunk,
    )


def names(hardware: Hardware, source: str, destination: str, size: int) -> list[str]:
    return [c.name for c in route(hardware, source, destination, size)]


def test_a_channel_that_joins_the_tiers_is_the_way_even_if_another_is_faster():
    m = machine(
        Channel("direct", "nvme", "hbm", GB // 10),
        Channel("a", "nvme", "ddr", GB),
        Channel("b", "ddr", "hbm", GB),
    )
    assert names(m, "nvme", "hbm", 100) == ["direct"]


def test_the_shortest_by_time_depends_on_the_bytes():
    # In one chunk: by ddr a latency of 100 and twice 1 ns a byte, by cxl twice 3. 10 bytes take 120
    # and 60, 100 bytes 300 and 600.
    m = machine(
        Channel("a", "nvme", "ddr", GB, 100),
        Channel("b", "ddr", "hbm", GB),
        Channel("c", "nvme", "cxl", GB // 3),
        Channel("d", "cxl", "hbm", GB // 3),
        chunk=10**6,
    )
    assert names(m, "nvme", "hbm", 10) == ["c", "d"]
    assert names(m, "nvme", "hbm", 100) == ["a", "b"]


def test_fewer_hops_and_then_names_decide():
    channels = [
        Channel("z", "nvme", "cxl", GB),
        Channel("y", "cxl", "hbm", GB),
        Channel("b", "nvme", "ddr", GB),
        Channel("c", "ddr", "hbm", GB),
    ]
    assert names(machine(*channels), "nvme", "hbm", 40) == ["b", "c"]
    assert names(machine(*reversed(channels)), "nvme", "hbm", 40) == ["b", "c"]
    longer = [Channel("a", "nvme", "pool", GB), Channel("aa", "pool", "ddr", GB)]
    assert names(machine(*channels[:2], *longer, channels[3]), "nvme", "hbm", 0) == ["z", "y"]


def test_no_way():
    m = machine(Channel("a", "nvme", "ddr", GB), Channel("b", "pool", "hbm", GB))
    assert route(m, "nvme", "hbm", 1) == ()
    assert slowest_hop(m, "nvme", "hbm", 1) is None
    assert way_ns(m, "nvme", "hbm", 1) is None


def test_a_way_is_one_transfer_or_chunks() -> None:
    m = machine(Channel("a", "nvme", "ddr", GB, 5), Channel("b", "ddr", "hbm", GB, 5))
    assert way_ns(m, "nvme", "ddr", 20) == 25
    assert way_ns(m, "nvme", "hbm", 20) == 15 + 15 + 15


def test_the_slowest_hop():
    m = machine(Channel("a", "nvme", "ddr", GB // 2), Channel("b", "ddr", "hbm", GB, 5))
    slow = slowest_hop(m, "nvme", "hbm", 100)
    assert slow is not None
    assert slow.name == "a"


@given(
    st.lists(
        st.tuples(
            st.sampled_from((GB, GB // 3, 2 * GB, 7 * GB // 10)), st.sampled_from((0, 1, 12))
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 100),
    st.integers(1, 40),
)
def test_its_time_is_that_of_chunks_one_behind_the_other(hops, size, chunk):
    tiers = [f"t{k}" for k in range(len(hops))] + ["hbm"]
    m = machine(
        *(Channel(f"c{k}", tiers[k], tiers[k + 1], *hop) for k, hop in enumerate(hops)), chunk=chunk
    )
    channels = [c.name for c in m.channels]
    free = [0] * len(hops)  # when each hop has passed the chunk before
    for part in chunks_of(m, size):
        arrived = 0
        for k, name in enumerate(channels):
            arrived = free[k] = max(arrived, free[k]) + alone_ns(m, name, part)
    assert route_ns(m, channels, size) == free[-1]
    assert sum(chunks_of(m, size)) == size


def test_a_petabyte_in_chunks_of_a_byte_takes_no_longer_to_reckon() -> None:
    m = machine(Channel("a", "nvme", "ddr", GB), Channel("b", "ddr", "hbm", GB // 2), chunk=1)
    assert route_ns(m, ["a", "b"], 10**15) == 1 + 2 * 10**15
    hop = slowest_hop(m, "nvme", "hbm", 10**15)
    assert hop is not None
    assert hop.name == "b"


@st.composite
def webs(draw: st.DrawFn) -> Hardware:
    """Tiers joined in many ways, but for nvme and hbm: channels of some engines and latencies, some
    with a curve or one that disturbs them, and fabrics and memories that may be too small for two.
    """
    rate = st.sampled_from((GB, 2 * GB, 3 * GB, GB // 2, 7 * GB // 10))
    inner = draw(st.sampled_from((("ddr",), ("ddr", "cxl"), ("ddr", "cxl", "pool"))))
    pairs = (
        [("nvme", t) for t in inner]
        + [(t, "hbm") for t in inner]
        + [(a, b) for a in inner for b in inner if a != b]
    )
    kept = [
        pair for pair in pairs if pair in (("nvme", "ddr"), ("ddr", "hbm")) or draw(st.booleans())
    ]
    channels = []
    for k, (start, end) in enumerate(kept):
        own = draw(rate)
        other = draw(st.integers(0, len(kept)))
        channels.append(
            Channel(
                f"c{k}",
                start,
                end,
                own,
                draw(st.sampled_from((0, 0, 1, 5, 12))),
                draw(st.integers(1, 3)),
                curve=draw(st.sampled_from(((), ((10, own // 2),)))),
                beside=((f"c{other}", own // 2),)
                if other < len(kept) and other != k and draw(st.booleans())
                else (),
            )
        )
    names = [c.name for c in channels]
    members = st.lists(st.sampled_from(names), min_size=1, unique=True).map(tuple)
    fabrics = tuple(
        Fabric(f"f{k}", draw(rate), draw(members)) for k in range(draw(st.integers(0, 2)))
    )
    made = machine(*channels, chunk=draw(st.integers(1, 30)), fabrics=fabrics)
    return replace(
        made, tiers=tuple(replace(t, bandwidth_bytes_per_s=draw(rate)) for t in made.tiers)
    )


def replayed_ns(
    hardware: Hardware, size: int, compete: bool, path: tuple[Channel, ...] | None = None
) -> tuple[int, list[str]]:
    """What a lone prefetch from nvme takes in a replay, and its channels; of a machine with no
    others if a path is given.
    """
    if path is not None:
        names = {c.name for c in path}
        channels = tuple(
            replace(c, beside=tuple(b for b in c.beside if b[0] in names)) for c in path
        )
        fabrics = tuple(
            replace(f, channels=tuple(n for n in f.channels if n in names))
            for f in hardware.fabrics
            if names & {*f.channels}
        )
        hardware = replace(hardware, channels=channels, fabrics=fabrics)
    b = GraphBuilder("alone")
    b.tensor("w", size, "parameter", home="nvme")
    b.op("f", "any", duration_ns=0)
    plan = Plan(b.build(), cache_ops=(CacheOp("prefetch", 0, "nvme", "hbm"),))
    result = replay(plan, hardware, compete=compete)
    assert result.makespan_ns is not None
    return result.makespan_ns, [
        name for name, figures in result.channels.items() if figures.transfers
    ]


def test_two_tiers_are_joined_by_the_fastest_of_their_channels_the_first_of_equals() -> None:
    rates = {"slow": GB, "first": 3 * GB, "second": 3 * GB, "slower": 2 * GB}
    up = [Channel(name, "ddr", "hbm", rate) for name, rate in rates.items()]
    down = Channel("down", "hbm", "ddr", GB)
    joined = machine(*up, down).channel_between
    assert {ends: channel.name for ends, channel in joined.items()} == {
        ("ddr", "hbm"): "first",
        ("hbm", "ddr"): "down",
    }


@given(webs(), st.integers(0, 100), st.booleans())
def test_it_is_what_a_replay_takes_in_which_nothing_else_moves(
    hardware: Hardware, size: int, compete: bool
) -> None:
    seen = with_memories(hardware) if compete else hardware
    graph = networkx.DiGraph(list(hardware.channel_between))
    paths = [
        tuple(hardware.channel_between[hop] for hop in pairwise(path))
        for path in networkx.all_simple_paths(graph, "nvme", "hbm")
    ]
    timed = []
    for path in paths:
        taken = replayed_ns(hardware, size, compete, path)[0]
        assert route_ns(seen, [c.name for c in path], size) == taken
        timed.append((taken, len(path), [c.name for c in path]))
    assert names(seen, "nvme", "hbm", size) == min(timed)[2]
    taken, channels = replayed_ns(hardware, size, compete)
    assert (taken, channels) == (min(timed)[0], sorted(min(timed)[2]))

"""Rule 6 by hand: transfers that share fabrics, channels and engines, and directions that disturb
each other.

Every transfer here has a tier and a channel of its own, named alike, into a device tier with room
for everything. ``ends`` gives the instants at which they end, by name.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from by_hand import GB, machine, plan, replayed, workload

from hosim import shipped
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.io import load_hardware


def sources(channels: dict[str, Channel], **fabrics: tuple[int, str]) -> Hardware:
    """A tier for each channel; fabrics as bandwidth and the channels' names in one word."""
    tiers = (
        Tier("hbm", 10**6, 10**12, "device"),
        *(Tier(name, 10**6, 10**12) for name in channels),
    )
    shared = tuple(
        Fabric(name, bandwidth, tuple(members)) for name, (bandwidth, members) in fabrics.items()
    )
    return Hardware("by hand", tiers, tuple(channels.values()), Compute({}), fabrics=shared)


def channel(name: str, bandwidth: int = GB, **given) -> Channel:
    return Channel(name, name, "hbm", bandwidth, **given)


def moved(hardware: Hardware, sizes: dict[str, int], at: dict[str, int] | None = None):
    """Replays transfers of these bytes, issued at time 0 or when given; the result with its
    timeline.
    """
    at = at or {}
    instants = sorted({0, *at.values()})
    ops = {f"until {b}": {"ns": b - a} for a, b in pairwise(instants)}
    ops["use"] = {"ns": 1, "inputs": list(sizes)}
    graph = workload({name: (size, "parameter", name[0]) for name, size in sizes.items()}, ops)
    issued = [
        (f"prefetch {name} {name[0]} hbm", f"until {at[name]}" if at.get(name) else None)
        for name in sizes
    ]
    return replayed(plan(graph, *issued), hardware).result


def ends(
    hardware: Hardware, sizes: dict[str, int], at: dict[str, int] | None = None
) -> dict[str, int]:
    names = list(sizes)
    return {names[x.tensor]: x.end_ns for x in moved(hardware, sizes, at).timeline.transfers}


def test_three_share_equally():
    # 1 byte a nanosecond over three: 30 bytes each take 90.
    m = sources({n: channel(n) for n in "abc"}, bus=(GB, "abc"))
    assert ends(m, {"a": 30, "b": 30, "c": 30}) == {"a": 90, "b": 90, "c": 90}


def test_three_share_and_leave_one_by_one():
    # 1/3 each: a's 10 are through at 30; b has 10 left, c 20. 1/2 each: b ends at 50, c has 10
    # left, alone: 60.
    m = sources({n: channel(n) for n in "abc"}, bus=(GB, "abc"))
    result = moved(m, {"a": 10, "b": 20, "c": 30})
    assert [(x.channel, x.end_ns, x.contention_ns) for x in result.timeline.transfers] == [
        ("a", 30, 20),
        ("b", 50, 30),
        ("c", 60, 30),
    ]


def test_the_bottleneck_moves():
    # Channels of 2; a and b share 2 (left), b and c share 1 (right). Right is full first: b and c
    # 1/2, a the rest of left: 3/2. c's 10 end at 20: b has 20 - 10 = 10 left, a 45 - 30 = 15. Now
    # left is the bottleneck (1 each), and right full as well. b ends at 30; a has 5 left, its
    # channel alone at 2: 2.5, so 33.
    m = sources({n: channel(n, 2 * GB) for n in "abc"}, left=(2 * GB, "ab"), right=(GB, "bc"))
    assert ends(m, {"a": 45, "b": 20, "c": 10}) == {"c": 20, "b": 30, "a": 33}


def test_a_bottleneck_that_moves_back():
    # Left 3 over a, b and right 2 over b, c; channels of 2. b alone with a from 0: 3/2 each. c
    # joins at 20: right 2 over b and c: b 1, c 1, a 2 (left 3 less b's 1, and its channel's). c's
    # 10 end at 30: 3/2 each again.
    # a: 30 by 20, 50 by 30, 30 left at 3/2: 50. b: 30 by 20, 40 by 30, 70 by 50; 10 left alone at
    # 2: 55.
    m = sources({n: channel(n, 2 * GB) for n in "abc"}, left=(3 * GB, "ab"), right=(2 * GB, "bc"))
    assert ends(m, {"a": 80, "b": 80, "c": 10}, {"c": 20}) == {"c": 30, "a": 50, "b": 55}


def test_one_that_comes_later():
    # a alone 0..10: 20 left. With b 1/2 each: b's 10 at 30, a has 10 left: 40.
    m = sources({n: channel(n) for n in "ab"}, bus=(GB, "ab"))
    assert ends(m, {"a": 30, "b": 10}, {"b": 10}) == {"b": 30, "a": 40}


def test_latency_delays_the_share():
    # b's latency is 6: a alone until then, 24 left. 1/2 each: b's 12 take 24, until 30; a has 12
    # left, alone: 42.
    m = sources({"a": channel("a"), "b": channel("b", latency_ns=6)}, bus=(GB, "ab"))
    assert ends(m, {"a": 30, "b": 12}) == {"b": 30, "a": 42}


def test_what_a_slow_one_cannot_take_goes_to_the_others():
    # Bus 2: a takes its 1/4, b and c 7/8 each. At 40 a's 10 and b's 35 are through; c has 70 - 35 =
    # 35 left at its 2: 17.5, so 58.
    m = sources(
        {"a": channel("a", GB // 4), "b": channel("b"), "c": channel("c", 2 * GB)},
        bus=(2 * GB, "abc"),
    )
    assert ends(m, {"a": 10, "b": 35, "c": 70}) == {"a": 40, "b": 40, "c": 58}


def test_thirds_of_a_byte_and_whole_nanoseconds():
    # Bus 2 over three: 2/3 each, channels of 1. a's 10 at 15. b has 1 left, c 10, now 1 each: b at
    # 16, c at 25.
    m = sources({n: channel(n) for n in "abc"}, bus=(2 * GB, "abc"))
    assert ends(m, {"a": 10, "b": 11, "c": 20}) == {"a": 15, "b": 16, "c": 25}


def test_engines_of_a_channel_and_another_channel():
    # Bus 3 over two engines of a (2 together) and b (2): 1 each. a1's 10 at 10: a2 has 10 left, b
    # 30. Now 3/2 each: a2 through at 16.67, so 17; b has 30 - 10.5 = 19.5 left, alone at 2: 26.75,
    # so 27.
    m = sources(
        {"a": channel("a", 2 * GB, engines=2), "b": channel("b", 2 * GB)}, bus=(3 * GB, "ab")
    )
    assert ends(m, {"a1": 10, "a2": 20, "b": 40}) == {"a1": 10, "a2": 17, "b": 27}


def test_three_fabrics_in_a_ring():
    # ab 1, bc 2, ca 3; channels of 4. ab is full first: 1/2 for a and b. bc has 3/2 left for c, ca
    # 5/2: c 3/2. a's 10 at 20: b has 30 - 10 = 20 left, c 60 - 30 = 30. b and c: ab gives b 1, bc 2
    # over both: 1 each. b at 40, c has 10 left, at 2: 45.
    m = sources(
        {n: channel(n, 4 * GB) for n in "abc"},
        one=(GB, "ab"),
        two=(2 * GB, "bc"),
        three=(3 * GB, "ca"),
    )
    assert ends(m, {"a": 10, "b": 30, "c": 60}) == {"a": 20, "b": 40, "c": 45}


# -- directions
# -------------------------------------------------------------------------------------------------


def both_ways(hardware, up: int, down: int, store_after: str | None = None):
    """``w`` comes in from time 0 on, ``p`` goes out from time 0 on or after the op ``e``
    (0..10).
    """
    graph = workload(
        {"w": (up, "parameter", "ddr"), "p": (down, "parameter")},
        {"e": {"ns": 10}, "f": {"ns": 1, "inputs": ["p"]}, "g": {"ns": 1, "inputs": ["w"]}},
    )
    r = replayed(plan(graph, ("prefetch w", None), ("store p", store_after)), hardware)
    return {name: (start, end) for _, name, _, start, end in r.moves}


def test_half_duplex_both_at_once():
    # One bandwidth for both directions: 1/2 each. p's 10 at 20; w has 10 left, alone: 30.
    assert both_ways(machine(fabric=GB), 20, 10) == {"p": (0, 20), "w": (0, 30)}


def test_half_duplex_the_other_direction_comes_later():
    # w alone 0..10, 20 left; then 1/2 each: p's 15 take 30, until 40, w's have 5 left: 45.
    assert both_ways(machine(fabric=GB), 30, 15, "e") == {"p": (10, 40), "w": (0, 45)}


def disturbed(latency: int = 0) -> Hardware:
    """In at 2, but at 1/2 while bytes flow out; out at 1 whatever flows in."""
    hardware = machine(hbm=1000, latency=latency, h2d=2 * GB)
    h2d, d2h = hardware.channels
    return replace(hardware, channels=(replace(h2d, beside=(("d2h", GB // 2),)), d2h))


def test_asymmetric_duplex_one_direction_suffers():
    # p's 20 take 20 as if alone. w moves 10 by then, 30 left at 2: 35.
    assert both_ways(disturbed(), 40, 20) == {"p": (0, 20), "w": (0, 35)}


def test_asymmetric_duplex_while_bytes_flow_only():
    # Latency 4: w flows from 4 on, p is issued at 10 and flows from 14 to 34. w: 2 x 10 by 14, 10
    # more by 34, 30 left at 2: 49.
    assert both_ways(disturbed(latency=4), 60, 20, "e") == {"p": (10, 34), "w": (0, 49)}


def test_the_a100_of_the_published_measurement():
    # 25 GB/s each alone; with both directions at once H2D falls to 11 while D2H holds 25. 110 MB
    # in, 250 MB out: both take 10 ms, and 5 us.
    a100 = load_hardware(shipped.hardware_path("a100-80gb-sxm"))
    assert both_ways(a100, 110_000_000, 250_000_000) == {"w": (0, 10_005_000), "p": (0, 10_005_000)}
    assert both_ways(a100, 250_000_000, 0)["w"] == (0, 10_005_000)


# -- sixteen dies on one host
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dies", "rate"), [(1, 37), (2, 37), (4, 36), (8, 18), (16, 9)])
def test_sixteen_dies_share_the_host_path(dies, rate):
    # Published: 37 GB/s for a die alone, about 9 each with all 16 of a node at once. The host path
    # of the node, 144 GB/s, says both.
    profile = load_hardware(shipped.hardware_path("ascend-910c-supernode"))
    host_path = next(f for f in profile.fabrics if f.name == "host_path")
    names = [f"{k:x}" for k in range(16)]
    m = sources({n: channel(n, 37 * GB) for n in names})
    m = replace(
        m,
        fabrics=(replace(host_path, channels=tuple(names)),),
        tiers=tuple(replace(t, capacity_bytes=10**12) for t in m.tiers),
    )
    size = 37 * 9 * 10**6
    result = moved(m, dict.fromkeys(names[:dies], size))
    assert {x.end_ns for x in result.timeline.transfers} == {-(-size // rate)}

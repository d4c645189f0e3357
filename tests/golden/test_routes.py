"""Rule 7 by hand: tensors that go over several channels, in chunks of 10 bytes; 1 byte a nanosecond
where nothing else is said.
"""

from dataclasses import replace

from both_engines import replay
from by_hand import GB, machine, plan, replayed, workload
from timeline_check import check_result

from hosim.analysis.costmodel.transfers import route_ns
from hosim.analysis.verifying import verify
from hosim.hardware import Channel, Hardware


def line(h2d: int = GB, ddr: int = 1000, hbm: int = 100, **channels: Channel) -> Hardware:
    """nvme - ddr - hbm, joined in a line both ways."""
    hardware = machine(hbm=hbm, ddr=ddr, nvme=1000, h2d=h2d)
    listed = {c.name: c for c in hardware.channels if c.name in ("h2d", "d2h")}
    listed |= {
        "n2h": Channel("n2h", "nvme", "ddr", GB),
        "h2n": Channel("h2n", "ddr", "nvme", GB),
    } | channels
    return replace(hardware, channels=tuple(listed.values()), chunk_bytes=10)


def hops(the_plan, hardware, name: str) -> dict[str, list[tuple[int, int]]]:
    """(start, end) of a tensor's chunks by channel, in order of start, after every check there
    is.
    """
    assert verify(the_plan, hardware) == ()
    r = replayed(the_plan, hardware)
    assert check_result(the_plan, hardware, r.result) == ()
    t = the_plan.graph.tensor_index[name]
    by_channel: dict[str, list[tuple[int, int]]] = {}
    for x in sorted(r.result.timeline.transfers, key=lambda x: x.start_ns):
        if x.tensor == t:
            by_channel.setdefault(x.channel, []).append((x.start_ns, x.end_ns))
    return by_channel


def from_nvme(**sizes: int):
    tensors = {
        name: (size, "parameter", "nvme" if name == "w" else "ddr") for name, size in sizes.items()
    }
    return workload(tensors, {"e": {"ns": 15}, "f": {"ns": 5, "inputs": list(sizes)}})


def test_two_hops_carry_at_once():
    # Three chunks: into ddr 0..10, 10..20, 20..30, on to hbm 10..20, 20..30, 30..40. One by one it
    # would be 60. ddr holds a chunk from the start of its first hop to the end of its second:
    # 0..20, 10..30, 20..40: at most 20 bytes. hbm holds w from 10 on.
    the_plan = plan(from_nvme(w=30), ("prefetch w nvme hbm", None))
    assert hops(the_plan, line(), "w") == {
        "n2h": [(0, 10), (10, 20), (20, 30)],
        "h2d": [(10, 20), (20, 30), (30, 40)],
    }
    r = replayed(the_plan, line())
    assert r.ops["f"] == (40, 45)
    assert (r.result.peak_bytes, r.result.peak_at_ns["ddr"]) == (
        {"hbm": 30, "ddr": 20, "nvme": 30},
        10,
    )
    assert r.result.peak_breakdown["ddr"] == {"parameter": 20}
    held = [
        (x.tier, x.start_ns, x.end_ns, x.bytes)
        for x in r.result.timeline.residencies
        if x.staged or x.tier == "hbm"
    ]
    assert held == [
        ("ddr", 0, 20, 10),
        ("ddr", 10, 30, 10),
        ("hbm", 10, 45, 30),
        ("ddr", 20, 40, 10),
    ]
    # w's wait of f, from e's end at 15 to 40, is blamed on the channel that brought the last chunk
    assert r.stalls == {"transfer": 25}
    assert [
        (c.transfers, c.bytes, c.exposed_ns)
        for c in (r.result.channels["n2h"], r.result.channels["h2d"])
    ] == [(3, 30, 0), (3, 30, 25)]


def test_a_slow_second_hop_and_its_queue():
    # h2d at 1/2: 20 a chunk. On to hbm 10..30, 30..50, 50..70: the second chunk waits 20..30, the
    # third 30..50. All are in ddr 20..30.
    the_plan = plan(from_nvme(w=30), ("prefetch w nvme hbm", None))
    hardware = line(h2d=GB // 2)
    assert hops(the_plan, hardware, "w") == {
        "n2h": [(0, 10), (10, 20), (20, 30)],
        "h2d": [(10, 30), (30, 50), (50, 70)],
    }
    result = replay(the_plan, hardware)
    assert (
        result.peak_bytes["ddr"],
        result.channels["h2d"].queue_ns,
        result.channels["n2h"].queue_ns,
    ) == (30, 10 + 20, 10 + 20)


def test_others_on_the_second_channel_and_a_smaller_last_chunk():
    # h2d, first in first out: v (10, issued at 0) 0..10; w's first chunk, there at 10: 10..20; u
    # (10, issued at 15, when e ends) 20..30; w's second, there at 20: 30..40; its third, of 5,
    # there at 25: 40..45.
    the_plan = plan(
        from_nvme(w=25, v=10, u=10),
        ("prefetch w nvme hbm", None),
        ("prefetch v", None),
        ("prefetch u", "e"),
    )
    assert hops(the_plan, line(), "w") == {
        "n2h": [(0, 10), (10, 20), (20, 25)],
        "h2d": [(10, 20), (30, 40), (40, 45)],
    }


def test_no_room_for_a_second_chunk_on_the_way():
    # ddr holds 15: the second chunk can be taken in when the first has left, at 20; the third at
    # 40.
    the_plan = plan(from_nvme(w=30), ("prefetch w nvme hbm", None))
    hardware = line(ddr=15)
    assert hops(the_plan, hardware, "w") == {
        "n2h": [(0, 10), (20, 30), (40, 50)],
        "h2d": [(10, 20), (30, 40), (50, 60)],
    }
    assert replay(the_plan, hardware).peak_bytes["ddr"] == 10


def test_both_hops_on_one_bus():
    # One bandwidth of 1 for both hops: the first chunk alone 0..10. Then 1/2 each: second hop of it
    # and first hop of the second 10..30, likewise 30..50; the third's second hop alone 50..60.
    the_plan = plan(from_nvme(w=30), ("prefetch w nvme hbm", None))
    hardware = line()
    hardware = replace(hardware, fabrics=(*machine(fabric=GB).fabrics,))
    hardware = replace(hardware, fabrics=(replace(hardware.fabrics[0], channels=("n2h", "h2d")),))
    assert hops(the_plan, hardware, "w") == {
        "n2h": [(0, 10), (10, 30), (30, 50)],
        "h2d": [(10, 30), (30, 50), (50, 60)],
    }
    assert replay(the_plan, hardware).channels["h2d"].contention_ns == 10 + 10


def test_a_cache_op_takes_one_engine_of_each_channel():
    # Two engines and a latency of 5 each hop: three chunks of 15 each, one at a time all the same.
    # Into ddr 0..15, 15..30, 30..45, on to hbm 15..30, 30..45, 45..60, as with one engine, and
    # nothing is lost to sharing.
    the_plan = plan(from_nvme(w=30), ("prefetch w nvme hbm", None))
    for engines in (1, 2):
        hardware = line()
        hardware = replace(
            hardware,
            channels=tuple(replace(c, latency_ns=5, engines=engines) for c in hardware.channels),
        )
        expected = {"n2h": [(0, 15), (15, 30), (30, 45)], "h2d": [(15, 30), (30, 45), (45, 60)]}
        assert hops(the_plan, hardware, "w") == expected
        assert route_ns(hardware, ["n2h", "h2d"], 30) == 60
        assert [c.contention_ns for c in replay(the_plan, hardware).channels.values()] == [0] * 4


def test_a_transfer_behind_chunks_takes_the_other_engine_when_the_last_chunk_has_started():
    # Two engines on n2h. w's three chunks are ahead of v (10, to ddr) in the queue: 0..10, 10..20;
    # at 20 the third starts, and v beside it, at half the bandwidth each: 20..40.
    graph = workload(
        {"w": (30, "parameter", "nvme"), "v": (10, "parameter", "nvme")},
        {"f": {"ns": 5, "inputs": ["w"]}},
    )
    the_plan = plan(graph, ("prefetch w nvme hbm", None), ("prefetch v nvme ddr", None))
    hardware = line(n2h=Channel("n2h", "nvme", "ddr", GB, 0, 2))
    assert hops(the_plan, hardware, "w") == {
        "n2h": [(0, 10), (10, 20), (20, 40)],
        "h2d": [(10, 20), (20, 30), (40, 50)],
    }
    assert hops(the_plan, hardware, "v") == {"n2h": [(20, 40)]}


def line_and_cxl() -> Hardware:
    """As ``line``, and from nvme to hbm also by cxl, at 3/4 of a byte a nanosecond."""
    hardware, slow = line(), 3 * GB // 4
    channels = (
        *hardware.channels,
        Channel("n2c", "nvme", "cxl", slow),
        Channel("c2d", "cxl", "hbm", slow),
    )
    return replace(
        hardware, tiers=(*hardware.tiers, replace(hardware.tiers[1], name="cxl")), channels=channels
    )


def test_the_route_is_the_quickest_one_by_what_hops_share():
    # From nvme by ddr both hops cross one bus of 1 byte a nanosecond, by cxl each has 3/4 for
    # itself. Three chunks of 10: by ddr 60, as above; by cxl 14 a chunk and hop, 14 + 3 * 14 = 56.
    hardware = line_and_cxl()
    bus = replace(machine(fabric=GB).fabrics[0], channels=("n2h", "h2d"))
    the_plan = plan(from_nvme(w=30), ("prefetch w nvme hbm", None))
    assert list(hops(the_plan, replace(hardware, fabrics=(bus,)), "w")) == ["n2c", "c2d"]
    assert replay(the_plan, replace(hardware, fabrics=(bus,))).channels["c2d"].exposed_ns == 56 - 15
    # without the bus by ddr: 40
    assert list(hops(the_plan, hardware, "w")) == ["n2h", "h2d"]


def test_the_route_is_the_quickest_one_where_copies_share_the_memory_in_between():
    # ddr carries 1 byte a nanosecond in all: where copies share the bandwidth of memories, its two
    # hops take turns as on one bus, 60 ns, and cxl's 56 are quicker. Where they do not, ddr's 40
    # are.
    hardware = line_and_cxl()
    hbm, ddr, nvme, cxl = hardware.tiers
    hardware = replace(hardware, tiers=(hbm, replace(ddr, bandwidth_bytes_per_s=GB), nvme, cxl))
    the_plan = plan(from_nvme(w=30), ("prefetch w nvme hbm", None))
    for compete, taken in ((True, "n2c"), (False, "n2h")):
        assert replay(the_plan, hardware, compete=compete).channels[taken].transfers == 3


def test_down_a_route_and_a_write_that_waits():
    # p (20) leaves after f, at 10: over d2h 10..20, 20..30, over h2n 20..30, 30..40. g writes p: it
    # waits for all of it, from 15 to 40, and makes the copy in nvme stale; the one stored after g
    # comes 45..75.
    graph = workload(
        {"p": (20, "parameter")},
        {"f": {"ns": 10, "inputs": ["p"]}, "e": {"ns": 5}, "g": {"ns": 5, "mutates": ["p"]}},
    )
    the_plan = plan(graph, ("store p nvme", "f"), ("store p nvme", "g"), initial={"p": ("hbm",)})
    assert hops(the_plan, line(), "p") == {
        "d2h": [(10, 20), (20, 30), (45, 55), (55, 65)],
        "h2n": [(20, 30), (30, 40), (55, 65), (65, 75)],
    }
    r = replayed(the_plan, line())
    assert (r.ops["g"], r.stalls, r.result.drain_ns) == ((40, 45), {"transfer": 25}, 30)
    assert [(x.start_ns, x.end_ns) for x in r.result.timeline.residencies if x.tier == "nvme"] == [
        (20, 40),
        (55, 75),
    ]


def test_a_detach_waits_for_the_whole_route():
    # a (20) goes down 10..40, the detach behind it frees hbm at 40, not at 30, when the last chunk
    # has left hbm. b needs the room.
    graph = workload(
        {"a": (20,), "b": (90,)},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "g": {"ns": 5, "outputs": ["b"]},
            "h": {"ns": 5, "inputs": ["a"]},
        },
    )
    the_plan = plan(graph, ("store a nvme", "f"), ("detach a", "f"), ("prefetch a nvme hbm", "g"))
    hardware = line()
    r = replayed(the_plan, hardware)
    assert check_result(the_plan, hardware, r.result) == ()
    assert r.ops == {"f": (0, 10), "g": (40, 45), "h": (75, 80)}


def test_through_the_device_tier():
    # hbm, of 25, joins ddr and pool. w (20, pool) goes to ddr: staged in hbm 0..20 and 10..30. f's
    # a (5) fits beside both chunks, g's b (20) waits until both have left.
    hardware = line(hbm=25)
    pool = replace(hardware.tiers[2], name="pool")
    channels = (
        *hardware.channels[:2],
        Channel("pool_read", "pool", "hbm", GB),
        Channel("pool_write", "hbm", "pool", GB),
    )
    hardware = replace(hardware, tiers=(*hardware.tiers[:2], pool), channels=channels)
    graph = workload(
        {"w": (20, "parameter", "pool"), "a": (5,), "b": (20,)},
        {"f": {"ns": 12, "outputs": ["a"]}, "g": {"ns": 5, "outputs": ["b"]}},
    )
    the_plan = plan(graph, ("store w ddr", None))
    the_plan = replace(the_plan, cache_ops=(replace(the_plan.cache_ops[0], source="pool"),))
    assert hops(the_plan, hardware, "w") == {
        "pool_read": [(0, 10), (10, 20)],
        "d2h": [(10, 20), (20, 30)],
    }
    r = replayed(the_plan, hardware)
    assert (r.ops, r.stalls) == ({"f": (0, 12), "g": (30, 35)}, {"capacity": 18})
    assert r.result.peak_bytes["hbm"] == 25


def test_no_room_at_the_end_is_an_error_that_says_so():
    # p and w do not fit into hbm together: w's chunks are in ddr, and no more can happen.
    graph = workload(
        {"p": (80, "parameter"), "w": (30, "parameter", "nvme")},
        {"f": {"ns": 5, "inputs": ["p", "w"]}},
    )
    result = replay(plan(graph, ("prefetch w nvme hbm", None)), line())
    assert result.error == (
        "out of memory: prefetch of 'w' (ddr to hbm) wants 30 B of hbm at 30 ns, where 80 B of "
        "100 B are held; largest residents: p 80 B"
    )
    assert result.peak_bytes["ddr"] == 30


def test_no_room_on_the_way_is_an_error_that_says_so():
    graph = workload(
        {"p": (5, "parameter", "ddr"), "w": (30, "parameter", "nvme")},
        {"f": {"ns": 5, "inputs": ["w"]}},
    )
    result = replay(plan(graph, ("prefetch w nvme hbm", None)), line(ddr=10))
    assert result.error == (
        "out of memory: prefetch of 'w' (nvme to ddr) wants 10 B of ddr at 0 ns, where 5 B of 10 "
        "B are held; largest residents: p 5 B"
    )

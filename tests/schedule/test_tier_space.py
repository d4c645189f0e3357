"""Placement: rules of placement, room over time, and what spills."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rendered import facts

from hosim.errors import InputError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.planner.schedule.tiers_below import (
    BALANCED,
    BY_KIND,
    FASTEST,
    NEAREST,
    Placement,
    TierSpace,
    read_placement,
)

GB = 10**9
BELOW = ("ddr", "pool", "nvme")


def machine(ddr=1000, pool=1000, nvme=1000, rates=(1, 2, 4)):
    """Tiers below with a channel each way: ``rates`` in bytes a nanosecond."""
    tiers = [
        Tier("hbm", 100, 10**12, "device"),
        Tier("ddr", ddr, 10**11),
        Tier("pool", pool, 10**11),
        Tier("nvme", nvme, 10**10),
    ]
    ways = [
        (f"{a}-{b}", a, b, rate * GB)
        for t, rate in zip(BELOW, rates, strict=True)
        for a, b in ((t, "hbm"), ("hbm", t))
    ]
    return Hardware("pooled", tuple(tiers), tuple(Channel(*way) for way in ways), Compute({}))


def row(*tensors):
    """An op each that makes a tensor of (bytes, kind), read two ops later."""
    b = GraphBuilder("row")
    names = [b.tensor(f"t{i}", size, kind) for i, (size, kind) in enumerate(tensors)]
    for i in range(len(names) + 2):
        inputs = [names[i - 2]] if i >= 2 else []
        b.op(f"f{i}", "m", inputs=inputs, outputs=names[i : i + 1], duration_ns=10)
    return b.build()


def test_each_rule_has_its_order():
    kinds = ("optimizer_state", "parameter", "activation", "buffer")
    graph = row(*[(40, kind) for kind in kinds])

    def orders(rule, **kinds):
        space = TierSpace(graph, machine(), BELOW, {}, Placement(rule, kinds))
        return [space.order(t)[0] for t in range(4)], list(space.order(3))

    assert orders(NEAREST) == (["ddr"] * 4, ["ddr", "pool", "nvme"])
    assert orders(FASTEST) == (
        ["nvme"] * 4,
        ["nvme", "pool", "ddr"],
    )  # here the nvme has the quickest channels
    assert orders(BY_KIND) == (["nvme", "pool", "ddr", "nvme"], ["nvme", "pool", "ddr"])
    assert orders(BY_KIND, optimizer_state="pool", buffer="ddr")[0] == [
        "pool",
        "pool",
        "ddr",
        "ddr",
    ]


def test_balanced_spreads_bytes_as_bandwidth_does():
    # A round trip of 40 B takes 80, 40 and 20 ns: of seven equal tensors 4 go to the nvme, 2 to the
    # pool and 1 to ddr; all end at 80.
    graph = row(*[(40, "activation")] * 7)
    space = TierSpace(graph, machine(), BELOW, {}, Placement(BALANCED))
    assert [space.place(t, 0) for t in range(7)] == [
        "nvme",
        "nvme",
        "pool",
        "nvme",
        "nvme",
        "pool",
        "ddr",
    ]
    # What starts below counts, too: ddr and pool are busy for 80 and 40 ns.
    space = TierSpace(graph, machine(), BELOW, {0: ("ddr",), 1: ("pool",)}, Placement(BALANCED))
    assert [space.place(t, 0) for t in range(2, 5)] == ["nvme", "nvme", "nvme"]


def test_what_does_not_fit_spills_to_the_next_and_time_frees_room():
    graph = row(*[(40, "activation")] * 5)
    space = TierSpace(graph, machine(ddr=80, pool=40, nvme=1), BELOW, {}, Placement("nearest"))
    # t0 lives to op 2, t1 to op 3, ...: three of them at once are one too many for ddr, and a
    # fourth for the pool.
    assert [space.place(t, t) for t in range(3)] == ["ddr", "ddr", "pool"]
    assert space.place(3, 3) == "ddr"  # t0 is dead
    assert space.place(4, 2) is None  # from op 2 on there are t0, t1, t3 and t2
    assert (
        facts(space.full(), "ddr", "pool", "nvme")
        == "ddr, 80 B, 80 B, pool, 40 B, 40 B, nvme, 0 B, 1 B"
    )
    assert space.place(4, 4) == "ddr"
    assert space.place(4, 5) == "ddr"  # where it is
    assert not space.fits(4, 0, "ddr")


def test_what_is_placed_from_an_earlier_op_on_takes_room_once():
    graph = row(*[(40, "activation")] * 5)
    space = TierSpace(graph, machine(ddr=80, pool=1, nvme=1), BELOW, {}, Placement("nearest"))
    assert [space.place(4, start) for start in (4, 2, 2, 3, -1, 0)] == ["ddr"] * 6
    assert space.place(3, 0) == "ddr"  # the other half
    assert space.place(2, 0) is None


def test_a_rule_is_read_from_text():
    assert read_placement("balanced", machine()) == Placement(BALANCED)
    assert read_placement("by_kind/parameter=ddr/expert=nvme", machine()) == Placement(
        BY_KIND, {"parameter": "ddr", "expert": "nvme"}
    )
    for text, said in (
        (
            "best",
            "placement: expected one of nearest, fastest, balanced, by_kind, or "
            "by_kind/KIND=TIER/..., got 'best'",
        ),
        ("fastest/parameter=ddr", "placement: expected one of .* got 'fastest/parameter=ddr'"),
        ("by_kind/weight=ddr", r"placement: no kind 'weight' of tensors \(kinds: "),
        ("by_kind/parameter=hbm", r"placement: no tier 'hbm' below \(tiers: ddr, pool, nvme\)"),
    ):
        with pytest.raises(InputError, match=said):
            read_placement(text, machine())


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from(["activation", "parameter", "kv_cache"])),
        min_size=1,
        max_size=12,
    ),
    st.tuples(*[st.integers(1, 150)] * 3),
    st.sampled_from([NEAREST, FASTEST, BALANCED, BY_KIND]),
    st.lists(st.tuples(st.integers(0, 11), st.integers(-1, 12)), max_size=30),
)
def test_no_tier_ever_holds_more_than_its_capacity(tensors, capacities, rule, asked):
    graph = row(*tensors)
    space = TierSpace(graph, machine(*capacities), BELOW, {}, Placement(rule))
    since: dict[int, tuple[int, str]] = {}
    for t, start in asked:
        if t >= len(tensors) or start > len(graph.ops):
            continue
        tier = space.place(t, start)
        if tier is not None:
            assert since.get(t, (0, tier))[1] == tier
            since[t] = min(max(start, 0), since.get(t, (len(graph.ops), tier))[0]), tier
    held = {tier: [0] * (len(graph.ops) + 1) for tier in BELOW}
    for t, (start, tier) in since.items():
        end = len(graph.ops) + 1 if graph.survives[t] else graph.users[t][-1] + 1
        for i in range(start, end):
            held[tier][i] += tensors[t][0]
    total = sum(size for size, _ in tensors)
    for tier, capacity in zip(BELOW, capacities, strict=True):
        assert max(held[tier]) <= max(capacity, total if capacity >= 2 * total else 0)


def behind_host_memory(chunk: int) -> Hardware:
    """The nvme lies behind 100 B of host memory; the pool has channels of its own."""
    whole = machine(ddr=100, pool=100)
    renamed = {"nvme-hbm": ("nvme", "ddr"), "hbm-nvme": ("ddr", "nvme")}
    channels = tuple(
        replace(c, source=renamed[c.name][0], destination=renamed[c.name][1])
        if c.name in renamed
        else c
        for c in whole.channels
    )
    return replace(whole, channels=channels, chunk_bytes=chunk)


@pytest.mark.parametrize(("chunk", "kept"), [(5, 10), (40, 80), (64, 80)])
def test_a_tier_on_the_way_to_others_keeps_room_for_a_chunk_in_each_direction(chunk, kept):
    """A chunk is no larger than the largest tensor, of 40 B."""
    graph, hardware = row((40, "activation"), (20, "activation")), behind_host_memory(chunk)
    space = TierSpace(graph, hardware, BELOW, {}, Placement(NEAREST))
    assert space.capacity == {"hbm": 100, "ddr": 100 - kept, "pool": 100, "nvme": 1000}
    assert TierSpace(graph, hardware, ("ddr", "pool"), {}).capacity["ddr"] == 100
    assert space.place(0, 0) == ("ddr" if kept == 10 else "pool")

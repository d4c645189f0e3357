"""Where tensors go: the order of tiers, routes, room and starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from hosim.analysis.costmodel.transfers import route_ns
from hosim.errors import InfeasibleError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Compute, Fabric, Hardware, Tier
from hosim.planner.hyperoffload.tensor_choices import analyse
from hosim.planner.schedule.tiers_below import (
    FASTEST,
    Placement,
    TierSpace,
    nearest_tiers,
    route,
    starts,
)


def machine(*pairs: tuple[str, str, int], **capacities: int) -> Hardware:
    names = dict.fromkeys(["hbm", *(end for pair in pairs for end in pair[:2])])
    tiers = tuple(Tier(name, capacities.get(name, 1000), 10**12) for name in names)
    return Hardware(
        "machine",
        tiers,
        tuple(Channel(f"{a}-{b}", a, b, rate) for a, b, rate in pairs),
        Compute({"bf16": 10**12}),
    )


def both(tier: str, rate: int = 10**9) -> list[tuple[str, str, int]]:
    return [(tier, "hbm", rate), ("hbm", tier, rate)]


@pytest.mark.parametrize(
    ("measured", "hop", "first"), [(True, "tape-ddr", "tape"), (False, "tape-cxl", "disk")]
)
def test_routes_know_where_copies_share_the_bandwidth_of_memories(
    measured: bool, hop: str, first: str
) -> None:
    # tape is joined to hbm by ddr, at 8 bytes a nanosecond, and by cxl, at 6: 30 bytes take 4 + 4
    # or 5 + 5 each way. disk is joined at 3.4: 9 each way. Where ops are not measured, ddr's memory
    # carries 4 of a copy: 8 + 8. Then cxl is the route, and disk is quicker.
    hops = [
        (one, other, rate)
        for name, rate in (("ddr", 8), ("cxl", 6))
        for one, other in pairwise(("hbm", name, "tape", name, "hbm"))
    ]
    hardware = machine(
        *((one, other, rate * 10**9) for one, other, rate in hops), *both("disk", 34 * 10**8)
    )
    tiers = tuple(
        replace(tier, bandwidth_bytes_per_s=4 * 10**9) if tier.name == "ddr" else tier
        for tier in hardware.tiers
    )
    hardware = replace(hardware, tiers=tiers)
    b = GraphBuilder("g")
    b.tensor("w", 30, "parameter")
    b.op("f", "any", inputs=["w"], duration_ns=10 if measured else None)
    graph = b.build()
    assert [tier.up.name for tier in analyse(graph, hardware).below if tier.name == "tape"] == [hop]
    assert TierSpace(graph, hardware, ["disk", "tape"], {}, Placement(FASTEST)).order(0)[0] == first


def test_the_nearest_tier_is_ddr_then_pool_then_nvme_then_the_quickest_other() -> None:
    hardware = machine(
        *both("nvme"), *both("tape", 1), *both("pool", 10**11), *both("cxl", 10**10), *both("ddr")
    )
    assert [below.name for below in nearest_tiers(hardware)] == [
        "ddr",
        "pool",
        "nvme",
        "cxl",
        "tape",
    ]
    assert nearest_tiers(hardware)[0].up.name == "ddr-hbm"
    assert nearest_tiers(hardware)[0].down.name == "hbm-ddr"


def test_a_tier_with_one_direction_only_is_not_below() -> None:
    assert [
        below.name for below in nearest_tiers(machine(("ddr", "hbm", 10**9), *both("nvme")))
    ] == ["nvme"]


def test_a_tier_that_several_channels_join_comes_last() -> None:
    hardware = machine(
        ("nvme", "ddr", 10**9), ("ddr", "nvme", 10**8), *both("ddr", 10**9 // 2), *both("tape", 1)
    )
    assert [(b.name, b.up.name, b.down.name) for b in nearest_tiers(hardware)] == [
        ("ddr", "ddr-hbm", "hbm-ddr"),
        ("tape", "tape-hbm", "hbm-tape"),
        ("nvme", "ddr-hbm", "ddr-nvme"),  # the slower hop of each way
    ]


def test_routes_of_small_chunks_are_told_by_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hops that share a fabric are played chunk by chunk: 64 MiB of 7 B each would be ten
    million.
    """
    slow = ("nvme", "cxl", 10**7), ("cxl", "hbm", 10**7)  # a way by itself is not timed
    hardware = machine(
        ("nvme", "ddr", 10**9), ("ddr", "nvme", 10**8), *both("ddr", 10**9 // 2), *slow
    )
    shared = replace(
        hardware,
        chunk_bytes=7,
        fabrics=(Fabric("pcie", 10**9, tuple(c.name for c in hardware.channels)),),
    )
    played: list[int] = []

    def shared_route_ns(
        of: Hardware, channels: Sequence[Channel], chunks: Sequence[int], kind: str | None = None
    ) -> int:
        played.append(len(chunks))
        return route_ns(hardware, [c.name for c in channels], sum(chunks), kind)

    monkeypatch.setattr(
        "hosim.analysis.costmodel.transfers.routes.shared_route_ns", shared_route_ns
    )
    assert [(b.up.name, b.down.name) for b in nearest_tiers(shared)] == [
        ("ddr-hbm", "hbm-ddr"),
        ("ddr-hbm", "ddr-nvme"),
        ("cxl-hbm", "nvme-cxl"),
    ]
    assert played == [64]  # the way down fits into the fabric


def test_routes_are_the_quickest_hops() -> None:
    hardware = machine(
        *both("ddr", 10**9), ("nvme", "ddr", 10**9), ("nvme", "hbm", 10**8), ("ddr", "nvme", 10**9)
    )
    assert route(hardware, ["nvme"], "hbm") == ("nvme", "ddr", "hbm")  # 2 ns a byte against 10
    assert route(hardware, ["nvme", "ddr"], "hbm") == ("ddr", "hbm")
    assert route(hardware, ["hbm"], "nvme") == ("hbm", "nvme")  # one cache op, by way of ddr
    with pytest.raises(InfeasibleError, match="no channels of machine lead from hbm to tape"):
        route(hardware, ["hbm"], "tape")


def chain(ops: int = 4):
    builder = GraphBuilder("chain")
    builder.tensor("w", 60, "parameter")
    builder.tensor("a", 30)
    builder.tensor("b", 30)
    builder.op("f0", "m", inputs=["w"], outputs=["a"], duration_ns=1)
    builder.op("f1", "m", inputs=["a"], duration_ns=1)
    builder.op("f2", "m", outputs=["b"], duration_ns=1)
    builder.op("f3", "m", inputs=["b", "w"], duration_ns=1)
    return builder.build()


def test_room_is_taken_for_as_long_as_a_tensor_lives() -> None:
    graph, hardware = chain(), machine(*both("ddr"), *both("nvme"), ddr=30, nvme=80)
    w, a, b = range(3)
    space = TierSpace(graph, hardware, ["ddr", "nvme"], {})
    assert space.place(a, 0) == "ddr"
    assert space.place(b, 2) == "ddr"  # a is dead by then
    assert space.place(w, 0) == "nvme"
    assert space.place(w, 2) == "nvme"  # it is there already
    space = TierSpace(graph, hardware, ["ddr", "nvme"], {w: ("nvme",)})
    assert space.place(a, 0) == "ddr"
    assert space.place(b, 1) is None  # a is alive, and w leaves 20 of the other
    assert space.place(w, 0) == "nvme"  # its own place


def test_tensors_start_at_home_if_they_fit_there() -> None:
    graph, hardware = chain(), machine(*both("ddr"), *both("nvme"), ddr=50)
    assert starts(graph, hardware, 60) == {}
    assert starts(graph, hardware, 59) == {0: ("nvme",)}  # ddr has 50


def test_what_must_be_there_at_the_end_counts_too() -> None:
    builder = GraphBuilder("ends")
    builder.tensor("w", 60, "parameter")
    builder.tensor("out", 30, "output")
    builder.op("f", "m", inputs=["w"], outputs=["out"], duration_ns=1)
    hardware = machine(*both("ddr"))
    assert starts(builder.build(), hardware, 90) == {}
    assert starts(builder.build(), hardware, 89) == {0: ("ddr",)}

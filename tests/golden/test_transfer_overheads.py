"""What small transfers, pageable memory and pinning take, by hand; 1 byte a nanosecond where
nothing else is said.
"""

from dataclasses import replace

import pytest
from by_hand import GB, machine, plan, replayed, workload
from timeline_check import check_result

from hosim.data.runtime import Runtime, RuntimeFigure
from hosim.hardware import Hardware


def uneven(hardware: Hardware, tier: dict | None = None, **given) -> Hardware:
    """The machine by hand with other figures of its channels and of ddr."""
    tiers = tuple(replace(t, **(tier or {})) if t.name == "ddr" else t for t in hardware.tiers)
    return replace(
        hardware, tiers=tiers, channels=tuple(replace(c, **given) for c in hardware.channels)
    )


def brought(hardware: Hardware, **sizes: int) -> list[tuple[str, int, int]]:
    """Parameters that come in from time 0 on, as (name, start, end)."""
    graph = workload(
        {name: (size, "parameter", "ddr") for name, size in sizes.items()},
        {"f": {"ns": 1, "inputs": list(sizes)}},
    )
    r = checked(plan(graph, *((f"prefetch {name}", None) for name in sizes)), hardware)
    return [(name, start, end) for _, name, _, start, end in r.moves]


def checked(the_plan, hardware):
    r = replayed(the_plan, hardware)
    assert check_result(the_plan, hardware, r.result) == ()
    return r


CURVE = ((10, GB // 4), (30, GB // 2))


@pytest.mark.parametrize(
    ("size", "takes"),
    [
        (5, 20),  # below the first point its bandwidth holds: 1/4
        (10, 40),  # a point itself
        (20, 50),  # halfway between 10 bytes in 40 ns and 30 bytes in 60 ns
        (30, 60),
        (50, 80),  # beyond the last, 20 bytes more at the channel's own 1
        (11, 41),
        (0, 0),
    ],
)
def test_small_transfers_are_slow(size, takes):
    assert brought(uneven(machine(), curve=CURVE), w=size) == [("w", 0, takes)]


def test_a_small_transfer_leaves_bandwidth_to_others():
    # Two engines share 1. v (10) reaches 1/4 and no more, so that w (45) gets all that it can
    # reach, 3/5 (60 + 15 ns alone), and not 1/2.
    assert brought(uneven(machine(engines=2), curve=CURVE), w=45, v=10) == [
        ("v", 0, 40),
        ("w", 0, 75),
    ]


def test_ceilings_under_a_full_channel():
    # Four engines share 1: u, v and w (10 each) could take 1/4 each, p (90, ceiling 90/120 = 3/4)
    # gets what is left: 1/4. All are equal. At 40 p has 80 left, alone at 3/4: 106.67, so 147.
    m = uneven(machine(hbm=200, engines=4), curve=CURVE)
    assert brought(m, u=10, v=10, w=10, p=90) == [
        ("u", 0, 40),
        ("v", 0, 40),
        ("w", 0, 40),
        ("p", 0, 147),
    ]


def test_pageable_kinds_are_slower():
    # ddr is pageable for inputs: 1/2 both ways. w, a parameter, is pinned: 1.
    m = uneven(machine(), tier={"pageable": ("input",)}, pageable_bytes_per_s=GB // 2)
    graph = workload(
        {"x": (10, "input", "ddr"), "w": (10, "parameter", "ddr"), "y": (10, "input")},
        {"f": {"ns": 1, "inputs": ["x", "w", "y"]}},
    )
    r = checked(plan(graph, ("prefetch x", None), ("prefetch w", None), ("store y", None)), m)
    assert r.moves == [
        ("prefetch", "x", 0, 0, 20),
        ("store", "y", 0, 0, 20),
        ("prefetch", "w", 0, 20, 30),
    ]


def test_a_cache_moves_in_copies_of_a_runtime():
    """Copies of 4 bytes take 4 ns and 1 each: k, a cache of 10, reaches 4/5 and takes 12.5, so 13
    ns.

    s, a cache of 2 bytes, is one copy: 2/3. w, a parameter, reaches 1. Without a time a copy takes
    what its bytes do.
    """
    graph = workload(
        {
            name: (size, kind, "ddr")
            for name, size, kind in (
                ("k", 10, "kv_cache"),
                ("s", 2, "kv_cache"),
                ("w", 10, "parameter"),
            )
        },
        {"f": {"ns": 1, "inputs": ["k", "s", "w"]}},
    )
    moves = [(f"prefetch {name}", None) for name in ("k", "s", "w")]

    def ends(copy_time: float) -> list[int]:
        figures = {"cache_copy": RuntimeFigure(4.0), "copy_time": RuntimeFigure(copy_time)}
        software = Runtime("by hand", **figures)
        return [
            end
            for *_, end in checked(plan(graph, *moves), replace(machine(), software=software)).moves
        ]

    assert ends(1.0) == [13, 16, 26]
    assert ends(0.0) == [10, 12, 22]


def three_stores(**pin):
    """Activations a, b (10) and c (25) are stored one after the other; a's copy in ddr is gone
    before b's comes.
    """
    m = uneven(machine(latency=2), tier=pin)
    graph = workload(
        {"a": (10,), "b": (10,), "c": (25,)},
        {
            "f": {"ns": 0, "outputs": ["a"]},
            "g": {"ns": 50, "inputs": ["a"], "outputs": ["b"]},
            "h": {"ns": 50, "outputs": ["c"]},
            "k": {"ns": 100, "inputs": ["b", "c"]},
        },
    )
    r = checked(plan(graph, ("store a", "f"), ("store b", "g"), ("store c", "h")), m)
    return [(name, end - start) for _, name, _, start, end in r.moves], r.result.channels[
        "d2h"
    ].contention_ns


def test_every_tensor_is_pinned_without_a_pool():
    assert three_stores(pin_ns=30) == ([("a", 42), ("b", 42), ("c", 57)], 0)


def test_a_pool_serves_again_what_was_pinned():
    # b takes the 10 bytes that a left; c does not fit in what is free of them, and more is pinned.
    assert three_stores(pin_ns=30, pin_pool=True) == ([("a", 42), ("b", 12), ("c", 57)], 0)


def test_what_starts_there_is_pinned_already():
    # w starts in ddr, 10 bytes of the pool: they serve a when w's copy there is gone.
    m = uneven(machine(), tier={"pin_ns": 30, "pin_pool": True})
    graph = workload(
        {"w": (10, "activation", "ddr"), "a": (10,)},
        {"f": {"ns": 5, "inputs": ["w"], "outputs": ["a"]}, "g": {"ns": 50, "inputs": ["a"]}},
    )
    r = checked(plan(graph, ("prefetch w", None), ("store a", "f")), m)
    assert r.moves == [("prefetch", "w", 0, 0, 10), ("store", "a", 15, 15, 25)]


def test_pageable_memory_is_not_pinned():
    m = uneven(machine(), tier={"pin_ns": 30, "pageable": ("activation",)})
    graph = workload(
        {"a": (10,)}, {"f": {"ns": 0, "outputs": ["a"]}, "g": {"ns": 50, "inputs": ["a"]}}
    )
    assert checked(plan(graph, ("store a", "f")), m).moves == [("store", "a", 0, 0, 10)]


def test_pinning_holds_the_engine_and_no_bandwidth():
    # One bandwidth for both directions. a is pinned 0..30 and flows 30..40; w has flowed alone by
    # 20.
    m = uneven(machine(fabric=GB), tier={"pin_ns": 30})
    graph = workload(
        {"a": (10, "parameter"), "w": (20, "parameter", "ddr")},
        {"f": {"ns": 1, "inputs": ["a", "w"]}},
    )
    r = checked(plan(graph, ("store a", None), ("prefetch w", None)), m)
    assert r.moves == [("prefetch", "w", 0, 0, 20), ("store", "a", 0, 0, 40)]

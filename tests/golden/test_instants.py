"""Rule 0: the order within an instant. Every figure is derived in the comments, at one byte a
nanosecond.
"""

from by_hand import machine, plan, replayed, workload


def test_releases_then_ops_then_transfers():
    # hbm holds 100. f (0..10) makes a (60); at 10 a dies, being f's alone, and the prefetch of w
    # (60) is issued. In this order at instant 10: a's 60 are released; w is issued; g starts and
    # takes 50 for b; w's 60 no longer fit. g ends at 20, b dies, w flows 20..80. h reads w: 80..85.
    graph = workload(
        {"a": (60,), "b": (50,), "w": (60, "parameter", "ddr")},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "g": {"ns": 10, "outputs": ["b"]},
            "h": {"ns": 5, "inputs": ["w"]},
        },
    )
    r = replayed(plan(graph, ("prefetch w", "f"), ("detach w", "h")), machine())
    assert r.ops == {"f": (0, 10), "g": (10, 20), "h": (80, 85)}
    assert r.moves == [("prefetch", "w", 10, 20, 80)]
    assert r.result.channels["h2d"].queue_ns == 10
    assert r.stalls == {"transfer": 60}
    # released before allocated: never 60 + 50
    assert (r.result.peak_bytes["hbm"], r.result.peak_at_ns["hbm"]) == (60, 0)


def test_issue_in_the_plans_order_and_not_in_that_of_the_ends():
    # f (compute) and g (side) both end at 10. The plan lists g's prefetch of v first, so v (30)
    # goes before w (40).
    graph = workload(
        {"w": (40, "parameter", "ddr"), "v": (30, "parameter", "ddr")},
        {
            "f": {"ns": 10},
            "g": {"ns": 10, "stream": "side"},
            "h": {"ns": 1, "inputs": ["w"]},
            "k": {"ns": 1, "inputs": ["v"], "stream": "side"},
        },
    )
    r = replayed(
        plan(graph, ("prefetch v", "g"), ("prefetch w", "f"), ("detach w", "h"), ("detach v", "k")),
        machine(),
    )
    assert r.moves == [("prefetch", "v", 10, 10, 40), ("prefetch", "w", 10, 40, 80)]
    assert r.ops == {"f": (0, 10), "g": (0, 10), "h": (80, 81), "k": (40, 41)}


def test_streams_in_the_order_of_their_first_op():
    # f0 (side, first op of the graph) and f1 (compute) end at 10 and release 40 each; both next ops
    # want 70 of 100. side's g0 goes first, although compute has the figures; g1 gets its 70 when
    # g0's die at 30.
    graph = workload(
        {"a": (40,), "b": (40,), "c": (70,), "d": (70,)},
        {
            "f0": {"ns": 10, "outputs": ["a"], "stream": "side"},
            "f1": {"ns": 10, "outputs": ["b"]},
            "g1": {"ns": 20, "outputs": ["d"]},
            "g0": {"ns": 20, "outputs": ["c"], "stream": "side"},
        },
    )
    r = replayed(plan(graph), machine())
    assert r.ops == {"f0": (0, 10), "f1": (0, 10), "g0": (10, 30), "g1": (30, 50)}
    assert r.stalls == {"capacity": 20}
    assert r.result.streams["side"].drain_ns == 20


def test_again_until_nothing_more_can_happen():
    # z takes no time: it starts and ends at 10, and what it issues begins at 10 too. e has no
    # bytes: its prefetch takes none, so g, which reads it, starts at 10 as well. v (20) is issued
    # by z at 10 and flows 10..30.
    graph = workload(
        {"e": (0, "parameter", "ddr"), "v": (20, "parameter", "ddr")},
        {
            "f": {"ns": 10},
            "z": {"ns": 0},
            "g": {"ns": 5, "inputs": ["e"]},
            "h": {"ns": 5, "inputs": ["v"]},
        },
    )
    the_plan = plan(
        graph, ("prefetch e", "f"), ("prefetch v", "z"), ("detach e", "g"), ("detach v", "h")
    )
    r = replayed(the_plan, machine())
    assert r.ops == {"f": (0, 10), "z": (10, 10), "g": (10, 15), "h": (30, 35)}
    assert r.moves == [("prefetch", "e", 10, 10, 10), ("prefetch", "v", 10, 10, 30)]
    assert r.stalls == {"transfer": 15}
    assert r.result.channels["h2d"].exposed_ns == 15


def test_a_detach_is_judged_after_all_ends_of_its_instant():
    # The store of w (20) runs 10..30 and g, which reads w, 10..30 as well. The detach behind the
    # store takes effect at 30, when g has ended too, whichever end comes first: nothing is using w
    # any more.
    graph = workload(
        {"w": (20, "parameter"), "b": (90,)},
        {"f": {"ns": 10}, "g": {"ns": 20, "inputs": ["w"]}, "h": {"ns": 5, "outputs": ["b"]}},
    )
    r = replayed(plan(graph, ("store w", "f"), ("detach w", "f"), ("prefetch w", "h")), machine())
    assert r.ops == {"f": (0, 10), "g": (10, 30), "h": (30, 35)}
    assert r.moves == [("store", "w", 10, 10, 30), ("prefetch", "w", 35, 35, 55)]
    assert (r.result.makespan_ns, r.result.drain_ns) == (55, 20)

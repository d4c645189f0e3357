"""Rules 3, 4, 5 and 6: queues, room, copies that become stale, and shared bandwidth."""

from by_hand import GB, machine, plan, replayed, workload
from timeline_check import check_result

from hosim.analysis.verifying import verify
from hosim.cache_plan import CacheOp
from hosim.result import STALL_CAUSES, StreamFigures


def test_first_in_first_out_and_the_head_holds_back():
    # hbm 100 holds p (30) and a (20, of f, 0..30). Issued at 0 on h2d: w (60), which does not fit
    # until 30, then v (10), which would but is behind it. On d2h nothing holds p back: it is stored
    # 0..30. w 30..90, v 90..100. g 100..101.
    graph = workload(
        {
            "a": (20,),
            "w": (60, "parameter", "ddr"),
            "v": (10, "parameter", "ddr"),
            "p": (30, "parameter"),
        },
        {"f": {"ns": 30, "outputs": ["a"]}, "g": {"ns": 1, "inputs": ["w", "v", "p"]}},
    )
    the_plan = plan(
        graph,
        ("prefetch w", None),
        ("prefetch v", None),
        ("store p", None),
        ("detach w", "g"),
        ("detach v", "g"),
    )
    r = replayed(the_plan, machine())
    assert r.moves == [
        ("store", "p", 0, 0, 30),
        ("prefetch", "w", 0, 30, 90),
        ("prefetch", "v", 0, 90, 100),
    ]
    assert r.ops["g"] == (100, 101)
    h2d = r.result.channels["h2d"]
    assert (h2d.transfers, h2d.bytes, h2d.busy_ns, h2d.queue_ns) == (2, 70, 70, 30 + 90)
    # 30..100 is g's wait for residency, all of it blamed on h2d
    assert (h2d.exposed_ns, h2d.hidden_ns) == (70, 0)


def test_a_waiting_transfer_keeps_no_op_from_allocating():
    # w (60) waits from 0 on, as f holds 50 of 100. At 10 f's a dies and g could leave room for w,
    # but g's 45 come first; at 20 h's 45. w starts at 30. k reads it.
    graph = workload(
        {"a": (50,), "b": (45,), "c": (45,), "w": (60, "parameter", "ddr")},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "g": {"ns": 10, "outputs": ["b"]},
            "h": {"ns": 10, "outputs": ["c"]},
            "k": {"ns": 5, "inputs": ["w"]},
        },
    )
    r = replayed(plan(graph, ("prefetch w", None), ("detach w", "k")), machine())
    assert r.ops == {"f": (0, 10), "g": (10, 20), "h": (20, 30), "k": (90, 95)}
    assert r.moves == [("prefetch", "w", 0, 30, 90)]


def test_a_write_waits_for_the_store_that_still_reads_and_makes_copies_stale():
    # f ends at 10 and issues the store of w (40): 10..50. e 10..15. g mutates w: it waits for the
    # store, transfer 15..50. At 50 g starts and w's copy in ddr, valid just now, is stale: its 40
    # bytes are gone. The store after g brings it back: 60..100.
    graph = workload(
        {"w": (40, "parameter")},
        {"f": {"ns": 10, "inputs": ["w"]}, "e": {"ns": 5}, "g": {"ns": 10, "mutates": ["w"]}},
    )
    r = replayed(plan(graph, ("store w", "f"), ("store w", "g")), machine())
    assert r.ops == {"f": (0, 10), "e": (10, 15), "g": (50, 60)}
    assert r.stalls == {"transfer": 35}
    assert r.result.channels["d2h"].exposed_ns == 35
    assert r.result.drain_ns == 40
    assert [(x.start_ns, x.end_ns) for x in r.result.timeline.residencies if x.tier == "ddr"] == [
        (10, 50),
        (60, 100),
    ]


def test_a_write_waits_for_a_store_that_has_not_started():
    # Without e between them, g is free at 10, before the store that is issued then can start. It
    # waits for it all the same: the store is before g in the graph. 10..50; g 50..60, h 60..70.
    graph = workload(
        {"w": (40, "parameter")},
        {"f": {"ns": 10, "inputs": ["w"]}, "g": {"ns": 10, "mutates": ["w"]}, "h": {"ns": 10}},
    )
    r = replayed(plan(graph, ("store w", "f")), machine())
    assert r.ops == {"f": (0, 10), "g": (50, 60), "h": (60, 70)}
    assert r.moves == [("store", "w", 10, 10, 50)]
    assert r.stalls == {"transfer": 40}
    assert r.result.channels["d2h"].exposed_ns == 40


def test_a_write_waits_for_a_store_behind_others():
    # 500 bytes of v go first, 10..510; then w's 20, 510..530. g, which writes w, waits from 10 to
    # 530; h runs 540..1060.
    graph = workload(
        {"v": (500, "parameter"), "w": (20, "parameter")},
        {
            "f": {"ns": 10, "inputs": ["v", "w"]},
            "g": {"ns": 10, "mutates": ["w"]},
            "h": {"ns": 520},
        },
    )
    r = replayed(plan(graph, ("store v", "f"), ("store w", "f")), machine(hbm=1000))
    assert r.ops == {"f": (0, 10), "g": (530, 540), "h": (540, 1060)}
    assert (r.result.makespan_ns, r.stalls) == (1060, {"transfer": 520})
    assert (r.result.channels["d2h"].exposed_ns, r.result.channels["d2h"].hidden_ns) == (520, 0)


def test_a_write_waits_for_a_store_that_another_stream_has_still_to_issue():
    # s, listed before g, ends at 30 and issues the store of w: 30..50. g needs nothing else of s
    # and is free at 0: it waits until 50. Listed after g, s ends when g has: the store copies what
    # g left, 30..50.
    graph = workload(
        {"w": (20, "parameter")},
        {"s": {"ns": 30, "stream": "side"}, "g": {"ns": 10, "mutates": ["w"]}},
    )
    r = replayed(plan(graph, ("store w", "s")), machine())
    assert (r.ops["g"], r.result.streams) == (
        (50, 60),
        {"side": StreamFigures(30, dict.fromkeys(STALL_CAUSES, 0), 30)},
    )
    assert (r.stalls, r.result.channels["d2h"].exposed_ns) == ({"transfer": 50}, 50)
    graph = workload(
        {"w": (20, "parameter")},
        {"g": {"ns": 10, "mutates": ["w"]}, "s": {"ns": 30, "stream": "side"}},
    )
    r = replayed(plan(graph, ("store w", "s")), machine())
    assert (r.ops["g"], r.stalls, r.moves) == ((0, 10), {}, [("store", "w", 30, 30, 50)])


def test_an_output_written_in_place_waits_for_a_useless_prefetch():
    # g writes all of w without reading it; the prefetch of w, queued behind v (30) at 0, is before
    # it in the graph: 30..50.
    graph = workload(
        {"v": (30, "parameter", "ddr"), "w": (20, "parameter", "ddr")},
        {"g": {"ns": 10, "outputs": ["w"]}},
    )
    r = replayed(
        plan(graph, ("prefetch v", None), ("prefetch w", None), ("store w", "g")), machine()
    )
    assert (r.ops["g"], r.stalls) == ((50, 60), {"transfer": 50})
    assert r.moves[1:] == [("prefetch", "w", 0, 30, 50), ("store", "w", 60, 60, 80)]


def test_a_write_waits_for_a_store_that_a_runtime_policy_has_queued():
    # Before x the policy stores v (30), 0..30, and w (10), which waits for v and then flows 30..40.
    # g, on the other stream, is free at 5.
    class Saves:
        def before_op(self, op, view):
            return (
                [CacheOp("store", 0, "hbm", "ddr"), CacheOp("store", 1, "hbm", "ddr")]
                if op == 0
                else ()
            )

        def make_room(self, op, wanted_bytes, view):
            return ()

    graph = workload(
        {"v": (30, "parameter"), "w": (10, "parameter")},
        {"x": {"ns": 10, "stream": "side"}, "e": {"ns": 5}, "g": {"ns": 10, "mutates": ["w"]}},
    )
    r = replayed(plan(graph, runtime=Saves), machine())
    assert (r.ops["g"], r.stalls) == ((40, 50), {"transfer": 35})


def test_out_of_memory_names_the_store_that_a_write_waits_for():
    # ddr has no room for w, so g can never write it.
    graph = workload(
        {"w": (30, "parameter")},
        {"f": {"ns": 10, "inputs": ["w"]}, "g": {"ns": 10, "mutates": ["w"]}},
    )
    error = replayed(plan(graph, ("store w", "f")), machine(ddr=20)).result.error
    assert (
        error
        == "out of memory: store of 'w' (hbm to ddr) wants 30 B of ddr at 10 ns, where 0 B of 20 "
        "B are held; largest residents: none"
    )


def test_a_detach_takes_effect_behind_the_store_before_it():
    # Both issued at 10: the store of a (50) runs 10..60, the detach behind it takes effect at 60. g
    # needs 70 beside b's 10: waits for it. The prefetch back (issued at 65, when g ends and its c
    # dies) 65..115, and h reads a.
    graph = workload(
        {"a": (50,), "c": (70,)},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "g": {"ns": 5, "outputs": ["c"]},
            "h": {"ns": 5, "inputs": ["a"]},
        },
    )
    r = replayed(plan(graph, ("store a", "f"), ("detach a", "f"), ("prefetch a", "g")), machine())
    assert r.ops == {"f": (0, 10), "g": (60, 65), "h": (115, 120)}
    assert r.stalls == {"capacity": 50, "transfer": 50}
    assert [
        (x.tier, x.start_ns, x.end_ns) for x in r.result.timeline.residencies if x.bytes == 50
    ] == [
        ("hbm", 0, 60),
        ("ddr", 10, 120),  # released on all tiers when its last user ends
        ("hbm", 65, 120),
    ]


def test_a_store_that_is_queued_when_the_last_user_ends_happens():
    # f ends at 10 and issues the stores of v (50), 10..60, and of a (20), 60..80. a's last user, g,
    # ends at 15. a stays in hbm until its store has ended, and with it its new copy in ddr goes. h
    # wants 40 beside v's 50 and a's 20: it waits for 80.
    graph = workload(
        {"a": (20,), "v": (50, "parameter"), "b": (40,)},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "g": {"ns": 5, "inputs": ["a"]},
            "h": {"ns": 5, "outputs": ["b"]},
        },
    )
    the_plan = plan(graph, ("store v", "f"), ("store a", "f"))
    r = replayed(the_plan, machine())
    assert verify(the_plan, machine()) == check_result(the_plan, machine(), r.result) == ()
    assert r.moves == [("store", "v", 10, 10, 60), ("store", "a", 10, 60, 80)]
    assert (r.ops["h"], r.stalls) == ((80, 85), {"capacity": 65})
    assert [
        (x.tier, x.start_ns, x.end_ns) for x in r.result.timeline.residencies if x.bytes == 20
    ] == [("hbm", 0, 80), ("ddr", 60, 80)]
    # so do cache ops behind it, in their order: a store to nvme 80..100, then a detach from ddr
    r = replayed(
        plan(
            graph, ("store v", "f"), ("store a", "f"), ("store a nvme", "f"), ("detach a ddr", "f")
        ),
        machine(nvme=100),
    )
    assert [
        (x.tier, x.start_ns, x.end_ns) for x in r.result.timeline.residencies if x.bytes == 20
    ] == [
        ("hbm", 0, 100),
        ("ddr", 60, 100),
        ("nvme", 80, 100),
    ]


def test_cache_ops_of_one_tensor_take_effect_in_order_of_issue():
    # At 0: store w to ddr (30) and, behind it, store w to nvme. Other channels, the same tensor:
    # one after the other.
    graph = workload({"w": (30, "parameter")}, {"f": {"ns": 1, "inputs": ["w"]}})
    r = replayed(plan(graph, ("store w ddr", None), ("store w nvme", None)), machine(nvme=100))
    assert r.moves == [("store", "w", 0, 0, 30), ("store", "w", 0, 30, 60)]
    assert r.result.channels["d2n"].queue_ns == 30


def test_two_engines_share_their_channel():
    # w (30) and v (10) flow at once at 1/2 byte a nanosecond: v's 10 are through at 20, w has 20
    # left and the channel alone: ends 40. Alone they would take 30 and 10: each lost 10. u (10)
    # waits for an engine until 20, shares with w 20..40: 10 of u, 10 of w. At 40 u is through; w,
    # with 10 left, ends at 50.
    graph = workload(
        {
            "w": (30, "parameter", "ddr"),
            "v": (10, "parameter", "ddr"),
            "u": (10, "parameter", "ddr"),
        },
        {"f": {"ns": 5, "inputs": ["w", "v", "u"]}},
    )
    the_plan = plan(
        graph, *((f"prefetch {t}", None) for t in "wvu"), *((f"detach {t}", "f") for t in "wvu")
    )
    r = replayed(the_plan, machine(engines=2))
    assert r.moves == [
        ("prefetch", "v", 0, 0, 20),
        ("prefetch", "u", 0, 20, 40),
        ("prefetch", "w", 0, 0, 50),
    ]
    h2d = r.result.channels["h2d"]
    assert (h2d.busy_ns, h2d.queue_ns, h2d.contention_ns, h2d.exposed_ns) == (
        50,
        20,
        10 + 10 + 20,
        50,
    )


def test_a_fabric_is_shared_max_min_fairly_and_ends_are_whole_nanoseconds():
    # h2d and d2h at 2 bytes a nanosecond each, the fabric at 3: alone 2, together 3/2 each.
    # w (30) up and p (10) down from 0: p through at 10 / 1.5 = 6.67, so at 7. w has 30 - 10.5 =
    # 19.5 left, now at 2: 9.75, ends at 17. Alone: w 15, p 5; contention 2 each.
    graph = workload(
        {"w": (30, "parameter", "ddr"), "p": (10, "parameter")},
        {"f": {"ns": 3, "inputs": ["p"]}, "g": {"ns": 3, "inputs": ["w"]}},
    )
    the_plan = plan(graph, ("prefetch w", None), ("store p", None), ("detach w", "g"))
    r = replayed(the_plan, machine(h2d=2 * GB, d2h=2 * GB, fabric=3 * GB))
    assert r.moves == [("store", "p", 0, 0, 7), ("prefetch", "w", 0, 0, 17)]
    assert (r.result.channels["h2d"].contention_ns, r.result.channels["d2h"].contention_ns) == (
        2,
        2,
    )
    # an unequal share: the slower channel's half is too much for it, the rest goes to the other
    # d2h at 1/2: 1/2 of it, h2d gets 2 (its own), 2.5 <= 3: no contention at all
    r = replayed(the_plan, machine(h2d=2 * GB, d2h=GB // 2, fabric=3 * GB))
    assert r.moves == [("prefetch", "w", 0, 0, 15), ("store", "p", 0, 0, 20)]
    assert r.result.channels["h2d"].contention_ns == 0


def test_latency_holds_an_engine_but_no_bandwidth():
    # Two engines, latency 10. w (20) is issued at 0: latent 0..10. v (20) at 5: latent 5..15. w
    # flows alone 10..15: 5 bytes; both at 1/2 from 15 on: w's 15 take 30, until 45, v has 5 left:
    # until 50. u (0 bytes) waits for an engine until 45, then only its latency: 55.
    graph = workload(
        {
            "w": (20, "parameter", "ddr"),
            "v": (20, "parameter", "ddr"),
            "u": (0, "parameter", "ddr"),
        },
        {"e": {"ns": 5}, "f": {"ns": 5, "inputs": ["w", "v", "u"]}},
    )
    the_plan = plan(
        graph,
        ("prefetch w", None),
        ("prefetch v", "e"),
        ("prefetch u", "e"),
        *((f"detach {t}", "f") for t in "wvu"),
    )
    r = replayed(the_plan, machine(latency=10, engines=2))
    assert r.moves == [
        ("prefetch", "w", 0, 0, 45),
        ("prefetch", "v", 5, 5, 50),
        ("prefetch", "u", 5, 45, 55),
    ]
    assert r.ops["f"] == (55, 60)


def test_exposed_is_blamed_on_the_transfer_that_ended_last():
    # f reads w (from ddr, 20) and v (from nvme, 50): both at 0, v ends last. All 50 of the wait are
    # n2d's, none is h2d's.
    graph = workload(
        {"w": (20, "parameter", "ddr"), "v": (50, "parameter", "nvme")},
        {"f": {"ns": 10, "inputs": ["w", "v"]}},
    )
    the_plan = plan(
        graph, ("prefetch w", None), ("prefetch v nvme", None), ("detach w", "f"), ("detach v", "f")
    )
    r = replayed(the_plan, machine(nvme=100))
    assert r.stalls == {"transfer": 50}
    assert (r.result.channels["n2d"].exposed_ns, r.result.channels["h2d"].exposed_ns) == (50, 0)
    assert (r.result.channels["n2d"].hidden_ns, r.result.channels["h2d"].hidden_ns) == (0, 20)


def test_hidden_behind_computation():
    # w (40) flows 0..40 while f runs 0..50: nothing is exposed.
    graph = workload(
        {"w": (40, "parameter", "ddr")}, {"f": {"ns": 50}, "g": {"ns": 5, "inputs": ["w"]}}
    )
    r = replayed(plan(graph, ("prefetch w", None), ("detach w", "g")), machine())
    assert (r.result.makespan_ns, r.stalls) == (55, {})
    assert (r.result.channels["h2d"].exposed_ns, r.result.channels["h2d"].hidden_ns) == (0, 40)


def test_a_detach_of_what_has_become_stale_meanwhile_does_nothing():
    # w (20) is stored to nvme 0..20. s, on a stream of its own and listed after g, ends at 30 and
    # issues: x (30) to ddr, 30..60; behind it w to ddr; and behind that a detach of w from nvme. g
    # mutates w and does not wait for what is issued after it: 35..45, from 35 on the copy in nvme
    # is stale and gone. w's new contents flow 60..80, and the detach behind them finds nothing.
    graph = workload(
        {"w": (20, "parameter"), "x": (30, "parameter")},
        {
            "f": {"ns": 35, "inputs": ["w"]},
            "g": {"ns": 10, "mutates": ["w"]},
            "s": {"ns": 30, "stream": "side", "inputs": ["x"]},
        },
    )
    the_plan = plan(
        graph, ("store w nvme", None), ("store x", "s"), ("store w", "s"), ("detach w nvme", "s")
    )
    r = replayed(the_plan, machine(nvme=100))
    assert r.ops == {"f": (0, 35), "g": (35, 45), "s": (0, 30)}
    assert r.moves == [
        ("store", "w", 0, 0, 20),
        ("store", "x", 30, 30, 60),
        ("store", "w", 30, 60, 80),
    ]
    assert [(x.start_ns, x.end_ns) for x in r.result.timeline.residencies if x.tier == "nvme"] == [
        (0, 35)
    ]

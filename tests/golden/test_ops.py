"""Rules 1, 4 and 8: when an op starts, what it waits for, and to what cause its wait is put."""

from by_hand import GB, machine, plan, replayed, workload

from hosim.cache_plan import CacheOp


def test_everything_resident_runs_back_to_back():
    # 10 + 20 + 5; a (30) lives 0..30, b (25) 10..35, w (10) always; g has a workspace of 8: 30 + 25
    # + 10 + 8 at 10.
    graph = workload(
        {"w": (10, "parameter"), "a": (30,), "b": (25,)},
        {
            "f": {"ns": 10, "inputs": ["w"], "outputs": ["a"]},
            "g": {"ns": 20, "inputs": ["a"], "outputs": ["b"], "workspace_bytes": 8},
            "h": {"ns": 5, "inputs": ["b"]},
        },
    )
    r = replayed(plan(graph), machine())
    assert r.ops == {"f": (0, 10), "g": (10, 30), "h": (30, 35)}
    assert (r.result.busy_ns, r.stalls, r.result.drain_ns) == (35, {}, 0)
    assert (r.result.peak_bytes["hbm"], r.result.peak_at_ns["hbm"]) == (73, 10)
    assert r.result.peak_breakdown["hbm"] == {"parameter": 10, "activation": 55, "workspace": 8}


def test_dependency_and_drain():
    # g (side) needs f's a: it waits 0..30 for its producer. h (compute) needs g's b: it waits
    # 30..70. side drains 70..75. a is used by f and g alone and dies at 70; b at 75.
    graph = workload(
        {"a": (10,), "b": (10,)},
        {
            "f": {"ns": 30, "outputs": ["a"]},
            "g": {"ns": 40, "inputs": ["a"], "outputs": ["b"], "stream": "side"},
            "h": {"ns": 5, "inputs": ["b"]},
        },
    )
    r = replayed(plan(graph), machine())
    assert r.ops == {"f": (0, 30), "g": (30, 70), "h": (70, 75)}
    assert (r.result.busy_ns, r.stalls, r.result.drain_ns) == (35, {"dependency": 40}, 0)
    side = r.result.streams["side"]
    assert (side.busy_ns, side.stall_ns["dependency"], side.drain_ns) == (40, 30, 5)


def test_deps_and_earlier_readers_are_producers():
    # g (side) reads a until 60. h writes a again: it waits for g, though it reads nothing of g's. k
    # has g in its deps.
    graph = workload(
        {"a": (10,)},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "g": {"ns": 50, "inputs": ["a"], "stream": "side"},
            "h": {"ns": 10, "outputs": ["a"]},
            "k": {"ns": 5, "deps": ["g"], "stream": "third"},
        },
    )
    r = replayed(plan(graph), machine())
    assert r.ops == {"f": (0, 10), "g": (10, 60), "h": (60, 70), "k": (60, 65)}
    assert r.stalls == {"dependency": 50}


def test_the_last_user_to_end_releases_on_several_streams():
    # a (40) is read by g (compute, 10..20) and s (side, 10..50); s is not listed last but ends
    # last, so a is held to 50. h wants 70 of 100 from 20 on: it waits for a until 50. This is
    # capacity.
    graph = workload(
        {"a": (40,), "b": (70,)},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "s": {"ns": 40, "inputs": ["a"], "stream": "side"},
            "g": {"ns": 10, "inputs": ["a"]},
            "h": {"ns": 5, "outputs": ["b"]},
        },
    )
    r = replayed(plan(graph), machine())
    assert r.ops == {"f": (0, 10), "s": (10, 50), "g": (10, 20), "h": (50, 55)}
    assert r.stalls == {"capacity": 30}
    assert [(x.start_ns, x.end_ns) for x in r.result.timeline.residencies if x.bytes == 40] == [
        (0, 50)
    ]


def test_dependency_then_transfer_then_capacity():
    # One wait with three causes. h (compute) needs a of s (side, 0..30), w (50, prefetched 0..50)
    # and 40 bytes for b. t_dep = 30, t_res = 50. hbm 100: a 10, w 50, c 35 (of t, third, 0..80)
    # leave 5: h starts when t and with it c end, at 80.
    graph = workload(
        {"a": (10,), "b": (40,), "c": (35,), "w": (50, "parameter", "ddr")},
        {
            "s": {"ns": 30, "outputs": ["a"], "stream": "side"},
            "t": {"ns": 80, "outputs": ["c"], "stream": "third"},
            "h": {"ns": 5, "inputs": ["a", "w"], "outputs": ["b"]},
        },
    )
    r = replayed(plan(graph, ("prefetch w", None), ("detach w", "h")), machine())
    assert r.ops["h"] == (80, 85)
    assert r.stalls == {"dependency": 30, "transfer": 20, "capacity": 30}
    h2d = r.result.channels["h2d"]
    assert (h2d.busy_ns, h2d.exposed_ns, h2d.hidden_ns) == (50, 20, 30)


def test_runtime_inspects_each_op_first():
    # 7 ns of inspection before each op: f 7..17, g 24..34.
    class Watcher:
        def before_op(self, op, view):
            return ()

        def make_room(self, op, wanted_bytes, view):
            return ()

    graph = workload({}, {"f": {"ns": 10}, "g": {"ns": 10}})
    r = replayed(plan(graph, runtime=Watcher), machine(inspect=7))
    assert r.ops == {"f": (7, 17), "g": (24, 34)}
    assert (r.stalls, r.result.busy_ns) == ({"runtime": 14}, 20)


def test_runtime_decisions_are_transfer_stalls_and_room_is_made_when_nothing_moves():
    # Before f (inspected 0..5) the policy fetches w (60): 5..65. f 65..75. Before g (inspected
    # 75..80) it fetches v (60): that does not fit beside w, nothing is under way, so it is asked
    # for room and detaches w. v 80..140, g 140..150.
    class OnDemand:
        def before_op(self, op, view):
            return [CacheOp("prefetch", op, "ddr", "hbm")]

        def make_room(self, op, wanted_bytes, view):
            assert (op, wanted_bytes, view.free_bytes, list(view.residents())) == (1, 60, 40, [0])
            return [CacheOp("detach", 0, "hbm", None)]

    graph = workload(
        {"w": (60, "parameter", "ddr"), "v": (60, "parameter", "ddr")},
        {"f": {"ns": 10, "inputs": ["w"]}, "g": {"ns": 10, "inputs": ["v"]}},
    )
    r = replayed(plan(graph, runtime=OnDemand), machine(inspect=5))
    assert r.ops == {"f": (65, 75), "g": (140, 150)}
    assert r.stalls == {"runtime": 10, "transfer": 120}
    assert r.result.plan == {"prefetches": 2, "stores": 0, "detaches": 1}


def test_an_output_that_is_there_is_written_in_place():
    # g writes a again: its 60 bytes are held once, so 60 + 60 > 100 is no obstacle. a lives from 0
    # to its last user's end, 30.
    graph = workload(
        {"a": (60,)},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "g": {"ns": 10, "outputs": ["a"]},
            "h": {"ns": 10, "inputs": ["a"]},
        },
    )
    r = replayed(plan(graph), machine())
    assert r.ops == {"f": (0, 10), "g": (10, 20), "h": (20, 30)}
    assert (r.result.peak_bytes["hbm"], r.result.peak_at_ns["hbm"]) == (60, 0)


def test_the_last_prefetch_before_the_op_in_the_list_is_waited_for():
    # w is detached after f and brought back by a prefetch after f, 10..50, for h. The prefetch
    # after h is none of h's business, neither is v's staging from nvme to ddr (10..40), as v is
    # there: g runs at once.
    graph = workload(
        {"w": (40, "parameter", "ddr"), "v": (30, "parameter", "nvme")},
        {
            "f": {"ns": 10, "inputs": ["w"]},
            "g": {"ns": 5, "inputs": ["v"]},
            "h": {"ns": 10, "inputs": ["w"]},
        },
    )
    the_plan = plan(
        graph,
        ("detach w", "f"),
        ("prefetch w", "f"),
        ("prefetch v nvme ddr", "f"),
        ("detach v ddr", "h"),
        ("prefetch w", "h"),
        initial={"w": ["hbm", "ddr"], "v": ["hbm", "nvme"]},
    )
    r = replayed(the_plan, machine(nvme=100))
    assert r.ops == {"f": (0, 10), "g": (10, 15), "h": (50, 60)}
    assert r.stalls == {"transfer": 35}
    assert r.moves == [
        ("prefetch", "v", 10, 10, 40),
        ("prefetch", "w", 10, 10, 50),
        ("prefetch", "w", 60, 60, 100),
    ]
    assert r.result.drain_ns == 40


def test_residency_lost_while_waiting_for_room_is_waited_for_again():
    # h (compute) writes w in place, free from 0 on, and wants 60 of b; t (side, 0..50) holds 60 of
    # c: h waits for capacity. At 20, the end of u (third), which is listed after h, issues a store
    # of w (80): 20..100. At 50 room is there, but the store still reads w.
    # h starts at 100: t_res is 100, so all of the wait is transfer, blamed on d2h.
    graph = workload(
        {"w": (80, "parameter"), "b": (60,), "c": (60,)},
        {
            "t": {"ns": 50, "outputs": ["c"], "stream": "side"},
            "h": {"ns": 5, "mutates": ["w"], "outputs": ["b"]},
            "u": {"ns": 20, "stream": "third"},
        },
    )
    r = replayed(plan(graph, ("store w", "u")), machine(hbm=200 - 1, d2h=GB))
    assert r.ops["h"] == (100, 105)
    assert r.stalls == {"transfer": 100}
    assert r.result.channels["d2h"].exposed_ns == 100


def test_the_first_instant_of_the_peak_counts():
    # 50 of a at 0; 50 of b at 10: the same occupancy, of another kind. The first one is told.
    graph = workload(
        {"a": (50,), "b": (50, "gradient")},
        {"f": {"ns": 10, "outputs": ["a"]}, "g": {"ns": 10, "outputs": ["b"]}},
    )
    r = replayed(plan(graph), machine())
    assert (r.result.peak_bytes["hbm"], r.result.peak_at_ns["hbm"]) == (50, 0)
    assert r.result.peak_breakdown["hbm"] == {"activation": 50}

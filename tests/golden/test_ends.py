"""Rules 2, 4, 5 and 9 where a replay cannot go on: out of memory, persistence, illegal detaches.
And the toy of docs/formats.md.
"""

import pytest
from both_engines import replay
from by_hand import machine, plan, replayed, workload

from hosim import find_hardware, load_hardware
from hosim.analysis.lower_bounds import lower_bound_ns
from hosim.errors import PlanError
from hosim.io import plan_from_dict, result_to_dict, workload_from_dict


def test_out_of_memory_names_the_op():
    # a (50) is held when g wants 45 and a workspace of 10: 105 of 100.
    graph = workload(
        {"a": (50,), "b": (45,)},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "g": {"ns": 10, "outputs": ["b"], "workspace_bytes": 10},
            "h": {"ns": 1, "inputs": ["a"]},
        },
    )
    r = replayed(plan(graph), machine())
    assert not r.result.feasible
    expected = (
        "out of memory: op 'g' wants 55 B of hbm at 10 ns, where 50 B of 100 B are held; "
        "largest residents: a 50 B"
    )
    assert r.result.error == expected
    assert (r.result.makespan_ns, r.result.busy_ns, r.result.drain_ns) == (None, None, None)
    assert (r.result.peak_bytes["hbm"], r.result.peak_at_ns["hbm"]) == (50, 0)


def test_the_budget_is_the_capacity_where_it_is_less():
    # 60 fit into 100, not into a budget of 59, and a budget of 1000 does not add memory.
    graph = workload({"a": (60,)}, {"f": {"ns": 10, "outputs": ["a"]}})
    assert replayed(plan(graph), machine(), 60).result.feasible
    assert "wants 60 B of hbm" in replayed(plan(graph), machine(), 59).result.error
    assert not replayed(plan(graph), machine(hbm=59), 1000).result.feasible


def test_out_of_memory_names_the_transfer():
    # w (60) needs room beside p (50), which stays: f waits for w, and w for room that nobody can
    # make.
    graph = workload(
        {"w": (60, "parameter", "ddr"), "p": (50, "parameter")}, {"f": {"ns": 10, "inputs": ["w"]}}
    )
    error = replayed(plan(graph, ("prefetch w", None)), machine()).result.error
    expected = (
        "out of memory: prefetch of 'w' (ddr to hbm) wants 60 B of hbm at 0 ns, where 50 B "
        "of 100 B are held; largest residents: p 50 B"
    )
    assert error == expected
    # on the way down as well: ddr holds 20 of w's 30
    graph = workload({"w": (30, "parameter")}, {"f": {"ns": 10, "inputs": ["w"]}})
    error = replayed(plan(graph, ("store w", "f")), machine(ddr=20)).result.error
    assert (
        error
        == "out of memory: store of 'w' (hbm to ddr) wants 30 B of ddr at 10 ns, where 0 B of 20 "
        "B are held; largest residents: none"
    )


def test_the_largest_residents_take_parts_of_one_tensor_together():
    # w[1] and w[4] are 45 together, more than p; m, n and o are less than either; v[0] is one part,
    # and q the sixth
    tensors = {f"w[{k}]": (size, "parameter", None, None, "w") for k, size in ((4, 20), (1, 25))}
    tensors |= {
        "p": (30, "parameter"),
        "v[0]": (5, "parameter", None, None, "v"),
        "q": (1, "parameter"),
        "v[1]": (2, "parameter", "ddr", None, "v"),
    }
    tensors |= {name: (size, "parameter") for name, size in (("m", 8), ("n", 7), ("o", 6))} | {
        "a": (10,)
    }
    graph = workload(
        tensors,
        {
            "f": {
                "ns": 10,
                "inputs": [name for name in tensors if name not in ("a", "v[1]")],
                "outputs": ["a"],
            }
        },
    )
    assert replayed(plan(graph), machine(hbm=110)).result.error == (
        "out of memory: op 'f' wants 10 B of hbm at 0 ns, where 102 B of 110 B are held; "
        "largest residents: w[1..4] (2 parts) 45 B, p 30 B, m 8 B, n 7 B, o 6 B and 2 more"
    )


def test_out_of_memory_names_an_op_that_waits_in_vain():
    graph = workload({"w": (30, "parameter", "ddr")}, {"f": {"ns": 10, "inputs": ["w"]}})
    assert "op 'f' waits in vain for 'w' (30 B)" in replayed(plan(graph), machine()).result.error


def test_out_of_memory_names_what_holds_the_others_up():
    # side's stream comes first, but its g only waits for f, and f for w, which stays in ddr
    graph = workload(
        {"w": (30, "parameter", "ddr"), "a": (1,)},
        {
            "s": {"ns": 1, "stream": "side"},
            "f": {"ns": 10, "inputs": ["w"], "outputs": ["a"]},
            "g": {"ns": 1, "stream": "side", "inputs": ["a"]},
        },
    )
    assert "op 'f' waits in vain for 'w' (30 B)" in replayed(plan(graph), machine()).result.error


def test_out_of_memory_at_time_zero():
    graph = workload({"w": (101, "parameter")}, {"f": {"ns": 10, "inputs": ["w"]}})
    error = replayed(plan(graph), machine()).result.error
    assert error.startswith(
        "out of memory: the initial residents of hbm take 101 B, its capacity is 100 B"
    )


def test_persistence():
    # w starts in ddr and is mutated in hbm: its copy in ddr is stale at the end unless it is stored
    # back.
    graph = workload({"w": (30, "parameter", "ddr")}, {"f": {"ns": 10, "mutates": ["w"]}})
    with pytest.raises(PlanError, match=r"'w' has no valid copy in ddr at the end of the step"):
        replay(plan(graph, ("prefetch w", None)), machine())
    # stored back 40..70, after f's 30..40: the step may end with one more copy than it began with
    r = replayed(plan(graph, ("prefetch w", None), ("store w", "f")), machine())
    assert (r.result.makespan_ns, r.result.drain_ns) == (70, 30)
    # the plan's word against the home: it starts in hbm, and is there again
    r = replayed(plan(graph, initial={"w": ["hbm"]}), machine())
    assert r.result.makespan_ns == 10
    assert r.result.peak_bytes == {"hbm": 30, "ddr": 0}


def test_what_survives_and_what_does_not():
    # y is of kind output: it survives f, its only user. b, of kind activation but persistent, is
    # there from the start and survives.
    graph = workload(
        {"y": (20, "output"), "b": (10, "activation", None, True), "a": (5,)},
        {"f": {"ns": 10, "outputs": ["y", "a"]}},
    )
    r = replayed(plan(graph), machine())
    held = {(x.bytes, x.start_ns, x.end_ns) for x in r.result.timeline.residencies}
    assert held == {(20, 0, 10), (10, 0, 10), (5, 0, 10)}
    # the only copy of y must not be dropped, as it survives; a is gone when the detach comes, which
    # says nothing then
    with pytest.raises(PlanError, match=r"'y' at 10 ns would drop its last valid copy"):
        replay(plan(graph, ("detach y", "f")), machine())
    assert replayed(plan(graph, ("detach a", "f")), machine()).result.makespan_ns == 10


def test_illegal_detaches():
    graph = workload(
        {"w": (30, "parameter", "ddr")},
        {"e": {"ns": 5, "stream": "side"}, "f": {"ns": 10, "inputs": ["w"]}},
    )
    with pytest.raises(PlanError, match=r"'w' at 0 ns: it holds no bytes there"):
        replay(plan(graph, ("detach w", None)), machine())
    with pytest.raises(PlanError, match=r"'w' at 0 ns would drop its last valid copy"):
        replay(plan(graph, ("detach w ddr", None)), machine())
    with pytest.raises(PlanError, match=r"'w' at 5 ns: op 'f' is using it"):
        replay(plan(graph, ("detach w", "e"), initial={"w": ["hbm", "ddr"]}), machine())


def test_a_detach_of_a_copy_that_an_op_awaits():
    # w comes 0..40. e ends at 50 and issues a detach of w from hbm, where f, the next op, awaits
    # it: its copy in ddr is no use to f.
    graph = workload(
        {"w": (40, "parameter", "ddr")}, {"e": {"ns": 50}, "f": {"ns": 10, "inputs": ["w"]}}
    )
    awaited = r"'w' at 50 ns: op 'f' awaits it, and no prefetch brings it back before"
    with pytest.raises(PlanError, match=awaited):
        replay(plan(graph, ("prefetch w", None), ("detach w", "e")), machine())
    # also one that is issued before the prefetch has ended, and takes effect behind it, at 40
    with pytest.raises(PlanError, match=r"'w' at 40 ns: op 'f' awaits it"):
        replay(plan(graph, ("prefetch w", None), ("detach w", None)), machine())
    # also where w is there from the start
    with pytest.raises(PlanError, match=awaited):
        replay(plan(graph, ("detach w", "e"), initial={"w": ["hbm", "ddr"]}), machine())
    # with a prefetch behind the detach, which is the one that f waits for, it is legal: 50..90
    r = replayed(
        plan(graph, ("prefetch w", None), ("detach w", "e"), ("prefetch w", "e")), machine()
    )
    assert r.ops["f"] == (90, 100)


def test_contents_that_nobody_needs_may_be_dropped():
    # g writes a again without reading it: what f left there is not needed, and may go. h takes the
    # room.
    graph = workload(
        {"a": (60,), "b": (60,)},
        {
            "f": {"ns": 10, "outputs": ["a"]},
            "h": {"ns": 10, "outputs": ["b"]},
            "g": {"ns": 10, "outputs": ["a"]},
            "k": {"ns": 10, "inputs": ["a"]},
        },
    )
    r = replayed(plan(graph, ("detach a", "f")), machine())
    assert r.ops == {"f": (0, 10), "h": (10, 20), "g": (20, 30), "k": (30, 40)}


WORKLOAD = {
    "format": "hosim.workload/1",
    "name": "toy",
    "tensors": [
        {"name": "w", "bytes": 40, "kind": "parameter", "home": "hbm"},
        {"name": "a", "bytes": 30, "kind": "activation"},
    ],
    "ops": [
        {
            "name": "f",
            "kind": "matmul",
            "stream": "compute",
            "inputs": ["w"],
            "outputs": ["a"],
            "duration_ns": 50,
        }
    ],
}
PLAN = {
    "format": "hosim.plan/1",
    "workload": "toy",
    "policy": "manual",
    "initial": {"w": ["ddr"]},
    "cache_ops": [
        {"op": "prefetch", "tensor": "w", "from": "ddr", "to": "hbm", "after": None},
        {"op": "detach", "tensor": "w", "from": "hbm", "after": "f"},
    ],
}
RESULT = {
    "format": "hosim.result/1",
    "workload": "toy",
    "hardware": "toy",
    "policy": "manual",
    "budget_bytes": 100,
    "feasible": True,
    "error": None,
    "makespan_ns": 90,
    "busy_ns": 50,
    "stall_ns": {"dependency": 0, "transfer": 40, "capacity": 0, "runtime": 0},
    "drain_ns": 0,
    "lower_bound_ns": 50,
    "peak_bytes": {"hbm": 70, "ddr": 40},
    "peak_at_ns": {"hbm": 40, "ddr": 0},
    "peak_breakdown": {"hbm": {"parameter": 40, "activation": 30}},
    "channels": {
        "h2d": {
            "transfers": 1,
            "bytes": 40,
            "busy_ns": 40,
            "queue_ns": 0,
            "contention_ns": 0,
            "exposed_ns": 40,
            "hidden_ns": 0,
            "utilization": 0.44,
        }
    },
    "plan": {"prefetches": 1, "stores": 0, "detaches": 1},
    "notes": ["durations: times as given for its 1 op"],
}


def test_the_toy_of_the_formats_page():
    # the prefetch runs 0..40, f 40..90, a has no later use and is released at 90
    graph, hardware = workload_from_dict(WORKLOAD), load_hardware(find_hardware("toy"))
    the_plan = plan_from_dict(PLAN, graph)
    r = replayed(the_plan, hardware, 100)
    assert r.ops == {"f": (40, 90)}
    assert r.moves == [("prefetch", "w", 0, 0, 40)]
    assert {(x.tier, x.bytes, x.start_ns, x.end_ns) for x in r.result.timeline.residencies} == {
        ("ddr", 40, 0, 90),
        ("hbm", 40, 0, 90),
        ("hbm", 30, 40, 90),
    }
    got = result_to_dict(r.result)
    assert got.pop("planning_s") >= 0
    assert got.pop("replay_s") >= 0
    got["lower_bound_ns"] = lower_bound_ns(graph, [50], hardware, None, 100)
    # what the page leaves out, as every format may: a channel without transfers, the composition of
    # a tier below
    idle = got["channels"].pop("d2h")
    assert not any(idle.values())
    assert got["peak_breakdown"].pop("ddr") == {"parameter": 40}
    assert got == RESULT

"""Rule 20: ops on the processor of another tier, by hand. Channels carry one byte a nanosecond
unless said otherwise.
"""

from dataclasses import replace

import pytest
from both_engines import replay
from by_hand import GB, blames, machine, plan, replayed, workload

from hosim.errors import GraphError, HardwareError, InputError, PlanError
from hosim.graph import GraphBuilder
from hosim.hardware import Compute
from hosim.jitter import Jitter

CPU = {"processor": "ddr", "stream": "cpu"}


def with_cpu(hardware, bandwidth=None, **compute):
    """The machine whose ddr has a processor, of one FLOP a nanosecond."""
    ddr = replace(hardware.tiers[1], compute=Compute({"fp32": GB}, **compute))
    ddr = ddr if bandwidth is None else replace(ddr, bandwidth_bytes_per_s=bandwidth * GB)
    return replace(hardware, tiers=(hardware.tiers[0], ddr, *hardware.tiers[2:]))


def step(**fields):
    """A step with its optimizer on the CPU: f makes the gradient g, u makes w of it and of the
    state s, h is the next step's first op.
    """
    return workload(
        {
            "w": (20, "parameter"),
            "g": (20, "gradient"),
            "s": (40, "optimizer_state", "ddr"),
            "y": (5,),
        },
        {
            "f": {"ns": 30, "inputs": ["w"], "outputs": ["g"]},
            "u": {"ns": 50, "inputs": ["g"], "mutates": ["s"], "outputs": ["w"], **CPU} | fields,
            "h": {"ns": 10, "inputs": ["w"], "outputs": ["y"]},
        },
    )


def test_an_optimizer_on_the_cpu():
    # f runs 0..30. g is stored 30..50, so u runs 50..100 and writes w in ddr; the copy of w in hbm
    # is dropped at 50. w is prefetched 100..120, and h runs 120..130.
    # cpu waits 0..30 for f and 30..50 for g's store. compute waits 30..100 for u and 100..120 for
    # w's prefetch. hbm: w 20 and g 20 from 0 on; g is detached at 50, as w is dropped; from 100 on
    # w 20, at 120 y 5 more. The peak is 40 at 0. ddr: s 40; at 30 g comes (20), at 50 w is
    # allocated (20), and u has a workspace of 7: 87 at 50. At 100 g dies, the workspace goes.
    the_plan = plan(
        step(workspace_bytes=7),
        ("store g", "f"),
        ("detach g", "f"),
        ("prefetch w", "u"),
        ("detach w ddr", "h"),
    )
    r = replayed(the_plan, with_cpu(machine()))
    assert r.ops == {"f": (0, 30), "u": (50, 100), "h": (120, 130)}
    assert r.moves == [("store", "g", 30, 30, 50), ("prefetch", "w", 100, 100, 120)]
    assert (r.result.busy_ns, r.stalls, r.result.drain_ns) == (
        40,
        {"dependency": 70, "transfer": 20},
        0,
    )
    cpu = r.result.streams["cpu"]
    assert (cpu.busy_ns, cpu.stall_ns["dependency"], cpu.stall_ns["transfer"], cpu.drain_ns) == (
        50,
        30,
        20,
        30,
    )
    assert blames(the_plan, r.result) == [("u", 30, 50, "g", "d2h"), ("h", 100, 120, "w", "h2d")]
    assert (r.result.peak_bytes["hbm"], r.result.peak_at_ns["hbm"]) == (40, 0)
    assert (r.result.peak_bytes["ddr"], r.result.peak_at_ns["ddr"]) == (87, 50)
    assert r.result.peak_breakdown["ddr"] == {
        "parameter": 20,
        "gradient": 20,
        "optimizer_state": 40,
        "workspace": 7,
    }
    held = {(x.tensor, x.tier): (x.start_ns, x.end_ns) for x in r.result.timeline.residencies}
    assert held[1, "hbm"] == (0, 50)
    assert held[1, "ddr"] == (30, 100)
    assert held[0, "ddr"] == (50, 130)
    assert held[-1, "ddr"] == (50, 100)


def test_the_device_runs_on_beside_the_cpu():
    # k needs nothing of u: it runs 30..70 while u waits for g until 50. u 50..100.
    graph = workload(
        {"g": (20, "gradient"), "s": (40, "optimizer_state", "ddr")},
        {
            "f": {"ns": 30, "outputs": ["g"]},
            "u": {"ns": 50, "inputs": ["g"], "mutates": ["s"], **CPU},
            "k": {"ns": 40},
        },
    )
    r = replayed(plan(graph, ("store g", "f")), with_cpu(machine()))
    assert r.ops == {"f": (0, 30), "u": (50, 100), "k": (30, 70)}
    assert (r.result.makespan_ns, r.stalls, r.result.drain_ns) == (100, {}, 30)


def test_what_the_cpu_allocates_waits_for_room_in_its_tier():
    # ddr holds s (40) and, from 30 on, g (20); u wants 20 for w: 80, for which u starts at 50 when
    # g is there. With b (15) in ddr until k ends at 90 it would be 95 of 94, so u starts at 90. Of
    # 70 there is never enough.
    graph = workload(
        {
            "w": (20, "parameter"),
            "g": (20, "gradient"),
            "s": (40, "optimizer_state", "ddr"),
            "b": (15, "buffer"),
        },
        {
            "f": {"ns": 30, "inputs": ["w"], "outputs": ["g"]},
            "k": {"ns": 60},
            "u": {"ns": 50, "inputs": ["g"], "mutates": ["s"], "outputs": ["w"], **CPU},
        },
    )
    moves = [("store g", "f"), ("detach b ddr", "k"), ("prefetch w", "u")]
    both = {"b": ("hbm", "ddr")}
    free = replayed(
        plan(graph, *moves[:1], *moves[2:], initial={"b": ("hbm",)}), with_cpu(machine(ddr=80))
    )
    assert free.ops["u"] == (50, 100)
    # b is in both tiers at time 0 and must be there again: it is stored back after u
    late = replayed(plan(graph, *moves, ("store b", "u"), initial=both), with_cpu(machine(ddr=94)))
    assert late.ops["u"] == (90, 140)
    assert late.result.streams["cpu"].stall_ns == {
        "dependency": 30,
        "transfer": 20,
        "capacity": 40,
        "runtime": 0,
    }
    short = replay(plan(graph, moves[0], moves[2]), with_cpu(machine(ddr=70)))
    assert short.error is not None
    assert "op 'u' wants 20 B of ddr" in short.error


def test_an_input_that_nothing_brings():
    # g stays in hbm: u waits for it in vain.
    error = replay(plan(step()), with_cpu(machine())).error
    assert "op 'u' waits in vain for 'g' (20 B) to be resident in ddr" in error


def test_what_the_device_writes_is_stale_for_the_cpu():
    # f writes g, which is stored 10..30; k writes g anew at 30..40. The copy in ddr is dropped at
    # 30, so u waits in vain.
    graph = workload(
        {"g": (20, "gradient")},
        {
            "f": {"ns": 10, "outputs": ["g"]},
            "k": {"ns": 10, "mutates": ["g"]},
            "u": {"ns": 10, "inputs": ["g"], **CPU},
        },
    )
    assert (
        "waits in vain for 'g'" in replay(plan(graph, ("store g", "f")), with_cpu(machine())).error
    )
    # a second store, after k, is the last one that counts for u: k waits for the first one until
    # 30, the second flows 40..60.
    r = replayed(plan(graph, ("store g", "f"), ("store g", "k")), with_cpu(machine()))
    assert r.ops == {"f": (0, 10), "k": (30, 40), "u": (60, 70)}


def test_the_cpu_waits_for_copies_of_what_it_writes():
    # w is prefetched from ddr 0..20, which is before u: u writes w only at 20.
    graph = workload({"w": (20, "parameter", "ddr")}, {"u": {"ns": 10, "mutates": ["w"], **CPU}})
    r = replayed(plan(graph, ("prefetch w", None)), with_cpu(machine()))
    assert r.ops == {"u": (20, 30)}
    assert r.result.stall_ns["transfer"] == 20


def test_detaches_of_what_the_cpu_uses():
    # u reads g in ddr 50..100. k ends at 60: a detach of g from ddr then is illegal, one from hbm
    # is not.
    graph = workload(
        {"g": (20, "gradient")},
        {
            "f": {"ns": 30, "outputs": ["g"]},
            "k": {"ns": 30},
            "u": {"ns": 50, "inputs": ["g"], **CPU},
            "z": {"ns": 1, "inputs": ["g"]},
        },
    )
    store = ("store g", "f")
    with pytest.raises(PlanError, match="at 60 ns: op 'u' is using it"):
        replay(plan(graph, store, ("detach g ddr", "k")), with_cpu(machine()))
    r = replayed(
        plan(graph, store, ("detach g hbm", "k"), ("prefetch g", "u")), with_cpu(machine())
    )
    assert r.ops["z"] == (120, 121)
    # the copy in ddr is what u awaits: to detach it as f ends is illegal, though hbm has a valid
    # one.
    with pytest.raises(PlanError, match="op 'u' awaits it"):
        replay(plan(graph, store, ("detach g ddr", "f")), with_cpu(machine()))


@pytest.mark.parametrize(("gone", "ends"), [((), (55, 90)), ((("detach a ddr", "u"),), (25, 30))])
def test_what_the_cpu_writes_is_pinned_in_no_time(gone, ends):
    # The 5 bytes of w, which are pinned from the start, are free at 1. u runs 1..6 and has pinned
    # a: 10 bytes of the pool. b and c are stored from 20 on, 5 bytes each: beside a, each takes
    # 30 ns to pin. Where the copy of a in ddr is gone at 16, its 10 bytes serve both.
    graph = workload(
        {"w": (5, "activation", "ddr"), "a": (10,), "b": (5,), "c": (5,)},
        {
            "v": {"ns": 1, "inputs": ["w"], **CPU},
            "u": {"ns": 5, "outputs": ["a"], **CPU},
            "g": {"ns": 20, "outputs": ["b", "c"]},
            "k": {"ns": 100, "inputs": ["a", "b", "c"]},
        },
    )
    hardware = with_cpu(machine())
    pooled = replace(hardware.tiers[1], pin_ns=30, pin_pool=True)
    r = replayed(
        plan(graph, ("prefetch a", "u"), *gone, ("store b", "g"), ("store c", "g")),
        replace(hardware, tiers=(hardware.tiers[0], pooled)),
    )
    assert r.ops["u"] == (1, 6)
    assert [(name, end) for _, name, _, _, end in r.moves] == [
        ("a", 16),
        ("b", ends[0]),
        ("c", ends[1]),
    ]


def test_the_time_of_an_op_on_the_cpu():
    # 120 bytes at 10 a nanosecond, half of it reached: 24 ns. 15 FLOP at 1, half: 30 ns. The
    # larger, and a launch of 3.
    graph = workload(
        {"s": (40, "optimizer_state", "ddr")},
        {"u": {"ns": None, "mutates": ["s"], "dtype": "fp32", **CPU}},
    )
    for work, ns in (({"bytes_accessed": 120}, 27), ({"bytes_accessed": 120, "flops": 15}, 33)):
        ops = (replace(graph.ops[0], **work),)
        hardware = with_cpu(machine(), bandwidth=10, efficiency=0.5, launch_ns=3)
        assert replay(plan(replace(graph, ops=ops)), hardware).makespan_ns == ns


def test_copies_slow_the_cpu_down():
    # u's 100 bytes at 10 are 10 ns. w's 20 flow 0..4 at 5 and leave 5: half of its speed, 2 ns done
    # by 4; 8 left: 12. hbm has 1000 a nanosecond, so d's 10,000 bytes are 10 ns, and 5 of 1000 for
    # the copy are 995 left until 4: 3.98 done, 6.02 left: 11.
    graph = workload(
        {"w": (20, "parameter", "ddr"), "s": (40, "optimizer_state", "ddr")},
        {
            "u": {"ns": None, "inputs": ["s"], "bytes_accessed": 100, **CPU},
            "d": {"ns": None, "bytes_accessed": 10_000},
        },
    )
    r = replayed(plan(graph, ("prefetch w", None)), with_cpu(machine(h2d=5 * GB), bandwidth=10))
    assert r.ops == {"u": (0, 12), "d": (0, 11)}
    assert (r.result.slowed_ns, r.result.streams["cpu"].busy_ns) == (3, 12)


def test_an_op_that_starts_leaves_room_for_one_of_a_stream_before_it():
    # ddr holds b, 40 of 60. u wants 30 of it at 50, when f has ended: too much. k starts at 50,
    # too, and writes b: the copy in ddr is stale and dropped, so u starts at 50 after all. b is
    # stored back 150..190.
    graph = workload(
        {"b": (40, "buffer"), "x": (30,)},
        {
            "f0": {"ns": 10, **CPU},
            "f": {"ns": 50},
            "u": {"ns": 20, "outputs": ["x"], **CPU},
            "k": {"ns": 100, "mutates": ["b"]},
        },
    )
    graph = replace(graph, ops=(*graph.ops[:2], replace(graph.ops[2], deps=(1,)), graph.ops[3]))
    r = replayed(
        plan(graph, ("store b", "k"), initial={"b": ("hbm", "ddr")}), with_cpu(machine(ddr=60))
    )
    assert r.ops == {"f0": (0, 10), "f": (0, 50), "u": (50, 70), "k": (50, 150)}
    assert r.moves == [("store", "b", 150, 150, 190)]


def on_devices(the_plan, hardware):
    """The result, and by device (start, end) of its ops and of its transfers; it does not depend on
    whether one stands for all.
    """
    result = replay(the_plan, hardware, record=True)
    assert replay(the_plan, hardware) == replay(the_plan, hardware, fold=False) == result
    each = [one.timeline for one in result.by_device]
    ops = [list(zip(timeline.op_start_ns, timeline.op_end_ns, strict=True)) for timeline in each]
    return result, ops, [[(x.start_ns, x.end_ns) for x in timeline.transfers] for timeline in each]


def test_devices_of_a_host_have_equal_parts_of_its_processor():
    # As in test_the_time_of_an_op_on_the_cpu, 120 bytes and 15 FLOP: with half of the 10 bytes and
    # of the FLOP a nanosecond, and half of that reached, 48 and 60 ns, and the launch of 3. The
    # third device is alone on its host, and its part is half, too: 63.
    graph = workload(
        {"s": (40, "optimizer_state", "ddr")},
        {"u": {"ns": None, "mutates": ["s"], "dtype": "fp32", **CPU}},
    )
    hardware = with_cpu(machine(), bandwidth=10, efficiency=0.5, launch_ns=3)
    for work, ns in (({"bytes_accessed": 120}, 51), ({"bytes_accessed": 120, "flops": 15}, 63)):
        the_plan = plan(replace(graph, ops=(replace(graph.ops[0], **work),)))
        for devices, per_host in ((2, None), (4, 2), (3, 2)):
            _, ops, _ = on_devices(
                the_plan, replace(hardware, devices=devices, devices_per_host=per_host)
            )
            assert ops == [[(0, ns)]] * devices
        _, ops, _ = on_devices(the_plan, replace(hardware, devices=2, devices_per_host=1))
        assert ops == [[(0, 27 if "flops" not in work else 33)]] * 2
    the_plan = plan(workload({}, {"u": {"ns": 50, **CPU}}))  # a measured time is as it was measured
    assert on_devices(the_plan, replace(hardware, devices=2))[1] == [[(0, 50)]] * 2


@pytest.mark.parametrize(("devices", "last"), [(2, 12), (3, 11)])
def test_copies_of_all_devices_slow_their_parts_down(devices, last):
    # u's 100 bytes at half of 20 a nanosecond are 10 ns. w's 20 flow 0..4 at 5 on each of two
    # devices of a host, 10 in all: 5 of each part. So u has half of its speed until 4, with 2 ns
    # done; 8 left: 12. A third device, alone on its host, has 5 in all, 2.5 of its part: three
    # quarters of its speed, 3 ns done by 4, 7 left: 11.
    graph = workload(
        {"w": (20, "parameter", "ddr"), "s": (40, "optimizer_state", "ddr")},
        {"u": {"ns": None, "inputs": ["s"], "bytes_accessed": 100, **CPU}},
    )
    hardware = replace(
        with_cpu(machine(h2d=5 * GB), bandwidth=20), devices=devices, devices_per_host=2
    )
    result, ops, moves = on_devices(plan(graph, ("prefetch w", None)), hardware)
    assert ops == [[(0, 12)], [(0, 12)], [(0, last)]][:devices]
    assert moves == [[(0, 4)]] * devices
    assert [one.slowed_ns for one in result.by_device] == [2, 2, last - 10][:devices]


def test_devices_share_the_room_of_their_processor():
    # Two devices have 80 of ddr's 110 bytes for s. u has a workspace of 30, so the second device's
    # begins when the first one's has ended.
    graph = workload(
        {"s": (40, "optimizer_state", "ddr")},
        {"u": {"ns": 50, "mutates": ["s"], "workspace_bytes": 30, **CPU}},
    )
    result, ops, _ = on_devices(plan(graph), replace(with_cpu(machine(ddr=110)), devices=2))
    assert ops == [[(0, 50)], [(50, 100)]]
    assert [
        one.streams["cpu"].stall_ns["capacity"] if one.streams else one.stall_ns["capacity"]
        for one in result.by_device
    ] == [0, 50]
    assert (result.peak_bytes["ddr"], result.peak_at_ns["ddr"]) == (110, 0)
    assert result.peak_breakdown["ddr"] == {"optimizer_state": 80, "workspace": 30}
    # With 109 it fits nowhere, and the first device says so.
    error = replay(plan(graph), replace(with_cpu(machine(ddr=109)), devices=2)).error
    assert error is not None
    assert (
        "out of memory on device 0: op 'u' wants 30 B of ddr at 0 ns, where 80 B of 109 B are "
        "held (40 B by this device)" in error
    )


def test_an_optimizer_on_the_cpu_beside_a_collective():
    # Two devices reduce g over a root that carries collectives: f 0..30, c from 30 on sends 20
    # bytes in 20 ns. Then g goes down 50..70, and u takes 50. On the root of 4 bytes a nanosecond
    # nobody waits.
    graph = workload(
        {"g": (20, "gradient"), "s": (40, "optimizer_state", "ddr")},
        {
            "f": {"ns": 30, "outputs": ["g"]},
            "c": {
                "ns": 20,
                "mutates": ["g"],
                "kind": "all_reduce",
                "kernel": "all_reduce",
                "sizes": (2, 20),
            },
            "u": {"ns": 50, "inputs": ["g"], "mutates": ["s"], "bytes_accessed": 450, **CPU},
        },
    )
    hardware = replace(with_cpu(machine(fabric=4 * GB), bandwidth=20), devices=2)
    hardware = replace(hardware, fabrics=(replace(hardware.fabrics[0], collectives=1),))
    result, ops, moves = on_devices(plan(graph, ("store g", "c")), hardware)
    assert ops == [[(0, 30), (30, 50), (70, 120)]] * 2
    assert moves == [[(50, 70)]] * 2
    assert (result.makespan_ns, result.peers_ns) == (120, 0)


def refused(the_plan, hardware, words, **options):
    with pytest.raises((InputError, HardwareError)) as caught:
        replay(the_plan, hardware, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_refused():
    the_plan, cpu = plan(step()), with_cpu(machine())
    refused(
        the_plan,
        machine(),
        "op 'u' runs on the processor of 'ddr', which 'by hand' has not (tiers with compute: none)",
    )
    refused(the_plan, cpu, "allocator ledger, not caching", allocator="caching")
    refused(the_plan, cpu, "account time, not program", account="program")
    refused(replace(the_plan, runtime=object), cpu, "runtime policies")
    refused(plan(step(kind="all_reduce")), cpu, "one of these ops is a collective")
    assert replay(
        plan(step(), ("store g", "f"), ("prefetch w", "u")), cpu, jitter=Jitter(1, 0.1)
    ).feasible


def test_a_stream_belongs_to_one_processor():
    b = GraphBuilder("mixed")
    b.op("f", "any", duration_ns=1)
    b.op("u", "any", duration_ns=1, processor="ddr")
    with pytest.raises(
        GraphError, match="op 'u' is on the stream 'compute' with ops of another processor"
    ):
        b.build()


def test_the_device_tier_has_the_processor_of_the_profile():
    hardware = machine()
    with pytest.raises(HardwareError, match="the processor of the device tier"):
        replace(
            hardware, tiers=(replace(hardware.tiers[0], compute=Compute({})), *hardware.tiers[1:])
        )

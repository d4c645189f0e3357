"""What ops on other processors force, by hand: which copies, when they are issued, and the timeline
that follows. One byte a nanosecond.
"""

from dataclasses import replace

from by_hand import GB, machine, replayed, workload
from test_processors import CPU, with_cpu

from hosim.cache_plan import Plan
from hosim.hardware import Channel, Tier
from hosim.planner.schedule import forced_moves, planned_around
from hosim.policies import policy_named


def moves(graph, hardware, **given):
    """The forced moves, as (what, which tensor, from where, after which op)."""
    names = [*(op.name for op in graph.ops), None]
    return [
        (c.op, graph.tensors[c.tensor].name, c.source, names[c.after])
        for c in forced_moves(graph, hardware, **given)
    ]


def zero_offload_step():
    """Two layers: f makes both gradients, the CPU updates w1 and then w2 from them, and no op of
    the device comes after that.
    """
    return workload(
        {
            "w1": (20, "parameter"),
            "w2": (10, "parameter"),
            "g1": (20, "gradient"),
            "g2": (10, "gradient"),
            "s1": (40, "optimizer_state", "ddr"),
            "s2": (20, "optimizer_state", "ddr"),
        },
        {
            "f2": {"ns": 30, "inputs": ["w2"], "outputs": ["g2"]},
            "f1": {"ns": 50, "inputs": ["w1"], "outputs": ["g1"]},
            "u1": {"ns": 40, "inputs": ["g1"], "mutates": ["s1"], "outputs": ["w1"], **CPU},
            "u2": {"ns": 20, "inputs": ["g2"], "mutates": ["s2"], "outputs": ["w2"], **CPU},
        },
    )


def test_an_optimizer_on_the_cpu():
    # Gradients go down when they are made and leave the device; parameters come back when the CPU
    # has written them and leave ddr.
    graph = zero_offload_step()
    assert moves(graph, machine()) == [
        ("store", "g2", "hbm", "f2"),
        ("detach", "g2", "hbm", "f2"),
        ("store", "g1", "hbm", "f1"),
        ("detach", "g1", "hbm", "f1"),
        ("prefetch", "w1", "ddr", "u1"),
        ("detach", "w1", "ddr", "u1"),
        ("prefetch", "w2", "ddr", "u2"),
        ("detach", "w2", "ddr", "u2"),
    ]
    # f2 0..30, g2 down 30..40; f1 30..80, g1 down 80..100; u1 100..140, w1 up 140..160; u2
    # 140..160, w2 up 160..170. hbm: w1 20, w2 10 from the start; g2 10 in 0..40, g1 20 in 30..100:
    # 60 in 30..40. At 100 w1 goes until 140, at 140 w2 until 160. ddr: s1 and s2 60; g2 10 from 30,
    # g1 20 from 80; at 100 w1 20 more: 110 in 100..140. At 140 g1 goes (90), u2 makes w2: 100.
    for policy in ("resident", "zero_offload", "superoffload", "hyperoffload"):
        r = replayed(policy_named(policy).plan(graph, with_cpu(machine())), with_cpu(machine()))
        assert r.ops == {"f2": (0, 30), "f1": (30, 80), "u1": (100, 140), "u2": (140, 160)}
        assert [(tensor, start, end) for _, tensor, _, start, end in r.moves] == [
            ("g2", 30, 40),
            ("g1", 80, 100),
            ("w1", 140, 160),
            ("w2", 160, 170),
        ]
        assert (r.result.peak_bytes["hbm"], r.result.peak_at_ns["hbm"]) == (60, 30)
        assert (r.result.peak_bytes["ddr"], r.result.peak_at_ns["ddr"]) == (110, 100)
        assert r.result.makespan_ns == 170


def test_attention_on_the_cpu():
    # q goes down when it is there and leaves; y comes up at once; x stays on the device, since k
    # reads it again.
    graph = workload(
        {"x": (10,), "q": (20,), "c": (60, "kv_cache", "ddr"), "y": (15,)},
        {
            "p": {"ns": 30, "outputs": ["q", "x"]},
            "a": {"ns": 50, "inputs": ["q", "x"], "mutates": ["c"], "outputs": ["y"], **CPU},
            "k": {"ns": 10, "inputs": ["y", "x"]},
        },
    )
    assert moves(graph, machine()) == [
        ("store", "x", "hbm", "p"),
        ("store", "q", "hbm", "p"),
        ("detach", "q", "hbm", "p"),
        ("prefetch", "y", "ddr", "a"),
    ]
    # p 0..30, x down 30..40, q 40..60, a 60..110, y up 110..125, k 125..135. While the CPU works,
    # the device holds x alone.
    r = replayed(policy_named("flexgen").plan(graph, with_cpu(machine())), with_cpu(machine()))
    assert r.ops == {"p": (0, 30), "a": (60, 110), "k": (125, 135)}
    assert r.stalls == {"dependency": 80, "transfer": 15}


def test_what_lives_below_comes_some_ops_ahead_and_leaves_again():
    # w lives in ddr; the device reads it in f0 and in f5, five places later: with two ops ahead it
    # comes at the start, leaves after f0, and comes again after f2, two ops before f5. The CPU
    # writes it where it lives: nothing goes back.
    ops = {f"f{n}": {"ns": 10, "inputs": ["w"] if n in (0, 5) else []} for n in range(6)}
    graph = workload(
        {"w": (8, "parameter", "ddr")}, {**ops, "u": {"ns": 10, "mutates": ["w"], **CPU}}
    )
    assert moves(graph, machine(), ahead=2) == [
        ("prefetch", "w", "ddr", None),
        ("detach", "w", "hbm", "f0"),
        ("prefetch", "w", "ddr", "f2"),
        ("detach", "w", "hbm", "f5"),
    ]


def test_what_is_read_again_soon_stays():
    # f0 and f2 are two places apart: with two ops ahead w stays between them, with one it leaves
    # and comes again after f0, an op before f2.
    ops = {f"f{n}": {"ns": 10, "inputs": ["w"] if n in (0, 2) else []} for n in range(4)}
    graph = workload(
        {"w": (8, "parameter", "ddr")}, {**ops, "u": {"ns": 10, "mutates": ["w"], **CPU}}
    )
    assert moves(graph, machine(), ahead=2) == [
        ("prefetch", "w", "ddr", None),
        ("detach", "w", "hbm", "f2"),
    ]
    assert moves(graph, machine(), ahead=1) == [
        ("prefetch", "w", "ddr", None),
        ("detach", "w", "hbm", "f0"),
        ("prefetch", "w", "ddr", "f0"),
        ("detach", "w", "hbm", "f2"),
    ]


def test_what_a_policy_is_told():
    # As above: p 0..30, a 60..110, y on the device at 125. The policy sees an op of 95 ns after p,
    # which uses nothing; p with x and q (30) beside it, k with x and y (25); and ddr with what the
    # cache, x, q and y take of it while a runs: 60 + 10 + 20 + 15.
    graph = workload(
        {"x": (10,), "q": (20,), "c": (60, "kv_cache", "ddr"), "y": (15,)},
        {
            "p": {"ns": 30, "outputs": ["q", "x"]},
            "a": {"ns": 50, "inputs": ["q", "x"], "mutates": ["c"], "outputs": ["y"], **CPU},
            "k": {"ns": 10, "inputs": ["y", "x"], "workspace_bytes": 3},
        },
    )
    told = []

    def make(rest, hardware, budget):
        told.append((rest, hardware.tiers[1].capacity_bytes, budget))
        return Plan(rest, "told")

    plan = planned_around(graph, with_cpu(machine()), 90, make)
    ((rest, room, budget),) = told
    assert (plan.policy, room, budget) == ("told", 1000 - 105, 90)
    assert [
        (op.duration_ns, op.uses, op.deps, op.workspace_bytes, op.processor) for op in rest.ops
    ] == [
        (30, (), (), 30, ""),
        (95, (), (0,), 0, ""),
        (10, (), (0, 1), 28, ""),
    ]


def test_a_policy_keeps_to_what_the_forced_moves_leave():
    # The device has 70 B. v (30) is used by a and by e alone, w (25) by a and the CPU, which makes
    # it anew; b needs 20 of its own while the gradient g (20) is there: with v 95. So v is below
    # during b, and comes back for e.
    graph = workload(
        {
            "w": (25, "parameter"),
            "v": (30, "parameter"),
            "g": (20, "gradient"),
            "s": (40, "optimizer_state", "ddr"),
        },
        {
            "a": {"ns": 50, "inputs": ["v"]},
            "b": {"ns": 60, "inputs": ["w"], "outputs": ["g"], "workspace_bytes": 20},
            "c": {"ns": 60},
            "e": {"ns": 10, "inputs": ["v"]},
            "u": {"ns": 10, "inputs": ["g"], "mutates": ["s"], "outputs": ["w"], **CPU},
        },
    )
    hardware = with_cpu(machine(hbm=70))
    plan = policy_named("static_split").plan(graph, hardware)
    assert {graph.tensors[c.tensor].name for c in plan.cache_ops} == {"w", "v", "g"}
    result = replayed(plan, hardware).result
    assert result.peak_bytes["hbm"] <= 70


def test_what_lives_below_stays_for_a_use_that_follows_or_comes_again():
    # FSDP's shard w is read by both a and b, and then updated below. By default it stays for b;
    # with stays=0 it comes twice.
    graph = workload(
        {"w": (20, "parameter", "ddr"), "x": (5,), "y": (5,)},
        {
            "a": {"ns": 10, "inputs": ["w"], "outputs": ["x"]},
            "b": {"ns": 10, "inputs": ["w", "x"], "outputs": ["y"]},
            "u": {"ns": 10, "mutates": ["w"], **CPU},
        },
    )
    assert moves(graph, machine()) == [("prefetch", "w", "ddr", None), ("detach", "w", "hbm", "b")]
    again = [
        ("prefetch", "w", "ddr", None),
        ("detach", "w", "hbm", "a"),
        ("prefetch", "w", "ddr", "a"),
        ("detach", "w", "hbm", "b"),
    ]
    assert moves(graph, machine(), stays=0) == again


def test_states_in_drives_pass_through_the_memory_of_their_processor():
    # s lives in nvme. It comes into ddr two ops of the CPU ahead, here at the start, and goes back
    # when u has written it.
    graph = workload(
        {"s": (10, "optimizer_state", "nvme")}, {"u": {"ns": 20, "mutates": ["s"], **CPU}}
    )
    channels = {"read": ("nvme", "ddr", GB), "write": ("ddr", "nvme", GB)}
    three = with_nvme(channels)
    names = ["u", None]
    listed = [(c.op, c.source, c.destination, names[c.after]) for c in forced_moves(graph, three)]
    assert listed == [
        ("prefetch", "nvme", "ddr", None),
        ("store", "ddr", "nvme", "u"),
        ("detach", "ddr", None, "u"),
    ]
    # s arrives at 10, u 10..30, s is back at 40
    r = replayed(Plan(graph, "forced", forced_moves(graph, three)), three)
    assert (r.ops, r.result.makespan_ns) == ({"u": (10, 30)}, 40)


def with_nvme(channels):
    """The machine by hand with a CPU, and drives below its memory."""
    hardware = with_cpu(machine())
    return replace(
        hardware,
        tiers=(*hardware.tiers, Tier("nvme", 1000, 10**12)),
        channels=(
            *hardware.channels,
            *(Channel(name, a, b, rate) for name, (a, b, rate) in channels.items()),
        ),
    )

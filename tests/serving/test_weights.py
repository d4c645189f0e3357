"""Weights that come up while iterations compute: timelines by hand, replays of the same plans, and
what holds for any of them.
"""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from toy_tiers import GB, toy_machine, toy_ns

import hosim
from hosim.analysis.costmodel import op_durations
from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InfeasibleError, InputError
from hosim.graph import GraphBuilder
from hosim.hardware import Channel, Fabric
from hosim.io import load_hardware
from hosim.policies import policy_named
from hosim.serving import (
    ROUTERS,
    EngineLimits,
    Iteration,
    ModelledIterations,
    ServingEngine,
    serve_disaggregated,
    serve_on_instances,
    serve_requests,
)
from hosim.serving.blocks import KvLink, KvSetup, Peers
from hosim.serving.requests import Request
from hosim.serving.weights import (
    WeightSetup,
    joined_tiers,
    usual_iteration,
    weight_layers,
    weight_program,
    weight_setup,
)
from hosim.shipped import find_hardware

LIMITS = EngineLimits(64, 4, 4)
PLANNERS = (
    "static_split",
    "zero_inference",
    "g10",
    "distance",
    "memory_peak",
    "longest_gap",
    "hyperoffload:effort=0.1",
)
SMALL = {"model": "llama-3.1-8b", "layers": 4}
H100 = load_hardware(find_hardware("h100-80gb-sxm"))
MIXED = [Request(1_000, 100, 5), Request(2_000, 3_000, 4), Request(9_000_000, 50, 6)]


def layers(sizes, durations, reads=None):
    builder = GraphBuilder("toy")
    for i, size in enumerate(sizes):
        builder.tensor(f"layers.{i}", size, "parameter")
    for k, took in enumerate(durations):
        builder.op(
            f"visit{k}",
            "matmul",
            inputs=[f"layers.{k if reads is None else reads[k]}"],
            duration_ns=took,
        )
    return builder.build()


def planned(text, graph, machine, budget):
    name, *given = text.split(":")
    policy = policy_named(name)
    return policy.plan(
        graph,
        machine,
        budget,
        **{key: policy.read(key, value) for key, value in (one.split("=") for one in given)},
    )


THREE = Plan(
    layers((10, 10, 10), (4, 4, 4)),
    "by hand",
    (
        CacheOp("prefetch", 1, "ddr", "hbm"),
        CacheOp("detach", 1, "hbm", None, 1),
        CacheOp("prefetch", 2, "ddr", "hbm", 1),
        CacheOp("detach", 2, "hbm", None, 2),
    ),
    {1: ("ddr",), 2: ("ddr",)},
)
"""Layers of 10 bytes, of which the first stays; the second is there from the start, the third
follows it.
"""


def setup(budget, machine=None, plan=THREE, parts=lambda _: (1, 1, 1), overhead_ns=0):
    machine = machine or toy_machine()
    return WeightSetup(
        "by hand", machine, weight_program(plan, machine, budget), parts, overhead_ns
    )


ONE = (Request(0, 2, 3),)


def served(weights, requests=ONE, ns=toy_ns, ahead=False, kv=None, blocks=20):
    return serve_requests(list(requests), LIMITS, blocks, ns, ahead=ahead, kv=kv, weights=weights)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_layer_that_comes_up_when_the_one_before_has_gone(ahead):
    """Iterations of 12, 11 and 11 ns in three equal visits, and copies of 10 ns; 20 bytes have room
    for two layers.

    The second layer comes from 0 to 10: the first visit is from 0 to 4, the second from 10 to 14.
    Then the second layer goes, the third one comes from 14 to 24, and its visit is from 24 to 28.
    Only then is there room for the second again, which comes until 38: the next iteration visits
    from 28 to 31 (a third of 11 to whole ns below), from 38 to 42, and from 52 to 56. The third one
    ends 28 ns later. They wait 6 + 10, 7 + 10 and 7 + 10 ns. A copy for a fourth iteration begins
    at 84.
    """
    found = served(setup(20), ahead=ahead)
    assert found.token_ns == ((28, 56, 84),)
    assert [(one.start_ns, one.end_ns) for one in found.samples] == [(0, 28), (28, 56), (56, 84)]
    told = found.weights
    assert (told.copies, told.bytes, told.iteration_bytes, told.stall_ns) == (7, 70, 20, 50)
    assert (told.layers, told.moved_layers, told.iterations) == (3, 2, 3)
    assert told.peak_bytes == {"hbm": 20, "ddr": 20}
    assert (told.channels["h2d"].busy_ns, told.channels["h2d"].bytes) == (70, 70)
    assert told.channels["h2d"].utilization == pytest.approx(70 / 94)


def test_what_an_iteration_begins_with_comes_up_in_the_one_before():
    """As above with room for three layers: the second one follows the third, from 24 to 34, and the
    next visits are from 28 to 31, from 34 to 38 and from 48 to 52. The second layer is there again
    at 58; the third iteration visits from 52, 58 and 72, and ends at 76.
    """
    found = served(setup(30))
    assert found.token_ns == ((28, 52, 76),)
    assert found.weights.stall_ns == 16 + 13 + 13
    assert found.weights.peak_bytes == {"hbm": 30, "ddr": 20}


def test_the_host_goes_first_and_copies_go_on_meanwhile():
    """3 ns of each iteration are the host's: the visits of the first are from 3, 10 and 24 for 3 ns
    each, and it ends at 27.

    12 - 3 = 9 ns are divided. The third layer comes from 13 to 23, so its visit is from 23 to 26.
    The next ones (8 ns: 2, 3, 3): the second layer comes until 36, so from 29, 36 and 49; the
    iteration ends at 52.
    """
    found = served(setup(20, overhead_ns=3), requests=[Request(0, 2, 2)])
    assert found.token_ns == ((26, 52),)


def test_engines_of_a_host_share_the_link_to_its_memory():
    """Both engines copy at the same time, so that each copy takes 20 ns: visits from 0, 20 and 44,
    and the iteration ends at 48.
    """
    machine = toy_machine()
    tiers = tuple(
        replace(tier, scope="host") if tier.name == "ddr" else tier for tier in machine.tiers
    )
    machine = replace(machine, tiers=tiers, fabrics=(Fabric("pcie", GB, ("h2d",), "host"),))
    both = [Request(0, 2, 1), Request(0, 2, 1)]
    found = serve_on_instances(
        both, LIMITS, 20, toy_ns, 2, ROUTERS["round_robin"], ahead=False, weights=setup(20, machine)
    )
    assert found.token_ns == ((48,), (48,))
    assert found.weights.stall_ns == 2 * (16 + 20)
    assert found.weights.channels["h2d"].contention_ns > 0


def test_engines_that_prefill_and_those_that_decode_have_weights_each():
    """The first engine computes 8 tokens, 18 ns of kernels, from 0: visits of 6 ns from 0, 10 and
    26, and the prompt is there at 32.

    Its cache of 12 bytes takes 12 ns over a link of 1 byte a nanosecond. The other engine, whose
    second layer is there from 10 on, computes one token, in 11 ns, from 44: visits until 47 and 51,
    and as the third layer comes from 51 to 61, until 65.
    """
    machine = toy_machine()
    link = KvLink("1 GB/s", machine, 6, None, Peers(1, GB))
    round_robin = ROUTERS["round_robin"]
    found = serve_disaggregated(
        [Request(0, 8, 1)],
        LIMITS,
        ServingEngine(20, toy_ns),
        1,
        round_robin,
        link,
        ahead=False,
        weights=setup(20, machine),
    )
    assert found.handed.prefilled_ns == (32,)
    assert found.token_ns == ((65,),)
    assert found.weights.stall_ns == 4 + 10 + 10


def test_copies_of_the_cache_and_of_weights_queue_on_one_channel():
    """A cache of one block below; the law that a tier without room changes nothing holds beside
    weights too.
    """
    requests = [
        Request(0, 8, 3, (1, 2), 4),
        Request(5, 8, 3, (1, 2), 4),
        Request(60, 9, 3, (7, 8), 4),
    ]
    alone = served(setup(20), requests)
    nothing = served(setup(20), requests, kv=KvSetup("lru", toy_machine(), (("ddr", 0),), 6))
    assert nothing.token_ns == alone.token_ns
    written = served(
        setup(20), requests, kv=KvSetup("write_through", toy_machine(), (("ddr", 9),), 6), blocks=5
    )
    assert (
        written.weights.bytes
        == alone.weights.bytes + 10 * (len(written.samples) - len(alone.samples)) * 2
    )
    assert written.kv.channels["h2d"] == written.weights.channels["h2d"]
    assert written.kv.channels["h2d"].bytes >= written.weights.bytes


def test_what_leaves_and_is_there_again_at_the_end():
    """The first layer starts in the device; its store is left out, as what is below stays valid. It
    is back 10 ns after the last visit.

    The first iteration visits from 0 to 4, from 4 to 8 and, as the third layer comes from 4 to 14,
    from 14 to 18. The next one waits until 28 for the first layer; then it visits until 31, the
    third layer comes from 31 to 41, and its visit is from 41 to 45.
    """
    ops = (
        CacheOp("store", 0, "hbm", "ddr"),
        CacheOp("detach", 0, "hbm", None, 0),
        CacheOp("prefetch", 2, "ddr", "hbm", 0),
        CacheOp("detach", 2, "hbm", None, 2),
        CacheOp("prefetch", 0, "ddr", "hbm", 2),
    )
    found = served(
        setup(20, plan=replace(THREE, cache_ops=ops, initial={2: ("ddr",)})), [Request(0, 2, 2)]
    )
    assert found.token_ns == ((18, 45),)
    assert found.weights.peak_bytes == {"hbm": 20, "ddr": 20}
    assert (found.weights.copies, found.weights.channels["d2h"].copies) == (4, 0)


def test_a_layer_that_is_visited_twice_comes_again_after_the_second():
    """The first layer comes until 10 and is visited from 10 and from 18; then it comes from 22 to
    32, and is visited until 35 and 43.
    """
    ops = (CacheOp("prefetch", 0, "ddr", "hbm"), CacheOp("detach", 0, "hbm", None, 2))
    plan = Plan(layers((10, 10), (4, 4, 4), (0, 1, 0)), "by hand", ops, {0: ("ddr",)})
    found = served(setup(30, plan=plan), [Request(0, 2, 2)])
    assert found.token_ns == ((22, 43),)


def test_copies_that_nobody_reads_are_left_out():
    """A layer that comes and goes unread, and one that comes though it is there: what is left is
    the plan without them.
    """
    unread = (CacheOp("prefetch", 2, "ddr", "hbm"), CacheOp("detach", 2, "hbm", None, 0))
    known = weight_program(THREE, toy_machine(), 30)
    assert (
        weight_program(replace(THREE, cache_ops=unread + THREE.cache_ops), toy_machine(), 30)
        == known
    )
    there = replace(
        THREE,
        cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm"), *THREE.cache_ops),
        initial={**THREE.initial, 0: ("hbm", "ddr")},
    )
    again = weight_program(there, toy_machine(), 30)
    assert (again.steps, again.across, again.peak_bytes) == (
        known.steps,
        known.across,
        known.peak_bytes,
    )


def test_room_goes_to_the_copy_that_was_issued_first():
    """When the first layer goes, the second and third want its room, from two tiers: the one of the
    plan's first prefetch has it.
    """
    machine = toy_machine()
    machine = replace(machine, channels=(*machine.channels, Channel("direct", "nvme", "hbm", GB)))
    moves = [CacheOp("prefetch", 1, "ddr", "hbm"), CacheOp("prefetch", 2, "nvme", "hbm")]
    goes = [CacheOp("detach", t, "hbm", None, t) for t in range(3)]
    plan = replace(
        THREE,
        cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm"), *moves, *goes),
        initial={0: ("ddr",), 1: ("ddr",), 2: ("nvme",)},
    )
    found = weight_program(plan, machine, 10)
    assert [(step.visit, [copy.layer for copy in step.copies]) for step in found.steps] == [
        (0, [1]),
        (1, [2]),
        (2, [0]),
    ]
    late = replace(plan, cache_ops=(CacheOp("prefetch", 0, "ddr", "hbm"), *reversed(moves), *goes))
    with pytest.raises(InfeasibleError):
        weight_program(
            late, machine, 10
        )  # the third layer takes the room, and the second has to be there before


def test_weights_in_pageable_memory_come_up_at_its_pace():
    """Pageable parameters come at half the bandwidth, so that each copy takes 20 ns: visits from 0,
    20 and 44.
    """
    machine = toy_machine()
    tiers = tuple(
        replace(tier, pageable=("parameter",)) if tier.name == "ddr" else tier
        for tier in machine.tiers
    )
    channels = tuple(
        replace(one, pageable_bytes_per_s=GB // 2) if one.name == "h2d" else one
        for one in machine.channels
    )
    found = served(setup(20, replace(machine, tiers=tiers, channels=channels)), [Request(0, 2, 1)])
    assert found.token_ns == ((48,),)


SIZES = st.lists(st.integers(1, 40), min_size=2, max_size=7)


@settings(max_examples=15, phases=[Phase.generate])
@given(SIZES, st.data())
def test_iterations_are_the_replay_of_the_plan_over_and_over(sizes, data):
    """The first iteration is the replay of the plan alone. Several are that of a plan of all of
    them, which issues where they do.

    The replay has no other room than the budget, so that a copy without room would wait there.
    """
    durations = data.draw(st.lists(st.integers(1, 60), min_size=len(sizes), max_size=len(sizes)))
    machine = joined_tiers(toy_machine(latency=data.draw(st.integers(0, 5))))
    graph = layers(sizes, durations)
    budget = data.draw(st.integers(max(sizes), sum(sizes)))
    plan = planned(data.draw(st.sampled_from(PLANNERS)), graph, machine, budget)
    alone = replay(plan, machine, budget, record=True)
    if not alone.feasible:
        return
    program = weight_program(plan, machine, budget)
    weights = WeightSetup("", machine, program, lambda _: durations)
    found = served(weights, [Request(0, 2, 4)], ns=lambda _: sum(durations))
    ends = found.token_ns[0]
    assert ends[0] == alone.timeline.op_end_ns[-1]
    repeated = layers(sizes, durations * 4, [*range(len(sizes))] * 4)
    length, starts = len(sizes), plan.residency("hbm")
    turns = [turn * length for turn in range(4)]
    drops = [op for op in plan.cache_ops if op.op == "detach" and op.source == "hbm"]
    left = [
        t for t in range(length) if "hbm" not in starts[t] and all(op.tensor != t for op in drops)
    ]  # they go when an iteration ends
    issued = [CacheOp("prefetch", copy.layer, copy.source, "hbm") for copy in program.across]
    issued += [replace(op, after=op.after + turn) for op in drops for turn in turns]
    issued += [CacheOp("detach", t, "hbm", None, turn + length - 1) for t in left for turn in turns]
    issued += [
        CacheOp("prefetch", copy.layer, copy.source, "hbm", step.visit + turn)
        for turn in turns
        for step in program.steps
        for copy in step.copies
    ]
    ordered = sorted(issued, key=lambda one: (one.after, one.op == "prefetch"))
    initial = {
        t: tuple({**dict.fromkeys(where), "ddr": None}) for t, where in starts.items()
    }  # what is below stays valid
    several = replay(
        Plan(repeated, "all of them", tuple(ordered), initial), machine, budget, record=True
    )
    assert tuple(several.timeline.op_end_ns[length - 1 :: length]) == ends
    took = [end - begin for begin, end in zip((0, *ends), ends, strict=False)]
    assert all(one >= sum(durations) for one in took)
    assert ends[-1] >= 3 * program.copied_bytes
    assert program.peak_bytes <= budget


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ((CacheOp("detach", 0, "hbm", None, 1),), "no legal plan"),
        (
            (CacheOp("prefetch", 1, "ddr", "hbm"), CacheOp("prefetch", 2, "ddr", "nvme")),
            "no legal plan|between tiers below",
        ),
    ],
)
def test_a_plan_that_iterations_cannot_follow_is_refused(ops, said):
    with pytest.raises(InputError, match=said):
        weight_program(replace(THREE, cache_ops=ops), toy_machine(), 30)


def test_a_plan_that_never_has_room_does_not_fit():
    """The second layer stays while the third has to come, and 20 bytes are two layers."""
    ops = THREE.cache_ops[:1] + THREE.cache_ops[2:]
    with pytest.raises(InfeasibleError, match="by hand needs more than the 20 B"):
        weight_program(replace(THREE, cache_ops=ops), toy_machine(), 20)


APART = {"prefill_instances": 1, "decode_instances": 1, "kv_link": "50GB/s"}


@pytest.mark.parametrize(
    ("policy", "engines"),
    [("static_split", {}), ("hyperoffload", {"instances": 2}), ("static_split", APART)],
)
def test_weights_that_fit_are_as_if_nobody_had_planned(policy, engines):
    plain = hosim.serve(SMALL, H100, MIXED, overhead="1 ms", **engines)
    same = hosim.serve(
        SMALL, H100, MIXED, overhead="1 ms", weights=policy, weights_memory="20 GiB", **engines
    )
    assert same.frame().equals(plain.frame())
    assert same.iterations().equals(plain.iterations())
    assert {
        key: value for key, value in same.summary().items() if key != "weights"
    } == plain.summary()
    assert (same.weights.copies, same.weights.stall_ns) == (0, 0)
    assert same.weights.peak_bytes == {"hbm": ModelledIterations(SMALL, H100).weight_bytes}


@pytest.mark.parametrize(
    ("policy", "engines"),
    [("static_split", {}), ("zero_inference", {"instances": 2}), ("zero_inference", APART)],
)
def test_a_link_without_end_is_as_if_all_stayed_in_the_device(policy, engines):
    """A copy takes 1 ns, and each layer computes for longer while the next one comes."""
    fast = replace(
        H100,
        channels=tuple(
            replace(c, bandwidth_bytes_per_s=10**18, latency_ns=0, curve=(), beside=())
            for c in H100.channels
        ),
        fabrics=tuple(replace(f, bandwidth_bytes_per_s=9 * 10**18) for f in H100.fabrics),
        tiers=tuple(replace(t, bandwidth_bytes_per_s=9 * 10**18) for t in H100.tiers),
    )
    plain = hosim.serve(SMALL, fast, MIXED, blocks=500, **engines)
    moved = hosim.serve(
        SMALL, fast, MIXED, blocks=500, weights=policy, weights_memory="3.5 GiB", **engines
    )
    assert moved.weights.bytes > 0
    assert moved.frame().equals(plain.frame())
    assert moved.iterations().equals(plain.iterations())


def test_parts_of_an_iteration_are_its_layers():
    """Layers of one kind take equally long; a prompt's head has one row, and that of 64 sequences
    hardly takes longer than of one.
    """
    found = weight_layers(ModelledIterations(SMALL, H100))
    assert found.names == (
        "model.embed_tokens.weight",
        *(f"model.layers.{i}" for i in range(4)),
        "model.norm.weight",
    )
    assert found.reads == tuple(range(6))
    assert sum(found.sizes) + found.beside_bytes == found.modelled.weight_bytes
    for iteration in (Iteration((), 64, 64 * 500, ()), Iteration(((2048, 0),), 0, 0, ())):
        parts = found.parts_ns(iteration)
        whole = found.modelled(iteration)
        assert parts[2] == parts[3] == parts[4] == pytest.approx(parts[1], rel=0.01)
        assert whole - sum(parts) == pytest.approx(0, abs=whole // 1000)
        assert parts[5] >= found.modelled.head_ns(iteration)
        graph = found.modelled.graph(iteration.tokens)
        first = next(
            i
            for i, op in enumerate(graph.ops)
            if any(graph.tensors[t].name.startswith("model.layers.0") for t in op.inputs)
        )
        assert parts[0] == sum(op_durations(graph, H100)[:first])


def test_the_usual_iteration():
    """Two of three requests run: 200 keys and 50 of half an answer, 300 and 100, 100 and 0: 250 on
    average.
    """
    asked = [Request(0, 200, 100), Request(0, 300, 200), Request(0, 100, 1)]
    assert usual_iteration(asked, EngineLimits(64, 2)) == Iteration((), 2, 500, ())


def test_constants_stay_and_count():
    """All weights have room in as many bytes as they have, of which 256 are constants; with one
    byte less a layer moves.
    """
    modelled = ModelledIterations(SMALL, H100)
    assert weight_layers(modelled).beside_bytes == 256
    usual = usual_iteration(MIXED, LIMITS)
    for less, moves in ((0, False), (1, True)):
        found = weight_setup(
            policy_named("static_split"), {}, "", modelled, usual, modelled.weight_bytes - less
        )
        assert (bool(found.program.steps), found.beside_bytes) == (moves, 256)


def test_engines_of_a_host_share_its_memory():
    """Four layers of 436,224,000 B, embedding and head are 3.85 GB; of 6 GB of DDR two engines have
    3 each, and put the rest on drives.
    """
    small = replace(
        H100,
        tiers=tuple(
            replace(tier, capacity_bytes=6 * GB) if tier.name == "ddr" else tier
            for tier in H100.tiers
        ),
    )
    asked = {"weights": "zero_inference", "weights_memory": "3 GB"}
    one, two = (
        hosim.serve(SMALL, small, MIXED, instances=count, **asked).weights.peak_bytes
        for count in (1, 2)
    )
    assert (one["ddr"], "nvme" in one) == (3_846_250_496, False)
    assert two["ddr"] <= 3 * GB
    assert two["ddr"] + two["nvme"] == one["ddr"]
    hosim.serve(SMALL, small, MIXED, **asked, kv="lru:tiers=ddr=2GB")
    with pytest.raises(InputError, match="but h100-80gb-sxm has"):
        hosim.serve(SMALL, small, MIXED, **asked, kv="lru:tiers=ddr=2GB", instances=2)


def test_experts_and_shared_embeddings_have_their_layers():
    tied = weight_layers(ModelledIterations({"model": "gpt2", "layers": 2}, H100))
    assert tied.reads[0] == tied.reads[-1] or len(set(tied.reads)) < len(tied.reads)
    experts = weight_layers(ModelledIterations({"model": "mixtral-8x7b", "layers": 2}, H100))
    assert sum(experts.sizes) + experts.beside_bytes == experts.modelled.weight_bytes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": "on_demand"}, "decides while it runs"),
        ({"weights": "nobody"}, "unknown policy 'nobody'"),
        (
            {"weights": "static_split", "weights_memory": None},
            "weights requires weights_memory or blocks",
        ),
        ({"weights": None}, "weights_memory requires weights"),
        ({"weights": "static_split", "weights_memory": "some"}, "expected a size"),
        ({"weights": "static_split", "weights_memory": 0}, "expected"),
        ({"weights": "static_split", "weights_memory": "90 GB"}, "expected at most the"),
        ({"weights": "static_split", "kv": "lru:loading=layers"}, "leave out loading=layers"),
        (
            {
                "weights": "static_split",
                "kv_sending": "layers",
                "prefill_instances": 1,
                "decode_instances": 1,
            },
            "sent while weights move",
        ),
        ({"weights": "static_split", "prefill_tensor": 2, **APART}, "where all engines are alike"),
        ({"weights": "static_split", "kv": "lru"}, "give the cache less, as in tiers=ddr="),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, said):
    asked = {"weights_memory": "3 GiB", **options}
    with pytest.raises(InputError, match=said) as error:
        hosim.serve(SMALL, H100, MIXED, **asked)
    assert "\n" not in str(error.value)


def test_blocks_that_attention_chooses_are_refused_beside_moved_weights():
    model = {**SMALL, "kv_block": 64, "chosen_blocks": 32}
    with pytest.raises(InputError, match="leave out sparse"):
        hosim.serve(
            model,
            H100,
            MIXED,
            block_tokens=64,
            kv="sparse:hit=0.9",
            weights="static_split",
            weights_memory="3 GB",
        )


def test_memory_for_no_layer_is_infeasible():
    with pytest.raises(InfeasibleError, match=r"B\) of hbm for what it uses"):
        hosim.serve(SMALL, H100, MIXED, weights="static_split", weights_memory="100 MiB")


def test_a_cache_that_leaves_nothing_is_infeasible():
    with pytest.raises(InfeasibleError, match="leaves no room for weights in 90 % of"):
        hosim.serve(SMALL, H100, MIXED, weights="static_split", blocks=10**7)
    with pytest.raises(
        InfeasibleError, match=r"a policy can keep some in a tier below \(weights\)$"
    ):
        hosim.serve("llama-3.1-70b", H100, MIXED)


def test_what_the_plan_does_not_take_is_the_caches():
    model = {**SMALL, "layers": 8}
    found = hosim.serve(
        model,
        H100,
        MIXED,
        weights="zero_inference",
        weights_memory="20 GiB",
        kv="lru:tiers=ddr=10GB",
    )
    plain = hosim.serve(model, H100, MIXED)
    assert found.blocks > plain.blocks
    assert found.summary()["weights"]["iteration_bytes"] == sum(
        found.weights.peak_bytes[tier] for tier in ("ddr",)
    )
    given = hosim.serve(model, H100, MIXED, weights="static_split", blocks=found.blocks)
    assert (
        found.weights.peak_bytes["hbm"] - 2**20
        < given.weights.peak_bytes["hbm"]
        <= found.weights.peak_bytes["hbm"] + 2**20
    )

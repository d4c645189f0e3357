"""The three worked cases that hosim is built for, and optimizer states below: what moves, and what
of it is hidden.

Small versions of the shipped workloads. The expected figures are derived from sizes and rates.
"""

import re

import pytest

from hosim.analysis import static_peak
from hosim.cache_plan import PREFETCH, STORE
from hosim.engine import replay
from hosim.errors import InputError
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io.models import build
from hosim.policies import policy_named

GIB = 2**30


def machine(rate=50 * 10**9):
    """An accelerator of 1 PFLOP/s and 4 TB/s with host memory behind a full-duplex link."""
    return Hardware(
        "test",
        (Tier("hbm", 96 * GIB, 4 * 10**12), Tier("ddr", 2000 * GIB, 10**11)),
        (Channel("h2d", "ddr", "hbm", rate), Channel("d2h", "hbm", "ddr", rate)),
        Compute({"bf16": 10**15, "fp32": 10**14}),
    )


def run(graph, policy, budget, hardware=None, **parameters):
    hardware = hardware or machine()
    plan = policy_named(policy).plan(graph, hardware, budget, **parameters)
    result = replay(plan, hardware, budget, record=True)
    assert result.feasible, result.error
    return plan, result


def everything_bytes(graph):
    """The peak with everything on the device, what no op uses included."""
    return static_peak(graph).bytes + sum(
        t.size_bytes
        for t, users in zip(graph.tensors, graph.users, strict=True)
        if t.home and not users
    )


# -- a mixture of experts, whose experts are below
# ---------------------------------------------------------------------

EXPERT_BYTES = 3 * 768 * 2048 * 2


def mixture(steps=3, persistence=0.5, seed=0, context=1 << 17):
    return build(
        "moe",
        {
            "model": "qwen3-30b-a3b",
            "phase": "decode",
            "layers": 4,
            "context": context,
            "fused": True,
            "chosen_experts": 8,
            "experts_home": "ddr",
            "routing": {"steps": steps, "seed": seed, "persistence": persistence},
        },
    )


def experts_used(graph):
    """For each (layer, step), the experts whose ops run."""
    used = {}
    for op in graph.ops:
        found = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.down@(\d+)", op.name)
        if found:
            layer, expert, step = map(int, found.groups())
            used.setdefault((layer, step), set()).add(expert)
    return used


def test_experts_below_are_fetched_while_attention_computes():
    graph = mixture()
    used = experts_used(graph)
    assert len(used) == 4 * 3
    assert {len(chosen) for chosen in used.values()} == {8}
    experts = [t for t in graph.tensors if t.kind == "expert"]
    assert len(experts) == 4 * 128 * 2
    assert {t.home for t in experts} == {"ddr"}

    everything = everything_bytes(graph)
    others = everything - sum(t.size_bytes for t in experts)
    plan, result = run(graph, "hyperoffload", others + 4 * 8 * EXPERT_BYTES)
    fetched = {
        c.tensor
        for c in plan.cache_ops
        if c.op == PREFETCH and graph.tensors[c.tensor].kind == "expert"
    }
    wanted = {
        t for t, users in enumerate(graph.users) if users and graph.tensors[t].kind == "expert"
    }
    assert fetched == wanted  # what a gate chose, and nothing else
    assert not [
        c for c in plan.cache_ops if c.op == STORE and graph.tensors[c.tensor].kind == "expert"
    ]  # they are only read
    # the seed's 98 %: of the experts' bytes all but those of a few gates are never in the device at
    # once
    assert result.peak_breakdown["hbm"]["expert"] < 0.07 * sum(t.size_bytes for t in experts)
    # the second layer's experts are on their way while its attention computes
    first = (
        graph.op_index["model.layers.1.self_attn.q_proj@0"],
        graph.op_index["model.layers.1.mlp.gate.topk@0"],
    )
    begin, end = result.timeline.op_start_ns[first[0]], result.timeline.op_end_ns[first[1]]
    early = [
        t
        for t in result.timeline.transfers
        if t.start_ns < end and graph.users[t.tensor][0] > first[1]
    ]
    assert any(begin < t.end_ns for t in early)
    # and a runtime that fetches on a miss waits for all that it moves
    _, reactive = run(graph, "on_demand", others + 4 * 8 * EXPERT_BYTES)
    assert reactive.channels["h2d"].hidden_ns == 0 < result.channels["h2d"].hidden_ns
    assert result.makespan_ns < reactive.makespan_ns


def test_what_stays_chosen_is_not_fetched_again():
    moved = []
    for persistence in (0.0, 0.5, 1.0):
        graph = mixture(steps=4, persistence=persistence, context=4096)
        _, result = run(graph, "hybrid", 4 * GIB)
        moved.append(result.channels["h2d"].bytes)
    assert moved[0] > moved[1] > moved[2]
    assert moved[2] >= 4 * 8 * EXPERT_BYTES  # every layer's eight once


def test_the_trace_is_seeded():
    assert mixture() == mixture()
    assert experts_used(mixture()) != experts_used(mixture(seed=1))


# -- a long context, whose older blocks of keys and values are below
# --------------------------------------------------

BLOCK_BYTES = 2 * 8 * 4096 * 128 * 2


def blocks(context=1 << 17, steps=3, **parameters):
    return build(
        "blocks",
        {
            "model": "llama-3.1-8b",
            "phase": "decode",
            "layers": 4,
            "context": context,
            "fused": True,
            "kv_block": 4096,
            "cache_home": "ddr",
            "routing": {"steps": steps, "persistence": 0.75},
            **parameters,
        },
    )


def test_sinks_and_window_stay_and_selected_blocks_come():
    graph = blocks()
    cache = {t.name: t for t in graph.tensors if t.kind == "kv_cache"}
    assert {t.size_bytes for t in cache.values()} == {BLOCK_BYTES}
    homes = [cache[f"model.layers.2.self_attn.kv_blocks[{n}]"].home for n in range(32)]
    assert homes == [None] + ["ddr"] * 29 + [None] * 2
    older = {
        t for t, tensor in enumerate(graph.tensors) if tensor.kind == "kv_cache" and tensor.home
    }
    read = [op for op in graph.ops if ".older." in op.name]
    assert len(read) == 3 * 4 * 4  # tokens, layers, selected blocks
    assert all(len(older.intersection(op.inputs)) == 1 for op in read)
    written = {graph.tensors[t].name for op in graph.ops for t in op.mutates}
    assert written == {f"model.layers.{n}.self_attn.kv_blocks[31]" for n in range(4)}

    budget = everything_bytes(graph) - 4 * 20 * BLOCK_BYTES
    _, result = run(graph, "hyperoffload", budget)
    selected = {t for op in read for t in op.inputs if t in older}
    assert (
        result.channels["h2d"].bytes == len(selected) * BLOCK_BYTES
    )  # each once: what stays selected stays
    assert result.channels["h2d"].hidden_ns > 0
    assert (
        result.peak_breakdown["hbm"]["kv_cache"] < 4 * 16 * BLOCK_BYTES
    )  # the device budget of the seed: 16 blocks


def test_the_window_slides_with_the_context():
    before, after = blocks(1 << 17), blocks((1 << 17) + 1)
    name = "model.layers.0.self_attn.kv_blocks["
    assert before.tensors[before.tensor_index[f"{name}30]"]].home is None
    assert after.tensors[after.tensor_index[f"{name}30]"]].home == "ddr"  # it has left the window
    assert after.tensors[after.tensor_index[f"{name}32]"]].home is None


def test_a_short_context_has_no_older_blocks():
    with pytest.raises(InputError, match="no gate chooses"):
        blocks(context=8192)
    graph = build(
        "short",
        {
            "model": "llama-3.1-8b",
            "phase": "decode",
            "layers": 1,
            "context": 8192,
            "kv_block": 4096,
        },
    )
    assert [t.home for t in graph.tensors if t.kind == "kv_cache"] == [None, None]


def test_sinks_beyond_the_context_leave_the_block_that_is_written():
    graph = blocks(context=16384, sink_blocks=99, layers=1, routing=None)
    written = {graph.tensors[t].name for op in graph.ops for t in op.mutates}
    assert written == {"model.layers.0.self_attn.kv_blocks[3]"}
    assert {t.home for t in graph.tensors if t.kind == "kv_cache"} == {None}


@pytest.mark.parametrize("key", ["sink_blocks", "window_blocks", "chosen_blocks"])
def test_numbers_of_blocks_without_blocks_are_refused(key):
    with pytest.raises(InputError, match=f"^{key}: {key} works with kv_block only$"):
        build("x", {"model": "llama-3.1-8b", "phase": "decode", key: 2})


def test_blocks_of_latents_are_read_by_every_head():
    graph = blocks(model="deepseek-v3", steps=2)
    cache = [t for t in graph.tensors if t.kind == "kv_cache"]
    assert {t.size_bytes for t in cache} == {
        4096 * (512 + 64) * 2
    }  # a latent and a rotated key, for all heads
    read = [op for op in graph.ops if ".older." in op.name]
    assert len(read) == 2 * 4 * 4  # tokens, layers, selected blocks
    # 128 heads: scores against latent and rotated key, sums of latents
    assert {op.flops for op in read} == {2 * 128 * 4096 * (576 + 512)}
    assert {t.size_bytes for op in read for t in map(graph.tensors.__getitem__, op.outputs)} == {
        128 * (512 + 2) * 4
    }


@pytest.mark.parametrize(
    ("model", "heads", "width", "out_width", "window"),
    [("llama-3.1-8b", 32, 128, 128, (28672,)), ("deepseek-v3", 128, 192, 128, ())],
)
def test_a_query_of_a_prompt_reads_so_many_blocks(model, heads, width, out_width, window):
    parameters = {
        "model": model,
        "phase": "prefill",
        "layers": 1,
        "sequence": 1 << 16,
        "cache_home": "ddr",
    }
    every, some = build("all", parameters), build("some", {**parameters, "kv_block": 4096})
    read, selected = [op for op in some.ops if op.name.endswith(("sdpa", "self_attn.select"))][::-1]
    assert (
        read.flops == 2 * heads * (width + out_width) * (1 << 16) * 28672
    )  # a sink, the last two and four more
    assert read.sizes[-1:] == window
    assert selected.flops == 2 * heads * width * (1 << 16) * 13  # a score for each of 16 - 3 blocks
    whole = next(op for op in every.ops if op.name.endswith("sdpa"))
    assert whole.flops == 2 * heads * (width + out_width) * (1 << 32)
    assert [t.home for t in some.tensors if t.kind == "kv_cache"] == ["ddr", "ddr"]


def test_a_prompt_within_its_window_selects_nothing():
    parameters = {"model": "llama-3.1-8b", "phase": "prefill", "layers": 1, "sequence": 3 * 4096}
    short = build("short", {**parameters, "kv_block": 4096})
    assert [(op.name, op.flops) for op in short.ops] == [
        (op.name, op.flops) for op in build("short", parameters).ops
    ]


@pytest.mark.parametrize("more", [{"phase": "train"}, {"phase": "prefill", "attention": "masked"}])
def test_blocks_are_for_inference(more):
    with pytest.raises(
        InputError, match="kv_block works for inference only, with attention: causal"
    ):
        build("x", {"model": "llama-3.1-8b", "layers": 1, "kv_block": 4096, **more})


# -- stashed activations
# ------------------------------------------------------------------------------------------------

STASH_BYTES = 32768 * 4096 * 2


def test_the_stash_goes_down_in_the_forward_pass_and_comes_back_before_it_is_needed():
    layers = 8
    parameters = {
        "model": "llama-3.1-8b",
        "phase": "train",
        "sequence": 32768,
        "layers": layers,
        "fused": True,
        "optimizer": "none",
    }
    graph = build("stash", {**parameters, "checkpoint": True, "tensor": 8})
    stash = [graph.tensor_index["model.embedding"]] + [
        graph.tensor_index[f"model.layers.{n}.add_mlp"] for n in range(layers - 1)
    ]
    assert {graph.tensors[t].size_bytes for t in stash} == {STASH_BYTES}
    peak = static_peak(graph)
    assert set(stash) <= set(peak.residents)
    budget = peak.bytes - 5 * STASH_BYTES
    backward = next(i for i, op in enumerate(graph.ops) if op.name.startswith("backward."))
    _, resident = run(graph, "resident", peak.bytes)

    def moved(plan):
        """The stashed tensors that a plan stores; each in the forward pass, and fetched in the
        backward pass before it is used.
        """
        stored = [c for c in plan.cache_ops if c.op == STORE and c.tensor in stash]
        for c in stored:
            back = next(p for p in plan.cache_ops if p.op == PREFETCH and p.tensor == c.tensor)
            again = next(
                i for i in graph.users[c.tensor] if graph.ops[i].name.startswith("recompute.")
            )
            assert c.after < backward <= back.after < again
        return len(stored)

    # fetched where it is used, the five that the budget asks for are waited for, each to its last
    # byte
    plan, late = run(graph, "longest_gap", budget)
    assert moved(plan) == 5
    assert (
        late.channels["h2d"].exposed_ns
        == late.makespan_ns - late.slowed_ns - resident.makespan_ns
        > 0
    )  # copies slow ops, too
    # placed by the whole graph, nothing waits: a layer computes for longer than its stash is on the
    # way
    plan, early = run(graph, "hyperoffload", budget, effort=4)
    assert moved(plan) >= 3
    assert early.peak_bytes["hbm"] <= budget
    assert early.stall_ns["transfer"] == early.stall_ns["capacity"] == 0
    assert (
        early.makespan_ns <= resident.makespan_ns + early.slowed_ns
    )  # what copies take from ops that need the memory's bandwidth


def test_some_layers_are_checkpointed():
    def run(**more):
        return build(
            "some",
            {
                "model": "llama-3.1-8b",
                "phase": "train",
                "sequence": 512,
                "layers": 3,
                "fused": True,
                **more,
            },
        )

    steps = [
        run(),
        *(run(checkpoint=True, checkpoint_layers=n) for n in (1, 2)),
        run(checkpoint=True),
    ]
    again = [len(step.ops) - len(steps[0].ops) for step in steps]
    assert again[1] > 0
    assert again == [0, again[1], 2 * again[1], 3 * again[1]]
    assert run(checkpoint=True, checkpoint_layers=3).ops == steps[-1].ops
    with pytest.raises(InputError, match="checkpoint_layers works with checkpoint: true only"):
        run(checkpoint_layers=1)


def test_what_a_step_keeps_with_and_without_checkpointing():
    parameters = {"model": "llama-3.1-8b", "phase": "train", "layers": 4, "sequence": 2048}
    whole, reduced = (
        build("whole", parameters),
        build("reduced", {**parameters, "checkpoint": True}),
    )
    backward = [op.name for op in reduced.ops if op.name.startswith("backward.")]
    assert backward == [op.name for op in whole.ops if op.name.startswith("backward.")]
    again = [op for op in reduced.ops if op.name.startswith("recompute.")]
    assert {op.name.removeprefix("recompute.") for op in again} <= {op.name for op in whole.ops}
    # all of a layer but its last product, which no gradient needs
    assert "recompute.model.layers.3.mlp.up_proj" in {op.name for op in again}
    assert "recompute.model.layers.3.mlp.down_proj" not in {op.name for op in again}
    done = sum(
        op.flops
        for op in whole.ops
        if ".layers." in op.name and not op.name.startswith("backward.")
    )
    skipped = 4 * 2 * 2048 * 4096 * 14336
    assert sum(op.flops for op in again) == done - skipped


# -- optimizer states
# --------------------------------------------------------------------------------------------------


def test_optimizer_states_come_up_for_their_update_and_go_down_again():
    parameters = {
        "model": "llama-3.1-8b",
        "phase": "train",
        "layers": 2,
        "sequence": 2048,
        "fused": True,
    }
    graph = build("states", {**parameters, "states_home": "ddr"})
    states = {t for t, tensor in enumerate(graph.tensors) if tensor.kind == "optimizer_state"}
    size = sum(graph.tensors[t].size_bytes for t in states)
    learned = sum(t.size_bytes for t in graph.tensors if t.kind == "parameter")
    assert size == 6 * learned  # twelve bytes a parameter, beside its two
    assert {graph.ops[i].kind for t in states for i in graph.users[t]} == {"optimizer"}
    budget = static_peak(graph).bytes - size + size // 3
    _, result = run(graph, "lookahead", budget)
    assert result.channels["h2d"].bytes >= size
    assert result.channels["d2h"].bytes >= size
    assert result.peak_bytes["hbm"] <= budget
    # the update of all parameters takes as long as their states take to come, at least
    assert result.makespan_ns > size / 50e9 * 1e9

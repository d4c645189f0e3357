"""Sequence parallelism between devices that share layers: collectives by hand, memory, what is
refused.
"""

import pytest

from hosim.analysis import static_peak
from hosim.errors import InputError
from hosim.io.models import build

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
}
SHARED = {
    "model": "llama-3.1-8b",
    "config": {**TINY, "intermediate_size": 80},
    "sequence": 32,
    "phase": "train",
    "tensor": 2,
}
WHOLE = 32 * 64 * 2
"""Bytes of the activations of all tokens."""


def sent(graph):
    return [(op.kind, op.sizes) for op in graph.ops if op.stream == "comm"]


def test_collectives_by_hand():
    """Forward, a scatter after the table, and in each of two layers a gather and a scatter around
    attention and around the MLP; a gather before the output layer. Backward, each the other way. At
    the end, five norms of 64 elements in bf16.
    """
    graph = build("x", {**SHARED, "sequence_parallel": True})
    gather, scatter = ("all_gather", (2, WHOLE)), ("reduce_scatter", (2, WHOLE))
    forward = [scatter, *([gather, scatter] * 4), gather]
    backward = [gather if each is scatter else scatter for each in reversed(forward)]
    assert sent(graph) == [*forward, *backward, ("all_reduce", (2, 5 * 64 * 2))]


def test_as_many_bytes_are_sent_and_as_many_flop_done_as_without():
    """A gather and a scatter send what a sum does; without, tokens are summed in 5 + 5 places. A
    device sends half of what it gathers.
    """
    plain, own = [
        build("x", {**SHARED, "link": "1 GB/s", "sequence_parallel": on}) for on in (False, True)
    ]
    assert sum(op.flops for op in plain.ops) == sum(op.flops for op in own.ops)
    times = [sum(op.duration_ns or 0 for op in g.ops if op.stream == "comm") for g in (plain, own)]
    assert times == [10 * WHOLE, 20 * WHOLE // 2 + 5 * 64 * 2]


@pytest.mark.parametrize("more", [{}, {"checkpoint": True}, {"fused": True}, {"pipeline": 2}])
def test_norms_and_sums_take_a_share_of_the_memory(more):
    long = {**SHARED, "sequence": 512, **more}
    plain, own = [
        static_peak(build("x", {**long, "sequence_parallel": on})).bytes for on in (False, True)
    ]
    assert own < plain


def test_stages_send_each_other_their_own_tokens():
    for stage in (0, 1):
        graph = build(
            "x",
            {
                **SHARED,
                "pipeline": 2,
                "stage": stage,
                "micro_batches": 1,
                "sequence_parallel": True,
                "link": "1 GB/s",
            },
        )
        assert {op.duration_ns for op in graph.ops if op.kind in ("send", "recv")} == {WHOLE // 2}


def test_experts_that_have_devices_of_their_own_get_each_devices_tokens():
    """Each device routes its own 16 tokens, 2 of 8 experts each: 32 rows of 64 go out and come
    back. The router's gradient is a sum.
    """
    config = {
        **TINY,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "num_hidden_layers": 1,
    }
    experts = {"model": "qwen3-30b-a3b", "config": config, "expert": 2}
    graph = build("x", {**SHARED, **experts, "sequence_parallel": True})
    gather, scatter, exchange = (
        ("all_gather", (2, WHOLE)),
        ("reduce_scatter", (2, WHOLE)),
        ("all_to_all", (2, 32 * 64 * 2)),
    )
    forward = [scatter, gather, scatter, exchange, exchange, gather]
    backward = [{gather: scatter, scatter: gather}.get(each, each) for each in reversed(forward)]
    heads = (
        "all_reduce",
        (2, 16 * 2),
    )  # the norms of keys and of queries, whose gradients are of the device's own heads
    backward[-2:-2] = [heads, heads]
    norms = 3 * 64 + 8 * 64
    assert sent(graph) == [*forward, *backward, ("all_reduce", (2, norms * 2))]


@pytest.mark.parametrize(
    ("model", "rows"),
    [("llama-3.1-8b", [16, 16]), ("qwen2.5-7b", [16, 16, 1, 1]), ("phi-3-mini", [32])],
)
def test_gradients_of_copies_of_heads_are_summed_over_those_who_have_them(model, rows):
    """Four devices and two heads of keys of 16: two devices have each, and the parts of their own
    queries. Weights have 64 columns.

    Of q, k and v in one weight only the rows of k and v are copies; biases are copies, too.
    """
    graph = build("x", {**SHARED, "model": model, "tensor": 4})
    sums = sorted([op.sizes[1] for op in graph.ops if op.sizes[:1] == (2,)])
    size = sorted([rows_of * 64 * 2 if rows_of > 1 else 16 * 2 for rows_of in rows] * 2)
    assert sums == size


def test_latent_vectors_are_made_of_own_tokens_and_gathered():
    """Per token 24 + 8 numbers of keys and 20 of queries, in place of 64; what makes them sees 16
    of 32 tokens, its gradient is a sum.
    """
    sizes = {
        "num_hidden_layers": 1,
        "kv_lora_rank": 24,
        "q_lora_rank": 20,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    }
    latent = {
        "model": "deepseek-v3",
        "config": {**SHARED["config"], **sizes, "first_k_dense_replace": 1},
        "attention": "math",
    }
    graph = build("x", {**SHARED, **latent, "sequence_parallel": True})
    gathered = [size[1] for kind, size in sent(graph) if kind == "all_gather"]
    vectors = [32 * width * 2 for width in (20, 24, 8)]
    assert gathered[:3] == vectors
    assert (
        gathered.count(WHOLE) == 5
    )  # forward the MLP and the output layer; backward attention, the MLP and the table
    assert [size[1] for kind, size in sent(graph) if kind == "reduce_scatter"].count(WHOLE) == 5
    makers = 64 * 20 + 20 + 64 * (24 + 8) + 24
    assert sent(graph)[-1] == ("all_reduce", (2, (3 * 64 + makers) * 2))


@pytest.mark.parametrize("zero", [2, 3])
def test_parts_of_gradients_are_summed_before_devices_of_other_batches_reduce_them(zero):
    """Of two layers with two norms of 64 elements each, and one after them, in bf16: one by one,
    just before the unit that they are in is reduced.
    """
    graph = build("x", {**SHARED, "sequence_parallel": True, "data": 2, "zero": zero})
    of_backward = [
        (op.kind, op.name.removeprefix("backward.").split(".all_")[0])
        for op in graph.ops
        if op.name.startswith("backward.") and op.kind in ("all_reduce", "reduce_scatter")
        if op.stream != "comm" or op.kind == "all_reduce"
    ]
    expected = []
    for layer in (1, 0):
        at = f"model.layers.{layer}"
        norms = "input_layernorm", "post_attention_layernorm"
        expected += [("all_reduce", f"{at}.{norm}.weight") for norm in norms]
        expected += [("reduce_scatter", f"{at}.reduce_scatter")]
    expected += [("all_reduce", "model.norm.weight"), ("reduce_scatter", "root.reduce_scatter")]
    assert of_backward == expected
    sizes = {op.sizes for op in graph.ops if op.kind == "all_reduce"}
    assert sizes == {(2, 64 * 2)}
    later = build(
        "x",
        {**SHARED, "sequence_parallel": True, "data": 2, "zero": zero, "micro_batches": 2,
         "sync_each_batch": False},
    )  # fmt: skip
    assert sum([op.kind == "all_reduce" for op in later.ops]) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor": 1}, "one device has all tokens; give tensor, too$"),
        ({"phase": "prefill"}, "works for phase=train only$"),
        ({"sequence": 31}, "2 devices cannot share 31 tokens evenly$"),
        (
            {"config": {**SHARED["config"], "positions": "learned", "max_position_embeddings": 64}},
            "works for models without learned positions$",
        ),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=f"^sequence_parallel: {message}"):
        build("x", {**SHARED, "sequence_parallel": True, **changes})

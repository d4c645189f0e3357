"""Context parallelism: FLOP and bytes of a ring by closed forms, what overlaps, and the calls and
messages of torch's own ring.
"""

import pytest

from hosim.analysis import static_peak
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.hardware import Compute, Hardware, Tier
from hosim.io.models import build, keys_of_chunk

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
}
STEP = {
    "model": "llama-3.1-8b",
    "config": {**TINY, "intermediate_size": 80},
    "sequence": 128,
    "batch": 3,
    "phase": "train",
    "fused": True,
}


def rings(graph):
    """What goes round, by op: bytes that the device sends."""
    return {
        op.name: sum(graph.tensors[t].size_bytes for t in op.inputs)
        for op in graph.ops
        if op.stream == "ring"
    }


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_flop_and_bytes_by_closed_forms(devices, checkpoint):
    """Of n devices each has 1/n of the tokens.

    Its own block has (1/n)^2 of the scores, and each of n - 1 others half as many: (n + 1) / 2n^2.
    Keys and values go round n - 1 times in 16 bits for each pass over a layer, their gradients n
    times in 32.
    """
    alone, graph = [
        build("x", {**STEP, "checkpoint": checkpoint, **more})
        for more in ({}, {"context_parallel": devices})
    ]
    for kind, share in (("attention", (devices + 1) / (2 * devices**2)), ("matmul", 1 / devices)):
        flops = [sum(op.flops for op in one.ops if op.kind == kind) for one in (alone, graph)]
        assert flops[1] == flops[0] * share
    pair = (
        2 * 3 * 2 * (128 // devices) * 16 * 2
    )  # keys and values of a layer: 3 sequences, 2 heads of 16, 2 bytes
    passes = 3 if checkpoint else 2
    sent = rings(graph)
    assert len(sent) == 2 * (passes * (devices - 1) + devices)
    assert sum(sent.values()) == 2 * (passes * (devices - 1) * pair + devices * 2 * pair)
    # gradients are those of the device's own tokens: they are added up as in data parallelism
    reduced = [op for op in graph.ops if op.kind == "all_reduce"]
    assert {op.sizes[0] for op in reduced} == {devices}
    assert sum(op.sizes[1] for op in reduced) == sum(
        t.size_bytes for t in alone.tensors if t.kind == "parameter"
    )


def test_attention_needs_less_memory_and_parameters_are_sharded_over_all_replicas():
    plain = {**STEP, "sequence": 1024, "checkpoint": True, "data": 2, "zero": 3}
    peaks = [
        static_peak(build("x", {**plain, "context_parallel": devices})).bytes
        for devices in (1, 2, 4)
    ]
    assert peaks == sorted(peaks, reverse=True)
    graph = build("x", {**plain, "context_parallel": 4})
    assert {op.sizes[0] for op in graph.ops if op.kind == "all_gather"} == {8}


def test_selective_recomputation_keeps_what_attention_gives():
    """Nothing goes round again, no scores are computed again and none are merged again."""
    plain, graph = [
        build("x", {**STEP, "context_parallel": 4, **more})
        for more in ({}, {"checkpoint": True, "selective": True})
    ]
    assert rings(graph) == rings(plain)
    for kind in ("attention", "matmul"):
        assert [op.flops for op in graph.ops if op.kind == kind] == [
            op.flops for op in plain.ops if op.kind == kind
        ]
    again = [op.name for op in graph.ops if op.name.startswith("recompute.")]
    assert any("norm" in name for name in again)
    assert not any("sdpa" in name for name in again)


def test_devices_share_layers_tokens_and_sequences():
    """Of 4 rings of 2 devices each has a quarter of the tokens, gathers those of both for products,
    and half of the heads go round.
    """
    graph = build("x", {**STEP, "context_parallel": 4, "tensor": 2, "sequence_parallel": True})
    whole = 3 * 32 * 64 * 2
    assert {op.sizes for op in graph.ops if op.kind in ("all_gather", "reduce_scatter")} == {
        (2, whole)
    }
    alone = build("x", {**STEP, "context_parallel": 4})
    assert [2 * size for size in rings(graph).values()] == list(rings(alone).values())
    assert sum(op.flops for op in graph.ops) * 2 == sum(op.flops for op in alone.ops)
    with pytest.raises(
        InputError, match=r"^sequence_parallel: 3 devices cannot share 32 tokens evenly$"
    ):
        build("x", {**STEP, "context_parallel": 4, "tensor": 3, "sequence_parallel": True})


def test_keys_travel_while_the_ones_before_are_used():
    """The first exchange begins when keys and values are there, and the second when the first has
    ended, whatever attention does.
    """
    hardware = Hardware(
        "test", (Tier("hbm", 10**9, 10**12),), (), Compute({"bf16": 10**9, "fp32": 10**9})
    )
    graph = build("x", {**STEP, "context_parallel": 4, "link": "1 GB/s"})
    timeline = replay(Plan(graph, "resident", ()), hardware, 10**9, record=True).timeline
    assert timeline is not None
    first, second, own, made = [
        graph.op_index[f"model.layers.0.self_attn.{name}"]
        for name in ("sdpa.send_0", "sdpa.send_1", "sdpa.block_0", "v_proj")
    ]
    begun, ended = timeline.op_start_ns, timeline.op_end_ns
    assert begun[first] == ended[made] == begun[own]
    # 3 sequences, 2 heads of 16, 32 tokens, 2 tensors of 2 bytes at a byte a nanosecond
    assert ended[first] - begun[first] == 3 * 2 * 16 * 32 * 2 * 2
    assert begun[second] == ended[first] < ended[own]


@pytest.mark.parametrize(
    ("devices", "size", "window"), [(2, 4, 3), (2, 4, 4), (3, 4, 9), (2, 5, 100)]
)
def test_a_chunk_gets_the_keys_that_its_queries_see_and_no_others(devices, size, window):
    """Beside the whole mask, entry by entry: a query at p sees the keys from p - window + 1 to
    p.
    """
    tokens = range(2 * devices * size)
    mask = [[0 <= query - key < window for key in tokens] for query in tokens]
    for chunk in range(2 * devices):
        rows = mask[chunk * size : (chunk + 1) * size]
        assert list(keys_of_chunk(chunk, size, window)) == [
            key for key in tokens if any(row[key] for row in rows)
        ]
        assert min(len(keys_of_chunk(chunk, size, window)), window) == max(sum(row) for row in rows)


@pytest.mark.parametrize(
    "more", [{}, {"checkpoint": True}, {"checkpoint": True, "selective": True}]
)
def test_windows_gather_keys_and_values_by_closed_forms(more):
    """The second of two layers sees all keys, in a ring; the first sees 20, and each of two chunks
    of 16 queries gets 16 + 19 of 128.

    Each query counts with 20 keys, as on one device. Keys and values are gathered in both passes,
    and once more where layers are computed again; their gradients are scattered once.
    """
    sizes = {**STEP["config"], "sliding_window": 20, "full_attention_every": 2}
    alone, graph = [
        build("x", {**STEP, **more, "config": sizes, **among})
        for among in ({}, {"context_parallel": 4})
    ]
    first = [op for op in graph.ops if ".0.self_attn.sdpa" in op.name]
    by_window = [op for op in alone.ops if ".0.self_attn.sdpa" in op.name]
    assert 4 * sum(op.flops for op in first) == sum(op.flops for op in by_window)
    assert {op.sizes for op in first if op.kind == "attention"} == {(3, 16, 19, 4, 2, 16, 20)}
    whole = 3 * 2 * 128 * 16 * 2  # keys or values: 3 sequences, 2 heads of 16, 2 bytes
    passes = 3 if more == {"checkpoint": True} else 2
    sent = [(op.kind, op.sizes) for op in first if op.stream == "ring"]
    assert sent == [("all_gather", (4, whole))] * 2 * passes + [("reduce_scatter", (4, whole))] * 2
    in_the_ring = build("x", {**STEP, **more, "context_parallel": 4})
    assert [size for name, size in rings(graph).items() if ".1." in name] == [
        size for name, size in rings(in_the_ring).items() if ".1." in name
    ]


def test_gathered_keys_are_kept_for_no_later_pass():
    """They are read in the pass that gathers them, and the backward pass gathers them again."""
    sizes = {**STEP["config"], "sliding_window": 20, "num_hidden_layers": 1}
    graph = build("x", {**STEP, "config": sizes, "context_parallel": 4, "optimizer": "none"})
    at = "model.layers.0.self_attn.sdpa."
    for phase, chunks in (("", f"{at}chunk"), ("backward.", f"backward.{at}grad.chunk")):
        ordered = graph.tensor_index[f"{phase}{at}{'grad.' if phase else ''}order_k"]
        assert [op.name for op in graph.ops if ordered in op.inputs] == [
            f"{chunks}_0",
            f"{chunks}_1",
        ]


def test_learned_scores_exchange_heads_by_closed_forms():
    """Two devices, 64 of 128 tokens each: 4 heads of queries and of results, 2 of keys and of
    values. Gradients go the other way.

    A device then has 2 heads of queries and 1 of keys, and all tokens, of which a query reads 20.
    """
    sizes = {
        **STEP["config"],
        "sliding_window": 20,
        "attention_sinks": True,
        "num_hidden_layers": 1,
    }
    alone, graph = [
        build("x", {**STEP, "config": sizes, **among}) for among in ({}, {"context_parallel": 2})
    ]
    heads = [3 * count * 64 * 16 * 2 for count in (4, 2, 2, 4)]
    sent = [(op.kind, op.sizes) for op in graph.ops if op.stream == "ring"]
    exchanged = [("all_to_all", (2, size)) for size in heads]
    scores = ("all_gather", (2, 4 * 2))
    assert sent[:5] == [*exchanged, exchanged[0]]
    assert sorted(sent[5:]) == sorted([scores, *exchanged[:3]])
    attention = [op for op in graph.ops if op.kind == "attention"]
    assert {op.sizes for op in attention} == {(3, 128, 0, 2, 1, 16, 20)}
    assert 2 * sum(op.flops for op in attention) == sum(
        op.flops for op in alone.ops if op.kind == "attention"
    )
    learned = graph.tensors[
        graph.tensor_index["backward.model.layers.0.self_attn.sdpa.gather_scores.grad"]
    ]
    assert (learned.kind, learned.size_bytes) == ("gradient", 4 * 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phase": "prefill"}, "works for phase=train only"),
        ({"sequence": 126}, "4 devices cannot share 126 tokens evenly in two chunks each"),
        (
            {"attention": "math"},
            "works with attention: causal over heads of keys, whose positions are not those of "
            "alibi",
        ),
        (
            {"config": {**STEP["config"], "positions": "alibi"}},
            "works with attention: causal over .* not those of alibi",
        ),
        (
            {"config": {**STEP["config"], "attention_sinks": True}},
            "4 devices cannot share 2 heads of keys evenly, which they exchange where attention "
            "has learned scores",
        ),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=f"^context_parallel: {message}$"):
        build("x", {**STEP, "context_parallel": 4, **changes})


def test_a_ring_of_too_many_blocks_is_refused_at_once():
    with pytest.raises(
        InputError,
        match=r"^context_parallel: expected at most [0-9]+ parts of a model.* got 131072",
    ):
        build("x", {**STEP, "sequence": 2**17, "context_parallel": 2**16})


@pytest.mark.long
def test_the_ring_is_torchs(compared):
    """Messages in order and to the byte, and the queries and keys of each block, on the last of
    four processes that exist in name only.
    """
    torch = pytest.importorskip("torch")
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental._context_parallel import _attention as theirs
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    sent, blocks = [], []

    class Messages(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "all_to_all" in func._schema.name:
                sent.append(args[0].numel() * args[0].element_size())
            return func(*args, **(kwargs or {}))

    def forward(q, k, v, is_causal, **_):
        blocks.append((q.shape[2], k.shape[2], is_causal))
        return torch.empty_like(q), torch.empty(q.shape[:3])

    def backward(query, key, value, is_causal, **_):
        blocks.append((query.shape[2], key.shape[2], is_causal))
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    dist.init_process_group("fake", rank=3, world_size=4, store=FakeStore())
    try:
        group = init_device_mesh("cpu", (4,)).get_group()
        theirs.set_rotate_method("alltoall")
        with FakeTensorMode(allow_non_fake_inputs=True), Messages():
            q, k, v = [torch.empty(3, heads, 32, 16, dtype=torch.bfloat16) for heads in (4, 2, 2)]
            out, lse, *_ = theirs._templated_ring_attention(
                group, 2, forward, q, k, v, is_causal=True
            )
            theirs._templated_ring_attention_backward(
                group,
                2,
                backward,
                torch.empty_like(out),
                "grad_out",
                q,
                k,
                v,
                out,
                lse,
                is_causal=True,
            )
    finally:
        dist.destroy_process_group()
    graph = build("x", {**STEP, "layers": 1, "context_parallel": 4})
    ours = list(rings(graph).values())
    assert ours == sent
    compared("torch", "ring of 4", "bytes sent for a layer", sum(sent), sum(ours))
    flops = [op.flops for op in graph.ops if op.kind == "attention"]
    assert [2 * 3 * 4 * queries * keys * 2 * 16 for queries, keys, _ in blocks[:4]] == flops[:4]
    assert [5 * 3 * 4 * queries * keys * 2 * 16 for queries, keys, _ in blocks[4:]] == flops[4:]
    assert [causal for *_, causal in blocks] == [True, False, False, False] * 2

"""Weights and caches in few bits: bytes by hand, which ops change, what is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wholes import wholes

from hosim.analysis.costmodel import op_durations
from hosim.cache_plan import CacheOp, Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.hardware import Channel, Compute, Hardware, Tier
from hosim.io.models import PACKINGS, WEIGHTS, build, packed_bytes

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
}
DENSE = {
    "model": "llama-3.1-8b",
    "config": {**TINY, "intermediate_size": 80},
    "sequence": 32,
    "context": 32,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MIXTURE = {"model": "qwen3-30b-a3b", "config": {**TINY, **EXPERTS}, "sequence": 32, "context": 32}
SHAPES = [(64, 64), (32, 64), (32, 64), (64, 64), (80, 64), (80, 64), (64, 80)]
"""The weights of a layer of ``DENSE``: queries, keys, values, output, gate, up, down."""


@pytest.mark.parametrize(
    ("shape", "dtype", "group", "expected"),
    [
        ((64, 128), "int8", 0, 64 * 128 + 64 * 2),  # a scale for each row
        ((64, 128), "fp8_e4m3", 0, 64 * 128 + 64 * 4),
        ((64, 128), "fp8_e5m2", 32, 64 * 128 + 2 * 4 * 4),  # blocks of 32 x 32
        ((64, 130), "int4", 0, 64 * 65 + 64 * 2 * 2),  # two groups: 128 elements and 2
        ((64, 128), "uint4", 32, 64 * 64 + 64 * 4 * 4),
        (
            (64, 128),
            "gptq4",
            32,
            64 * 64 + 64 * 4 * 2 + 64 * 4 // 2 + 128 * 4,
        ),  # scales, zeros of 4 bits, a group for each column
        ((64, 128), "awq4", 0, 64 * 64 + 64 * 2 + 32),
        ((3, 64, 128), "mxfp4", 0, 3 * (64 * 64 + 64 * 4)),
        ((3, 64, 128), "nvfp4", 0, 3 * (64 * 64 + 64 * 8)),
        ((64, 127), "nf4", 0, 64 * 64 + 64 * 2 * 4),  # 127 elements take 64 bytes
        ((200, 128), "nf4_double", 0, 200 * 64 + 400 + 2 * 4),  # 400 scales, a scale for each 256
        ((2, 4, 10, 128), "int4_cache", 0, 2 * 4 * 10 * (64 + 2 * 4)),
        ((2, 4, 10, 128), "int8_cache", 0, 2 * 4 * 10 * (128 + 4)),
        ((2, 4, 10, 128), "fp8_cache", 0, 2 * 4 * 10 * 128),
        ((0,), "int4", 0, 0),
    ],
)
def test_bytes_by_hand(shape, dtype, group, expected):
    assert packed_bytes(shape, dtype, group) == expected


@given(
    st.sampled_from(WEIGHTS),
    st.integers(1, 64).map(lambda n: 16 * n),
    st.integers(1, 64).map(lambda n: 16 * n),
)
def test_fewer_elements_in_a_group_take_more_scales(dtype, rows, width):
    sizes = [packed_bytes((rows, width), dtype, group) for group in (16, 32, 64)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= rows * width * PACKINGS[dtype].bits // 8


def parameters(graph):
    return {t.name: t.size_bytes for t in graph.tensors if t.kind in ("parameter", "expert")}


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("dtype", WEIGHTS)
def test_only_weights_of_products_change(dtype, merged):
    group = 16 if dtype == "nvfp4" else 32
    plain, packed = [
        build("x", {**DENSE, "merged": merged, **more})
        for more in ({}, {"weights": dtype, "group": group})
    ]
    before, after = parameters(plain), parameters(packed)
    changed = {name for name in before if before[name] != after[name]}
    assert {name.split(".")[-2] for name in changed} <= {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "qkv_proj",
        "gate_up_proj",
    } | {*("gate_proj", "up_proj", "down_proj")}
    saved = 2 * sum(2 * a * b - packed_bytes((a, b), dtype, group) for a, b in SHAPES)
    if not (
        merged and dtype.startswith(("fp8", "gptq", "nf4_double"))
    ):  # blocks of joined rows and scales, and what columns have, are not those of their parts
        assert sum(before.values()) - sum(after.values()) == saved
    assert sum(op.flops for op in packed.ops) == sum(op.flops for op in plain.ops)


def test_a_product_reads_the_packed_weight():
    graph = build("x", {**DENSE, "weights": "int4", "group": 32})
    op = next(op for op in graph.ops if op.name.endswith("layers.0.mlp.down_proj"))
    assert (op.dtype, op.kernel, op.sizes) == ("int4_weights", "gemm", (32, 64, 80))
    assert op.bytes_accessed == 32 * 80 * 2 + packed_bytes((64, 80), "int4", 32) + 32 * 64 * 2
    assert {op.dtype for op in graph.ops if op.name == "lm_head"} == {"bf16"}


def test_both_operands_in_8_bits():
    """What three projections share is rounded once; kernels of engines round where they make it."""
    graph = build("x", {**DENSE, "weights": "fp8_e4m3", "activations": "fp8"})
    assert {op.dtype for op in graph.ops if op.kernel == "gemm" and op.name != "lm_head"} == {"fp8"}
    assert sum("quantise" in op.name for op in graph.ops) == 2 * 4  # before q, o, gate, down
    merged = build(
        "x", {**DENSE, "weights": "fp8_e4m3", "activations": "fp8", "group": 32, "merged": True}
    )
    assert {op.dtype for op in merged.ops if op.kernel == "gemm" and op.name != "lm_head"} == {
        "fp8_block"
    }
    assert not any("quantise" in op.name for op in merged.ops)


def test_products_take_the_peak_of_their_dtype():
    """2 * 32 * 64 * 80 FLOP: at 10^9 FLOP/s 327,680 ns, in fp8 half of it if the machine has it."""
    tier = (Tier("hbm", 10**9, 10**15),)
    for peaks, expected in (
        ({"bf16": 10**9, "fp8": 2 * 10**9}, 163_840),
        ({"bf16": 10**9}, 327_680),
    ):
        for activations, ns in (({"activations": "fp8"}, expected), ({}, 327_680)):
            graph = build("x", {**DENSE, "weights": "fp8_e4m3", **activations})
            durations = op_durations(
                graph, Hardware("x", tier, (), Compute({**peaks, "fp32": 10**9}))
            )
            assert durations[graph.op_index["model.layers.0.mlp.down_proj"]] == ns


def test_the_efficiency_of_16_bits_counts_where_a_product_computes_in_them():
    hardware = Hardware(
        "x",
        (Tier("hbm", 10**9, 10**15),),
        (),
        Compute({"bf16": 10**9, "fp32": 10**9}, efficiency_of={"matmul": {"bf16": 0.5}}),
    )
    graph = build("x", {**DENSE, "weights": "int4"})
    assert (
        op_durations(graph, hardware)[graph.op_index["model.layers.0.mlp.down_proj"]] == 2 * 327_680
    )


def test_nf4_is_unpacked_first_where_there_are_several_rows():
    for batch, unpacked in ((1, 0), (2, 14)):
        graph = build("x", {**DENSE, "phase": "decode", "weights": "nf4", "batch": batch})
        assert sum("dequantise" in op.name for op in graph.ops) == unpacked


def test_packed_for_the_way_alone():
    """FlexGen's 4 bits: what moves is packed, and is unpacked into 16 bits before it is read.

    A weight [64, 80] takes 64 * 40 B and 64 * 2 groups * 4 B, 3,072 B: at 1 B/ns it travels as many
    ns from host memory. Unpacking it reads them and writes 10,240 B of bf16, at 1 kB/ns: 14 ns. The
    product has the FLOP, bytes and kernel of a weight in bf16.
    """
    packed, plain = [
        build("x", {**DENSE, "weights": weights, "phase": "decode"})
        for weights in ("flexgen4", None)
    ]
    product, unpack = [
        packed.ops[packed.op_index[f"model.layers.0.mlp.{name}"]]
        for name in ("down_proj", "dequantise_2")
    ]
    assert (
        packed.tensors[packed.tensor_index["model.layers.0.mlp.down_proj.weight"]].size_bytes
        == 3072
    )
    before = plain.ops[plain.op_index["model.layers.0.mlp.down_proj"]]
    assert (product.flops, product.bytes_accessed, product.kernel, product.dtype) == (
        before.flops,
        before.bytes_accessed,
        "gemm",
        "bf16",
    )
    tiers = (Tier("hbm", 10**9, 10**12), Tier("ddr", 10**9, 10**12))
    machine = Hardware(
        "x",
        tiers,
        (Channel("h2d", "ddr", "hbm", 10**9),),
        Compute({"bf16": 10**12, "fp32": 10**12}),
    )
    homes = {"model.layers.0.mlp.down_proj.weight": "ddr"}
    below = replace(
        packed, tensors=tuple([replace(t, home=homes.get(t.name)) for t in packed.tensors])
    )
    fetched = CacheOp(
        "prefetch", below.tensor_index["model.layers.0.mlp.down_proj.weight"], "ddr", "hbm"
    )
    timeline = replay(Plan(below, "mine", (fetched,)), machine, 10**9, record=True).timeline
    assert timeline is not None
    at = below.op_index[unpack.name]
    assert timeline.op_end_ns[at] - timeline.op_start_ns[at] == 14
    assert timeline.op_start_ns[at] >= 3072


def test_a_cache_packed_for_the_way_alone():
    """A token is packed where it is written, and all are unpacked where attention reads them."""
    graph = build(
        "x",
        {**DENSE, "phase": "decode", "cache_dtype": "flexgen4", "cache_home": "ddr", "batch": 3},
    )
    packed = 3 * 2 * 32 * (8 + 4)
    assert set(wholes(graph, lambda tensor: tensor.kind == "kv_cache").values()) == {packed}
    assert {op.bytes_accessed for op in graph.ops if op.kind == "scatter"} == {3 * 2 * (32 + 12)}
    unpacked = [op for op in graph.ops if "unpack" in op.name]
    assert {(len(op.inputs), op.bytes_accessed) for op in unpacked} == {
        (2, packed + 3 * 2 * 32 * 32)
    }
    assert len(unpacked) == 4
    assert {op.dtype for op in graph.ops if op.kind == "attention"} == {"bf16"}


KEPT = {**DENSE, "phase": "train", "checkpoint": True, "batch": 3, "sequence": 32}


@pytest.mark.parametrize("more", [{}, {"selective": True}, {"data": 2, "zero": 3}])
def test_what_layers_keep_is_packed_for_the_way(more):
    """Of a layer's input of 3 * 32 rows of 64 elements 4 bits each are kept, and 4 B of a scale and
    a minimum: 36 B a row for 128.
    """
    plain, graph = [
        build("x", {**KEPT, **more, **packed}) for packed in ({}, {"kept_dtype": "flexgen4"})
    ]
    width = 64
    rows, layers = 3 * 32, 2
    packs, unpacks = [
        [op for op in graph.ops if name in op.name] for name in (".pack_kept", ".unpack_kept")
    ]
    assert len(packs) == len(unpacks) == layers
    assert {graph.tensors[t].size_bytes for op in packs for t in op.outputs} == {
        rows * (width // 2 + 4)
    }
    assert {op.bytes_accessed for op in (*packs, *unpacks)} == {rows * (width // 2 + 4 + 2 * width)}
    assert {op.outputs for op in packs} == {op.inputs for op in unpacks}
    # nothing else changes but that ops which ran again read what was unpacked
    without = [op.name for op in graph.ops if "pack_kept" not in op.name]
    assert without == [op.name for op in plain.ops]
    assert sum(op.flops for op in graph.ops) == sum(op.flops for op in plain.ops)
    kept = {
        t for op in packs for t in op.inputs
    }  # dropped once it is packed and used going forward
    after = graph.op_index[unpacks[0].name]
    assert not any(t in kept for op in graph.ops[after:] for t in op.inputs)


@pytest.mark.parametrize("merged", [False, True])
def test_a_packed_cache(merged):
    graph = build(
        "x", {**DENSE, "phase": "decode", "cache_dtype": "int4", "batch": 3, "merged": merged}
    )
    caches = set(wholes(graph, lambda tensor: tensor.kind == "kv_cache").values())
    assert caches == {
        3 * 2 * 32 * (8 + 4)
    }  # heads of 16 elements: 8 B, and one group's scale and minimum
    assert {op.dtype for op in graph.ops if op.kind == "attention"} == {"fp16_int4_cache"}
    # of 3 sequences, 2 heads of the new token: 16 elements in bf16 are read, and 12 B are written
    assert {op.bytes_accessed for op in graph.ops if op.kind == "scatter"} == (
        set() if merged else {3 * 2 * (32 + 12)}
    )


def test_experts_alone_in_mxfp4_and_all_that_is_published_of_gpt_oss(compared):
    graph = build("x", {**MIXTURE, "weights": "mxfp4"})
    kept = build("x", MIXTURE)
    assert {
        n.split(".")[-1] for n, size in parameters(graph).items() if size != parameters(kept)[n]
    } == {"gate_up_proj", "down_proj"}
    # checkpoint sizes of the model card, arXiv 2508.10925, table 1
    for model, gib in (("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)):
        built = build("x", {"model": model, "weights": "mxfp4", "merged": True, "sequence": 16})
        assert "left_out" not in built.meta
        compared(
            "gpt-oss model card",
            model,
            "bytes of weights",
            gib * 2**30,
            sum(parameters(built).values()),
            within=0.01,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "int3"}, "^weights: expected one of fp8_e4m3, .*nf4_double; got 'int3'$"),
        (
            {"cache_dtype": "flexgen4", "merged": True},
            "^cache_dtype: kernels of inference engines read no cache in flexgen4; leave merged "
            "out$",
        ),
        (
            {"weights": "int4", "phase": "train"},
            "^weights: packed weights do not learn",
        ),
        (
            {"cache_dtype": "int8", "phase": "train"},
            "^cache_dtype: a packed cache works for inference only$",
        ),
        ({"group": 32}, "^group: only packed weights have it; give weights, too$"),
        (
            {"weights": "int4", "activations": "fp8"},
            "^activations: products in fp8 take weights fp8_e4m3 or fp8_e5m2$",
        ),
        ({"weights": "mxfp4", "group": 64}, "^group: groups of mxfp4 have 32 elements, got 64$"),
        ({"weights": "int4", "packed": "experts"}, "^packed: this model has no experts$"),
        (
            {"cache_dtype": "int8", "attention": "math"},
            "^cache_dtype: a packed cache works for heads of keys",
        ),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        build("x", {**DENSE, **changes})


def test_nf4_does_not_pack_experts():
    with pytest.raises(InputError, match=r"^weights: nf4 works for models without experts$"):
        build("x", {**MIXTURE, "weights": "nf4"})

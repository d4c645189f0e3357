"""Data parallelism, ZeRO and FSDP2: collectives and bytes by hand, what each stage keeps, and
selective recomputation.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosim.analysis import static_peak
from hosim.cache_plan import Plan
from hosim.engine import replay
from hosim.errors import InputError
from hosim.hardware import Compute, Hardware, Tier
from hosim.io.models import build

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
    "sequence": 32,
    "phase": "train",
    "fused": True,
}
LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 80 + 2 * 64
"""Parameters: queries and output, keys and values, the MLP, two norms."""
ROOT = 2 * 96 * 64 + 64
"""The table, the output layer, the last norm."""


def sent(graph):
    return [
        (op.name, op.kind, op.sizes)
        for op in graph.ops
        if op.stream in ("gather", "reduce") and op.kernel
    ]


def total(graph, kind):
    return sum(t.size_bytes for t in graph.tensors if t.kind == kind)


def test_the_collectives_of_fsdp_by_hand():
    """Each layer is gathered for the forward pass, and again for the backward pass, one ahead; what
    is outside of layers, once.

    Gradients are reduced in fp32. Four devices share all sizes evenly.
    """
    layer, root = 2 * LAYER, 2 * ROOT
    graph = build("x", {**STEP, "data": 4, "zero": 3, "main_gradients": True})
    assert sent(graph) == [
        ("root.all_gather", "all_gather", (4, root)),
        ("model.layers.0.all_gather", "all_gather", (4, layer)),
        ("model.layers.1.all_gather", "all_gather", (4, layer)),
        ("backward.model.layers.1.all_gather", "all_gather", (4, layer)),
        ("backward.model.layers.0.all_gather", "all_gather", (4, layer)),
        ("backward.model.layers.1.reduce_scatter", "reduce_scatter", (4, 2 * layer)),
        ("backward.model.layers.0.reduce_scatter", "reduce_scatter", (4, 2 * layer)),
        ("backward.root.reduce_scatter", "reduce_scatter", (4, 2 * root)),
    ]
    shards = (2 * LAYER + ROOT) // 4
    assert total(graph, "parameter") == 4 * shards
    assert total(graph, "optimizer_state") == 8 * shards
    kept = build("x", {**STEP, "data": 4, "zero": 3, "reshard": False})
    assert [name for name, kind, _ in sent(kept) if kind == "all_gather"] == [
        name for name, *_ in sent(graph)[:3]
    ]


EXPERTS = {
    "model": "qwen3-30b-a3b",
    "config": {**TINY, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
}


@pytest.mark.parametrize("others", [{"data": 8}, {"data": 2, "context_parallel": 4}])
def test_experts_are_shared_by_the_devices_that_have_the_same_ones(others):
    """Of 8 devices each has 2 of 8 experts, so that 2 have the same ones: 2 experts of 3 * 64 * 48
    elements in bf16.
    """
    experts, others = 2 * 2 * 3 * 64 * 48, {**STEP, **EXPERTS, "expert": 4, **others}
    for zero, kinds in (
        (0, ["all_reduce"]),
        (1, ["reduce_scatter", "all_gather"]),
        (3, ["all_gather", "all_gather", "reduce_scatter"]),
    ):
        graph = build("x", {**others, "zero": zero})
        found = [(kind, sizes) for name, kind, sizes in sent(graph) if ".0.experts." in name]
        assert found == [(kind, (2, experts)) for kind in kinds]
        assert {sizes[0] for name, _, sizes in sent(graph) if "experts" not in name} == {8}
    alone = build("x", {**others, "expert": 8})
    assert not [name for name, *_ in sent(alone) if "experts" in name]
    with pytest.raises(
        InputError,
        match=r"^expert: 8 devices of different tokens cannot have 3 parts of the experts evenly$",
    ):
        build("x", {**others, "expert": 3})


def test_more_devices_than_experts_share_the_rows_of_each():
    """32 devices with 1 of 8 experts, which 4 of them have: of its 96 and 64 rows each has a
    quarter.
    """
    graph = build("x", {**STEP, **EXPERTS, "data": 32, "expert": 8, "zero": 3})
    assert (
        sum(t.size_bytes for t in graph.tensors if ".experts." in t.name and t.kind == "expert")
        == 2 * 4 * 3 * 64 * 48 // 4
    )


def test_a_table_whose_rows_devices_cannot_share_evenly_is_padded():
    graph = build(
        "x", {**STEP, "config": {**STEP["config"], "vocab_size": 97}, "data": 4, "zero": 3}
    )
    assert sent(graph)[0][2] == (4, 2 * (2 * 100 * 64 + 64))


def test_a_layer_is_gathered_while_the_one_before_computes():
    """The gathering of layer 1 begins when the parameters of layer 0 are copied out, and with none
    ahead, when its last op has ended.
    """
    hardware = Hardware(
        "test", (Tier("hbm", 10**9, 10**9),), (), Compute({"bf16": 10**12, "fp32": 10**12})
    )
    for ahead, before in ((0, "model.layers.0.add_mlp"), (1, "model.layers.0.parameters")):
        graph = build("x", {**STEP, "data": 4, "zero": 3, "prefetch": ahead, "link": "1 GB/s"})
        timeline = replay(Plan(graph, "resident", ()), hardware, 10**9, record=True).timeline
        assert timeline is not None
        copied, gathered = [
            graph.op_index[f"model.layers.1.{name}"] for name in ("gather_copy_in", "all_gather")
        ]
        assert timeline.op_start_ns[copied] == timeline.op_end_ns[graph.op_index[before]]
        # of n bytes each device sends n * 3 / 4 at 1 B/ns
        assert timeline.op_end_ns[gathered] - timeline.op_start_ns[gathered] == 2 * LAYER * 3 // 4


@settings(max_examples=12)
@given(st.integers(0, 3), st.integers(2, 5), st.integers(1, 3), st.booleans(), st.booleans())
def test_what_each_stage_keeps_and_sends(zero, devices, micro_batches, checkpoint, reshard):
    parameters = {**STEP, "micro_batches": micro_batches, "checkpoint": checkpoint}
    alone = build("x", parameters)
    graph = build(
        "x",
        {
            **parameters,
            "data": devices,
            "zero": zero,
            **({"reshard": reshard} if zero == 3 else {}),
        },
    )
    assert sum(op.flops for op in graph.ops) == sum(op.flops for op in alone.ops)
    learned = total(alone, "parameter")
    padding = 64 * 4 * devices * 30  # less than a row of each of some 21 tensors
    assert (
        learned
        <= total(graph, "parameter") * (devices / 2 if zero == 3 else 1)
        <= learned + padding
    )
    assert (
        6 * learned
        <= total(graph, "optimizer_state") * (devices * (1.5 if zero == 3 else 1) if zero else 1)
        <= 6 * learned + 6 * padding
    )
    kinds = [kind for _, kind, _ in sent(graph)]
    gathered = {0: 0, 1: 3, 2: 3, 3: (1 + 2 * (2 if reshard else 1)) * micro_batches}[zero]
    reduced = 3 * (micro_batches if zero >= 2 else 1)
    assert kinds.count("all_gather") == gathered
    assert (
        kinds.count("all_reduce" if zero == 0 else "reduce_scatter")
        == reduced
        == len(kinds) - gathered
    )
    assert sum(op.kind == "optimizer" for op in graph.ops) == sum(
        op.kind == "optimizer" for op in alone.ops
    )


@pytest.mark.parametrize("zero", [2, 3])
def test_shards_of_gradients_add_up_over_micro_batches(zero):
    """Three units and three micro-batches: the second and third sums of each unit are added to the
    first, which the optimizer reads.
    """
    graph = build(
        "x", {**STEP, "data": 4, "zero": zero, "micro_batches": 3, "main_gradients": zero == 3}
    )
    first = {
        t
        for op in graph.ops
        if op.kind == "reduce_scatter" and "micro0" in op.name
        for t in op.outputs
    }
    added = [
        op.mutates[0] for op in graph.ops if op.stream == "reduce" and op.kind == "elementwise"
    ]
    assert sorted(added) == sorted([*first] * 2)
    assert {t for op in graph.ops if op.kind == "optimizer" for t in op.inputs} == first


def test_gradients_that_nobody_shares_are_sent_twice():
    """In an all-reduce a device sends every byte twice but for its own share: 3/4 of them at 1
    B/ns.
    """
    graph = build("x", {**STEP, "data": 4, "link": "1 GB/s"})
    times = {op.name: op.duration_ns for op in graph.ops if op.kind == "all_reduce"}
    assert times["backward.model.layers.0.all_reduce"] == 2 * (2 * LAYER) * 3 // 4
    assert len(times) == 3


def test_each_stage_of_zero_needs_less_than_the_one_before():
    """With two micro-batches, so that gradients wait for the second one."""
    large = {
        **STEP,
        "config": {**STEP["config"], "num_hidden_layers": 8},
        "sequence": 4,
        "data": 8,
        "micro_batches": 2,
    }
    peaks = [static_peak(build("x", {**large, "zero": zero})).bytes for zero in range(4)]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


def test_shards_may_live_below():
    graph = build("x", {**STEP, "data": 4, "zero": 3, "shards_home": "ddr", "states_home": "ddr"})
    assert {t.home for t in graph.tensors if t.kind in ("parameter", "optimizer_state")} == {"ddr"}


def test_selective_recomputation_runs_no_product_again():
    model = {
        **STEP,
        "config": {**STEP["config"], "num_hidden_layers": 8},
        "sequence": 512,
        "fused": False,
        "tensor": 2,
    }
    none, full, selective = [
        build("x", {**model, **more})
        for more in ({}, {"checkpoint": True}, {"checkpoint": True, "selective": True})
    ]
    flops = [sum(op.flops for op in graph.ops) for graph in (none, full, selective)]
    assert flops[2] == flops[0] < flops[1]
    again = {op.kind for op in selective.ops if op.name.startswith("recompute.")}
    assert again
    assert not again & {"matmul", "attention", "all_reduce"}
    peaks = [static_peak(graph).bytes for graph in (none, full, selective)]
    assert peaks[1] < peaks[2] < peaks[0]


def test_every_other_product_of_a_layer_runs_again():
    """Seven products a layer: of queries, keys, values, output, gate, up and down the second,
    fourth and sixth.
    """
    graph = build("x", {**STEP, "checkpoint": True, "selective": True, "every_other_product": True})
    again = [
        op.name.removeprefix("recompute.")
        for op in graph.ops
        if op.name.startswith("recompute.") and op.kind == "matmul"
    ]
    assert sorted(again) == [
        f"model.layers.{n}.{name}"
        for n in range(2)
        for name in ("mlp.up_proj", "self_attn.k_proj", "self_attn.o_proj")
    ]
    kept = {op.name for op in build("x", {**STEP, "checkpoint": True, "selective": True}).ops}
    assert {op.name for op in graph.ops} - kept == {f"recompute.{name}" for name in again}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zero": 4, "data": 2}, "^zero: expected a stage of ZeRO from 0 to 3, got 4$"),
        ({"zero": 3}, "^zero: one device shares nothing; give data, too$"),
        ({"data": 2, "phase": "prefill"}, "^data: only phase=train"),
        ({"data": 2, "zero": 2, "reshard": False}, "^reshard: only zero=3 gathers parameters$"),
        (
            {"data": 2, "zero": 1, "shards_home": "ddr"},
            "^shards_home: only zero=3 gathers parameters$",
        ),
        (
            {"data": 2, "zero": 3, "pipeline": 2},
            "^zero: stages of a pipeline work with zero=0 and zero=1$",
        ),
        (
            {"data": 2, "zero": 2, "main_gradients": True},
            "^main_gradients: zero=2 keeps gradients in the dtype of the step$",
        ),
        (
            {"checkpoint": True, "every_other_product": True},
            "^every_other_product: every_other_product works with selective: true only$",
        ),
        (
            {"attention_kernel": "flash2", "phase": "prefill"},
            "^attention_kernel: works for phase=train, with attention: causal",
        ),
        (
            {"attention_kernel": "flash3"},
            "^attention_kernel: expected one of flash1, flash2; got 'flash3'$",
        ),
        ({"selective": True}, "^selective: selective works with checkpoint: true only$"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        build("x", {**STEP, **changes})

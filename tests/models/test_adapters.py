"""Adapters beside a frozen model: what learns, what is kept, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosim.engine import replay
from hosim.errors import InputError
from hosim.graph import Graph
from hosim.io import load_hardware
from hosim.io.models import build
from hosim.policies import policy_named
from hosim.shipped import find_hardware

H100 = load_hardware(find_hardware("h100"))
SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 1000, "intermediate_size": 128}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
WIDTHS = {
    "q_proj": (64, 64),
    "k_proj": (64, 32),
    "v_proj": (64, 32),
    "o_proj": (64, 64),
    "gate_proj": (64, 128),
    "up_proj": (64, 128),
    "down_proj": (128, 64),
}


def step(**more: object) -> Graph:
    given = {"model": "llama-3.1-8b", "phase": "train", "sequence": 96, "config": SIZES}
    return build("step", {**given, **more})


def held(graph: Graph, kind: str) -> int:
    return sum([tensor.size_bytes for tensor in graph.tensors if tensor.kind == kind])


@settings(max_examples=10)
@given(
    rank=st.integers(1, 32),
    modules=st.lists(st.sampled_from(sorted(WIDTHS)), unique=True),
    more=st.sampled_from(
        [
            {},
            {"fused": True},
            {"micro_batches": 2},
            {"checkpoint": True},
            {"loss": "chunked"},
            {"weights": "nf4"},
            {"data": 2},
            {"data": 2, "zero": 2, "micro_batches": 2},
            {"main_gradients": True},
            {"foreach": True},
        ]
    ),
)
def test_adapters_alone_learn(rank: int, modules: list[str], more: dict[str, object]) -> None:
    """Two bytes of a gradient and 12 of states for each element of the adapters: the sum over both
    layers of rank x (in + out).
    """
    named = {"lora_modules": "/".join(modules)} if modules else {}
    graph = step(lora_rank=rank, **named, **more)
    elements = 2 * rank * sum([sum(WIDTHS[name]) for name in modules or WIDTHS])
    updated = {
        graph.tensors[t].name
        for op in graph.ops
        if op.kind == "optimizer"
        for t in op.mutates
        if graph.tensors[t].kind == "parameter"
    }
    learned = {t.name for t in graph.tensors if t.kind == "parameter" and ".lora_" in t.name}
    assert updated == learned
    assert sum([t.size_bytes for t in graph.tensors if t.name in learned]) == 2 * elements
    if "data" not in more:
        assert held(graph, "optimizer_state") == 12 * elements
    gradients = {op.name for op in graph.ops if "grad_weight" in op.name}
    assert gradients
    assert all([".lora_" in name for name in gradients])


def test_what_is_frozen_keeps_no_inputs_for_its_gradient() -> None:
    """A product of frozen weights going backward reads the weight alone, so less is kept."""
    whole, frozen = [
        replay(policy_named("resident").plan(graph, H100, 10**10), H100)
        for graph in (
            step(batch=64, optimizer="none"),
            step(batch=64, optimizer="none", lora_rank=1, lora_modules="q_proj"),
        )
    ]
    assert frozen.peak_bytes["hbm"] < whole.peak_bytes["hbm"]
    for op in step(lora_rank=4).ops:
        if op.name.endswith("down_proj.grad_input"):
            assert len(op.inputs) == 2


@pytest.mark.parametrize("weights", ["nf4", "nf4_double", "int4", "int8"])
def test_a_frozen_base_may_be_packed(weights: str) -> None:
    plain, packed = step(lora_rank=4), step(lora_rank=4, weights=weights)
    assert held(packed, "parameter") < held(plain, "parameter")
    unpacked = [op.name for op in packed.ops if "dequantise" in op.name]
    both_ways = {name.startswith("backward.") for name in unpacked}
    assert both_ways == ({False, True} if weights.startswith("nf4") else set())
    assert [op.name for op in packed.ops if op.kind == "optimizer"] == [
        op.name for op in plain.ops if op.kind == "optimizer"
    ]


def test_stages_and_experts_have_adapters_too() -> None:
    stage = step(lora_rank=4, pipeline=2, stage=1, micro_batches=2)
    assert any(op.name.endswith("recv.grad") for op in stage.ops)
    mixture = build(
        "mixture",
        {
            "model": "qwen3-30b-a3b",
            "phase": "train",
            "layers": 1,
            "sequence": 64,
            "lora_rank": 4,
            "weights": "nf4",
            "packed": "experts",
        },
    )
    names = {op.name.split(".")[-1] for op in mixture.ops if op.kind == "optimizer"}
    assert names == {"weight"}
    experts = [t for t in mixture.tensors if t.kind == "expert"]
    # 128 experts of 3 x 2048 x 768 elements, half a byte each and 4 bytes for 64 of them
    assert sum([t.size_bytes for t in experts]) == 128 * 3 * 2048 * 768 * 9 // 16


@pytest.mark.parametrize(
    ("more", "where", "said"),
    [
        (
            {"lora_rank": 4, "lora_modules": "q_prj"},
            "lora_modules",
            "no projection is called 'q_prj'",
        ),
        ({"lora_modules": "q_proj"}, "lora_modules", "give lora_rank"),
        ({"lora_rank": 4, "lora_modules": ""}, "lora_modules", "expected names"),
        ({"lora_rank": 4, "lora_modules": "q_proj/"}, "lora_modules", "expected names"),
        ({"weights": "nf4"}, "weights", "packed weights do not learn"),
        ({"lora_rank": 4, "tensor": 2}, "lora_rank", "devices that have all weights"),
        ({"lora_rank": 4, "data": 2, "zero": 3}, "lora_rank", "devices that have all weights"),
        ({"lora_rank": 0}, "lora_rank", "at least 1"),
        ({"lora_rank": 4, "phase": "prefill"}, "lora_rank", "only phase=train"),
    ],
)
def test_what_does_not_go_together(more: dict[str, object], where: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        step(**more)
    assert error.value.where == where


def test_projections_of_latent_attention_have_adapters() -> None:
    """By hand: rank x (in + out) of the five products of DeepSeek-V2-Lite's kind with queries of a
    latent vector of their own.
    """
    sizes = {"hidden_size": 64, "q_lora_rank": 24, "kv_lora_rank": 32, "num_attention_heads": 4}
    sizes |= {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    ins_and_outs = {
        "q_a_proj": 64 + 24,
        "q_b_proj": 24 + 4 * (16 + 8),
        "kv_a_proj_with_mqa": 64 + 32 + 8,
        "kv_b_proj": 32 + 4 * (16 + 16),
        "o_proj": 4 * 16 + 64,
    }
    more = {"lora_rank": 2, "lora_modules": "/".join(ins_and_outs), "layers": 1, "config": sizes}
    graph = build("latent", {"model": "deepseek-v3", "phase": "train", "sequence": 16, **more})
    adapters = [t for t in graph.tensors if t.kind == "parameter" and ".lora_" in t.name]
    assert sum([t.size_bytes for t in adapters]) == 2 * 2 * sum(ins_and_outs.values())


def test_a_stage_may_lack_projections_of_other_stages() -> None:
    """The first layer is dense; the second has experts alone, which have no adapters."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32}
    more = {"model": "deepseek-v3", "phase": "train", "sequence": 16, "layers": 2, "pipeline": 2}
    more |= {"lora_rank": 4, "config": {**sizes, "n_shared_experts": 0, "first_k_dense_replace": 1}}
    adapted = [
        {t.name.split(".")[-3] for t in stage.tensors if ".lora_A" in t.name} - {"optimizer"}
        for stage in (
            build("stage", {**more, "stage": i, "lora_modules": "o_proj/gate_proj"}) for i in (0, 1)
        )
    ]
    assert adapted[0] >= {"o_proj", "gate_proj"}
    assert "gate_proj" not in adapted[1]
    with pytest.raises(InputError, match="no projection is called"):
        build("stage", {**more, "stage": 1, "lora_modules": "gate_proj"})

"""Training steps of the builders beside torch's own account: ``MemTracker`` and ``FlopCounterMode``
on the models of transformers.

Models are reduced and fake (no contents); forward and backward run as eager PyTorch runs them on
the CPU, whose attention takes an explicit mask, keeps it as numbers, and has no fused kernel for
heads of unequal width.
"""

import pytest

from hosim.analysis import static_peak
from hosim.io.importers.torch_programs import import_training
from hosim.io.models import build

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from installed_transformers import narrowed  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

LLAMA = {
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
    "vocab_size": 32000,
    "head_dim": 64,
}
QWEN = {
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "vocab_size": 8000,
}
DEEPSEEK = {
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "vocab_size": 8000,
}


def truth(name, config, batch, sequence, checkpoint=False):
    """Peak bytes, bytes of parameters, and FLOP of one step."""
    cls = getattr(transformers, name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = narrowed(cls(cls.config_class(**config, attn_implementation="sdpa")).train())
            if checkpoint:
                enable = (
                    getattr(model, "activation_checkpointing_enable", None)
                    or model.gradient_checkpointing_enable
                )  # its name before 6
                enable({"use_reentrant": False})
            ids = torch.zeros(batch, sequence, dtype=torch.int64)
            tracker, counter = MemTracker(), FlopCounterMode(display=False)
            tracker.track_external(model)
            with tracker, counter:
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
                loss.backward()
            (peak,) = tracker.get_tracker_snapshot("peak").values()
            learned = sum(p.numel() * p.itemsize for p in model.parameters())
            return peak["Total"], learned, counter.get_total_flops()
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("model", "name", "batch", "sequence", "sizes", "other", "parameters"),
    [
        ("llama-3.1-8b", "LlamaForCausalLM", 1, 512, LLAMA, {}, {"attention": "masked"}),
        pytest.param(
            "llama-3.1-8b",
            "LlamaForCausalLM",
            1,
            2048,
            LLAMA,
            {},
            {"attention": "masked"},
            marks=pytest.mark.long,
        ),
        (
            "llama-3.1-8b",
            "LlamaForCausalLM",
            1,
            2048,
            LLAMA,
            {},
            {"attention": "masked", "checkpoint": True},
        ),
        (
            "qwen3-30b-a3b",
            "Qwen3MoeForCausalLM",
            2,
            512,
            QWEN,
            {"norm_topk_prob": True},
            {"attention": "masked"},
        ),
        pytest.param(
            *(
                "deepseek-v3",
                "DeepseekV3ForCausalLM",
                2,
                512,
                DEEPSEEK,
                {"n_routed_experts": 16, "topk_group": 2},
                {"attention": "math"},
            ),
            marks=pytest.mark.long,
        ),
    ],
    ids=["llama-512", "llama-2048", "llama-checkpoint", "qwen", "deepseek"],
)
def test_a_training_step(model, name, batch, sequence, sizes, other, parameters, compared):
    true_peak, true_learned, true_flops = truth(
        name, {**sizes, **other}, batch, sequence, parameters.get("checkpoint", False)
    )
    config = {**sizes, **({"num_experts": 16} if "n_routed_experts" in other else {})}
    common = {
        "model": model,
        "phase": "train",
        "optimizer": "none",
        "batch": batch,
        "sequence": sequence,
        "config": config,
    }
    graph = build(model, {**common, **parameters})
    peak = static_peak(graph).bytes
    flops = sum(op.flops for op in graph.ops if op.kind != "attention")
    step = (
        f"built step of {model} at {batch} x "
        f"{sequence}{', checkpointed' if 'checkpoint' in parameters else ''}"
    )
    compared(
        "MemTracker",
        step,
        "bytes of parameters",
        true_learned,
        sum(t.size_bytes for t in graph.tensors if t.kind in ("parameter", "expert")),
    )
    compared("MemTracker", step, "peak bytes", true_peak, peak, 0.03)
    if (
        model == "llama-3.1-8b"
    ):  # torch counts neither grouped products nor the CPU's fused attention
        compared("FlopCounterMode", step, "FLOP", true_flops, flops)


@pytest.mark.parametrize("optimizer", ["adamw", "none"])
@pytest.mark.parametrize(
    ("model", "name", "sizes", "other", "attention"),
    [
        ("llama-3.1-8b", "LlamaForCausalLM", LLAMA, {}, "masked"),
        ("qwen3-30b-a3b", "Qwen3MoeForCausalLM", QWEN, {"norm_topk_prob": True}, "masked"),
        (
            "deepseek-v3",
            "DeepseekV3ForCausalLM",
            DEEPSEEK,
            {"n_routed_experts": 16, "topk_group": 2},
            "math",
        ),
    ],
    ids=["llama", "qwen", "deepseek"],
)
def test_a_traced_step(model, name, sizes, other, attention, optimizer, compared):
    def make():
        cls = getattr(transformers, name)
        with torch.device("meta"):
            return narrowed(
                cls(
                    cls.config_class(**sizes, **other, attn_implementation="sdpa", use_cache=False)
                ).train()
            )

    ids = torch.empty(2, 512, dtype=torch.int64, device="meta")
    known_to_torch = "adamw-master" if optimizer == "adamw" else optimizer
    traced = import_training(
        make, {"input_ids": ids, "labels": ids}, name=model, dtype="bf16", optimizer=known_to_torch
    )
    config = {**sizes, **({"num_experts": 16} if "n_routed_experts" in other else {})}
    common = {"model": model, "phase": "train", "batch": 2, "sequence": 512, "attention": attention}
    built = build(model, {**common, "optimizer": optimizer, "config": config})
    step = f"built step of {model}, optimizer {optimizer}"
    for kind, within in (
        ("parameter", 0),
        ("expert", 0),
        ("optimizer_state", 0.0001),
    ):  # built ones do not count their steps
        true, ours = [
            sum(t.size_bytes for t in graph.tensors if t.kind == kind) for graph in (traced, built)
        ]
        compared("traced step", step, f"bytes of {kind}", true, ours, within)
    compared(
        "traced step",
        step,
        "FLOP",
        sum(op.flops for op in traced.ops),
        sum(op.flops for op in built.ops),
        0.01,
    )
    compared(
        "traced step", step, "peak bytes", static_peak(traced).bytes, static_peak(built).bytes, 0.03
    )

"""Ten models of transformers, small enough to run in a second: their config classes and code are
those of the large ones.
"""

from functools import cache
from typing import Any

import torch
import transformers

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT = {
    **TINY,
    "vocab_size": 120,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GQA = {**TEXT, "num_key_value_heads": 2}
DEEPSEEK = {
    **TEXT,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
GPT2 = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 120,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", GQA),
    "qwen3": ("Qwen3ForCausalLM", {**GQA, "head_dim": 16}),
    "mistral": ("MistralForCausalLM", {**GQA, "sliding_window": 8}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gemma": ("GemmaForCausalLM", {**TEXT, "num_key_value_heads": 1, "head_dim": 16}),
    "bert": ("BertModel", TEXT),
    "vit": ("ViTForImageClassification", {**TINY, "image_size": 48, "patch_size": 8}),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 120},
    ),
    "mixtral": ("MixtralForCausalLM", {**GQA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", DEEPSEEK),
}

Program = torch.export.ExportedProgram


def inputs_of(name: str) -> dict[str, torch.Tensor]:
    """What a model is called with: enough tokens for its activations to outweigh its parameters
    somewhere.
    """
    if name == "vit":
        return {"pixel_values": torch.rand(8, 3, 48, 48)}
    tokens = torch.arange(4 * 100).reshape(4, 100) % 117 + 3
    return (
        {"input_ids": tokens, "decoder_input_ids": tokens[:, :80].clone()}
        if name == "t5"
        else {"input_ids": tokens}
    )


def model_of(name: str, device: str = "cpu") -> torch.nn.Module:
    class_name, config = MODELS[name]
    cls = getattr(transformers, class_name)
    made = cls.config_class(**config)
    if hasattr(made, "use_cache"):
        made.use_cache = False
    torch.manual_seed(0)
    with torch.device(device):
        return cls(made).eval()


@cache
def exported(name: str, device: str = "cpu") -> Program:
    """The program as ``torch.export`` gives it, with nothing about the model changed."""
    inputs = {key: value.to(device) for key, value in inputs_of(name).items()}
    return torch.export.export(model_of(name, device), (), inputs, strict=False)

"""The presets of decoders have the parameters of the whole models of transformers, which are made without memory for them."""

import pytest

from hosim.models.build import build
from hosim.models.config import Decoder
from hosim.models.presets import PRESETS

KINDS = {
    "llama": "llama",
    "mistral": "mistral",
    "mixtral": "mixtral",
    "qwen2.5": "qwen2",
    "qwen3": "qwen3",
    "qwen3-30b-a3b": "qwen3_moe",
    "qwen3-235b-a22b": "qwen3_moe",
    "deepseek-v2": "deepseek_v2",
    "deepseek-v3": "deepseek_v3",
    "gemma-2": "gemma2",
    "gemma-3": "gemma3_text",
    "phi-2": "phi",
    "phi-3": "phi3",
    "phi-4": "phi3",
    "gpt-oss": "gpt_oss",
    "opt": "opt",
    "bloom": "bloom",
    "falcon": "falcon",
    "mpt": "mpt",
    "pythia": "gpt_neox",
    "gpt-neox": "gpt_neox",
    "gpt-j": "gptj",
    "command-r": "cohere",
}
"""The type of the longest beginning of a preset's name."""


def config_of(kind, sizes):
    """The keys of a config of transformers, which are the fields of the sizes or have names of their own."""
    width, layers, heads = sizes.hidden_size, sizes.num_hidden_layers, sizes.num_attention_heads
    if kind in ("bloom", "gptj"):
        return {"hidden_size" if kind == "bloom" else "n_embd": width, "n_layer": layers, "n_head": heads}
    if kind == "mpt":
        return {"d_model": width, "n_layers": layers, "n_heads": heads, "vocab_size": sizes.vocab_size}
    keys = {name: getattr(sizes, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")}
    if kind == "opt":
        return {**keys, "ffn_dim": sizes.intermediate_size}
    if kind == "falcon":
        return {**keys, "new_decoder_architecture": not sizes.shared_norm, "num_kv_heads": sizes.num_key_value_heads}
    for name in ("num_key_value_heads", "intermediate_size", "head_dim", "num_experts_per_tok", "moe_intermediate_size"):
        keys[name] = getattr(sizes, name)
    if sizes.kv_lora_rank:
        for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "first_k_dense_replace", "n_shared_experts"):
            keys[name] = getattr(sizes, name)
        keys["q_lora_rank"] = sizes.q_lora_rank or None
    experts = "n_routed_experts" if sizes.kv_lora_rank else "num_experts" if kind == "qwen3_moe" else "num_local_experts"
    turned = {"partial_rotary_factor": sizes.rotary_width / sizes.head_dim} if sizes.rotary_width else {}
    ends = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    return {**keys, **turned, **ends, experts: sizes.num_experts, "tie_word_embeddings": sizes.tie_word_embeddings}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, sizes in PRESETS.items() if isinstance(sizes, Decoder)])
def test_a_preset_has_the_parameters_of_the_whole_model(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    kind = KINDS[max((begin for begin in KINDS if name.startswith(begin)), key=len)]
    config = transformers.AutoConfig.for_model(kind, **config_of(kind, PRESETS[name]))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    graph = build(name, {"model": name, "fused": True, "sequence": 8})
    ours = sum(t.size_bytes for t in graph.tensors if t.kind in ("parameter", "expert")) // 2
    assert ours == sum(p.numel() for p in model.parameters())

"""Training and decoding steps do the work of transformers, and presets of decoders have the
parameters of its whole models.
"""

import pytest
from small_configs import CLASSES, MODELS, model_of, run_of

import hosim
from hosim.io.models import PRESETS, Decoder, build

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
    """The keys of a config of transformers, which are the fields of the sizes or have names of
    their own.
    """
    width, layers, heads = sizes.hidden_size, sizes.num_hidden_layers, sizes.num_attention_heads
    if kind in ("bloom", "gptj"):
        return {
            "hidden_size" if kind == "bloom" else "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
        }
    if kind == "mpt":
        return {
            "d_model": width,
            "n_layers": layers,
            "n_heads": heads,
            "vocab_size": sizes.vocab_size,
        }
    keys = {
        name: getattr(sizes, name)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    }
    if kind == "opt":
        return {**keys, "ffn_dim": sizes.intermediate_size}
    if kind == "falcon":
        return {
            **keys,
            "new_decoder_architecture": not sizes.shared_norm,
            "num_kv_heads": sizes.num_key_value_heads,
        }
    for name in (
        "num_key_value_heads",
        "intermediate_size",
        "head_dim",
        "num_experts_per_tok",
        "moe_intermediate_size",
    ):
        keys[name] = getattr(sizes, name)
    if sizes.kv_lora_rank:
        for name in (
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "first_k_dense_replace",
            "n_shared_experts",
        ):
            keys[name] = getattr(sizes, name)
        keys["q_lora_rank"] = sizes.q_lora_rank or None
    experts = (
        "n_routed_experts"
        if sizes.kv_lora_rank
        else "num_experts"
        if kind == "qwen3_moe"
        else "num_local_experts"
    )
    turned = (
        {"partial_rotary_factor": sizes.rotary_width / sizes.head_dim} if sizes.rotary_width else {}
    )
    ends = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    return {
        **keys,
        **turned,
        **ends,
        experts: sizes.num_experts,
        "tie_word_embeddings": sizes.tie_word_embeddings,
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name, sizes in PRESETS.items() if isinstance(sizes, Decoder)]
)
def test_a_preset_has_the_parameters_of_the_whole_model(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    kind = KINDS[max((begin for begin in KINDS if name.startswith(begin)), key=len)]
    config = transformers.AutoConfig.for_model(kind, **config_of(kind, PRESETS[name]))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    graph = build(name, {"model": name, "fused": True, "sequence": 8})
    assert total(graph, "parameter", "expert") // 2 == sum(p.numel() for p in model.parameters())


def total(graph, *kinds):
    return sum(t.size_bytes for t in graph.tensors if t.kind in kinds)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_does_the_work_of_transformers(name):
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    kind, config, model, inputs = model_of(name)
    with FlopCounterMode(display=False) as counter:
        model(**inputs).logits.float().sum().backward()
    apart = {} if kind in CLASSES else {"attention": "math"}
    graph = hosim.load({"model": config.to_dict(), "phase": "train", **run_of(kind), **apart})
    ours = sum(op.flops for op in graph.ops)
    if kind in CLASSES:  # built with the fused kernel, which computes scores again
        forward = sum(
            op.flops
            for op in graph.ops
            if op.kind == "attention" and not op.name.startswith("backward.")
        )
        ours -= forward // 2
    assert ours == counter.get_total_flops()


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name in MODELS if not name.startswith(("bert", "vit", "deepseek"))]
)  # which keeps no latents
def test_a_decoding_step_does_the_work_of_transformers_and_has_its_cache(name):
    torch = pytest.importorskip("torch")
    from installed_transformers import CACHE
    from torch.utils.flop_counter import FlopCounterMode

    kind, config, model, inputs = model_of(name)
    last = {
        "decoder_input_ids" if kind in CLASSES else "input_ids": torch.zeros(
            2, 1, dtype=torch.int64
        )
    }
    with torch.no_grad():
        before = model(
            **{**inputs, **{key: inputs[key][:, :11] for key in last}, "use_cache": True}
        )
        kept = {"encoder_outputs": (before.encoder_last_hidden_state,)} if kind in CLASSES else {}
        with FlopCounterMode(display=False) as counter:
            cache = model(**last, **kept, **{CACHE: before[CACHE]}, use_cache=True)[CACHE]
    source = {"sequence": 12} if kind in ("t5", "mt5") else {}
    graph = hosim.load(
        {"model": config.to_dict(), "batch": 2, "phase": "decode", "context": 12, **source}
    )
    assert sum(op.flops for op in graph.ops) == counter.get_total_flops()
    halves = (
        (cache.self_attention_cache, cache.cross_attention_cache) if kind in CLASSES else (cache,)
    )
    elements = sum(
        layer.keys.numel() + layer.values.numel() for half in halves for layer in half.layers
    )
    copies = 2 if "in groups" in name else 1  # Falcon repeats grouped keys before it keeps them
    assert total(graph, "kv_cache") == 2 * elements // copies

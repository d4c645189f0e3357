"""The names that the parts of a decoder have in transformers, by family."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PartNames:
    """The names of modules; those of parameters are ``NAME.weight`` and ``NAME.bias``. A part with
    an empty name is no module of its own.

    ``mixture`` is the module of a mixture if it is not that of the MLP. ``mixer`` is the module of
    a mixer of tokens other than attention. ``qkv`` and ``gate_up`` are projections in one tensor.
    ``after_attention`` and ``after_mlp`` are the norms of results before they are added.
    """

    model: str = "model"
    table: str = "embed_tokens"
    table_norm: str = "embed_norm"
    positions: str = "embed_positions"
    layers: str = "layers"
    before_attention: str = "input_layernorm"
    attention: str = "self_attn"
    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    attention_gate: str = "gate_proj"
    qkv: str = "qkv_proj"
    out: str = "o_proj"
    after_attention: str = "post_attention_layernorm"
    before_mlp: str = "post_attention_layernorm"
    mlp: str = "mlp"
    mixture: str | None = None
    router: str = "gate"
    correction: str = "e_score_correction_bias"
    experts: str = "experts"
    shared: str = "shared_experts"
    shared_gate: str = "shared_expert_gate"
    mixer: str = "mixer"
    gate: str = "gate_proj"
    up: str = "up_proj"
    gate_up: str = "gate_up_proj"
    down: str = "down_proj"
    after_mlp: str = "post_feedforward_layernorm"
    norm: str = "norm"


_BLOOM = PartNames(
    model="transformer",
    table="word_embeddings",
    table_norm="word_embeddings_layernorm",
    layers="h",
    attention="self_attention",
    qkv="query_key_value",
    out="dense",
    norm="ln_f",
    up="dense_h_to_4h",
    down="dense_4h_to_h",
)

_GPT2 = PartNames(
    model="transformer",
    table="wte",
    positions="wpe",
    layers="h",
    before_attention="ln_1",
    attention="attn",
    qkv="c_attn",
    out="c_proj",
    before_mlp="ln_2",
    up="c_fc",
    down="c_proj",
    norm="ln_f",
)
_LFM2 = PartNames(
    before_attention="operator_norm",
    out="out_proj",
    q_norm="q_layernorm",
    k_norm="k_layernorm",
    mixer="conv",
    before_mlp="ffn_norm",
    mlp="feed_forward",
    gate="w1",
    up="w3",
    down="w2",
    norm="embedding_norm",
)

NAMES: Mapping[str, PartNames] = {
    "llama": PartNames(),
    "gemma": PartNames(before_mlp="pre_feedforward_layernorm"),
    "glm4": PartNames(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    "qwen-moe": PartNames(shared="shared_expert", mixer="linear_attn"),
    "phimoe": PartNames(router="router"),
    "llama4": PartNames(mlp="feed_forward", router="router", shared="shared_expert"),
    "hunyuan": PartNames(
        q_norm="query_layernorm", k_norm="key_layernorm", router="gate.wg", shared="shared_mlp"
    ),
    "granite-moe": PartNames(
        mixture="",
        router="block_sparse_moe.router",
        experts="block_sparse_moe.experts",
        shared="shared_mlp",
        gate_up="input_linear",
        down="output_linear",
        mixer="mamba",
    ),
    "granite-dense": PartNames(
        mlp="shared_mlp", gate_up="input_linear", down="output_linear", mixer="mamba"
    ),
    "jamba": PartNames(
        mixer="mamba",
        mlp="feed_forward",
        router="router",
        before_mlp="pre_ff_layernorm",
        norm="final_layernorm",
    ),
    "nemotron-h": PartNames(
        table="embeddings",
        before_attention="norm",
        attention="mixer",
        before_mlp="norm",
        mlp="mixer",
        norm="norm_f",
    ),
    "mamba": PartNames(
        model="backbone", table="embeddings", before_attention="norm", norm="norm_f"
    ),
    "kimi-linear": PartNames(mixer="self_attn"),
    "lfm2": _LFM2,
    "apertus": PartNames(
        before_attention="attention_layernorm", before_mlp="feedforward_layernorm"
    ),
    "hyperclovax": PartNames(after_attention="post_norm1", after_mlp="post_norm2"),
    "persimmon": replace(
        _BLOOM,
        model="model",
        table="embed_tokens",
        layers="layers",
        attention="self_attn",
        norm="final_layernorm",
        q_norm="q_layernorm",
        k_norm="k_layernorm",
    ),
    "nanochat": PartNames(up="fc1", down="fc2"),
    "afmoe": PartNames(
        router="router.gate", before_mlp="pre_mlp_layernorm", after_mlp="post_mlp_layernorm"
    ),
    "laguna": PartNames(attention_gate="g_proj"),
    "lfm3": replace(
        _LFM2,
        out="o_proj",
        q_norm="q_norm",
        k_norm="k_norm",
        after_attention="post_operator_norm",
        attention_gate="g_proj",
        after_mlp="post_ffn_norm",
    ),
    "gpt-neo": replace(_GPT2, attention="attn.attention", qkv="qkv_proj", out="out_proj"),
    "gemma4": PartNames(before_mlp="pre_feedforward_layernorm", mixture="", router="router.proj"),
    "ernie": PartNames(correction="moe_statics.e_score_correction_bias"),
    "phi": PartNames(out="dense", up="fc1", down="fc2", norm="final_layernorm"),
    "opt": PartNames(
        model="model.decoder",
        before_attention="self_attn_layer_norm",
        out="out_proj",
        before_mlp="final_layer_norm",
        mlp="",
        up="fc1",
        down="fc2",
        norm="final_layer_norm",
    ),
    "bloom": _BLOOM,
    "gpt-neox": replace(
        _BLOOM,
        model="gpt_neox",
        table="embed_in",
        layers="layers",
        attention="attention",
        norm="final_layer_norm",
    ),
    "gptj": replace(
        _GPT2,
        positions="embed_positions",
        qkv="qkv_proj",
        out="out_proj",
        before_mlp="post_attention_layernorm",
        up="fc_in",
        down="fc_out",
    ),
    "starcoder2": PartNames(up="c_fc", down="c_proj"),
    "mpt": PartNames(
        model="transformer",
        table="wte",
        layers="blocks",
        before_attention="norm_1",
        attention="attn",
        qkv="Wqkv",
        out="out_proj",
        before_mlp="norm_2",
        mlp="ffn",
        norm="norm_f",
    ),
    "gpt2": _GPT2,
    "falcon": _BLOOM,
    "falcon-two-norms": replace(_BLOOM, before_attention="ln_attn", before_mlp="ln_mlp"),
}
"""Names by the value of :attr:`hosim.io.models.config.Decoder.names`."""
